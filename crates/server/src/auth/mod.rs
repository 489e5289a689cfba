//! Authentication of clients, and their rights.
//!
//! # Data flow
//! ```text
//! JAAS file, file of users ─► users ─► Auth ◄─ AUTH messages, certificates of TLS    one exchange for each connection
//!                                       └─► Identity of the connection ─► rights ─► each request
//! ```
//! BookKeeper's providers are spoken as they are there: `SASLBookieAuthProviderFactory` (plugin `sasl`, DIGEST-MD5) and
//! `BookieAuthZFactory` (a role in the client's certificate). The plugin `sasl-plain` (PLAIN) is Bindery's own, for clients over TLS.
//!
//! # Invariants
//! 1. A secret stands in no log line, metric, answer or error; neither does a name that is not known here, which may be a
//!    password in the wrong place.
//! 2. Nobody can find out who exists: an unknown user and a wrong secret get the same answer after the same work
//!    ([`verifier`], and [`bindery_sasl::digest_md5`]).
//! 3. PLAIN is taken inside TLS only.
//! 4. The rights of a connection are decided when it authenticates. A reload that changes or removes a user closes that user's
//!    connections; one that fails keeps the users known before, is logged once per reason, and is an alarm. A file of
//!    users that has lost all of them is no failure: nobody of it may log in, which is an alarm, too.
//! 5. Each refusal is a line of the audit log (`bindery::audit`), or counted in the next one.
//!
//! # Limits     messages of a client: [`TOKEN_BYTES_MAX`]; logins that wait, and derivations of keys that compute at once: [`crate::turns`]; files and names: [`users`]
//! # Not here   the frames before authentication ([`crate::connection`]'s reader), the admin port ([`crate::admin::access`])

mod base64;
mod certificate;
mod guesses;
mod rights;
pub mod users;
pub mod verifier;

pub(crate) use certificate::roles as certificate_roles;
pub use rights::{Need, Rights, Role, Roles, UnknownRole};

use crate::log_limit::LogLimit;
use crate::reload::{LoadFailure, Wording};
use crate::turns::Turns;
use bindery_io::Random;
use bindery_metrics::{About, Exposition, Row, Table};
use bindery_sasl::digest_md5::{
    self, BOOKKEEPER_HOST, BOOKKEEPER_SERVICE, Nonce, RESPONSE_BYTES_MAX, ServerStep,
};
use bindery_sasl::plain;
use bindery_tls::file::is_open_to_all;
use guesses::Guesses;
use parking_lot::{Mutex, RwLock};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;
use users::{Contents, User, Users};
use verifier::Verifier;

/// A longer message of an exchange is refused, in bytes.
pub const TOKEN_BYTES_MAX: usize = 4096;
const _: () = assert!(TOKEN_BYTES_MAX >= RESPONSE_BYTES_MAX && TOKEN_BYTES_MAX >= plain::MESSAGE_BYTES_MAX);
/// The plugin name of BookKeeper's SASL provider (`SaslConstants.PLUGIN_NAME`).
pub const SASL_PLUGIN: &str = "sasl";
/// The plugin name of PLAIN, which BookKeeper does not have.
pub const PLAIN_PLUGIN: &str = "sasl-plain";
/// One audit line in this time about those who are not served: a stranger must not fill the disk.
const REFUSALS_INTERVAL: Duration = Duration::from_secs(1);

/// Settings of authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthConfig {
    /// How clients say who they are.
    pub provider: Provider,
    /// Reading needs the role reader (`requireReaderRole`). In BookKeeper's protocol every client that is served may
    /// read.
    pub requires_reader: bool,
    /// How often to look at the files of users for changes.
    pub refresh: Duration,
}

/// How clients say who they are (`bookieAuthProviderFactoryClass`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provider {
    /// With a name and a password.
    Sasl {
        /// Users of Java's file.
        jaas: Option<JaasConfig>,
        /// Users of our file (`usersFile`).
        users: Option<PathBuf>,
    },
    /// With a certificate, in which one of these roles stands first (`authorizedRoles`).
    Certificates {
        /// At least one.
        roles: Vec<String>,
    },
}

