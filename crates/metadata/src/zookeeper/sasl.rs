//! The login at ZooKeeper's servers: SASL DIGEST-MD5, as `ZooKeeperSaslClient` speaks it.
//!
//! ```text
//! us: sasl(empty)  server: challenge  us: sasl(response)  server: its proof
//! ```
//!
//! # Invariants
//! 1. Credentials are read again for each connection, and kept no longer than it takes to open it.
//! 2. No error has anything of a file or of a message in it (that of `bindery_sasl`).
//! 3. After a login there is no connection without one: a JAAS file that has lost its section is an error from then on. It is one
//!    from the start when new nodes are to belong to the user.
//!
//! # Limits     a JAAS file: that of `bindery_sasl::jaas`; a password file: [`PASSWORD_BYTES_MAX`]

use super::connection::Refused;
use super::security::SaslLogin;
use bindery_sasl::digest_md5::{Client, Nonce, Step, ZOOKEEPER_HOST, ZOOKEEPER_SERVICE};
use bindery_sasl::{Credentials, Secret, jaas};
use bindery_tls::file;
use rustls::crypto::ring;
use std::io;
use std::path::Path;

/// A longer file holds no password.
const PASSWORD_BYTES_MAX: usize = 4096;

/// What it means that a JAAS file lacks a section that the settings do not name (invariant 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MissingSection {
    /// There is no login, as for Java's client.
    MayBe,
    /// There was a login before.
    AfterLogin,
    /// New nodes are to belong to the user.
    OfOwner,
}

/// The user and the password to log in with; `None` when the JAAS file has no section for this, and may lack it. Blocks.
pub(super) fn credentials(
    login: &SaslLogin,
    missing: MissingSection,
) -> Result<Option<Credentials>, Refused> {
    match login {
        SaslLogin::User { name, password_file } => {
            let file = password_file.display();
            let bad = |why: &str| Refused::untrusted(format!("zkSaslPasswordPath={file}: {why}"));
            let text = read(password_file, PASSWORD_BYTES_MAX).map_err(|error| bad(&error.to_string()))?;
            match text.lines().next().map(str::trim_end).filter(|password| !password.is_empty()) {
                Some(password) => Ok(Some(Credentials::new(name.clone(), Secret::new(password)))),
                None => Err(bad("write the password on its first line")),
            }
        }
        SaslLogin::Jaas { file, section, is_needed } => {
            let shown = file.display();
            let bad = |why: String| Refused::untrusted(format!("JAAS file {shown}: {why}"));
            let text = read(file, jaas::FILE_BYTES_MAX).map_err(|error| bad(error.to_string()))?;
            let parsed = jaas::Configuration::parse(&text).map_err(|error| bad(error.to_string()))?;
            let Some(found) = parsed.section(section) else {
                let why = match missing {
                    _ if *is_needed => "which zkSaslSection or zkSaslEnable=true asks for",
                    MissingSection::AfterLogin => {
                        "with which this process has logged in before: write it again, or start the process again to go on without"
                    }
                    MissingSection::OfOwner => {
                        "and zkEnableSecurity=true needs a user that new nodes belong to: add it"
                    }
                    MissingSection::MayBe => return Ok(None),
                };
                return Err(bad(format!("it has no section {section}, {why}")));
            };
            let login = found.login();
            login.map(Some).ok_or_else(|| {
                bad(format!(
                    "section {section} in line {} has no username and password: write those of a DigestLoginModule; Kerberos is \
                     not supported",
                    found.line
                ))
            })
        }
    }
}

fn read(path: &Path, bytes_max: usize) -> io::Result<String> {
    let text = file::read_text(path, bytes_max as u64)?;
    text.ok_or_else(|| io::Error::other(format!("it has more than {bytes_max} bytes")))
}

/// The exchange on one connection.
pub(super) struct Login {
    client: Client,
    is_answered: bool,
}

/// The server's verdict.
pub(super) fn not_accepted() -> String {
    "it refuses our credentials: compare the user and the password for SASL (section Client of the JAAS file, or zkSaslUser) with \
     those that it knows"
        .to_owned()
}

