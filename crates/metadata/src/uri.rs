//! Metadata service URIs, as the Java clients write them (protocol reference, section 5.1).
//!
//! `zk://h1:2181;h2:2181/ledgers`, `zk+hierarchical://...`, `zk+longhierarchical://...`, `zk+null://...`; servers are
//! separated by `;` or `,`, the port defaults to 2181, the path is the ledgers root. Without a path it is `/ledgers`, and
//! `HOST:PORT` alone is a ZooKeeper server: [`completed`](MetadataUri::completed) says what was filled in.
//!
//! Also as Pulsar writes them, `metadata-store:zk:h1:2181,h2:2181/chroot`: its driver takes the path as the store's own root and
//! `/ledgers` below that as the ledgers root, whatever the path ends with, so that `metadata-store:zk:h:2181/ledgers` has its
//! ledgers in `/ledgers/ledgers`. On Oxia, `metadata-store:oxia://h1:6648,h2:6648/NAMESPACE`, the root is always `/ledgers`, and the
//! namespace `default` without a name. Pulsar's driver takes one server there; here several may be named.

use std::fmt;
use std::str::FromStr;

use bindery_oxia::NAMESPACE_DEFAULT;

use crate::layout::LedgerLayout;

/// Port of a ZooKeeper server when the URI names none.
pub const ZOOKEEPER_PORT_DEFAULT: u16 = 2181;

/// Port of an Oxia server when the URI names none.
pub const OXIA_PORT_DEFAULT: u16 = 6648;

const VALID_FORMS: &str = "zk://HOST:PORT/ROOT, zk+hierarchical://..., zk+longhierarchical://..., zk+null://..., \
     metadata-store:zk:HOST:PORT or metadata-store:oxia://HOST:PORT/NAMESPACE (several servers separated by ';' or ',')";

/// Whose servers a URI names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Driver {
    /// ZooKeeper's.
    ZooKeeper,
    /// ZooKeeper's, as Pulsar's driver uses them: it follows when the cluster's metadata moves to Oxia ([`migration`](crate::migration)).
    PulsarOnZooKeeper {
        /// The root of Pulsar's store, for example `/p`; empty when that is the root of ZooKeeper.
        chroot: String,
    },
    /// Oxia's.
    Oxia {
        /// The namespace that the cluster is in.
        namespace: String,
    },
}

/// A parsed metadata service URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataUri {
    /// Whose the servers are.
    pub driver: Driver,
    /// The layout the URI asks for; `None` (`zk://`, `zk+null://`) takes the stored one.
    pub layout: Option<LedgerLayout>,
    /// The servers as `host:port`, in the order given, at least one.
    pub servers: Vec<String>,
    /// The ledgers root, for example `/ledgers`: absolute, without a trailing slash.
    pub root: String,
}

/// Why a metadata URI is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UriError {
    /// Not of the form `scheme://servers/root`.
    #[error("{uri:?} is not a metadata URI: use {VALID_FORMS}")]
    Malformed {
        /// The text given.
        uri: String,
    },
    /// An unknown scheme.
    #[error("unknown metadata scheme {scheme:?} in {uri:?}: use {VALID_FORMS}")]
    UnknownScheme {
        /// The text given.
        uri: String,
        /// Its scheme.
        scheme: String,
    },
    /// A scheme or layout of BookKeeper or Pulsar that this version does not support.
    #[error("{scheme}: {why}; supported are {VALID_FORMS}")]
    Unsupported {
        /// The scheme as given.
        scheme: String,
        /// Its meaning, and the reason why it does not work.
        why: &'static str,
    },
    /// A server that is not `host` or `host:port`.
    #[error("{server:?} in {uri:?} is not HOST or HOST:PORT")]
    BadServer {
        /// The text given.
        uri: String,
        /// The part at fault.
        server: String,
    },
    /// More than a namespace after the servers of Oxia.
    #[error(
        "{uri:?} has more than the name of a namespace after the servers: use metadata-store:oxia://HOST:PORT/NAMESPACE; the ledgers root \
         is /ledgers in it, as for Pulsar's driver"
    )]
    BadNamespace {
        /// The text given.
        uri: String,
    },
    /// No ledgers root, or one that no store accepts.
    #[error(
        "{uri:?} needs a ledgers root after the servers, for example /ledgers (without empty parts, '.' or '..')"
    )]
    BadRoot {
        /// The text given.
        uri: String,
    },
}

/// The ledgers root of a URI that names none: that of BookKeeper's own configuration, and of `bindery standalone`.
const ROOT_DEFAULT: &str = "/ledgers";