/// Users in a JAAS file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JaasConfig {
    /// The file (`jaasFile`, or what Java's `java.security.auth.login.config` says).
    pub file: PathBuf,
    /// Its section (`saslJaasBookieSectionName`).
    pub section: String,
    /// A regular expression that the whole name of a user must match (`saslJaasClientAllowedIds`).
    pub allowed_ids: String,
}

impl JaasConfig {
    /// `SaslConstants.JAAS_DEFAULT_BOOKIE_SECTION_NAME`
    pub const SECTION_DEFAULT: &str = "Bookie";
    /// `SaslConstants.JAAS_CLIENT_ALLOWED_IDS_DEFAULT`
    pub const ALLOWED_IDS_DEFAULT: &str = ".*bookkeeper.*";
}

impl AuthConfig {
    /// The default time between two looks at the files. They are small.
    pub const REFRESH_DEFAULT: Duration = Duration::from_secs(10);

    /// True when users are known from files, which may change.
    pub fn has_files(&self) -> bool {
        matches!(self.provider, Provider::Sasl { .. })
    }

    /// The JAAS file, if there is one, as configuration shows it.
    pub fn jaas(&self) -> Option<&JaasConfig> {
        match &self.provider {
            Provider::Sasl { jaas, .. } => jaas.as_ref(),
            Provider::Certificates { .. } => None,
        }
    }

    /// The file of users as configuration shows it; empty for none.
    pub fn users_shown(&self) -> String {
        match &self.provider {
            Provider::Sasl { users, .. } => users::shown(users.as_ref()),
            Provider::Certificates { .. } => String::new(),
        }
    }
}

/// Why no client could log in. Each says which file or setting, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// A file cannot be read.
    #[error("{key}={}: {source}. Give a file that this process may read", .path.display())]
    Read {
        /// The setting.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file holds something else than it should.
    #[error("{key}={}: {why}", .path.display())]
    Content {
        /// The setting.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A setting makes no sense.
    #[error("{0}")]
    Settings(String),
}

/// The identity of a connection's peer.
#[derive(Debug, Clone)]
pub struct Identity {
    name: String,
    rights: Rights,
    /// Of one who logged in with a name.
    user: Option<Arc<User>>,
}

impl Identity {
    /// Its rights.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The user's name, or the role in the certificate.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True for a user's name, false for a role.
    pub fn is_user(&self) -> bool {
        self.user.is_some()
    }
}

/// A plugin that a client may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plugin {
    DigestMd5,
    Plain,
}

impl Plugin {
    /// Its messages are checked by turns, so that a connection may wait.
    pub(crate) fn is_slow(self) -> bool {
        self == Plugin::Plain
    }
}

/// The state of a connection's exchange.
pub(crate) struct Exchange(digest_md5::Server);

/// What follows a message of a client.
#[derive(Debug)]
pub(crate) enum Progress {
    /// This is sent, and the client answers.
    Continue(Vec<u8>),
    /// The client is known; this is sent.
    Done(Vec<u8>, Identity),
    /// The connection ends.
    Failed(Failure),
}

/// Why somebody is not let in; for the audit log alone.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) why: String,
    /// The user, if it is one who is known here (invariant 1).
    pub(crate) user: Option<String>,
}

/// Why a bookie does not start with users that a reload takes.
fn unfit_to_start(users: &Users) -> Option<String> {
    if users.has_empty_file {
        return Some("it has no user: write lines with bindery user hash".to_owned());
    }
    let name = users.twice.first()?;
    Some(format!(
        "the user {name} is in the JAAS file (jaasFile), too, possibly with another password: remove one of them, here or there"
    ))
}

/// How the log and alarms speak of the files.
pub(crate) const WORDING: Wording =
    Wording { files: "the user files", kept: "the users loaded earlier stay in effect" };

/// The users in use, and why newer ones are not.
#[derive(Default)]
struct State {
    contents: Contents,
    /// The file of users has lost all of them.
    is_empty: bool,
    reload_failed: LoadFailure,
    reloads: u64,
}

