//! Which requests the admin port answers: anybody may look, but for what users stored; that, and changes, are for this machine, for the bearers of a token, and for users and
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
//! 1. Whatever is not a GET, or shows what users stored, comes from this machine (a loopback address, or the one that it was sent to), bears a token of
//!    the file, the name and password of a user of the role admin, or comes over a connection with a certificate of that role. A proxy on this machine counts as this machine, and must decide itself whom it lets through.
//! 2. A token is compared by its SHA-256 in constant time, a password as [`crate::auth`] does it, and neither stands in a log line, answer or
//!    error.
//! 3. Names and passwords, which are those of the port for clients, are taken over TLS only, or from a loopback address.
//! 4. Each change and each look at what is private, with its outcome, and each refusal is a line of the audit log (`bindery::audit`), of
//!    either [`CHANGES_MAX`] in a minute and of refusals one in a second; the next line counts those left out.
//! 5. No page in a browser speaks through it: a request with an `Origin` that is not this port's, or from another site
//!    (`Sec-Fetch-Site: cross-site`), is refused, and so is one of this machine that was sent to a name which is not this port's. A name
//!    in DNS may point to any address, so a request that comes from this machine may be one of a page of anybody's. A link may lead to the
//!    console ([`PAGE`]) from anywhere: it is the same for everybody, and is shown in no frame.
//!
//! # Limits
//! The file: [`FILE_BYTES_MAX`]. One request at a time has it read, and one has a password checked, on a thread that may block; others
//! wait in the order of arrival, one of each address, all of it for [`LOOK_MAX`] at most.

use super::endpoints;
use crate::auth::Auth;
use crate::log_limit::LogLimit;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bindery_types::are_equal_secrets;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
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
/// The longest path in a line of the audit log, in bytes.
const PATH_SHOWN_MAX: usize = 200;
/// Lines of the audit log about changes in [`CHANGES_INTERVAL`].
const CHANGES_MAX: u32 = 60;
/// See [`CHANGES_MAX`].
const CHANGES_INTERVAL: Duration = Duration::from_secs(60);
/// In front of the SHA-256 of a token, in hexadecimal digits.
const HASHED: &str = "sha256:";

type Hash = [u8; 32];

/// The role of certificates that may make changes, as `BookieAuthZFactory` of BookKeeper finds roles: `OU=0:admin`.
const ADMIN: &str = "admin";
/// The page of the console, to which other consoles have links.
const PAGE: &str = "/";

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
    /// Addresses of which a request waits for, or has, one of these two.
    asking: Arc<Mutex<BTreeSet<IpAddr>>>,
    /// False where this machine needs a token, too.
    trusts_this_machine: bool,
    /// Names of this port, besides addresses and `localhost`; in lower case.
    names: Vec<String>,
    refusals: Mutex<LogLimit>,
    /// Changes, and looks at what is private, so that neither keeps the others out of the log.
    changes: [Mutex<Changes>; 2],
    begun: Instant,
}

/// Changes written down since `since`, and those left out.
#[derive(Default)]
struct Changes {
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

/// Notes that a token or password of this address is being checked, until it is dropped.
struct AskingPlace(Arc<Mutex<BTreeSet<IpAddr>>>, IpAddr);

impl Drop for AskingPlace {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

/// Whom a change is made by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Admitted {
    user: Option<String>,
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
    /// From this machine, to a name that is not this port's.
    Name,
    /// From a page of another site.
    OtherSite,
}

impl Access {
    /// `tokens`: the file with the tokens that allow changes from other machines, if there is one.
    pub fn new(tokens: Option<PathBuf>) -> Access {
        Access {
            tokens,
            users: None,
            looking: Arc::default(),
            checking: Arc::default(),
            asking: Arc::default(),
            trusts_this_machine: true,
            names: Vec::new(),
            changes: Default::default(),
            refusals: Mutex::new(LogLimit::new(REFUSALS_INTERVAL)),
            begun: Instant::now(),
        }
    }

    /// The same, and users of the role admin may make changes, too.
    #[must_use]
    pub fn with_users(self, users: Option<Arc<Auth>>) -> Access {
        Access { users, ..self }
    }

    /// The same, but changes from this machine need a token or a login, too, if so.
    #[must_use]
    pub fn requiring_token(self, is_required: bool) -> Access {
        Access { trusts_this_machine: self.trusts_this_machine && !is_required, ..self }
    }

