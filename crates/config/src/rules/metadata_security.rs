//! TLS and SASL to the metadata store, and `zkEnableSecurity`: keys of ours for what Java's ZooKeeper client takes from system
//! properties, and the properties themselves.
//!
//! Nothing is read here but the settings: the files are read for each connection.

use super::switches::refuse_without;
use crate::sources::values::Values;
use crate::table::draft::{StoreKeys, ZooKeeperKeys};
use crate::table::flags::BookieArgs;
use crate::table::metadata::ZOOKEEPER_TLS;
use crate::table::{self, Draft, Key};
use bindery_metadata::{SaslLogin, Security, TlsOptions};
use bindery_tls::store::StoreFile;
use std::path::PathBuf;

/// The section of a JAAS file in which ZooKeeper's client looks for itself.
const SECTION: &str = "Client";

/// Puts together what the keys say.
pub(super) fn apply(file: &mut Values, draft: &mut Draft) {
    let security = &mut draft.config.metadata_security;
    security.tls = tls(file, &draft.zookeeper);
    security.sasl = sasl(file, &draft.zookeeper, draft.jaas_file.as_ref());
    if security.is_restricted && !security.may_have_identity() {
        file.fault(
            "zkEnableSecurity",
            "zkEnableSecurity=true without an identity that nodes could be restricted to: give jaasFile with a section Client, \
             or zkSaslUser and zkSaslPasswordPath, or a certificate in zkTlsKeyStore; or remove the line",
        );
    }
}

/// That of a process that has no bookie, from a file. Others of its keys are a bookie's, and are left.
pub fn of_file(file: &mut Values) -> Security {
    let is_wanted = |key: &Key| {
        let name = key.name;
        name.starts_with("zkTls")
            || name.starts_with("zkSasl")
            || ["zkEnableSecurity", "jaasFile"].contains(&name)
    };
    let mut draft = table::read(&BookieArgs::default(), file, is_wanted);
    apply(file, &mut draft);
    draft.config.metadata_security
}

fn tls(file: &mut Values, keys: &ZooKeeperKeys) -> Option<TlsOptions> {
    if keys.has_tls != Some(true) {
        refuse_without(file, &ZOOKEEPER_TLS);
        return None;
    }
    let Some(authorities) = store("zkTlsTrustStore", &keys.authorities) else {
        file.fault(
            "zkTlsEnable",
            "zkTlsEnable=true needs zkTlsTrustStore, a PEM file or a store of Java's with the certificates of the authorities that sign those of \
             ZooKeeper's servers",
        );
        return None;
    };
    let mut tls = TlsOptions::new(authorities);
    tls.identity = store("zkTlsKeyStore", &keys.identity);
    tls.verifies_names = keys.verifies_names.unwrap_or(true);
    if !tls.verifies_names {
        file.warn(
            "zkTlsHostnameVerification",
            "zkTlsHostnameVerification=false: whoever has any certificate of an authority in zkTlsTrustStore can pose as a \
             ZooKeeper server",
        );
    }
    Some(tls)
}

fn store(setting: &'static str, keys: &StoreKeys) -> Option<StoreFile> {
    Some(StoreFile::new(setting, keys.path.clone()?).password(keys.password.clone()))
}

fn sasl(file: &mut Values, keys: &ZooKeeperKeys, jaas_file: Option<&PathBuf>) -> Option<SaslLogin> {
    if keys.logs_in == Some(false) {
        return None;
    }
    let has_half_a_user = keys.user.is_some() || keys.password_file.is_some();
    match (keys.user.clone(), keys.password_file.clone()) {
        (Some(name), Some(password_file)) => return Some(SaslLogin::User { name, password_file }),
        (Some(_), None) => file.fault(
            "zkSaslUser",
            "zkSaslUser needs zkSaslPasswordPath, a file with the password on its first line",
        ),
        (None, Some(_)) => {
            file.fault("zkSaslPasswordPath", "zkSaslPasswordPath without zkSaslUser: give the user's name");
        }
        (None, None) => {}
    }
    let section = keys.section.clone();
    let Some(jaas_file) = jaas_file else {
        // A requested login must not be left out silently.
        match section {
            Some(section) => {
                file.fault("zkSaslSection", format!("zkSaslSection={section} needs jaasFile, the file it is in"));
            }
            None if keys.logs_in == Some(true) && !has_half_a_user => file.fault(
                "zkSaslEnable",
                "zkSaslEnable=true without a user: give zkSaslUser and zkSaslPasswordPath, or jaasFile with a section Client",
            ),
            None => {}
        }
        return None;
    };
    let is_needed = section.is_some() || keys.logs_in == Some(true);
    let section = section.unwrap_or_else(|| SECTION.to_owned());
    Some(SaslLogin::Jaas { file: jaas_file.clone(), section, is_needed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::values::Finding;
    use bindery_tls::store::{Password, PasswordSource};

    fn applied(text: &str) -> (Security, Vec<String>, Vec<String>) {
        let mut file = Values::of(Some(text));
        let security = of_file(&mut file);
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
