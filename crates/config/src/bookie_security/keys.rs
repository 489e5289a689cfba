//! Keys of BookKeeper's clients, as a profile and a bookie's own configuration have them; BookKeeper's bookie gives its own to the
//! client of its AutoRecovery, too.

use std::path::{Path, PathBuf};

use bindery_client::tls::{CipherName, TlsVersion};
use bindery_client::{Mechanism, TlsOptions};
use bindery_server::tls::TlsConfig;

use super::{BookieSecurity, Login, User};
use crate::sources::values::{Given, Values, truth};

/// The one implementation of TLS that BookKeeper has.
const TLS_CLASS: &str = "org.apache.bookkeeper.tls.TLSContextFactory";
/// Its implementation of SASL.
const SASL_CLASS: &str = "org.apache.bookkeeper.sasl.SASLClientProviderFactory";
/// `SaslConstants.JAAS_DEFAULT_CLIENT_SECTION_NAME`.
const SECTION: &str = "BookKeeper";

/// Keys of TLS.
const TLS_KEYS: [&str; 11] = [
    "tlsProviderFactoryClass",
    "tlsProvider",
    "tlsTrustStoreType",
    "tlsTrustStore",
    "tlsClientAuthentication",
    "tlsKeyStoreType",
    "tlsKeyStore",
    "tlsCertificatePath",
    "tlsHostnameVerificationEnabled",
    "tlsEnabledProtocols",
    "tlsEnabledCipherSuites",
];
/// Keys of the user. The last three are ours.
const USER_KEYS: [&str; 5] = [
    "clientAuthProviderFactoryClass",
    "saslJaasClientSectionName",
    "saslUser",
    "saslPasswordFile",
    "saslMechanism",
];
/// Ours: what Java is told with the system property java.security.auth.login.config.
const JAAS_KEY: &str = "jaasFile";

/// Reads a profile; relative paths in it are relative to `dir`.
pub fn of_profile(file: &mut Values, dir: &Path) -> BookieSecurity {
    for key in TLS_KEYS.iter().chain(&USER_KEYS).chain(&[JAAS_KEY]) {
        file.take(key);
    }
    let mut keys = Keys { file, dir: Some(dir) };
    let tls = if keys.has_tls() { keys.tls() } else { None };
    BookieSecurity { tls, user: keys.user() }
}

/// Of tierer and repair in a bookie: the bookie's keys are those of its client, too. `own` is the bookie's TLS; its keys were taken, and their
/// faults are known. `has_client`: whether there is anything that uses it.
pub fn of_bookie(file: &mut Values, own: Option<&TlsConfig>, has_client: bool) -> BookieSecurity {
    for key in USER_KEYS.iter().chain(&["tlsHostnameVerificationEnabled"]) {
        file.take(key);
    }
    let speaks_tls = file.flag("tierTls");
    if !has_client {
        return BookieSecurity::default();
    }
    let mut keys = Keys { file, dir: None };
    let user = keys.user();
    let tls = match (own, speaks_tls) {
        (None, Some(true)) => {
            let text = format!("tierTls=true without TLS: give tlsProviderFactoryClass={TLS_CLASS}");
            keys.file.fault("tierTls", text);
            None
        }
        (Some(own), Some(false)) if own.is_required => {
            let text = "tierTls=false, and TLS is required of clients: tierer and repair could not talk to this bookie. Remove the line";
            keys.file.fault("tierTls", text);
            None
        }
        (None, _) | (Some(_), Some(false)) => None,
        (Some(own), _) => keys.tls_of_bookie(own),
    };
    BookieSecurity { tls, user }
}

/// Values that were taken.
struct Keys<'a> {
    file: &'a mut Values,
    /// Base of relative paths; the working directory without it.
    dir: Option<&'a Path>,
}