    /// The same, and it answers requests of this machine to these names.
    #[must_use]
    pub fn named(mut self, names: impl IntoIterator<Item = String>) -> Access {
        self.names.extend(names.into_iter().map(|name| name.to_ascii_lowercase()));
        self
    }

    /// As [`Access::new`], and this machine has no rights of its own.
    #[cfg(test)]
    pub(super) fn for_strangers(tokens: Option<PathBuf>) -> Access {
        Access { trusts_this_machine: false, ..Access::new(tokens) }
    }

    /// Who makes a change, `None` for who only looks; or the answer to a request that is refused.
    pub(super) async fn admit(
        &self,
        asking: &Asking,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Option<Admitted>, Response> {
        let is_look = is_look(method);
        if is_look && endpoints::is_health(path) {
            return Ok(None);
        }
        let refusal = match self.of_a_page(asking, headers, is_look && path == PAGE) {
            Some(refusal) => refusal,
            None if is_look && !endpoints::is_private(path) => return Ok(None),
            None => match self.judge(asking, headers).await {
                Ok(user) => return Ok(Some(Admitted { user })),
                Err(refusal) => refusal,
            },
        };
        let now_ns = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let others = self.refusals.lock().admit(now_ns);
        if let Some(others) = others {
            let (peer, path, why) = (asking.peer, shown(path), refusal.text(self));
            tracing::warn!(target: "bindery::audit", %peer, %method, path, others, "admin request refused: {why}");
            if let Refusal::Unreadable(error) = &refusal {
                tracing::error!(error, "cannot read the token file of the admin port");
            }
        }
        Err(refusal.answer(self))
    }

    /// Writes down what became of a change (invariant 4).
    pub(super) fn log_change(
        &self,
        asking: &Asking,
        admitted: &Admitted,
        (method, path): (&Method, &str),
        status: StatusCode,
    ) {
        let left_out = {
            let mut changes = self.changes[usize::from(is_look(method))].lock();
            if changes.since.is_none_or(|since| since.elapsed() >= CHANGES_INTERVAL) {
                (changes.since, changes.written) = (Some(Instant::now()), 0);
            }
            if changes.written >= CHANGES_MAX {
                changes.left_out += 1;
                return;
            }
            changes.written += 1;
            std::mem::take(&mut changes.left_out)
        };
        let (peer, user, path, status) = (asking.peer, &admitted.user, shown(path), status.as_u16());
        tracing::info!(target: "bindery::audit", %peer, user, %method, path, status, left_out, "admin request");
    }

    /// Invariant 5. `is_linked`: a link may lead there.
    fn of_a_page(&self, asking: &Asking, headers: &HeaderMap, is_linked: bool) -> Option<Refusal> {
        let text = |name: HeaderName| headers.get(name).map(HeaderValue::as_bytes);
        if text(HeaderName::from_static("sec-fetch-site")) == Some(b"cross-site") && !is_linked {
            return Some(Refusal::OtherSite);
        }
        let host = text(header::HOST);
        if let Some(origin) = text(header::ORIGIN) {
            let scheme: &[u8] = if asking.is_encrypted { b"https://" } else { b"http://" };
            let of_this_port = origin.strip_prefix(scheme).filter(|name| Some(*name) == host);
            if of_this_port.is_none() {
                return Some(Refusal::OtherSite);
            }
        }
        // Programs that send none are no browsers.
        let host = host?;
        let is_ours = std::str::from_utf8(host).is_ok_and(|host| self.is_named(host));
        (is_near(asking) && !is_ours).then_some(Refusal::Name)
    }

    /// Whether this port goes by the name in a `Host` header: an address, which no name in DNS looks like, or one of its names.
    fn is_named(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => return address.parse::<Ipv6Addr>().is_ok(),
            None => host.split(':').next().unwrap_or(host),
        };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        name == "localhost" || name.parse::<Ipv4Addr>().is_ok() || self.names.contains(&name)
    }

    /// The names by which it may be asked, for the message of a refusal.
    fn names_shown(&self) -> String {
        let ours = self.names.iter().map(String::as_str);
        ["an IP address", "localhost"].into_iter().chain(ours).collect::<Vec<_>>().join(", ")
    }

    /// The place of this address; `None` while another request of it has it.
    fn place_of(&self, asking: &Asking) -> Option<AskingPlace> {
        let address = asking.peer.ip().to_canonical();
        let is_new = self.asking.lock().insert(address);
        is_new.then(|| AskingPlace(self.asking.clone(), address))
    }

