//! Settings in the environment, the way the official images apply them.
//!
//! Both images run a script over the configuration file before they start the bookie. BookKeeper's takes `BK_key` and
//! `ZK_key`, for keys that are in the file, even in a comment. Pulsar's takes `key` for such keys, and `PULSAR_PREFIX_key` for
//! any. Here the table of keys stands in for the keys in the file's comments.
//!
//! Some settings are system properties of the Java process, not keys. Those given among the options in `BOOKIE_EXTRA_OPTS` and the like
//! count as the keys that mean the same here. A key that is given, in the file or in a variable, wins over a property.
//!
//! This is opt-in (`--config-env`): other programs also set names like `BK_PORT`, and a shell in which some are set
//! must not move a bookie's data.

use clap::ValueEnum;

/// Whose way of naming settings in the environment counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Naming {
    /// No naming scheme.
    #[default]
    None,
    /// `BK_key`, as in apache/bookkeeper.
    Bk,
    /// `PULSAR_PREFIX_key` and `key`, as in apachepulsar/pulsar.
    Pulsar,
}

/// A variable that gives a key a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// The key.
    pub key: String,
    /// The name of the variable.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// System properties of Java, and the keys that have the same meaning here.
const PROPERTIES: [(&str, &str); 13] = [
    ("zookeeper.client.secure", "zkTlsEnable"),
    ("zookeeper.ssl.trustStore.location", "zkTlsTrustStore"),
    ("zookeeper.ssl.trustStore.type", "zkTlsTrustStoreType"),
    ("zookeeper.ssl.trustStore.password", "zkTlsTrustStorePassword"),
    ("zookeeper.ssl.trustStore.passwordPath", "zkTlsTrustStorePasswordPath"),
    ("zookeeper.ssl.keyStore.location", "zkTlsKeyStore"),
    ("zookeeper.ssl.keyStore.type", "zkTlsKeyStoreType"),
    ("zookeeper.ssl.keyStore.password", "zkTlsKeyStorePassword"),
    ("zookeeper.ssl.keyStore.passwordPath", "zkTlsKeyStorePasswordPath"),
    ("zookeeper.ssl.hostnameVerification", "zkTlsHostnameVerification"),
    ("zookeeper.sasl.client", "zkSaslEnable"),
    ("zookeeper.sasl.clientconfig", "zkSaslSection"),
    ("java.security.auth.login.config", "jaasFile"),
];

/// Names that BookKeeper's image uses and that are not keys of the bookie.
const OF_IMAGE: [&str; 1] = ["dlogRootPath"];

/// The variables that give keys a value, of which later ones win, and the names of variables that look as if they should.
/// `is_given` says whether the file has a value for a key.
pub fn select(
    naming: Naming,
    mut variables: Vec<(String, String)>,
    is_key: impl Fn(&str) -> bool,
    is_given: impl Fn(&str) -> bool,
) -> (Vec<Variable>, Vec<String>) {
    variables.sort();
    let (mut found, mut strange) = (Vec::new(), Vec::new());
    let variable = |key: &str, name: &str, value: &str| Variable {
        key: key.to_owned(),
        name: name.to_owned(),
        value: value.trim().to_owned(),
    };
    if naming != Naming::None {
        for (name, options) in
            OPTIONS.iter().filter_map(|wanted| variables.iter().find(|(name, _)| name == wanted))
        {
            for (key, value) in options.split_ascii_whitespace().filter_map(key_of_property) {
                if is_given(key) {
                    continue;
                }
                // The last one wins, as in Java.
                found.retain(|former: &Variable| former.key != key);
                found.push(variable(key, name, value));
            }
        }
    }
    match naming {
        Naming::None => {}
        Naming::Bk => {
            for (name, value) in &variables {
                let Some(key) = name.strip_prefix("BK_").or(name.strip_prefix("ZK_")) else { continue };
                if is_key(key) {
                    found.push(variable(key, name, value));
                } else if name.starts_with("BK_")
                    && key.starts_with(|c: char| c.is_ascii_lowercase())
                    && !OF_IMAGE.contains(&key)
                {
                    // Those in capitals are the image's own.
                    strange.push(name.clone());
                }
            }
            found.extend(uri_of_servers(&variables));
        }
        Naming::Pulsar => {
            let plain = variables.iter().filter(|(name, _)| is_key(name));
            found.extend(plain.map(|(name, value)| variable(name, name, value)));
            for (name, value) in &variables {
                if let Some(key) = name.strip_prefix("PULSAR_PREFIX_").filter(|key| !key.is_empty()) {
                    found.push(variable(key, name, value));
                }
            }
        }
    }
    (found, strange)
}

/// Variables with options of the Java process, of either image; later ones win.
pub(crate) const OPTIONS: [&str; 4] = ["OPTS", "BOOKIE_OPTS", "PULSAR_EXTRA_OPTS", "BOOKIE_EXTRA_OPTS"];

/// The key and the value for an option `-DPROPERTY=VALUE`; `None` for other options, and for properties that no key stands for.
fn key_of_property(option: &str) -> Option<(&'static str, &str)> {
    let (property, value) = option.strip_prefix("-D")?.split_once('=')?;
    let (_, key) = PROPERTIES.iter().find(|(known, _)| *known == property)?;
    match *key {
        // A path, or a URL of a file. With a second equals sign Java reads no other file; here there is only one.
        "jaasFile" => {
            let file = value.strip_prefix('=').unwrap_or(value).trim_matches('"');
            Some((key, file.strip_prefix("file://").or(file.strip_prefix("file:")).unwrap_or(file)))
        }
        _ => Some((key, value)),
    }
}

