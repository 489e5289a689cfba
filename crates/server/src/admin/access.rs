//! Which requests the admin port answers: anybody may look, changes are for this machine, for the bearers of a token, and for users and
//! certificates of the role admin.
//!
//! # Data flow
//! ```text
//! request -> Access::judge -> router
//!               ├-> file of tokens, read for each request with one
//!               └-> users of the bookie ([`crate::auth`]), for each request with a name and a password
//! ```
//!
//! # Invariants
//! 1. Whatever is not a GET comes from this machine (a loopback address, or the one that it was sent to), bears a token of
//!    the file, the name and password of a user of the role admin, or comes over a connection with a certificate of that role. A proxy on this machine counts as this machine, and must decide itself whom it lets through.
//! 2. A token is compared by its SHA-256 in constant time, a password as [`crate::auth`] does it, and neither stands in a log line, answer or
//!    error.
//! 3. Names and passwords, which are those of the port for clients, are taken over TLS only, or from a loopback address.
//! 4. Each change, and each refusal, is a line of the audit log (`bindery::audit`).
//!
//! # Limits
//! The file: [`FILE_BYTES_MAX`]. One request at a time has it read, and one has a password checked, on a thread that may block and for
//! [`LOOK_MAX`] at most; others are told to try again at once.

use crate::auth::Auth;
use crate::log_limit::LogLimit;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bindery_types::are_equal_secrets;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A larger file of tokens is refused.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// One line of the audit log in this time about refusals: a stranger must not fill the disk.
const REFUSALS_INTERVAL: Duration = Duration::from_secs(1);
/// The longest wait for the file of tokens.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// In front of the SHA-256 of a token, in hexadecimal digits.
const HASHED: &str = "sha256:";

type Hash = [u8; 32];

/// The role of certificates that may make changes, as `BookieAuthZFactory` of BookKeeper finds roles: `OU=0:admin`.
const ADMIN: &str = "admin";

/// Who asks.
#[derive(Debug, Clone)]
pub(super) struct Asking {
    /// The other end of the connection.
    pub(super) peer: SocketAddr,
    /// The address that the peer connected to, if it is known.
    pub(super) here: Option<IpAddr>,
    /// Inside TLS.
    pub(super) is_encrypted: bool,
    /// Roles in the certificate that the peer presented, and that was verified.
    pub(super) certificate_roles: Vec<String>,
}

/// Decides about requests; see the module.
pub struct Access {
    tokens: Option<PathBuf>,
    /// Those who may log in to the bookie, if anybody has to.
    users: Option<Arc<Auth>>,
    /// Held by the thread that reads the file, so that guesses cost no more than that one.
    looking: Arc<tokio::sync::Mutex<()>>,
    /// Held by the thread that checks a password, for the same reason.
    checking: Arc<tokio::sync::Mutex<()>>,
    /// False in tests of what others may do.
    trusts_this_machine: bool,
    refusals: Mutex<LogLimit>,
    begun: Instant,
}

/// A request that is not answered.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// From elsewhere, and no tokens are configured.
    Remote,
    /// Without a token.
    NoToken,
    /// With a token that the file does not have.
    WrongToken,
    /// With the name of nobody who may, or with a wrong password.
    WrongUser,
    /// With a password that everybody on the way can read.
    Unencrypted,
    /// The file cannot be read.
    Unreadable(String),
    /// Another request has it read, or that takes too long.
    Busy,
}

impl Access {
    /// `tokens`: the file with the tokens that allow changes from other machines, if there is one.
    pub fn new(tokens: Option<PathBuf>) -> Access {
        Access {
            tokens,
            users: None,
            looking: Arc::default(),
            checking: Arc::default(),
            trusts_this_machine: true,
            refusals: Mutex::new(LogLimit::new(REFUSALS_INTERVAL)),
            begun: Instant::now(),
        }
    }

    /// The same, and users of the role admin may make changes, too.
    #[must_use]
    pub fn with_users(self, users: Option<Arc<Auth>>) -> Access {
        Access { users, ..self }
    }

    /// As [`Access::new`], and this machine has no rights of its own.
    #[cfg(test)]
    pub(super) fn for_strangers(tokens: Option<PathBuf>) -> Access {
        Access { trusts_this_machine: false, ..Access::new(tokens) }
    }