impl Login {
    pub(super) fn begin(credentials: Credentials) -> Result<Login, Refused> {
        let provider = ring::default_provider();
        let mut bits = [0; 64];
        let filled = provider.secure_random.fill(&mut bits);
        filled.map_err(|_| Refused::failed("the system gives no random bits".to_owned()))?;
        let mut words =
            bits.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("chunks of 8")));
        let nonce = Nonce::draw(|| words.next().expect("a nonce takes less than 64 bytes"));
        let client = Client::new(credentials, ZOOKEEPER_SERVICE, ZOOKEEPER_HOST, nonce);
        Ok(Login { client, is_answered: false })
    }

    /// What to answer the server's message with; `None`: both sides are content.
    pub(super) fn step(&mut self, message: &[u8]) -> Result<Option<Vec<u8>>, Refused> {
        if message.is_empty() {
            return Err(Refused::AuthFailed(match self.is_answered {
                false => {
                    "it offers no SASL, so we refuse it: its JAAS file needs a section Server".to_owned()
                }
                true => not_accepted(),
            }));
        }
        self.is_answered = true;
        match self.client.step(message) {
            Ok(Step::Reply(response)) => Ok(Some(response)),
            Ok(Step::Done) => Ok(None),
            Err(error) => Err(Refused::AuthFailed(format!("we refuse it: {error}"))),
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "what an operator puts there")]
mod tests {
    use super::*;
    use crate::fault::Fault;

    fn said(login: &SaslLogin) -> String {
        match credentials(login, MissingSection::MayBe) {
            Err(Refused::Fault(Fault::Untrusted(why))) => why,
            other => panic!("{other:?}"),
        }
    }

    /// Invariant 2.
    #[test]
    fn credentials_come_from_a_jaas_file_or_a_password_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("jaas.conf");
        let jaas = |section: &str, is_needed| SaslLogin::Jaas {
            file: file.clone(),
            section: section.to_owned(),
            is_needed,
        };
        assert!(said(&jaas("Client", false)).contains("jaas.conf"));
        let module = "org.apache.zookeeper.server.auth.DigestLoginModule required";
        let text = format!(
            "Client {{ {module} username=\"hd\" password=\"tiger\"; }};\nOther {{\n {module} user_x=\"tiger\"; }};\n"
        );
        std::fs::write(&file, text).unwrap();
        let read = |login: &SaslLogin| credentials(login, MissingSection::MayBe);
        let found = read(&jaas("Client", true)).unwrap().unwrap();
        assert_eq!((found.user.as_str(), found.secret.expose()), ("hd", "tiger"));
        assert!(read(&jaas("Nobody", false)).unwrap().is_none());
        // Invariant 3.
        for (missing, why) in
            [(MissingSection::AfterLogin, "logged in before"), (MissingSection::OfOwner, "zkEnableSecurity")]
        {
            match credentials(&jaas("Nobody", false), missing) {
                Err(Refused::Fault(Fault::Untrusted(said))) => assert!(said.contains(why), "{said}"),
                other => panic!("{other:?}"),
            }
        }
        for (section, why) in [("Nobody", "no section Nobody"), ("Other", "section Other in line 2")] {
            let said = said(&jaas(section, true));
            assert!(said.contains(why) && !said.contains("tiger"), "{said}");
        }

        let password_file = dir.path().join("password");
        let user = SaslLogin::User { name: "hd".to_owned(), password_file: password_file.clone() };
        std::fs::write(&password_file, "tiger\n").unwrap();
        assert_eq!(read(&user).unwrap().unwrap().secret.expose(), "tiger");
        std::fs::write(&password_file, "\ntiger\n").unwrap();
        assert!(said(&user).contains("first line"));
        std::fs::write(&password_file, "x".repeat(PASSWORD_BYTES_MAX + 1)).unwrap();
        assert!(said(&user).contains("more than"));
    }
}