/// Of the files.
const NUMBERS: Table<State> = Table::new(&[
    Row::counter("bindery_users_reloads", "Times changed user files were loaded.", |state| state.reloads),
    Row::flag(
        "bindery_users_reload_failed",
        "1 while the user files cannot be loaded: users loaded earlier stay in effect.",
        |state| state.reload_failed.is_some(),
    ),
    Row::flag("bindery_users_file_empty", "1 while the file of users has lost all of them.", |state| {
        state.is_empty
    }),
]);

/// See the module.
pub struct Auth {
    config: AuthConfig,
    users: RwLock<Arc<Users>>,
    state: Mutex<State>,
    random: Arc<dyn Random>,
    turns: Turns,
    guesses: Guesses,
    /// Of peers that are not known, and of users who may not do what they want: strangers must not hide users.
    logs: [Mutex<LogLimit>; 2],
}

impl Auth {
    /// Loads the files. Blocks. Keys are derived in `turns`.
    ///
    /// # Errors
    /// A file that is missing or cannot be used, or a setting that cannot, and how to make it so.
    pub fn open(config: AuthConfig, turns: Turns, random: Arc<dyn Random>) -> Result<Auth, AuthError> {
        let mut state = State::default();
        let mut users = Users::default();
        if let Provider::Sasl { jaas, users: file } = &config.provider {
            state.contents = Contents::read(jaas.as_ref(), file.as_deref())?;
            users = Users::load(jaas.as_ref(), file.as_deref(), &state.contents)?;
            if let Some(why) = unfit_to_start(&users) {
                let path = file.clone().unwrap_or_default();
                return Err(AuthError::Content { key: users::USERS_KEY, path, why });
            }
            tracing::info!(users = users.len(), "clients log in with a name and a password (SASL)");
            if let Some(jaas) = jaas.as_ref().filter(|jaas| is_open_to_all(&jaas.file)) {
                let file = jaas.file.display();
                tracing::warn!(%file, "the JAAS file, with the passwords in it, is accessible to every user of this \
                 machine");
            }
        }
        Ok(Auth {
            config,
            users: RwLock::new(Arc::new(users)),
            state: Mutex::new(state),
            random,
            turns,
            guesses: Guesses::default(),
            logs: [REFUSALS_INTERVAL; 2].map(|interval| Mutex::new(LogLimit::new(interval))),
        })
    }

    /// The plugin of this name, if this bookie takes it from such a connection (invariant 3).
    pub(crate) fn plugin(&self, name: &str, is_tls: bool) -> Option<Plugin> {
        match (&self.config.provider, name) {
            (Provider::Sasl { .. }, SASL_PLUGIN) => Some(Plugin::DigestMd5),
            (Provider::Sasl { .. }, PLAIN_PLUGIN) if is_tls => Some(Plugin::Plain),
            _ => None,
        }
    }

    /// Takes the next message of a client at `address`. `exchange` is the connection's, `None` before its first message. Cancel
    /// safe: a computation that was begun runs to its end, and its result is dropped with its turn.
    pub(crate) async fn step(
        &self,
        exchange: &mut Option<Exchange>,
        plugin: Plugin,
        token: &[u8],
        address: IpAddr,
    ) -> Progress {
        let refused = |why: String| Progress::Failed(Failure { why, user: None });
        if token.len() > TOKEN_BYTES_MAX {
            return refused(format!("a message of {} bytes", token.len()));
        }
        // The first message of DIGEST-MD5 asks for a challenge, and guesses nothing.
        let is_guess = plugin == Plugin::Plain || exchange.is_some();
        if is_guess && !self.guesses.wait(address).await {
            return refused("too many logins of this address wait, because of wrong passwords".to_owned());
        }
        let progress = match plugin {
            Plugin::DigestMd5 => self.digest_md5(exchange, token),
            // Which of two exchanges would it be?
            Plugin::Plain if exchange.is_some() => refused("two mechanisms at once".to_owned()),
            Plugin::Plain => match self.turns.place(address) {
                Some(place) => self.plain(token, place.turn()).await,
                None => return refused("too many logins wait to be checked".to_owned()),
            },
        };
        match &progress {
            Progress::Continue(_) => {}
            Progress::Done(..) => self.guesses.note(address, true),
            Progress::Failed(_) => self.guesses.note(address, false),
        }
        progress
    }