impl MetadataUri {
    /// The URI in full, when the text leaves out the scheme or the ledgers root: to be shown to whoever wrote it.
    pub fn completed(text: &str) -> Option<String> {
        let uri = text.trim();
        if uri.to_ascii_lowercase().starts_with(PULSAR_SCHEME) {
            return None;
        }
        let (scheme, rest) = match uri.split_once("://") {
            Some((scheme, rest)) => (scheme, rest),
            // A server needs its port here: any word would be one otherwise.
            None if is_server_with_port(uri) => ("zk", uri),
            None => return None,
        };
        let has_servers = rest.bytes().next().is_some_and(|first| first != b'/');
        let path = rest.find('/').map_or("", |at| &rest[at..]);
        match (path, uri.contains("://")) {
            _ if !has_servers => None,
            ("" | "/", _) => Some(format!("{scheme}://{}{ROOT_DEFAULT}", rest.trim_end_matches('/'))),
            (_, false) => Some(format!("{scheme}://{rest}")),
            (_, true) => None,
        }
    }
}

/// Whether a text without a scheme begins with `HOST:PORT`.
fn is_server_with_port(text: &str) -> bool {
    let servers = text.split('/').next().unwrap_or_default();
    let first = servers.split([';', ',']).next().unwrap_or_default();
    let port = first.rsplit_once(':').map(|(_, port)| port);
    port.is_some_and(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

impl FromStr for MetadataUri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<MetadataUri, UriError> {
        let completed = MetadataUri::completed(text);
        let uri = completed.as_deref().unwrap_or(text).trim();
        let lower = uri.to_ascii_lowercase();
        if lower.starts_with(PULSAR_SCHEME) {
            return of_pulsar(uri);
        }
        let malformed = || UriError::Malformed { uri: uri.into() };
        let (scheme, rest) = uri.split_once("://").ok_or_else(malformed)?;
        let layout = parse_scheme(uri, &scheme.to_ascii_lowercase())?;
        let (servers, path) = servers_and_path(uri, rest, ZOOKEEPER_PORT_DEFAULT)?;
        Ok(MetadataUri { driver: Driver::ZooKeeper, layout, servers, root: checked_root(uri, path)? })
    }
}

/// What Pulsar's URIs begin with.
const PULSAR_SCHEME: &str = "metadata-store:";

/// `metadata-store:zk:HOST:PORT/CHROOT`, without `zk:` it is ZooKeeper, too; `metadata-store:oxia://HOST:PORT/NAMESPACE`.
fn of_pulsar(uri: &str) -> Result<MetadataUri, UriError> {
    let rest = &uri[PULSAR_SCHEME.len()..];
    if let Some(rest) = rest.strip_prefix("oxia://") {
        return of_pulsar_on_oxia(uri, rest);
    }
    let is_other =
        ["memory:", "rocksdb:", "etcd:", "oxia:", "oxia+"].iter().any(|driver| rest.starts_with(driver));
    if is_other || rest.contains("://") {
        return Err(UriError::Unsupported {
            scheme: format!("{PULSAR_SCHEME}{}", rest.split(':').next().unwrap_or_default()),
            why: "of Pulsar's metadata stores ZooKeeper is supported, as metadata-store:zk:HOST:PORT, and Oxia without TLS, as \
                  metadata-store:oxia://HOST:PORT/NAMESPACE",
        });
    }
    let rest = rest.strip_prefix("zk:").unwrap_or(rest);
    let (servers, path) = servers_and_path(uri, rest, ZOOKEEPER_PORT_DEFAULT)?;
    let chroot = path.strip_suffix('/').unwrap_or(path);
    let root = checked_root(uri, &format!("{chroot}{ROOT_DEFAULT}"))?;
    let driver = Driver::PulsarOnZooKeeper { chroot: chroot.to_owned() };
    Ok(MetadataUri { driver, layout: None, servers, root })
}

fn of_pulsar_on_oxia(uri: &str, rest: &str) -> Result<MetadataUri, UriError> {
    let (servers, path) = servers_and_path(uri, rest, OXIA_PORT_DEFAULT)?;
    let namespace = match path.trim_matches('/') {
        "" => NAMESPACE_DEFAULT,
        // Pulsar's driver refuses more than one name, too.
        several if several.contains('/') || several.contains(|byte: char| byte.is_control()) => {
            return Err(UriError::BadNamespace { uri: uri.into() });
        }
        one => one,
    };
    let driver = Driver::Oxia { namespace: namespace.to_owned() };
    Ok(MetadataUri { driver, layout: None, servers, root: ROOT_DEFAULT.to_owned() })
}

/// Servers with their ports, and the path behind them.
fn servers_and_path<'a>(uri: &str, rest: &'a str, port: u16) -> Result<(Vec<String>, &'a str), UriError> {
    let malformed = || UriError::Malformed { uri: uri.into() };
    if rest.contains(['?', '#', '@']) {
        return Err(malformed());
    }
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let servers = authority
        .split([';', ','])
        .filter(|server| !server.is_empty())
        .map(|server| {
            with_port(server, port)
                .ok_or_else(|| UriError::BadServer { uri: uri.into(), server: server.into() })
        })
        .collect::<Result<Vec<_>, _>>()?;
    if servers.is_empty() {
        return Err(malformed());
    }
    Ok((servers, path))
}

