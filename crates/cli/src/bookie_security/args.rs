//! The options of every command that talks to bookies.

use std::path::{Path, PathBuf};

use bindery_client::{Mechanism, Secret, TlsOptions};
use clap::Args;
use clap::builder::BoolishValueParser;

use super::BookieSecurity;
use crate::exit::Failure;
use bindery_config::bookie_security::{self, Login, User, keys};
use bindery_config::sources::values::Values;

const HEADING: &str = "TLS with bookies, and the user there";
/// The variable with the user's password. BINDERY_PASSWORD is that of ledgers.
const PASSWORD_VARIABLE: &str = "BINDERY_USER_PASSWORD";
/// Where profiles are, below the home directory.
const PROFILES: &str = "bindery/profiles";

/// Flattened into every command that talks to bookies.
#[derive(Debug, Clone, Default, Args)]
pub struct BookieSecurityArgs {
    /// TLS with bookies. Certificates of bookies must lead to an authority of this system, or to one of --tls-ca
    #[arg(long, env = "BINDERY_TLS", value_parser = BoolishValueParser::new(), help_heading = HEADING)]
    pub tls: bool,
    /// TLS, and the PEM file with the authority that signs bookies' certificates; may be repeated
    #[arg(long, value_name = "FILE", env = "BINDERY_TLS_CA", help_heading = HEADING)]
    pub tls_ca: Vec<PathBuf>,
    /// TLS, and the PEM file with this client's certificate, for bookies that want one
    #[arg(long, value_name = "FILE", env = "BINDERY_TLS_CERT", help_heading = HEADING)]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the key of --tls-cert
    #[arg(long, value_name = "FILE", env = "BINDERY_TLS_KEY", help_heading = HEADING)]
    pub tls_key: Option<PathBuf>,
    /// Take a certificate of any name for any bookie: anybody with one of a trusted authority can pass for a bookie
    #[arg(
        long,
        env = "BINDERY_TLS_SKIP_NAME_CHECK",
        value_parser = BoolishValueParser::new(),
        help_heading = HEADING
    )]
    pub tls_skip_name_check: bool,
    /// User to prove to bookies; the password is in --user-password-file or in BINDERY_USER_PASSWORD
    #[arg(long, value_name = "NAME", env = "BINDERY_USER", help_heading = HEADING)]
    pub user: Option<String>,
    /// File with the user's password in its first line
    #[arg(long, value_name = "FILE", env = "BINDERY_USER_PASSWORD_FILE", help_heading = HEADING)]
    pub user_password_file: Option<PathBuf>,
    /// How the user is proved: digest-md5, as Java's bookies want it, or plain, over TLS only [default: digest-md5]
    #[arg(
        long,
        value_name = "MECHANISM",
        env = "BINDERY_SASL",
        value_parser = keys::mechanism,
        help_heading = HEADING
    )]
    pub sasl: Option<Mechanism>,
    /// Take what is not given here from ~/.config/bindery/profiles/NAME.conf, a file with the keys of BookKeeper's clients; a name with a
    /// slash is the file itself
    #[arg(long, value_name = "NAME", env = "BINDERY_PROFILE", help_heading = HEADING)]
    pub profile: Option<String>,
}

/// Settings in the environment besides options.
#[derive(Debug, Default)]
struct Environment {
    password: Option<String>,
    /// The directory of configurations.
    config: Option<PathBuf>,
}

impl Environment {
    fn of_process() -> Environment {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let home = || set("HOME").map(|home| Path::new(&home).join(".config"));
        Environment {
            password: std::env::var(PASSWORD_VARIABLE).ok().filter(|password| !password.is_empty()),
            config: set("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home),
        }
    }
}

impl BookieSecurityArgs {
    /// Options, environment and profile together. Reads the profile; secrets are read later.
    ///
    /// # Errors
    /// Something is missing, or does not fit the rest; the message says which option helps.
    pub fn security(&self) -> Result<BookieSecurity, Failure> {
        self.with_environment(&Environment::of_process()).map_err(Failure::usage)
    }

    fn with_environment(&self, environment: &Environment) -> Result<BookieSecurity, String> {
        let profile = match &self.profile {
            Some(name) => read_profile(&profile_path(name, environment)?)?,
            None => BookieSecurity::default(),
        };
        Ok(BookieSecurity {
            tls: self.tls_over(profile.tls)?,
            user: self.user_over(profile.user, environment)?,
        })
    }

