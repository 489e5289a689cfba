//! How the clients of this process speak to bookies: TLS or none, and as which user. The one place where it is put together, for every
//! command that talks to bookies and for the tierer.
//!
//! # Data flow
//! ```text
//! options, environment ─► args ─┐
//! profile, a properties file ───┼─► BookieSecurity ─► apply: secrets are read, ClientBuilder
//! bk_server.conf ───────► keys ─┘
//! ```
//! An option wins over a variable of the environment, and that over the profile.
//!
//! # Invariants
//! 1. No secret is an argument of a command, and none is in the output of `Debug` or in an error.
//! 2. Secrets are read when a client is made, so that a tierer which starts again has the current one.

pub mod keys;

use std::path::{Path, PathBuf};

use bindery_client::{ClientBuilder, Credentials, Mechanism, Secret, TlsOptions};
use bindery_sasl::jaas;
use bindery_tls::file;

/// A secret is a line.
const SECRET_FILE_BYTES_MAX: u64 = 4096;

/// Security that the clients of this process use with bookies; none by default.
#[derive(Debug, Clone, Default)]
pub struct BookieSecurity {
    /// TLS, if it is spoken.
    pub tls: Option<TlsOptions>,
    /// The user, if there is one.
    pub user: Option<User>,
}

/// A user, and where the secret is.
#[derive(Debug, Clone)]
pub struct User {
    /// How the user is proved.
    pub mechanism: Mechanism,
    /// Name and secret.
    pub login: Login,
}

/// Where a user's name and secret are.
#[derive(Debug, Clone)]
pub enum Login {
    /// Here.
    Given(String, Secret),
    /// The name here, the secret in the first line of a file.
    File(String, PathBuf),
    /// Both in a section of a JAAS file.
    Jaas(PathBuf, String),
}

impl BookieSecurity {
    /// Gives it to a client that is being made.
    ///
    /// # Errors
    /// A file of secrets that cannot be used, and what to do.
    pub async fn apply(&self, mut builder: ClientBuilder) -> Result<ClientBuilder, String> {
        if let Some(tls) = &self.tls {
            builder = builder.tls(tls.clone());
        }
        if let Some(user) = self.user.clone() {
            // Files may be on a file system that hangs.
            let read = tokio::task::spawn_blocking(move || user.read()).await;
            builder = builder.credentials(read.map_err(|error| error.to_string())??);
        }
        Ok(builder)
    }
}

impl User {
    /// True when name and secret are in a JAAS file.
    pub fn is_of_jaas(&self) -> bool {
        matches!(self.login, Login::Jaas(..))
    }

    fn read(self) -> Result<Credentials, String> {
        if let Login::File(_, path) | Login::Jaas(path, _) = &self.login
            && file::is_open_to_all(path)
        {
            tracing::warn!(
                file = %path.display(),
                "every user of this machine may use this file, and a password is in it: take that away with chmod o="
            );
        }
        let (name, secret) = match self.login {
            Login::Given(name, secret) => (name, secret),
            Login::File(name, path) => (name, secret_in(&path)?),
            Login::Jaas(path, section) => {
                let login = login_in(&path, &section)?;
                (login.user, login.secret)
            }
        };
        Ok(Credentials::new(name, secret, self.mechanism))
    }
}

fn secret_in(path: &Path) -> Result<Secret, String> {
    let text = read(path, SECRET_FILE_BYTES_MAX)?;
    let line = text.lines().next().unwrap_or_default();
    match line.is_empty() {
        true => Err(format!("{}: its first line is empty: write the password there", path.display())),
        false => Ok(Secret::new(line)),
    }
}

fn login_in(path: &Path, section: &str) -> Result<bindery_sasl::Credentials, String> {
    let shown = path.display();
    let text = read(path, jaas::FILE_BYTES_MAX as u64)?;
    let parsed = jaas::Configuration::parse(&text).map_err(|error| format!("{shown}: {error}"))?;
    let found = parsed.section(section).ok_or_else(|| {
        let names: Vec<&str> = parsed.sections().iter().map(|section| &*section.name).collect();
        format!(
            "{shown} has no section {section} but {}: name the section with saslJaasClientSectionName",
            if names.is_empty() { "none at all".to_owned() } else { names.join(", ") }
        )
    })?;
    found.login().ok_or_else(|| {
        format!("{shown}: section {section} needs username=\"…\" and password=\"…\" in one of its modules")
    })
}

/// The names of the sections in a JAAS file. Blocks.
pub fn sections_of(path: &Path) -> Result<Vec<String>, String> {
    let text = read(path, jaas::FILE_BYTES_MAX as u64)?;
    let parsed = jaas::Configuration::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(parsed.sections().iter().map(|section| section.name.clone()).collect())
}

/// The text of a small file. Blocks.
pub fn read(path: &Path, bytes_max: u64) -> Result<String, String> {
    let shown = path.display();
    let text = file::read_text(path, bytes_max).map_err(|error| format!("{shown}: {error}"))?;
    text.ok_or_else(|| format!("{shown}: more than {bytes_max} bytes: check that it is the right file"))
}

#[cfg(test)]
mod tests;
