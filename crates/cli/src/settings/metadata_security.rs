//! TLS and SASL to the metadata store, and `zkEnableSecurity`: keys of ours for what Java's ZooKeeper client takes from system
//! properties, and the properties themselves.
//!
//! Nothing is read here but the settings: the files are read for each connection.

use crate::args::MetadataArgs;
use crate::exit::{self, Failure};
use crate::output;
use crate::sources::values::{Finding, Values, absolute};
use crate::switches::{Switch, refuse_without};
use bindery_metadata::{ConnectOptions, SaslLogin, Security, TlsOptions, WaitFor};
use bindery_tls::store::{Password, PasswordSource, StoreFile};
use std::path::{Path, PathBuf};

/// The section of a JAAS file in which ZooKeeper's client looks for itself.
const SECTION: &str = "Client";

/// What switches TLS on.
const SWITCH: Switch = Switch {
    key: "zkTlsEnable",
    on: "true",
    off: Some("false"),
    harm: "logins and ledger passwords go to ZooKeeper in plain text",
};
const ASKS: [&str; 6] = [
    "zkTlsTrustStore",
    "zkTlsTrustStorePassword",
    "zkTlsTrustStorePasswordPath",
    "zkTlsKeyStore",
    "zkTlsKeyStorePassword",
    "zkTlsKeyStorePasswordPath",
];

/// Reads the keys; `jaas_file` is the flag that wins over one of them.
pub(crate) fn apply(file: &mut Values, jaas_file: Option<&Path>) -> Security {
    let tls = tls(file);
    let sasl = sasl(file, jaas_file);
    let is_restricted = file.flag("zkEnableSecurity").unwrap_or(false);
    let mut security = Security::new().restricted(is_restricted);
    (security.tls, security.sasl) = (tls, sasl);
    if is_restricted && !security.may_have_identity() {
        file.fault(
            "zkEnableSecurity",
            "zkEnableSecurity=true without an identity that nodes could be restricted to: give jaasFile with a section Client, \
             or zkSaslUser and zkSaslPasswordPath, or a certificate in zkTlsKeyStore; or remove the line",
        );
    }
    security
}

fn tls(file: &mut Values) -> Option<TlsOptions> {
    let is_on = file.flag("zkTlsEnable").unwrap_or(false);
    let authorities = store(file, is_on, &TRUST_STORE);
    let identity = store(file, is_on, &KEY_STORE);
    let verifies_names = file.flag("zkTlsHostnameVerification").unwrap_or(true);
    if !is_on {
        refuse_without(file, &SWITCH, &ASKS);
        return None;
    }
    let Some(authorities) = authorities else {
        file.fault(
            "zkTlsEnable",
            "zkTlsEnable=true needs zkTlsTrustStore, a PEM file or a store of Java's with the certificates of the authorities that sign those of \
             ZooKeeper's servers",
        );
        return None;
    };
    if !verifies_names {
        file.warn(
            "zkTlsHostnameVerification",
            "zkTlsHostnameVerification=false: whoever has any certificate of an authority in zkTlsTrustStore can pose as a \
             ZooKeeper server",
        );
    }
    let mut tls = TlsOptions::new(authorities);
    (tls.identity, tls.verifies_names) = (identity, verifies_names);
    Some(tls)
}

/// Names of the keys of one store.
struct Keys {
    path: &'static str,
    form: &'static str,
    password: &'static str,
    password_file: &'static str,
}

const TRUST_STORE: Keys = Keys {
    path: "zkTlsTrustStore",
    form: "zkTlsTrustStoreType",
    password: "zkTlsTrustStorePassword",
    password_file: "zkTlsTrustStorePasswordPath",
};
const KEY_STORE: Keys = Keys {
    path: "zkTlsKeyStore",
    form: "zkTlsKeyStoreType",
    password: "zkTlsKeyStorePassword",
    password_file: "zkTlsKeyStorePasswordPath",
};

fn store(file: &mut Values, is_on: bool, keys: &Keys) -> Option<StoreFile> {
    let (path, form) = (file.take(keys.path), file.take(keys.form));
    let given = file.take(keys.password).map(|text| PasswordSource::Given(Password::new(text)));
    let of_file = file.take(keys.password_file).map(|path| PasswordSource::File {
        setting: keys.password_file,
        path: absolute(Path::new(&path), file),
    });
    let path = absolute(Path::new(&path?), file);
    let is_read = |form: &str| ["PEM", "PKCS12", "JKS"].iter().any(|known| form.eq_ignore_ascii_case(known));
    if let Some(form) = form.filter(|form| is_on && !is_read(form)) {
        file.fault(keys.form, format!("{}={form}: give PEM, PKCS12 or JKS", keys.form));
    }
    // The file itself says what it is. As in Java, a file wins over a password in the settings.
    Some(StoreFile::new(keys.path, path).password(of_file.or(given)))
}