    fn tls_over(&self, profile: Option<TlsOptions>) -> Result<Option<TlsOptions>, String> {
        let is_asked =
            self.tls || !self.tls_ca.is_empty() || self.tls_cert.is_some() || self.tls_key.is_some();
        if !is_asked && profile.is_none() {
            return match self.tls_skip_name_check {
                true => Err("--tls-skip-name-check without TLS: give --tls or --tls-ca FILE, too".to_owned()),
                false => Ok(None),
            };
        }
        let mut options = profile.unwrap_or_default();
        if !self.tls_ca.is_empty() {
            options = options.without_authorities();
        }
        for file in &self.tls_ca {
            options = options.authority(file);
        }
        options = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => options.identity(certificate, key),
            (None, None) => options,
            (Some(_), None) => {
                return Err("--tls-cert needs --tls-key FILE (BINDERY_TLS_KEY), its key".to_owned());
            }
            (None, Some(_)) => {
                return Err("--tls-key needs --tls-cert FILE (BINDERY_TLS_CERT), its certificate".to_owned());
            }
        };
        Ok(Some(if self.tls_skip_name_check { options.skip_name_check() } else { options }))
    }

    fn user_over(&self, profile: Option<User>, environment: &Environment) -> Result<Option<User>, String> {
        let Some(name) = &self.user else {
            if self.user_password_file.is_some() {
                return Err("--user-password-file needs --user NAME (BINDERY_USER)".to_owned());
            }
            // The variable may be there for other commands.
            return Ok(profile.map(|user| User { mechanism: self.sasl.unwrap_or(user.mechanism), ..user }));
        };
        let of_profile = profile.as_ref().map(|user| user.mechanism);
        let mechanism = self.sasl.or(of_profile).unwrap_or(Mechanism::DigestMd5);
        let login = match (&self.user_password_file, &environment.password) {
            (Some(file), _) => Login::File(name.clone(), file.clone()),
            (None, Some(password)) => Login::Given(name.clone(), Secret::new(password)),
            (None, None) => {
                return Err(format!(
                    "--user {name} needs a password: give --user-password-file FILE, with the password in the first line, or set \
                     {PASSWORD_VARIABLE}"
                ));
            }
        };
        Ok(Some(User { mechanism, login }))
    }
}

fn profile_path(name: &str, environment: &Environment) -> Result<PathBuf, String> {
    if name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    let config = environment.config.as_deref().ok_or_else(|| {
        format!("--profile {name}: neither XDG_CONFIG_HOME nor HOME is set: give the file itself, ./{name}.conf for example")
    })?;
    Ok(config.join(PROFILES).join(format!("{name}.conf")))
}