    fn digest_md5(&self, exchange: &mut Option<Exchange>, token: &[u8]) -> Progress {
        let Exchange(server) = exchange.get_or_insert_with(|| {
            let nonce = Nonce::draw(|| self.random.next_u64());
            Exchange(digest_md5::Server::new(BOOKKEEPER_SERVICE, BOOKKEEPER_HOST, BOOKKEEPER_HOST, nonce))
        });
        let users = self.users.read().clone();
        let mut named = None;
        let step = server.step(token, |name| {
            named = users.get(name).cloned();
            named.as_ref().and_then(|user| user.verifier.ha1)
        });
        match (step, named) {
            (Ok(ServerStep::Challenge(challenge)), _) => Progress::Continue(challenge),
            (Ok(ServerStep::Accepted(accepted)), Some(user)) => {
                Progress::Done(accepted.reply, self.identity_of(user))
            }
            // The look-up found no user, so the decoy was compared, and cannot match.
            (Ok(ServerStep::Accepted(_)), None) => {
                Progress::Failed(Failure { why: "unknown user".to_owned(), user: None })
            }
            (Err(error), named) => {
                let user = named.map(|user| user.name.clone());
                Progress::Failed(Failure { why: error.to_string(), user })
            }
        }
    }

    /// Checks a message of PLAIN in a turn, which is over when that has ended.
    async fn plain<T: Send + 'static>(&self, token: &[u8], turn: impl Future<Output = T>) -> Progress {
        let presented = match plain::decode(token) {
            Ok(presented) => presented,
            Err(error) => return Progress::Failed(Failure { why: error.to_string(), user: None }),
        };
        let users = self.users.read().clone();
        let named = users.get(&presented.user).cloned();
        let turn = turn.await;
        let matching = tokio::task::spawn_blocking(move || {
            let known = named.as_ref().map(|user| &user.verifier);
            let is_right = Verifier::matches(known, &presented.user, &presented.secret, users.work);
            drop(turn);
            (is_right, named)
        });
        match matching.await {
            Ok((true, Some(user))) => Progress::Done(Vec::new(), self.identity_of(user)),
            Ok((_, named)) => {
                let user = named.map(|user| user.name.clone());
                Progress::Failed(Failure { why: "unknown user or wrong password".to_owned(), user })
            }
            Err(error) => Progress::Failed(Failure { why: error.to_string(), user: None }),
        }
    }

    /// The user of the role admin whose name and password stand in the credentials of HTTP's scheme Basic (RFC 7617). They are checked in the
    /// caller's turn, not in those of clients.
    pub(crate) async fn admin(
        &self,
        credentials: &[u8],
        address: IpAddr,
        turn: impl Future<Output = OwnedMutexGuard<()>>,
    ) -> Option<String> {
        if !self.guesses.wait(address).await {
            return None;
        }
        let login = base64::decode(credentials, TOKEN_BYTES_MAX)?;
        let colon = login.iter().position(|&byte| byte == b':')?;
        // What a message of PLAIN would be.
        let message = [b"\0", &login[..colon], b"\0", &login[colon + 1..]].concat();
        let progress = self.plain(&message, turn).await;
        self.guesses.note(address, matches!(progress, Progress::Done(..)));
        match progress {
            Progress::Done(_, Identity { name, user: Some(user), .. }) if user.roles.has(Role::Admin) => {
                Some(name)
            }
            _ => None,
        }
    }

    fn identity_of(&self, user: Arc<User>) -> Identity {
        let rights = Rights::of(user.roles, self.config.requires_reader);
        Identity { name: user.name.clone(), rights, user: Some(user) }
    }

    /// Who the owner of this certificate (DER) is, where certificates say so: `None` where they do not. As in Java the first
    /// role must be one that is allowed, and lets its owner write and read; `tier` and `admin` beside it give these roles, too.
    pub(crate) fn of_certificate(&self, certificate: Option<&[u8]>) -> Option<Result<Identity, Failure>> {
        let Provider::Certificates { roles: allowed } = &self.config.provider else { return None };
        let failed = |why: &str| Some(Err(Failure { why: why.to_owned(), user: None }));
        let Some(certificate) = certificate else { return failed("no certificate") };
        let roles = certificate::roles(certificate);
        match roles.first() {
            None => failed("no role in the certificate"),
            Some(first) if !allowed.contains(first) => {
                failed("the first role in the certificate is not in authorizedRoles")
            }
            Some(first) => {
                let named = roles.iter().filter_map(|role| role.parse().ok());
                let more = named.filter(|role| matches!(role, Role::Tier | Role::Admin));
                let roles = Roles::of_clients().with(Roles::of(more));
                let rights = Rights::of(roles, self.config.requires_reader);
                Some(Ok(Identity { name: first.clone(), rights, user: None }))
            }
        }
    }

    /// True while this is what its user may do (invariant 4).
    pub(crate) fn holds(&self, identity: &Identity) -> bool {
        let users = self.users.read();
        identity
            .user
            .as_ref()
            .is_none_or(|user| users.get(&user.name).is_some_and(|now| Arc::ptr_eq(now, user)))
    }

    /// Writes a refusal into the audit log, or counts it (invariant 5).
    pub(crate) fn log_refusal(
        &self,
        now_ns: u64,
        peer: SocketAddr,
        user: Option<&str>,
        is_known: bool,
        why: &str,
    ) {
        let others = self.logs[usize::from(is_known)].lock().admit(now_ns);
        if let Some(others) = others {
            tracing::warn!(target: "bindery::audit", %peer, user, others, "request refused: {why}");
        }
    }

    /// The names of its metrics.
    pub(crate) fn about_numbers() -> Vec<About> {
        NUMBERS.about()
    }

    /// Metrics of the files.
    pub(crate) fn expose(&self, out: &mut Exposition) {
        NUMBERS.expose(&self.state.lock(), out);
    }

    /// Problems that an operator must know about.
    pub fn alarms(&self) -> Vec<String> {
        let state = self.state.lock();
        let failed = state.reload_failed.alarm(&WORDING);
        let empty = state.is_empty.then(|| {
            let file = self.config.users_shown();
            format!(
                "usersFile={file} has no user, so nobody of it may log in: write lines with bindery user hash"
            )
        });
        failed.into_iter().chain(empty).collect()
    }

    /// See [`Reload::reload`](crate::reload::Reload::reload).
    pub(crate) fn reload(&self, is_last_try: bool) -> bool {
        let Provider::Sasl { jaas, users: file } = &self.config.provider else { return false };
        let read = Contents::read(jaas.as_ref(), file.as_deref()).and_then(|contents| {
            if contents == self.state.lock().contents {
                return Ok(None);
            }
            let users = Users::load(jaas.as_ref(), file.as_deref(), &contents)?;
            Ok(Some((contents, users)))
        });
        let mut state = self.state.lock();
        let failed = match read {
            // It may be written at this moment.
            Ok(Some((_, users))) if users.has_empty_file && !is_last_try => return true,
            Ok(changed) => {
                if let Some((contents, mut users)) = changed {
                    let mut current = self.users.write();
                    users.keep(&current);
                    tracing::info!(users = users.len(), "user files reloaded");
                    if users.has_empty_file {
                        tracing::error!("the user file has no users: nobody can log in through it");
                    }
                    for user in &users.twice {
                        tracing::warn!(
                            user,
                            "user is in both the JAAS file and the user file; the user file counts: remove one of \
                             the two"
                        );
                    }
                    state.is_empty = users.has_empty_file;
                    *current = Arc::new(users);
                    state.contents = contents;
                    state.reloads += 1;
                }
                None
            }
            Err(error) if is_last_try => Some(error.to_string()),
            Err(_) => return true,
        };
        state.reload_failed.note(failed, &WORDING)
    }
}

#[cfg(test)]
mod tests;