    /// The user whose request may be answered, if it is one.
    async fn judge(&self, asking: &Asking, headers: &HeaderMap) -> Result<Option<String>, Refusal> {
        let ip = asking.peer.ip().to_canonical();
        let has_role = asking.certificate_roles.iter().any(|role| role == ADMIN);
        if has_role || is_near(asking) && self.trusts_this_machine {
            return Ok(None);
        }
        let authorization = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        if let (Some(users), Some(login)) =
            (&self.users, authorization.and_then(|value| of_scheme("basic", value)))
        {
            if !asking.is_encrypted && !ip.is_loopback() {
                return Err(Refusal::Unencrypted);
            }
            let _place = self.place_of(asking).ok_or(Refusal::Busy)?;
            let turn = self.checking.clone().lock_owned();
            let admin = tokio::time::timeout(LOOK_MAX, users.admin(login, ip, turn)).await;
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
        let _place = self.place_of(asking).ok_or(Refusal::Busy)?;
        let read = async {
            let alone = self.looking.clone().lock_owned().await;
            let read = tokio::task::spawn_blocking(move || {
                let known = read_tokens(&file);
                drop(alone);
                known
            });
            read.await
        };
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

/// Whether nothing is changed.
fn is_look(method: &Method) -> bool {
    *method == Method::GET || *method == Method::HEAD
}

/// Whether it comes from this machine.
fn is_near(asking: &Asking) -> bool {
    let ip = asking.peer.ip().to_canonical();
    ip.is_loopback() || asking.here.is_some_and(|here| here.to_canonical() == ip)
}

/// The beginning of a path, which a peer chooses.
fn shown(path: &str) -> &str {
    let mut end = path.len().min(PATH_SHOWN_MAX);
    while !path.is_char_boundary(end) {
        end -= 1;
    }
    &path[..end]
}

impl Refusal {
    fn text(&self, access: &Access) -> String {
        match self {
            Refusal::Name => format!(
                "from this machine this port is asked by {}, so that no page in a browser gets here through a name in DNS that points to \
                 this machine; httpServerNames adds names",
                access.names_shown()
            ),
            Refusal::OtherSite => "this port does not answer pages of other sites: ask it with a program".to_owned(),
            Refusal::Remote => "changes are taken from this machine only, and entries are shown there only; for others, give the bookie \
                                a file of tokens with --admin-tokens FILE (httpServerTokensFile)"
                .to_owned(),
            Refusal::NoToken => "a change, or a look at entries, needs a token: send Authorization: Bearer TOKEN (the bindery command takes it from \
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

    fn answer(&self, access: &Access) -> Response {
        let text = format!("{}\n", self.text(access));
        match self {
            Refusal::Name => (StatusCode::MISDIRECTED_REQUEST, text).into_response(),
            Refusal::OtherSite => (StatusCode::FORBIDDEN, text).into_response(),
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
        let admitted = access.admit(&asking, &method, "/api/v1/bookie/gc", &headers).await;
        admitted.err().map(|response| response.status())
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

        // One password at a time, and one of an address waits for its turn: whoever sends another meanwhile is told so.
        let checking = access.checking.clone().try_lock_owned().unwrap();
        let (waits, mut second) = (put(Some("Basic b3BzOmE6Yg==")), None);
        let end = async {
            while access.asking.lock().is_empty() {
                tokio::task::yield_now().await;
            }
            second = put(Some("Basic b3BzOmE6Yg==")).await;
            drop(checking);
        };
        assert_eq!(tokio::join!(waits, end).0, None, "it had its turn");
        assert_eq!(second, Some(StatusCode::SERVICE_UNAVAILABLE));
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
            let admitted = access.admit(&asking, &Method::PUT, "/", &headers).await;
            assert_eq!(admitted.err().map(|answer| answer.status()), refused, "{peer} {is_encrypted}");
        }
    }

    /// Invariant 5.
    #[tokio::test]
    async fn no_page_speaks_through_this_machine() {
        let access = Access::new(None).named(["Bookie-1.example".to_owned()]);
        let asked = async |peer: &str, is_encrypted: bool, sent: &[(&'static str, &str)]| {
            let here = Some("192.0.2.1".parse().unwrap());
            let asking =
                Asking { peer: peer.parse().unwrap(), here, is_encrypted, certificate_roles: Vec::new() };
            let header = |(name, value): &(&'static str, &str)| {
                (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
            };
            let headers: HeaderMap = sent.iter().map(header).collect();
            let mut statuses = Vec::new();
            for method in [Method::GET, Method::HEAD, Method::PUT] {
                let admitted = access.admit(&asking, &method, "/metrics", &headers).await;
                statuses.push(admitted.err().map_or(200, |answer| answer.status().as_u16()));
            }
            statuses.dedup();
            statuses
        };
        for host in [
            "127.0.0.1:8080",
            "127.0.0.1",
            "[::1]:8080",
            "[fe80::1]",
            "192.0.2.1",
            "localhost",
            "LocalHost.:8080",
            "bookie-1.example:8080",
        ] {
            assert_eq!(asked("127.0.0.1:1", false, &[("host", host)]).await, [200], "{host}");
        }
        for host in ["page.example:8080", "localhost.page.example", "127.0.0.1.page.example", "[page]", ""] {
            for near in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "192.0.2.1:5"] {
                assert_eq!(asked(near, false, &[("host", host)]).await, [421], "{host} {near}");
            }
        }
        // Others get here by a name of the network, and have no rights of this machine.
        assert_eq!(asked("192.0.2.7:5", false, &[("host", "page.example")]).await, [200, 403]);
        assert_eq!(asked("127.0.0.1:1", false, &[]).await, [200], "HTTP/1.0");
        for (is_encrypted, origin, status) in [
            (false, "http://localhost:8080", 200),
            (false, "https://localhost:8080", 403),
            (true, "https://localhost:8080", 200),
            (false, "http://localhost", 403),
            (false, "http://page.example", 403),
            (false, "null", 403),
        ] {
            let sent = [("host", "localhost:8080"), ("origin", origin)];
            assert_eq!(asked("127.0.0.1:1", is_encrypted, &sent).await, [status], "{origin}");
        }
        for (site, status) in [("cross-site", 403), ("same-origin", 200), ("none", 200)] {
            for peer in ["127.0.0.1:1", "192.0.2.7:5"] {
                let sent = [("host", "localhost:8080"), ("sec-fetch-site", site)];
                assert_eq!(asked(peer, false, &sent).await[0], status, "{site}");
            }
        }
        let text = access.names_shown();
        assert_eq!(text, "an IP address, localhost, bookie-1.example");

        // A link to the console, from the page of another node for example; not by a name that is not this port's.
        let near: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let asking = Asking { peer: near, here: None, is_encrypted: false, certificate_roles: Vec::new() };
        for (method, path, host, status) in [
            (Method::GET, "/", "localhost", 200),
            (Method::GET, "/console/main.js", "localhost", 403),
            (Method::PUT, "/", "localhost", 403),
            (Method::GET, "/", "page.example", 421),
        ] {
            let sent = [("host", host), ("sec-fetch-site", "cross-site")];
            let headers = sent
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()));
            let admitted = access.admit(&asking, &method, path, &headers.into_iter().collect()).await;
            let answered = admitted.err().map_or(200, |answer| answer.status().as_u16());
            assert_eq!(answered, status, "{method} {path} {host}");
        }
    }

    /// This machine needs a token where the settings require one.
    #[tokio::test]
    async fn this_machine_may_need_a_token_too() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens");
        std::fs::write(&file, "secret\n").unwrap();
        let access = Access::new(Some(file)).requiring_token(true);
        assert_eq!(status(&access, NEAR, Method::PUT, None).await, Some(StatusCode::UNAUTHORIZED));
        assert_eq!(status(&access, NEAR, Method::PUT, Some("Bearer secret")).await, None);
        assert_eq!(status(&access, NEAR, Method::GET, None).await, None);
    }

    /// A guess of another address does not keep a right token out.
    #[tokio::test]
    async fn a_token_waits_behind_the_guess_of_another_address() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens");
        std::fs::write(&file, "secret\n").unwrap();
        let access = Access::new(Some(file));
        let guess = access.looking.clone().try_lock_owned().unwrap();
        let asks = status(&access, FAR, Method::PUT, Some("Bearer secret"));
        let end = async {
            while access.asking.lock().is_empty() {
                tokio::task::yield_now().await;
            }
            drop(guess);
        };
        assert_eq!(tokio::join!(asks, end).0, None);
        assert!(access.asking.lock().is_empty());
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