fn sasl(file: &mut Values, jaas_file: Option<&Path>) -> Option<SaslLogin> {
    let is_on = file.flag("zkSaslEnable");
    let (user, password) = (file.take("zkSaslUser"), file.take("zkSaslPasswordPath"));
    // Bookies may also know their clients from it.
    let (jaas, section) = (file.shared("jaasFile"), file.take("zkSaslSection"));
    let jaas = jaas_file.map(Path::to_owned).or(jaas.map(PathBuf::from));
    if is_on == Some(false) {
        return None;
    }
    let has_half_a_user = user.is_some() || password.is_some();
    match (user, password) {
        (Some(name), Some(path)) => {
            let password_file = absolute(Path::new(&path), file);
            return Some(SaslLogin::User { name, password_file });
        }
        (Some(_), None) => file.fault(
            "zkSaslUser",
            "zkSaslUser needs zkSaslPasswordPath, a file with the password on its first line",
        ),
        (None, Some(_)) => {
            file.fault("zkSaslPasswordPath", "zkSaslPasswordPath without zkSaslUser: give the user's name");
        }
        (None, None) => {}
    }
    let Some(jaas) = jaas else {
        // A requested login must not be left out silently.
        match section {
            Some(section) => {
                file.fault("zkSaslSection", format!("zkSaslSection={section} needs jaasFile, the file it is in"));
            }
            None if is_on == Some(true) && !has_half_a_user => file.fault(
                "zkSaslEnable",
                "zkSaslEnable=true without a user: give zkSaslUser and zkSaslPasswordPath, or jaasFile with a section Client",
            ),
            None => {}
        }
        return None;
    };
    let is_needed = section.is_some() || is_on == Some(true);
    let section = section.unwrap_or_else(|| SECTION.to_owned());
    Some(SaslLogin::Jaas { file: absolute(&jaas, file), section, is_needed })
}