/// An absolute root without a trailing slash.
fn checked_root(uri: &str, path: &str) -> Result<String, UriError> {
    let root = path.strip_suffix('/').unwrap_or(path);
    let bad_part = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains('\0');
    if root.is_empty() || root.split('/').skip(1).any(bad_part) {
        return Err(UriError::BadRoot { uri: uri.into() });
    }
    Ok(root.into())
}

fn parse_scheme(uri: &str, scheme: &str) -> Result<Option<LedgerLayout>, UriError> {
    let (driver, layout) = match scheme.split_once('+') {
        Some((driver, layout)) => (driver, Some(layout)),
        None => (scheme, None),
    };
    let unsupported = |why| Err(UriError::Unsupported { scheme: scheme.into(), why });
    match (driver, layout) {
        ("zk", None | Some("null")) => Ok(None),
        ("zk", Some("hierarchical")) => Ok(Some(LedgerLayout::Hierarchical)),
        ("zk", Some("longhierarchical")) => Ok(Some(LedgerLayout::LongHierarchical)),
        ("zk", Some("flat")) => {
            unsupported("the flat ledger layout, superseded in BookKeeper 4.0, is not supported")
        }
        ("zk", Some("legacyhierarchical")) => {
            unsupported("the legacy hierarchical ledger layout of BookKeeper 4.0 to 4.6 is not supported")
        }
        ("zk", Some("ms")) => unsupported("the HedWig metastore layout was removed from BookKeeper"),
        ("etcd", _) => unsupported("the etcd driver does not exist yet"),
        _ => Err(UriError::UnknownScheme { uri: uri.into(), scheme: scheme.into() }),
    }
}

/// `host` and `[v6]` get the default port; `None` for what is neither `host` nor `host:port`.
fn with_port(server: &str, port_default: u16) -> Option<String> {
    let (host, port) = match server.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            let port = if after.is_empty() { None } else { Some(after.strip_prefix(':')?) };
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (format!("[{host}]"), port)
        }
        None => match server.split_once(':') {
            Some((host, port)) => (host.to_string(), Some(port)),
            None => (server.to_string(), None),
        },
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if host.is_empty() || !(host.starts_with('[') || host.bytes().all(plain)) {
        return None;
    }
    let port = match port {
        Some(port) => port.parse::<u16>().ok().filter(|port| *port != 0)?,
        None => port_default,
    };
    Some(format!("{host}:{port}"))
}