    /// The answer to a request that is refused, else `None`.
    pub(super) async fn refuse(
        &self,
        asking: &Asking,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Option<Response> {
        if *method == Method::GET || *method == Method::HEAD {
            return None;
        }
        let peer = asking.peer;
        let refusal = match self.judge(asking, headers).await {
            Ok(user) => {
                tracing::info!(target: "bindery::audit", %peer, user, %method, path, "admin request");
                return None;
            }
            Err(refusal) => refusal,
        };
        let now_ns = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let others = self.refusals.lock().admit(now_ns);
        if let Some(others) = others {
            let why = refusal.text();
            tracing::warn!(target: "bindery::audit", %peer, %method, path, others, "admin request refused: {why}");
            if let Refusal::Unreadable(error) = &refusal {
                tracing::error!(error, "cannot read the token file of the admin port");
            }
        }
        Some(refusal.answer())
    }

    /// The user whose request may be answered, if it is one.
    async fn judge(&self, asking: &Asking, headers: &HeaderMap) -> Result<Option<String>, Refusal> {
        let ip = asking.peer.ip().to_canonical();
        let is_near = ip.is_loopback() || asking.here.is_some_and(|here| here.to_canonical() == ip);
        let has_role = asking.certificate_roles.iter().any(|role| role == ADMIN);
        if has_role || is_near && self.trusts_this_machine {
            return Ok(None);
        }
        let authorization = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        if let (Some(users), Some(login)) =
            (&self.users, authorization.and_then(|value| of_scheme("basic", value)))
        {
            if !asking.is_encrypted && !ip.is_loopback() {
                return Err(Refusal::Unencrypted);
            }
            let alone = self.checking.clone().try_lock_owned().map_err(|_| Refusal::Busy)?;
            let admin = tokio::time::timeout(LOOK_MAX, users.admin(login, alone)).await;
            let admin = admin.map_err(|_| Refusal::Busy)?;
            return admin.map(Some).ok_or(Refusal::WrongUser);
        }
        let Some(file) = &self.tokens else {
            return Err(if self.users.is_some() { Refusal::NoToken } else { Refusal::Remote });
        };
        let token = authorization.and_then(|value| of_scheme("bearer", value));
        let token = token.ok_or(Refusal::NoToken)?;
        let presented: Hash = Sha256::digest(token).into();
        let file = file.clone();
        let alone = self.looking.clone().try_lock_owned().map_err(|_| Refusal::Busy)?;
        let read = tokio::task::spawn_blocking(move || {
            let known = read_tokens(&file);
            drop(alone);
            known
        });
        let known = match tokio::time::timeout(LOOK_MAX, read).await {
            Ok(Ok(Ok(known))) => known,
            Ok(Ok(Err(error))) => return Err(Refusal::Unreadable(error)),
            Ok(Err(error)) => return Err(Refusal::Unreadable(error.to_string())),
            Err(_) => return Err(Refusal::Busy),
        };
        // All of them are compared, so that the time says nothing of their order either.
        let is_known = known.iter().fold(false, |found, hash| found | are_equal_secrets(hash, &presented));
        if is_known { Ok(None) } else { Err(Refusal::WrongToken) }
    }
}

impl Refusal {
    fn text(&self) -> String {
        match self {
            Refusal::Remote => "changes are taken from this machine only; to take them from others, give the bookie a file of \
                                tokens with --admin-tokens FILE (httpServerTokensFile)"
                .to_owned(),
            Refusal::NoToken => "a change needs a token: send Authorization: Bearer TOKEN (the bindery command takes it from \
                                 BINDERY_ADMIN_TOKEN); or, where clients have to log in, the name and password of a user of the role admin"
                .to_owned(),
            Refusal::WrongUser => "unknown user, wrong password, or not of the role admin".to_owned(),
            Refusal::Unencrypted => "names and passwords are taken over TLS only, or from this machine: switch TLS on with \
                                     httpServerTlsEnable=true, or send a token; the password that was sent is not secret any more"
                .to_owned(),
            Refusal::WrongToken => "this token is not in the file of tokens".to_owned(),
            Refusal::Unreadable(_) => "the file of tokens cannot be read: see the log".to_owned(),
            Refusal::Busy => "another request is being checked: try again".to_owned(),
        }
    }

    fn answer(&self) -> Response {
        let text = format!("{}\n", self.text());
        match self {
            Refusal::Remote | Refusal::Unencrypted => (StatusCode::FORBIDDEN, text).into_response(),
            Refusal::NoToken | Refusal::WrongToken | Refusal::WrongUser => {
                let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
                (StatusCode::UNAUTHORIZED, challenge, text).into_response()
            }
            Refusal::Unreadable(_) => (StatusCode::INTERNAL_SERVER_ERROR, text).into_response(),
            Refusal::Busy => (StatusCode::SERVICE_UNAVAILABLE, text).into_response(),
        }
    }
}

/// What follows the scheme in an `Authorization` header: for Bearer a token (RFC 6750, section 2.1), for Basic a name and a password
/// (RFC 7617, section 2).
fn of_scheme<'a>(scheme: &str, value: &'a [u8]) -> Option<&'a [u8]> {
    let (found, rest) = value.split_at_checked(scheme.len())?;
    let credentials = rest.strip_prefix(b" ")?.trim_ascii();
    (found.eq_ignore_ascii_case(scheme.as_bytes()) && !credentials.is_empty()).then_some(credentials)
}