impl Keys<'_> {
    /// As in BookKeeper's sample file, "null" stands for none.
    fn text(&self, key: &str) -> Option<String> {
        let Given { text, .. } = self.file.given().get(key)?;
        Some(text.clone()).filter(|text| !text.is_empty() && text != "null")
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        let path = PathBuf::from(self.text(key)?);
        Some(self.dir.map_or_else(|| path.clone(), |dir| dir.join(&path)))
    }

    fn flag(&mut self, key: &str) -> Option<bool> {
        let text = self.text(key)?;
        let flag = truth(&text);
        if flag.is_none() {
            self.file.fault(key, format!("{key}={text}: give true or false"));
        }
        flag
    }

    fn has_tls(&mut self) -> bool {
        let Some(class) = self.text("tlsProviderFactoryClass") else {
            // BookKeeper's clients then ignore the others, and talk without TLS. Only "null" shows that this is meant.
            let is_off =
                self.file.given().get("tlsProviderFactoryClass").is_some_and(|given| given.text == "null");
            let other =
                self.file.given().keys().find(|key| key.starts_with("tls") && self.text(key).is_some());
            if let Some(key) = other.filter(|_| !is_off).cloned() {
                let text = format!(
                    "{key} without the line that turns TLS on: add tlsProviderFactoryClass={TLS_CLASS}, or null to talk without TLS"
                );
                self.file.fault(&key, text);
            }
            return false;
        };
        if class != TLS_CLASS {
            let text = format!("tlsProviderFactoryClass={class}: give {TLS_CLASS}, no other is known");
            self.file.fault("tlsProviderFactoryClass", text);
        }
        true
    }

    /// A PEM file; a fault when its type key says that it is none, which is BookKeeper's default.
    fn pem(&mut self, type_key: &str, key: &str) -> Option<PathBuf> {
        let path = self.path(key)?;
        let kind = self.text(type_key).unwrap_or_else(|| "JKS".to_owned());
        if kind == "PEM" {
            return Some(path);
        }
        let text = format!(
            "{type_key}={kind}: a client reads PEM files only (JKS is the default where it is not set): convert {} as the guide to TLS \
             shows, and set {type_key}=PEM",
            path.display()
        );
        self.file.fault(type_key, text);
        None
    }

    fn tls(&mut self) -> Option<TlsOptions> {
        let mut options = self.common(TlsOptions::new());
        if self.flag("tlsClientAuthentication") == Some(true) {
            let (key, certificates) =
                (self.pem("tlsKeyStoreType", "tlsKeyStore"), self.path("tlsCertificatePath"));
            for (name, path) in [("tlsKeyStore", &key), ("tlsCertificatePath", &certificates)] {
                if path.is_none() && self.text(name).is_none() {
                    self.file.fault(
                        name,
                        format!("{name} is missing: tlsClientAuthentication=true needs it, a PEM file"),
                    );
                }
            }
            options = options.identity(certificates?, key?);
        }
        Some(options)
    }

    /// The bookie's certificate is that of its client, where clients need one.
    fn tls_of_bookie(&mut self, own: &TlsConfig) -> Option<TlsOptions> {
        let options = self.common(TlsOptions::new());
        if self.text("tlsTrustStore").is_none() {
            self.file.note(
                "tlsProviderFactoryClass",
                "tierer and repair of this process trust bookies whose certificates lead to an authority of this system: give tlsTrustStore=FILE and \
                 tlsTrustStoreType=PEM for the cluster's own authority",
            );
        }
        // One PEM file may have both the key and the certificates, so equal paths say nothing.
        let is_pem = self.text("tlsKeyStoreType").as_deref() == Some("PEM");
        if own.client_authorities.is_some() && !is_pem {
            let text = format!(
                "{}: tierer and repair of this process show bookies their certificate from PEM files only: convert the store as the guide to \
                 TLS shows, or leave both to others (--tier-role off, --repair-role off)",
                own.key.display()
            );
            self.file.fault("tlsKeyStore", text);
            return None;
        }
        Some(match &own.client_authorities {
            Some(_) => options.identity(&own.certificates, &own.key),
            None => options,
        })
    }

    fn common(&mut self, mut options: TlsOptions) -> TlsOptions {
        if let Some(path) = self.pem("tlsTrustStoreType", "tlsTrustStore") {
            options = options.authority(path);
        }
        // BookKeeper's client leaves names alone unless it is told to check them.
        if self.flag("tlsHostnameVerificationEnabled") == Some(false) {
            options = options.skip_name_check();
        }
        let versions: Vec<TlsVersion> = self.listed("tlsEnabledProtocols");
        let ciphers: Vec<CipherName> = self.listed("tlsEnabledCipherSuites");
        options.versions(versions).ciphers(ciphers)
    }

    /// The names of a list that are known here; those of a bookie were judged with its own TLS.
    fn listed<T: std::str::FromStr>(&mut self, key: &str) -> Vec<T> {
        let text = self.text(key).unwrap_or_default();
        let names: Vec<&str> = text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let found: Vec<T> = names.iter().filter_map(|name| name.parse().ok()).collect();
        if found.is_empty() && !names.is_empty() && self.dir.is_some() {
            self.file.fault(key, format!("{key}={text}: none of these is spoken here"));
        }
        found
    }

    fn user(&mut self) -> Option<User> {
        let class = self.text("clientAuthProviderFactoryClass");
        if let Some(class) = &class
            && class != SASL_CLASS
        {
            let text =
                format!("clientAuthProviderFactoryClass={class}: give {SASL_CLASS}, no other is known");
            self.file.fault("clientAuthProviderFactoryClass", text);
            return None;
        }
        let mechanism = match self.text("saslMechanism") {
            None => Mechanism::DigestMd5,
            Some(text) => match mechanism(&text) {
                Ok(mechanism) => mechanism,
                Err(why) => {
                    self.file.fault("saslMechanism", format!("saslMechanism={text}: {why}"));
                    return None;
                }
            },
        };
        let (name, file) = (self.text("saslUser"), self.path("saslPasswordFile"));
        let login = match (name, file) {
            (Some(name), Some(file)) => Login::File(name, file),
            (Some(_), None) => {
                self.file.fault(
                    "saslUser",
                    "saslUser without saslPasswordFile, a file with the password in its first line",
                );
                return None;
            }
            (None, Some(_)) => {
                self.file
                    .fault("saslPasswordFile", "saslPasswordFile without saslUser, the name of the user");
                return None;
            }
            (None, None) => {
                class?;
                let Some(file) = self.path(JAAS_KEY) else {
                    let text = format!(
                        "clientAuthProviderFactoryClass needs a user: give saslUser and saslPasswordFile, or {JAAS_KEY} with \
                         saslJaasClientSectionName"
                    );
                    self.file.fault("clientAuthProviderFactoryClass", text);
                    return None;
                };
                Login::Jaas(
                    file,
                    self.text("saslJaasClientSectionName").unwrap_or_else(|| SECTION.to_owned()),
                )
            }
        };
        Some(User { mechanism, login })
    }
}

/// The mechanism of this name.
pub fn mechanism(text: &str) -> Result<Mechanism, String> {
    match text.to_ascii_lowercase().as_str() {
        "digest-md5" => Ok(Mechanism::DigestMd5),
        "plain" => Ok(Mechanism::Plain),
        _ => Err("give DIGEST-MD5 or PLAIN".to_owned()),
    }
}