impl fmt::Display for MetadataUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.driver {
            Driver::ZooKeeper => {}
            Driver::PulsarOnZooKeeper { chroot } => {
                return write!(f, "{PULSAR_SCHEME}zk:{}{chroot}", self.servers.join(","));
            }
            Driver::Oxia { namespace } => {
                return write!(f, "{PULSAR_SCHEME}oxia://{}/{namespace}", self.servers.join(","));
            }
        }
        let scheme = match self.layout {
            None => "zk",
            Some(LedgerLayout::Hierarchical) => "zk+hierarchical",
            Some(LedgerLayout::LongHierarchical) => "zk+longhierarchical",
        };
        write!(f, "{scheme}://{}{}", self.servers.join(";"), self.root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MetadataUri, UriError> {
        text.parse()
    }

    #[test]
    fn every_form_of_the_java_clients_is_read() {
        let one = ["h:1"].map(String::from).to_vec();
        let two = ["h1:2181", "h2:2182"].map(String::from).to_vec();
        for (text, layout, servers, root) in [
            ("zk://h:1/ledgers", None, &one, "/ledgers"),
            ("zk+null://h:1/ledgers", None, &one, "/ledgers"),
            ("ZK+Hierarchical://h:1/ledgers", Some(LedgerLayout::Hierarchical), &one, "/ledgers"),
            ("zk+hierarchical://h1:2181;h2:2182/a/b", Some(LedgerLayout::Hierarchical), &two, "/a/b"),
            ("zk+longhierarchical://h1,h2:2182/l/", Some(LedgerLayout::LongHierarchical), &two, "/l"),
        ] {
            let uri = parse(text).unwrap();
            assert_eq!((uri.layout, &uri.servers, uri.root.as_str()), (layout, servers, root), "{text}");
            assert_eq!(parse(&uri.to_string()).unwrap(), uri, "{text}");
        }
        assert_eq!(parse("zk://[::1]:99,[::2]/l").unwrap().servers, ["[::1]:99", "[::2]:2181"]);
    }

    /// Pulsar's driver asks `java.net.URI` for the path, which has none for such a URI, and takes `/ledgers` below the store's
    /// root.
    #[test]
    fn pulsars_form_has_its_ledgers_below_the_path() {
        for (text, servers, root) in [
            ("metadata-store:zk:h:2181", &["h:2181"][..], "/ledgers"),
            ("metadata-store:zk:h1:2181,h2:2182/pulsar", &["h1:2181", "h2:2182"], "/pulsar/ledgers"),
            ("metadata-store:zk:h1;h2/ledgers/", &["h1:2181", "h2:2181"], "/ledgers/ledgers"),
            ("metadata-store:h:2181/a", &["h:2181"], "/a/ledgers"),
        ] {
            let uri = parse(text).unwrap();
            assert_eq!((uri.layout, uri.root.as_str()), (None, root), "{text}");
            assert_eq!(uri.servers, servers, "{text}");
        }
        for bad in ["metadata-store:", "metadata-store:zk:", "metadata-store:zk:h:2181/a//b"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn pulsars_form_for_oxia_names_a_namespace() {
        for (text, servers, namespace) in [
            ("metadata-store:oxia://h:6648/pulsar", &["h:6648"][..], "pulsar"),
            ("metadata-store:oxia://h", &["h:6648"], "default"),
            ("metadata-store:oxia://h:1/", &["h:1"], "default"),
            ("metadata-store:oxia://h1:1,h2,[::1]:3/a.b-c/", &["h1:1", "h2:6648", "[::1]:3"], "a.b-c"),
        ] {
            let uri = parse(text).unwrap();
            assert_eq!(uri.driver, Driver::Oxia { namespace: namespace.to_owned() }, "{text}");
            assert_eq!(
                (&uri.servers[..], uri.root.as_str(), uri.layout),
                (&servers.iter().map(ToString::to_string).collect::<Vec<_>>()[..], "/ledgers", None)
            );
            assert_eq!(parse(&uri.to_string()).unwrap(), uri, "{text}");
        }
        for bad in ["metadata-store:oxia://h/a/b", "metadata-store:oxia://h/pulsar/ledgers"] {
            assert!(matches!(parse(bad), Err(UriError::BadNamespace { .. })), "{bad}");
        }
        for bad in [
            "metadata-store:oxia://",
            "metadata-store:oxia:///n",
            "metadata-store:oxia://h:x/n",
            "metadata-store:oxia://u@h/n",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for other in ["metadata-store:oxia+tls://h/n", "metadata-store:oxia:h:6648"] {
            assert!(matches!(parse(other), Err(UriError::Unsupported { .. })), "{other}");
        }
    }

    #[test]
    fn what_is_left_out_is_filled_in_and_said() {
        for (text, full) in [
            ("zk://h:1", "zk://h:1/ledgers"),
            ("zk+hierarchical://h1:1;h2:2/", "zk+hierarchical://h1:1;h2:2/ledgers"),
            ("h:2181", "zk://h:2181/ledgers"),
            (" 10.0.0.1:2181,10.0.0.2:2181 ", "zk://10.0.0.1:2181,10.0.0.2:2181/ledgers"),
            ("[::1]:2181", "zk://[::1]:2181/ledgers"),
            ("h:2181/a/b", "zk://h:2181/a/b"),
        ] {
            assert_eq!(MetadataUri::completed(text).as_deref(), Some(full), "{text}");
            assert_eq!(parse(text), parse(full), "{text}");
            assert!(parse(full).is_ok(), "{full}");
        }
        for whole in ["zk://h/ledgers", "metadata-store:zk:h:2181", "h", "h/ledgers", "zk:///l", "zk://", ""]
        {
            assert_eq!(MetadataUri::completed(whole), None, "{whole}");
        }
    }

    #[test]
    fn a_refusal_names_the_valid_forms() {
        for bad in
            ["redis://h/l", "zk+cubic://h/l", "zk", "", "h/ledgers", "h:x/l", "zk:///ledgers", "zk://h/l?x=1"]
        {
            let text = parse(bad).unwrap_err().to_string();
            assert!(text.contains("zk+hierarchical://"), "{bad}: {text}");
        }
        for known in [
            "zk+flat://h/l",
            "zk+ms://h/l",
            "etcd://h/l",
            "metadata-store:etcd:http://h",
            "metadata-store:rocksdb:/d",
        ] {
            assert!(matches!(parse(known), Err(UriError::Unsupported { .. })), "{known}");
        }
        for root in ["zk://h//", "zk://h//l", "zk://h/a/../l"] {
            assert!(matches!(parse(root), Err(UriError::BadRoot { .. })), "{root}");
        }
        for server in
            ["zk://h:x/l", "zk://h:0/l", "zk://h:1:2/l", "zk://[::1/l", "zk://h h/l", "zk://h:70000/l"]
        {
            assert!(matches!(parse(server), Err(UriError::BadServer { .. })), "{server}");
        }
    }
}
