//! Roles in a client's certificate, where `BookieAuthZFactory` of BookKeeper looks for them: in the first organisational unit (OU) of
//! the subject, for example `OU=0:writers,tier;1:cluster` (`org.apache.bookkeeper.util.CertUtils`).
//!
//! ```text
//! OU     = part *( ";" part )
//! part   = code ":" name *( "," name )        code 0: roles; others are not for us
//! ```

use crate::tls::first_subject_unit;

/// The code of roles.
const ROLES: &str = "0";

/// The roles in a certificate (DER); empty when it has none.
pub(crate) fn roles(certificate: &[u8]) -> Vec<String> {
    first_subject_unit(certificate).map_or_else(Vec::new, |unit| roles_of(&unit))
}

fn roles_of(unit: &str) -> Vec<String> {
    let is_code = |code: &&str| !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = unit.split(';').filter_map(|part| part.split_once(':').filter(|(code, _)| is_code(code)));
    // Of several parts with one code the last counts, as in Java.
    let roles = parts.rfind(|(code, _)| *code == ROLES).map(|(_, names)| names);
    roles.into_iter().flat_map(|names| names.split(',')).map(|name| name.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_stand_behind_their_code() {
        for (unit, expected) in [
            ("0:writers", &["writers"][..]),
            ("0: writers , tier ;1:cluster", &["writers", "tier"]),
            ("1:cluster;0:a", &["a"]),
            ("0:a;0:b", &["b"]),
            ("0:a:b", &["a:b"]),
            ("0:", &[""]),
            ("0:,a", &["", "a"]),
            ("1:a", &[]),
            ("writers", &[]),
            ("x0:a", &[]),
            ("00:a", &[]),
            ("", &[]),
        ] {
            assert_eq!(roles_of(unit), expected, "{unit}");
        }
    }

    #[test]
    fn the_first_unit_of_the_subject_counts() {
        let mut params = rcgen::CertificateParams::new(vec!["client".to_owned()]).unwrap();
        let name = &mut params.distinguished_name;
        name.push(rcgen::DnType::OrganizationName, "0:no");
        name.push(rcgen::DnType::OrganizationalUnitName, "0:first,tier");
        name.push(rcgen::DnType::CommonName, "0:no");
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        assert_eq!(roles(certificate.der()), ["first", "tier"]);
        assert!(roles(b"no certificate").is_empty());
    }
}