/// The hashes of the tokens in a file: one in a line, itself or as `sha256:` with 64 hexadecimal digits. Lines that are empty or
/// begin with `#` are none. Fails with a sentence that names the file and the line.
#[allow(clippy::disallowed_methods, reason = "a file of the operator's, not one of the bookie's data")]
pub fn read_tokens(file: &Path) -> Result<Vec<Hash>, String> {
    let shown = file.display();
    let mut text = String::new();
    std::fs::File::open(file)
        .and_then(|opened| opened.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
        .map_err(|error| format!("{shown}: {error}"))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!(
            "{shown} has more than {FILE_BYTES_MAX} bytes: give a file with one token in a line"
        ));
    }
    let lines =
        text.lines().map(str::trim).zip(1..).filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    let tokens = lines.map(|(line, number)| match line.strip_prefix(HASHED) {
        None => Ok(Sha256::digest(line).into()),
        Some(digits) => hash_of_digits(digits).ok_or_else(|| {
            format!("{shown}, line {number}: behind {HASHED} there must be 64 hexadecimal digits")
        }),
    });
    let tokens: Vec<Hash> = tokens.collect::<Result<_, _>>()?;
    if tokens.is_empty() {
        return Err(format!(
            "{shown} has no token: write one in a line, for example the output of openssl rand -hex 32"
        ));
    }
    Ok(tokens)
}

fn hash_of_digits(digits: &str) -> Option<Hash> {
    let mut hash = Hash::default();
    if digits.len() != 2 * hash.len() || !digits.is_ascii() {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "what an operator puts there")]
mod tests {
    use super::*;
    use crate::auth::{AuthConfig, Provider, verifier::digest_md5_of};
    use bindery_io::SystemRandom;
    use bindery_sasl::Secret;
    use std::os::unix::fs::PermissionsExt;

    const NEAR: &str = "[::1]:5000";
    const FAR: &str = "192.0.2.7:5000";

    fn headers(authorization: Option<&str>) -> HeaderMap {
        let value = authorization.map(|text| (header::AUTHORIZATION, HeaderValue::from_str(text).unwrap()));
        value.into_iter().collect()
    }

    async fn status(
        access: &Access,
        peer: &str,
        method: Method,
        authorization: Option<&str>,
    ) -> Option<StatusCode> {
        status_with(access, peer, &[], method, authorization).await
    }

    async fn status_with(
        access: &Access,
        peer: &str,
        certificate_roles: &[&str],
        method: Method,
        authorization: Option<&str>,
    ) -> Option<StatusCode> {
        let asking = Asking {
            is_encrypted: true,
            peer: peer.parse().unwrap(),
            here: Some("192.0.2.1".parse().unwrap()),
            certificate_roles: certificate_roles.iter().map(ToString::to_string).collect(),
        };
        let headers = headers(authorization);
        let refused = access.refuse(&asking, &method, "/api/v1/bookie/gc", &headers).await;
        refused.map(|response| response.status())
    }

    /// Invariant 1.
    #[tokio::test]
    async fn without_tokens_only_this_machine_changes_anything() {
        let access = Access::new(None);
        for (method, far) in [
            (Method::GET, None),
            (Method::PUT, Some(StatusCode::FORBIDDEN)),
            (Method::POST, Some(StatusCode::FORBIDDEN)),
            (Method::DELETE, Some(StatusCode::FORBIDDEN)),
        ] {
            for near in [NEAR, "127.0.0.1:1", "[::ffff:127.0.0.1]:1", "192.0.2.1:9", "[::ffff:192.0.2.1]:9"] {
                assert_eq!(status(&access, near, method.clone(), None).await, None, "{method} {near}");
            }
            assert_eq!(status(&access, FAR, method, Some("Bearer any")).await, far);
        }
    }

