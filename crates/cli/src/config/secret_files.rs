//! Files with keys and passwords that every user of the machine may read.
//!
//! A warning and no fault, unlike the file of users: a secret of Kubernetes is mounted with mode 0644 by default, into a
//! container that has one user.

use bindery_config::settings::Examined;
use bindery_config::sources::values::{Finding, Given, Place};
use bindery_config::table;
use bindery_metadata::SaslLogin;
use bindery_tls::file::is_open_to_all;
use bindery_tls::store::PasswordSource;
use std::path::{Path, PathBuf};

/// A warning for each of them. `config` is the configuration file. Blocks.
pub(super) fn warnings(examined: &Examined, config: Option<&Path>) -> Vec<Finding> {
    let open = files(examined, config).into_iter().filter(|(_, path)| is_open_to_all(path));
    let warnings = open.map(|(key, path)| {
        let path = path.display();
        let named = key.map_or_else(String::new, |key| format!("{key}="));
        Finding {
            key: key.map(str::to_owned),
            place: key.and_then(|key| examined.draft.given.get(key)).map(|given| given.place.clone()),
            text: format!(
                "{named}{path} has a key or a password in it, and every user of this machine may use the file: take that away with \
                 chmod o= {path}; in Kubernetes with defaultMode: 0440 of the volume and an fsGroup of the pod"
            ),
        }
    });
    warnings.collect()
}

/// The files with secrets that the settings name, each with its key. Left out are the JAAS file, the file of users and the password file of
/// this process's own client: the code that loads them checks their modes.
fn files(examined: &Examined, config: Option<&Path>) -> Vec<(Option<&'static str>, PathBuf)> {
    let bookie = &examined.draft.config;
    let mut found: Vec<(Option<&'static str>, PathBuf)> = Vec::new();
    let mut add = |key: &'static str, path: &Path| found.push((Some(key), path.to_owned()));
    let of_store = |source: &Option<PasswordSource>| match source {
        Some(PasswordSource::File { setting, path }) => Some((*setting, path.clone())),
        _ => None,
    };
    if let Some(tls) = &bookie.tls {
        add("tlsKeyStore", &tls.key);
        of_store(&tls.key_password).iter().for_each(|(key, path)| add(key, path));
    }
    if let Some(tls) = &bookie.admin_tls {
        add("httpServerKeyStorePath", &tls.key);
    }
    if let Some(tokens) = &bookie.admin_tokens {
        add("httpServerTokensFile", tokens);
    }
    if let Some(identity) = bookie.metadata_security.tls.as_ref().and_then(|tls| tls.identity.as_ref()) {
        add("zkTlsKeyStore", &identity.path);
        of_store(&identity.password).iter().for_each(|(key, path)| add(key, path));
    }
    if let Some(SaslLogin::User { password_file, .. }) = &bookie.metadata_security.sasl {
        add("zkSaslPasswordPath", password_file);
    }
    let is_secret_here = |(name, given): (&String, &Given)| {
        matches!(given.place, Place::Line(_))
            && !given.text.is_empty()
            && table::find(name).is_some_and(|key| key.is_secret)
    };
    if let Some(config) = config.filter(|_| examined.draft.given.iter().any(is_secret_here)) {
        found.push((None, config.to_owned()));
    }
    found
}
