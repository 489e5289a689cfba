//! Access rules: their parts, and the clients they let in.
//!
//! Schemes: `world` (everybody), `digest` (name and password), `ip` (address, or a network as `address/bits`), and in
//! requests `auth`, which stands for the identities the connection has proven.

use crate::wire::{Acl, Code};
use std::net::IpAddr;
use std::sync::Arc;

pub(crate) const PERM_READ: i32 = 1;
pub(crate) const PERM_WRITE: i32 = 2;
pub(crate) const PERM_CREATE: i32 = 4;
pub(crate) const PERM_DELETE: i32 = 8;
pub(crate) const PERM_ADMIN: i32 = 16;
const PERM_ALL: i32 = 31;
/// What a rule costs besides its texts.
const RULE_OVERHEAD_BYTES: usize = 64;

/// Rules one node may have: every access goes through them.
pub(crate) const RULES_MAX: usize = 1000;

/// Someone a connection is: its address, and what it proved with `auth`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) scheme: &'static str,
    pub(crate) id: String,
}

fn of_world(perms: i32) -> Arc<[Acl]> {
    [Acl { perms, scheme: "world".into(), id: "anyone".into() }].into()
}

/// Everybody may do everything.
pub(crate) fn open_to_all() -> Arc<[Acl]> {
    of_world(PERM_ALL)
}

/// Bytes that rules take, roughly; those of [`open_to_all`] are shared.
pub(crate) fn size_bytes(acl: &[Acl]) -> usize {
    match acl {
        [rule] if is_world(rule) && rule.perms == PERM_ALL => 0,
        rules => rules.iter().map(|rule| RULE_OVERHEAD_BYTES + rule.scheme.len() + rule.id.len()).sum(),
    }
}

/// Everybody may read.
pub(crate) fn read_only() -> Arc<[Acl]> {
    of_world(PERM_READ)
}

/// True when one of the rules gives one of the permissions in `perm` to one of the identities.
pub(crate) fn allows(acl: &[Acl], perm: i32, identities: &[Identity]) -> bool {
    acl.is_empty()
        || acl.iter().any(|rule| {
            rule.perms & perm != 0
                && (is_world(rule)
                    || identities.iter().any(|identity| {
                        identity.scheme == rule.scheme
                            && match identity.scheme {
                                "ip" => address_matches(&identity.id, &rule.id),
                                _ => identity.id == rule.id,
                            }
                    }))
        })
}

/// Checks `perm` of `acl`.
pub(crate) fn check(acl: &[Acl], perm: i32, identities: &[Identity]) -> Result<(), Code> {
    if allows(acl, perm, identities) { Ok(()) } else { Err(Code::NoAuth) }
}

/// The rules to be kept for those of a request: without repetitions, `auth` replaced by the identities it stands for.
pub(crate) fn settle(wanted: Vec<Acl>, identities: &[Identity]) -> Result<Vec<Acl>, Code> {
    let mut unique: Vec<Acl> = Vec::with_capacity(wanted.len());
    for rule in wanted {
        if !unique.contains(&rule) {
            unique.push(rule);
        }
        if unique.len() > RULES_MAX {
            return Err(Code::InvalidAcl);
        }
    }
    if unique.is_empty() {
        return Err(Code::InvalidAcl);
    }
    let mut settled = Vec::with_capacity(unique.len());
    for rule in unique {
        match rule.scheme.as_str() {
            "auth" => {
                let before = settled.len();
                // An address is not proven by the client.
                settled.extend(identities.iter().filter(|identity| identity.scheme == "digest").map(
                    |identity| Acl {
                        perms: rule.perms,
                        scheme: identity.scheme.to_owned(),
                        id: identity.id.clone(),
                    },
                ));
                if settled.len() == before {
                    return Err(Code::InvalidAcl);
                }
            }
            "world" if rule.id == "anyone" => settled.push(rule),
            "digest" if is_digest(&rule.id) => settled.push(rule),
            "ip" if parse_network(&rule.id).is_some() => settled.push(rule),
            _ => return Err(Code::InvalidAcl),
        }
        if settled.len() > RULES_MAX {
            return Err(Code::InvalidAcl);
        }
    }
    Ok(settled)
}

/// The rules as someone without ADMIN permission sees them: no digest of a password.
pub(crate) fn masked(acl: &[Acl]) -> Vec<Acl> {
    acl.iter()
        .map(|rule| match (rule.scheme.as_str(), rule.id.split_once(':')) {
            ("digest", Some((user, _))) => Acl { id: format!("{user}:x"), ..rule.clone() },
            _ => rule.clone(),
        })
        .collect()
}

fn is_world(rule: &Acl) -> bool {
    rule.scheme == "world" && rule.id == "anyone"
}