fn read_profile(path: &Path) -> Result<BookieSecurity, String> {
    let text = bookie_security::read(path, 1 << 20).map_err(|error| {
        format!(
            "--profile: {error}. A profile has lines KEY=VALUE with the keys of BookKeeper's clients, saslUser=NAME and saslPasswordFile=FILE for \
             example"
        )
    })?;
    let mut values = Values::of(Some(&text));
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let security = keys::of_profile(&mut values, dir);
    let unknown: Vec<String> = values.rest().into_keys().collect();
    if !unknown.is_empty() {
        crate::output::say(format!(
            "{}: {} has no effect here: a profile says how bookies are spoken to, and options the rest",
            path.display(),
            unknown.join(", ")
        ));
    }
    match values.faults.is_empty() {
        true => Ok(security),
        false => {
            let faults: Vec<String> = values.faults.iter().map(|fault| fault.text.clone()).collect();
            Err(format!("{}: {}", path.display(), faults.join("; ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::disallowed_methods, reason = "what a user puts there")]
    fn profile(dir: &Path, text: &str) -> Environment {
        std::fs::create_dir_all(dir.join(PROFILES)).unwrap();
        std::fs::write(dir.join(PROFILES).join("prod.conf"), text).unwrap();
        Environment { password: None, config: Some(dir.to_owned()) }
    }

    fn named() -> BookieSecurityArgs {
        BookieSecurityArgs { profile: Some("prod".into()), ..BookieSecurityArgs::default() }
    }

    #[test]
    fn nothing_is_spoken_unless_it_is_asked_for() {
        let security = BookieSecurityArgs::default().with_environment(&Environment::default()).unwrap();
        assert!(security.tls.is_none() && security.user.is_none());
        // A password alone is for other commands.
        let environment = Environment { password: Some("tiger".into()), config: None };
        assert!(BookieSecurityArgs::default().with_environment(&environment).unwrap().user.is_none());
    }

    #[test]
    fn options_make_tls_and_a_user() {
        let args = BookieSecurityArgs {
            tls_ca: vec!["a.pem".into(), "b.pem".into()],
            tls_cert: Some("c.pem".into()),
            tls_key: Some("c.key".into()),
            tls_skip_name_check: true,
            user: Some("hd".into()),
            sasl: Some(Mechanism::Plain),
            ..BookieSecurityArgs::default()
        };
        let environment = Environment { password: Some("tiger".into()), config: None };
        let security = args.with_environment(&environment).unwrap();
        let expected = TlsOptions::new()
            .authority("a.pem")
            .authority("b.pem")
            .identity("c.pem", "c.key")
            .skip_name_check();
        assert_eq!(security.tls, Some(expected));
        let user = security.user.unwrap();
        assert!(!format!("{user:?}").contains("tiger"), "{user:?}");
        assert_eq!(user.mechanism, Mechanism::Plain);
        assert!(
            matches!(user.login, Login::Given(name, secret) if name == "hd" && secret.expose() == "tiger")
        );
    }

    #[test]
    fn half_an_option_is_refused_with_the_other_half() {
        let default = BookieSecurityArgs::default;
        let cases = [
            (BookieSecurityArgs { tls_cert: Some("c".into()), ..default() }, "--tls-key"),
            (BookieSecurityArgs { tls_key: Some("c".into()), ..default() }, "--tls-cert"),
            (BookieSecurityArgs { tls_skip_name_check: true, ..default() }, "--tls-ca"),
            (BookieSecurityArgs { user: Some("hd".into()), ..default() }, PASSWORD_VARIABLE),
            (BookieSecurityArgs { user_password_file: Some("p".into()), ..default() }, "--user NAME"),
            (named(), "HOME"),
        ];
        for (args, word) in cases {
            let refused = args.with_environment(&Environment::default()).unwrap_err();
            assert!(refused.contains(word), "{refused}");
        }
    }

    #[test]
    fn an_option_wins_over_the_profile() {
        let dir = tempfile::tempdir().unwrap();
        let environment = profile(
            dir.path(),
            "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\ntlsTrustStoreType=PEM\n\
             tlsTrustStore=ca.pem\ntlsHostnameVerificationEnabled=true\nsaslUser=hd\nsaslPasswordFile=/p\nsaslMechanism=PLAIN\n",
        );
        let ca = dir.path().join(PROFILES).join("ca.pem");
        let security = named().with_environment(&environment).unwrap();
        assert_eq!(security.tls, Some(TlsOptions::new().authority(ca)));
        let user = security.user.unwrap();
        assert!(matches!(&user.login, Login::File(name, file) if name == "hd" && file == Path::new("/p")));
        assert_eq!(user.mechanism, Mechanism::Plain);

        let args = BookieSecurityArgs {
            tls_ca: vec!["other.pem".into()],
            user: Some("other".into()),
            user_password_file: Some("/q".into()),
            ..named()
        };
        let security = args.with_environment(&environment).unwrap();
        assert_eq!(security.tls, Some(TlsOptions::new().authority("other.pem")));
        assert!(matches!(&security.user.unwrap().login, Login::File(name, _) if name == "other"));
    }

    #[test]
    fn a_profile_says_what_is_wrong_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let missing =
            named().with_environment(&Environment { password: None, config: Some(dir.path().into()) });
        let missing = missing.unwrap_err();
        assert!(missing.contains("profiles/prod.conf") && missing.contains("KEY=VALUE"), "{missing}");
        let class = "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\n";
        let sasl = "clientAuthProviderFactoryClass=org.apache.bookkeeper.sasl.SASLClientProviderFactory\n";
        for (text, word) in [
            ("tlsProviderFactoryClass=my.Class\n".to_owned(), "my.Class"),
            ("tlsTrustStoreType=PEM\ntlsTrustStore=/ca.pem\n".to_owned(), "tlsProviderFactoryClass="),
            (format!("{class}tlsTrustStore=/t.jks\n"), "tlsTrustStoreType=PEM"),
            (
                format!("{class}tlsClientAuthentication=true\ntlsKeyStoreType=PEM\n"),
                "tlsCertificatePath is missing",
            ),
            (format!("{class}tlsEnabledProtocols=SSLv3\n"), "SSLv3"),
            (format!("{class}tlsClientAuthentication=maybe\n"), "give true or false"),
            (sasl.to_owned(), "jaasFile"),
            ("saslUser=hd\n".to_owned(), "saslPasswordFile"),
            ("saslPasswordFile=/p\n".to_owned(), "saslUser"),
            ("clientAuthProviderFactoryClass=my.Factory\n".to_owned(), "my.Factory"),
            ("saslUser=hd\nsaslPasswordFile=/p\nsaslMechanism=GSSAPI\n".to_owned(), "GSSAPI"),
        ] {
            let refused = named().with_environment(&profile(dir.path(), &text)).unwrap_err();
            assert!(refused.contains(word) && refused.contains("prod.conf"), "{word}: {refused}");
        }
    }
}
