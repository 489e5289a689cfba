//! Metadata service URIs, as the Java clients write them (protocol reference, section 5.1).
//!
//! `zk://h1:2181;h2:2181/ledgers`, `zk+hierarchical://...`, `zk+longhierarchical://...`, `zk+null://...`; servers are
//! separated by `;` or `,`, the port defaults to 2181, the path is the ledgers root.

use std::fmt;
use std::str::FromStr;

use crate::layout::LedgerLayout;

/// Port of a ZooKeeper server when the URI names none.
pub const ZOOKEEPER_PORT_DEFAULT: u16 = 2181;

const VALID_FORMS: &str = "zk://HOST:PORT/ROOT, zk+hierarchical://..., zk+longhierarchical://... or zk+null://... \
     (several servers separated by ';' or ',')";

/// A parsed metadata service URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataUri {
    /// The layout the URI asks for; `None` (`zk://`, `zk+null://`) takes the stored one.
    pub layout: Option<LedgerLayout>,
    /// The servers as `host:port`, in the order given, at least one.
    pub servers: Vec<String>,
    /// The ledgers root, for example `/ledgers`: absolute, without a trailing slash.
    pub root: String,
}

/// Why a metadata URI is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// Not of the form `scheme://servers/root`.
    #[error("{uri:?} is not a metadata URI: use {VALID_FORMS}")]
    Malformed {
        /// The text given.
        uri: String,
    },
    /// A scheme nobody knows.
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
        /// What it is and why it does not work.
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
    /// No ledgers root, or one that no store accepts.
    #[error(
        "{uri:?} needs a ledgers root after the servers, for example /ledgers (without empty parts, '.' or '..')"
    )]
    BadRoot {
        /// The text given.
        uri: String,
    },
}

impl FromStr for MetadataUri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<MetadataUri, UriError> {
        let uri = text.trim();
        let lower = uri.to_ascii_lowercase();
        if lower.starts_with("metadata-store:") {
            return Err(UriError::Unsupported {
                scheme: "metadata-store".into(),
                why: "Pulsar's form; for metadata-store:zk:HOST:PORT/ROOT write zk://HOST:PORT/ROOT",
            });
        }
        let malformed = || UriError::Malformed { uri: uri.into() };
        let (scheme, rest) = uri.split_once("://").ok_or_else(malformed)?;
        let layout = parse_scheme(uri, &scheme.to_ascii_lowercase())?;
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
                with_port(server)
                    .ok_or_else(|| UriError::BadServer { uri: uri.into(), server: server.into() })
            })
            .collect::<Result<Vec<_>, _>>()?;
        if servers.is_empty() {
            return Err(malformed());
        }
        let root = path.strip_suffix('/').unwrap_or(path);
        let bad_part = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains('\0');
        if root.is_empty() || root.split('/').skip(1).any(bad_part) {
            return Err(UriError::BadRoot { uri: uri.into() });
        }
        Ok(MetadataUri { layout, servers, root: root.into() })
    }
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
fn with_port(server: &str) -> Option<String> {
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
        None => ZOOKEEPER_PORT_DEFAULT,
    };
    Some(format!("{host}:{port}"))
}

impl fmt::Display for MetadataUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

    #[test]
    fn a_refusal_names_the_valid_forms() {
        for bad in
            ["redis://h/l", "zk+cubic://h/l", "zk", "", "h:2181/ledgers", "zk:///ledgers", "zk://h/l?x=1"]
        {
            let text = parse(bad).unwrap_err().to_string();
            assert!(text.contains("zk+hierarchical://"), "{bad}: {text}");
        }
        for known in ["zk+flat://h/l", "zk+ms://h/l", "etcd://h/l", "metadata-store:zk:h:2181/l"] {
            assert!(matches!(parse(known), Err(UriError::Unsupported { .. })), "{known}");
        }
        for root in ["zk://h", "zk://h/", "zk://h//l", "zk://h/a/../l"] {
            assert!(matches!(parse(root), Err(UriError::BadRoot { .. })), "{root}");
        }
        for server in
            ["zk://h:x/l", "zk://h:0/l", "zk://h:1:2/l", "zk://[::1/l", "zk://h h/l", "zk://h:70000/l"]
        {
            assert!(matches!(parse(server), Err(UriError::BadServer { .. })), "{server}");
        }
    }
}