/// Two parts around a colon, the second not empty; as Java's split sees it, colons at the end do not count.
fn is_digest(id: &str) -> bool {
    id.trim_end_matches(':').split(':').count() == 2
}

/// Address and number of significant bits.
fn parse_network(text: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let bits_max = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Some(bits_max), |bits| bits.parse().ok())?;
    (bits <= bits_max).then_some((address, bits))
}

fn address_matches(peer: &str, rule: &str) -> bool {
    let Some((network, bits)) = parse_network(rule) else { return false };
    match (peer.parse(), network) {
        (Ok(IpAddr::V4(peer)), IpAddr::V4(network)) => {
            let differing = u32::from(peer) ^ u32::from(network);
            bits == 0 || differing >> (32 - bits) == 0
        }
        (Ok(IpAddr::V6(peer)), IpAddr::V6(network)) => {
            let differing = u128::from(peer) ^ u128::from(network);
            bits == 0 || differing >> (128 - bits) == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(perms: i32, scheme: &str, id: &str) -> Acl {
        Acl { perms, scheme: scheme.into(), id: id.into() }
    }
    fn local() -> Identity {
        Identity { scheme: "ip", id: "127.0.0.1".into() }
    }
    fn someone() -> Identity {
        Identity { scheme: "digest", id: "me:hash".into() }
    }

    #[test]
    fn rules_let_in_whom_they_name() {
        let everybody = [rule(PERM_READ, "world", "anyone")];
        assert!(allows(&everybody, PERM_READ, &[]));
        assert!(!allows(&everybody, PERM_WRITE, &[local(), someone()]));
        let mine = [rule(PERM_ALL, "digest", "me:hash")];
        assert!(allows(&mine, PERM_ADMIN, &[local(), someone()]));
        assert!(!allows(&mine, PERM_READ, &[local()]));
        for (network, is_in) in [
            ("127.0.0.1", true),
            ("127.0.0.0/8", true),
            ("0.0.0.0/0", true),
            ("126.0.0.0/8", false),
            ("::1", false),
        ] {
            assert_eq!(allows(&[rule(1, "ip", network)], 1, &[local()]), is_in, "{network}");
        }
    }

    #[test]
    fn requested_rules_are_settled_or_refused() {
        let world = rule(31, "world", "anyone");
        assert_eq!(settle(vec![world.clone(), world.clone()], &[]), Ok(vec![world]));
        let auth = rule(5, "auth", "");
        assert_eq!(settle(vec![auth.clone()], &[local(), someone()]), Ok(vec![rule(5, "digest", "me:hash")]));
        assert_eq!(settle(vec![auth], &[local()]), Err(Code::InvalidAcl));
        assert_eq!(settle(vec![], &[]), Err(Code::InvalidAcl));
        let refused = [
            ("world", "me"),
            ("digest", "me"),
            ("digest", "me:"),
            ("ip", "x"),
            ("ip", "1.2.3.4/33"),
            ("sasl", "me"),
            ("", ""),
        ];
        for (scheme, id) in refused {
            assert_eq!(settle(vec![rule(1, scheme, id)], &[]), Err(Code::InvalidAcl), "{scheme}:{id}");
        }
        let taken = [("digest", "me:x"), ("digest", ":x"), ("ip", "10.0.0.0/8"), ("ip", "::1/64")];
        for (scheme, id) in taken {
            assert!(settle(vec![rule(1, scheme, id)], &[]).is_ok(), "{scheme}:{id}");
        }
    }

    /// 80,000 rules in one frame took 17 s to compare with each other, and every other client waited.
    #[test]
    fn a_node_has_a_bounded_number_of_rules() {
        let many = |count: usize| (0..count).map(|n| rule(1, "ip", &format!("10.0.{}.{}", n / 256, n % 256)));
        assert_eq!(settle(many(RULES_MAX).collect(), &[]).map(|rules| rules.len()), Ok(RULES_MAX));
        assert_eq!(settle(many(RULES_MAX + 1).collect(), &[]), Err(Code::InvalidAcl));
        let auth = (0..100).map(|perms| rule(perms, "auth", "")).collect();
        let identities: Vec<Identity> =
            (0..11).map(|n| Identity { scheme: "digest", id: format!("u{n}:h") }).collect();
        assert_eq!(settle(auth, &identities), Err(Code::InvalidAcl), "also those that stand for others");
    }

    #[test]
    fn a_digest_is_hidden_from_whom_may_only_read() {
        let shown = masked(&[rule(1, "digest", "me:secret"), rule(1, "ip", "::1")]);
        assert_eq!(shown, [rule(1, "digest", "me:x"), rule(1, "ip", "::1")]);
    }
}