/// BookKeeper's image makes a URI of the servers when it is given none, so that they win over a URI in the file.
fn uri_of_servers(variables: &[(String, String)]) -> Option<Variable> {
    let of = |wanted: &str| {
        let found = variables.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    };
    if of("BK_metadataServiceUri").is_some() {
        return None;
    }
    let servers = of("BK_zkServers")?.replace(',', ";");
    let root = of("BK_zkLedgersRootPath")
        .map_or_else(|| format!("{}/ledgers", of("BK_CLUSTER_ROOT_PATH").unwrap_or_default()), str::to_owned);
    let value = format!("zk://{servers}{root}");
    Some(Variable { key: "metadataServiceUri".to_owned(), name: "BK_zkServers".to_owned(), value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(naming: Naming, variables: &[(&str, &str)]) -> (Vec<(String, String)>, Vec<String>) {
        let owned = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let is_key =
            |key: &str| ["bookiePort", "zkServers", "zkTimeout", "metadataServiceUri"].contains(&key);
        let (found, strange) = select(naming, owned, is_key, |key| key == "zkSaslEnable");
        (found.into_iter().map(|variable| (variable.key, variable.value)).collect(), strange)
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn a_jaas_file_is_found_among_the_options_of_java() {
        let of = |naming, variables: &[(&str, &str)]| chosen(naming, variables).0;
        let jaas = |file: &str| pairs(&[("jaasFile", file)]);
        let option = |file: &str| format!("-Xmx1g -Djava.security.auth.login.config={file} -Dother=x");
        for (written, expected) in
            [("/j", "/j"), ("=/j", "/j"), ("file:/j", "/j"), ("file:///j", "/j"), ("\"/j\"", "/j")]
        {
            assert_eq!(
                of(Naming::Bk, &[("BOOKIE_EXTRA_OPTS", &option(written))]),
                jaas(expected),
                "{written}"
            );
        }
        let several = [("BOOKIE_EXTRA_OPTS", &*option("/b")), ("OPTS", &option("/a"))];
        assert_eq!(of(Naming::Bk, &several), jaas("/b"), "as Java takes the last");
        assert_eq!(of(Naming::Pulsar, &several[1..]), jaas("/a"));
        assert_eq!(of(Naming::None, &several), []);
        assert_eq!(of(Naming::Bk, &[("OPTS", "-Dother=x")]), []);
    }

    #[test]
    fn nothing_counts_unless_it_is_asked_for() {
        assert_eq!(chosen(Naming::None, &[("BK_bookiePort", "1"), ("bookiePort", "2")]).0, []);
    }

    #[test]
    fn bookkeepers_image_prefixes_keys_and_derives_a_uri() {
        let (found, strange) = chosen(
            Naming::Bk,
            &[
                ("BK_bookiePort", "4000"),
                ("BK_HOME", "/opt"),
                ("BK_PORT", "tcp://10.0.0.1:3181"),
                ("BK_bookiePrt", "1"),
                ("BK_zkServers", "z1:2181,z2:2181"),
                ("ZK_zkTimeout", "7"),
                ("bookiePort", "5000"),
            ],
        );
        let expected = pairs(&[
            ("bookiePort", "4000"),
            ("zkServers", "z1:2181,z2:2181"),
            ("zkTimeout", "7"),
            ("metadataServiceUri", "zk://z1:2181;z2:2181/ledgers"),
        ]);
        assert_eq!((found, strange), (expected, vec!["BK_bookiePrt".to_owned()]));
        let rooted = [("BK_zkServers", "z"), ("BK_CLUSTER_ROOT_PATH", "/a")];
        assert!(
            chosen(Naming::Bk, &rooted).0.contains(&("metadataServiceUri".into(), "zk://z/a/ledgers".into()))
        );
        let own = [("BK_zkServers", "z"), ("BK_metadataServiceUri", "zk://y/l")];
        assert_eq!(
            chosen(Naming::Bk, &own).0,
            pairs(&[("metadataServiceUri", "zk://y/l"), ("zkServers", "z")])
        );
    }

    #[test]
    fn system_properties_count_as_the_keys_of_their_meaning() {
        let options = "-Xmx1g -Dzookeeper.client.secure=true -Dzookeeper.ssl.trustStore.location=/ca.pem -Dother=1 -Dempty \
                       -Dzookeeper.sasl.client=false";
        let expected = pairs(&[("zkTlsEnable", "true"), ("zkTlsTrustStore", "/ca.pem")]);
        for (naming, name) in [(Naming::Bk, "BOOKIE_EXTRA_OPTS"), (Naming::Pulsar, "PULSAR_EXTRA_OPTS")] {
            let (found, strange) = chosen(naming, &[(name, options)]);
            assert_eq!((found, strange.len()), (expected.clone(), 0), "{name}: the file has zkSaslEnable");
            assert_eq!(chosen(Naming::None, &[(name, options)]).0, []);
        }
    }

    #[test]
    fn pulsars_image_takes_plain_names_of_known_keys_and_prefixed_names_of_any() {
        let (found, strange) = chosen(
            Naming::Pulsar,
            &[
                ("PULSAR_MEM", "-Xmx1g"),
                ("PULSAR_PREFIX_bookiePort", "4000"),
                ("PULSAR_PREFIX_madeUp", "x"),
                ("bookiePort", " 3000 "),
                ("madeUp", "y"),
            ],
        );
        let expected = pairs(&[("bookiePort", "3000"), ("bookiePort", "4000"), ("madeUp", "x")]);
        assert_eq!((found, strange.len()), (expected, 0), "the prefixed name wins");
    }
}