    /// Invariants 1 and 2. The file counts as it is when it is needed.
    #[tokio::test]
    async fn a_token_of_the_file_allows_changes_from_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens");
        let access = Access::new(Some(file.clone()));
        let put = |authorization| status(&access, FAR, Method::PUT, authorization);
        assert_eq!(
            put(Some("Bearer first")).await,
            Some(StatusCode::INTERNAL_SERVER_ERROR),
            "there is no file"
        );
        let hashed: String = Sha256::digest("second").iter().map(|byte| format!("{byte:02X}")).collect();
        std::fs::write(&file, format!("# ops\n\n  first  \nsha256:{hashed}\n")).unwrap();
        for known in ["Bearer first", "bearer   second "] {
            assert_eq!(put(Some(known)).await, None, "{known}");
        }
        for wrong in ["Bearer third", "Bearer", "Bearer  ", "Basic first", "first", "Bearer # ops"] {
            assert_eq!(put(Some(wrong)).await, Some(StatusCode::UNAUTHORIZED), "{wrong}");
        }
        assert_eq!(put(None).await, Some(StatusCode::UNAUTHORIZED));
        assert_eq!(status(&access, FAR, Method::GET, None).await, None);
        assert_eq!(status(&access, NEAR, Method::PUT, None).await, None);
        std::fs::write(&file, "third\n").unwrap();
        assert_eq!(put(Some("Bearer first")).await, Some(StatusCode::UNAUTHORIZED), "taken out");
        assert_eq!(put(Some("Bearer third")).await, None);
    }

    /// Invariant 1, of certificates.
    #[tokio::test]
    async fn a_certificate_of_the_role_admin_allows_changes_from_elsewhere() {
        let access = Access::new(None);
        for (roles, refused) in [
            (&["admin"][..], None),
            (&["reader", "admin"], None),
            (&["reader"], Some(StatusCode::FORBIDDEN)),
            (&["administrator"], Some(StatusCode::FORBIDDEN)),
        ] {
            assert_eq!(status_with(&access, FAR, roles, Method::PUT, None).await, refused, "{roles:?}");
        }
    }

    /// Invariant 1, of users.
    #[tokio::test]
    async fn a_user_of_the_role_admin_may_make_changes_from_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("users");
        let line = |name: &str, roles: &str| {
            format!("{name} {roles} {}\n", digest_md5_of(name, &Secret::new("a:b")))
        };
        std::fs::write(&file, line("ops", "admin") + &line("other", "writer,reader,tier")).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        let config = AuthConfig {
            provider: Provider::Sasl { jaas: None, users: Some(file) },
            requires_reader: false,
            refresh: AuthConfig::REFRESH_DEFAULT,
        };
        let auth = Auth::open(config, crate::turns::Turns::new(1), Arc::new(SystemRandom)).unwrap();
        let access = Access::new(None).with_users(Some(Arc::new(auth)));
        let put = |authorization| status(&access, FAR, Method::PUT, authorization);
        // ops:a:b
        assert_eq!(put(Some("Basic b3BzOmE6Yg==")).await, None);
        assert_eq!(put(Some("basic  b3BzOmE6Yg== ")).await, None);
        // other:a:b, nobody:a:b, ops:a, ops, and what is no Base64
        for wrong in [
            "Basic b3RoZXI6YTpi",
            "Basic bm9ib2R5OmE6Yg==",
            "Basic b3BzOmE=",
            "Basic b3Bz",
            "Basic ???",
            "Bearer b3BzOmE6Yg==",
        ] {
            assert_eq!(put(Some(wrong)).await, Some(StatusCode::UNAUTHORIZED), "{wrong}");
        }
        assert_eq!(put(None).await, Some(StatusCode::UNAUTHORIZED));
        assert_eq!(status(&access, NEAR, Method::PUT, None).await, None);

        // One password at a time, and no line of them.
        let checking = access.checking.clone().try_lock_owned().unwrap();
        assert_eq!(put(Some("Basic b3BzOmE6Yg==")).await, Some(StatusCode::SERVICE_UNAVAILABLE));
        drop(checking);
        assert_eq!(put(Some("Basic b3BzOmE6Yg==")).await, None);

        // Invariant 3.
        let access = Access { trusts_this_machine: false, ..access };
        let headers = headers(Some("Basic b3BzOmE6Yg=="));
        for (peer, is_encrypted, refused) in [
            (FAR, false, Some(StatusCode::FORBIDDEN)),
            ("192.0.2.1:9", false, Some(StatusCode::FORBIDDEN)),
            (FAR, true, None),
            (NEAR, false, None),
            ("[::ffff:127.0.0.1]:1", false, None),
        ] {
            let here = Some("192.0.2.1".parse().unwrap());
            let asking =
                Asking { peer: peer.parse().unwrap(), here, is_encrypted, certificate_roles: Vec::new() };
            let answer = access.refuse(&asking, &Method::PUT, "/", &headers).await;
            assert_eq!(answer.map(|answer| answer.status()), refused, "{peer} {is_encrypted}");
        }
    }

    #[test]
    fn files_that_make_no_sense_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens");
        let long = "x".repeat(FILE_BYTES_MAX as usize + 1);
        for (text, why) in [
            ("", "has no token"),
            ("# nothing\n", "has no token"),
            ("a\nsha256:12\n", "line 2"),
            ("sha256:zz", "line 1"),
            (&*long, "more than"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = read_tokens(&file).unwrap_err();
            assert!(error.contains(why) && error.contains("tokens"), "{error}");
        }
    }
}