impl MetadataArgs {
    /// How a command connects to the metadata store.
    pub fn options(&self) -> Result<ConnectOptions, Failure> {
        // A server that says nothing has the session timeout: one that was just started, for a cluster that is being made, is slow.
        let of_command = ConnectOptions { wait_for: WaitFor::Silent, ..ConnectOptions::default() };
        let Some(path) = &self.metadata_config else { return Ok(of_command) };
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("--metadata-config {shown}: {error}")))?;
        let mut file = Values::of(Some(&text));
        let security = apply(&mut file, None);
        for warning in &file.warnings {
            output::say(format!("bindery: --metadata-config {shown}: {warning}"));
        }
        // Others of its keys are a bookie's.
        let faults: Vec<String> = file.faults.iter().map(Finding::to_string).collect();
        match faults.is_empty() {
            true => Ok(ConnectOptions { security, ..of_command }),
            false => Err(Failure::usage(format!(
                "--metadata-config {shown}: {}",
                faults.join(exit::BETWEEN_FAULTS)
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(text: &str) -> (Security, Vec<String>, Vec<String>) {
        let mut file = Values::of(Some(text));
        let security = apply(&mut file, None);
        let texts = |found: Vec<Finding>| found.into_iter().map(|finding| finding.text).collect();
        (security, texts(file.faults), texts(file.warnings))
    }

    #[test]
    fn nothing_is_protected_unless_it_is_asked_for() {
        let (security, faults, warnings) =
            applied("zkTlsKeyStoreType=JKS\nzkTlsKeyStore=\nzkSaslSection=Client\nzkSaslEnable=false\n");
        assert_eq!((security, faults, warnings), (Security::default(), Vec::new(), Vec::new()));
    }

    #[test]
    fn nothing_may_ask_for_tls_that_is_off() {
        for ask in ["zkTlsTrustStore=/ca.pem\n", "zkTlsKeyStore=/k.jks\nzkTlsKeyStoreType=JKS\n"] {
            let (security, faults, warnings) = applied(ask);
            assert_eq!((security, faults.len(), warnings), (Security::default(), 1, Vec::new()), "{ask}");
            assert!(faults[0].contains("without zkTlsEnable=true"), "{faults:?}");
            let (_, faults, warnings) = applied(&format!("zkTlsEnable=false\n{ask}"));
            assert_eq!((faults, warnings.len()), (Vec::new(), 1), "{ask}");
        }
    }

    #[test]
    fn tls_takes_pem_files() {
        let (security, faults, warnings) = applied(
            "zkTlsEnable=true\nzkTlsTrustStore=/ca.pem\nzkTlsKeyStore=/me.pem\nzkTlsKeyStoreType=pem\nzkEnableSecurity=true\n",
        );
        assert_eq!((faults, warnings), (Vec::new(), Vec::new()));
        let file = |setting, path: &str| StoreFile::new(setting, path);
        let expected =
            TlsOptions::new(file("zkTlsTrustStore", "/ca.pem")).identity(file("zkTlsKeyStore", "/me.pem"));
        assert_eq!(security, Security::new().tls(expected).restricted(true));

        let (_, faults, warnings) =
            applied("zkTlsEnable=true\nzkTlsHostnameVerification=false\nzkTlsTrustStore=/ca\n");
        assert!(faults.is_empty() && warnings.len() == 1 && warnings[0].contains("pose as"), "{warnings:?}");
        for (text, why) in [
            ("zkTlsEnable=true\n", "needs zkTlsTrustStore"),
            (
                "zkTlsEnable=true\nzkTlsTrustStore=/ca\nzkTlsTrustStoreType=BCFKS\n",
                "zkTlsTrustStoreType=BCFKS",
            ),
            ("zkEnableSecurity=true\n", "without an identity"),
            ("zkEnableSecurity=true\nzkTlsEnable=true\nzkTlsTrustStore=/ca\n", "without an identity"),
        ] {
            let faults = applied(text).1;
            assert!(faults.len() == 1 && faults[0].contains(why), "{text}: {faults:?}");
        }
    }

    #[test]
    fn stores_of_java_have_passwords_in_the_settings_or_in_files() {
        let (security, faults, _) = applied(
            "zkTlsEnable=true\nzkTlsTrustStore=/t.jks\nzkTlsTrustStoreType=JKS\nzkTlsTrustStorePassword=one\n\
             zkTlsKeyStore=/k.p12\nzkTlsKeyStorePassword=two\nzkTlsKeyStorePasswordPath=/p\n",
        );
        assert!(faults.is_empty() && !format!("{security:?}").contains("one\""), "{faults:?}");
        let tls = security.tls.unwrap();
        assert_eq!(tls.authorities.password, Some(PasswordSource::Given(Password::new("one"))));
        let file = PasswordSource::File { setting: "zkTlsKeyStorePasswordPath", path: PathBuf::from("/p") };
        assert_eq!(tls.identity.unwrap().password, Some(file));
    }

    #[test]
    fn sasl_takes_a_jaas_file_as_java_does_or_a_user() {
        let login = |text: &str| {
            let (security, faults, _) = applied(text);
            assert!(faults.is_empty(), "{faults:?}");
            security.sasl
        };
        let jaas = |section: &str, is_needed| {
            Some(SaslLogin::Jaas { file: PathBuf::from("/j"), section: section.to_owned(), is_needed })
        };
        assert_eq!(login("jaasFile=/j\n"), jaas("Client", false));
        assert_eq!(login("jaasFile=/j\nzkSaslSection=Mine\n"), jaas("Mine", true));
        assert_eq!(login("jaasFile=/j\nzkSaslEnable=true\nzkEnableSecurity=true\n"), jaas("Client", true));
        assert_eq!(login("jaasFile=/j\nzkSaslEnable=false\n"), None);
        let user = SaslLogin::User { name: "u".to_owned(), password_file: PathBuf::from("/p") };
        assert_eq!(login("zkSaslUser=u\nzkSaslPasswordPath=/p\njaasFile=/j\n"), Some(user));
        for (text, why) in [
            ("zkSaslUser=u\n", "needs zkSaslPasswordPath"),
            ("zkSaslPasswordPath=/p\n", "without zkSaslUser"),
            ("zkSaslEnable=true\nzkSaslSection=Mine\n", "needs jaasFile"),
            ("zkSaslSection=Mine\n", "needs jaasFile"),
            ("zkSaslEnable=true\n", "without a user"),
            ("zkSaslEnable=true\nzkSaslUser=u\n", "needs zkSaslPasswordPath"),
        ] {
            let faults = applied(text).1;
            assert!(faults.len() == 1 && faults[0].contains(why), "{text}: {faults:?}");
        }
    }
}
