//! `BookieServiceInfoFormat`: where a registered bookie can be reached (protocol reference, section 5.2).

use std::collections::BTreeMap;

use prost::Message;

use super::proto::{BookieServiceInfoFormat, bookie_service_info_format};

/// Protocol name of the endpoint that clients connect to.
pub const PROTOCOL_BOOKIE_RPC: &str = "bookie-rpc";
/// Protocol name of the admin server's endpoint.
pub const PROTOCOL_HTTP: &str = "http";

/// The extension of an endpoint that understands START_TLS.
pub const EXTENSION_TLS: &str = "tls";

/// One listening port of a bookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Name of the endpoint: `bookie`, `httpserver`.
    pub id: String,
    /// Port.
    pub port: u16,
    /// Host name or address under which clients reach it.
    pub host: String,
    /// Its protocol; clients look for [`PROTOCOL_BOOKIE_RPC`].
    pub protocol: String,
    /// Names of authentication methods.
    pub auth: Vec<String>,
    /// Extensions such as `tls`.
    pub extensions: Vec<String>,
}

/// What a bookie publishes in its registration node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BookieServiceInfo {
    /// Its ports.
    pub endpoints: Vec<Endpoint>,
    /// Free properties.
    pub properties: BTreeMap<String, String>,
}

/// Why a registration node's bytes are not service info.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceInfoError {
    /// Not the protobuf message.
    #[error("not a BookieServiceInfoFormat message: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// A port outside 0..=65535.
    #[error("endpoint {id:?} has port {port}")]
    Port {
        /// Its endpoint.
        id: String,
        /// The number given.
        port: i32,
    },
}

impl BookieServiceInfo {
    /// The info a bookie publishes: its BookKeeper port and, with the admin server on, that one.
    pub fn of_bookie(bookie: (&str, u16), admin: Option<(&str, u16)>) -> BookieServiceInfo {
        let endpoint = |id: &str, (host, port): (&str, u16), protocol: &str| Endpoint {
            id: id.into(),
            port,
            host: host.into(),
            protocol: protocol.into(),
            auth: Vec::new(),
            extensions: Vec::new(),
        };
        let mut endpoints = vec![endpoint("bookie", bookie, PROTOCOL_BOOKIE_RPC)];
        endpoints.extend(admin.map(|admin| endpoint("httpserver", admin, PROTOCOL_HTTP)));
        BookieServiceInfo { endpoints, properties: BTreeMap::new() }
    }

    /// Says that the port for clients speaks TLS after START_TLS.
    pub fn offer_tls(&mut self) {
        let bookies = self.endpoints.iter_mut().filter(|endpoint| endpoint.protocol == PROTOCOL_BOOKIE_RPC);
        bookies.for_each(|endpoint| endpoint.extensions.push(EXTENSION_TLS.into()));
    }

    /// The message's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let endpoints = self.endpoints.iter().cloned().map(|endpoint| bookie_service_info_format::Endpoint {
            id: endpoint.id,
            port: i32::from(endpoint.port),
            host: endpoint.host,
            protocol: endpoint.protocol,
            auth: endpoint.auth,
            extensions: endpoint.extensions,
        });
        let format =
            BookieServiceInfoFormat { endpoints: endpoints.collect(), properties: self.properties.clone() };
        format.encode_to_vec()
    }

    /// Reads a registration node. Bookies before 4.11 leave it empty: then the id itself is `host:port` and the
    /// result has no endpoints.
    pub fn decode(bytes: &[u8]) -> Result<BookieServiceInfo, ServiceInfoError> {
        let format = BookieServiceInfoFormat::decode(bytes)?;
        let endpoints = format.endpoints.into_iter().map(|endpoint| {
            let port = u16::try_from(endpoint.port)
                .map_err(|_| ServiceInfoError::Port { id: endpoint.id.clone(), port: endpoint.port })?;
            Ok(Endpoint {
                id: endpoint.id,
                port,
                // Some registered an IPv6 address as it stands beside a port.
                host: bindery_types::bare_host(&endpoint.host).to_owned(),
                protocol: endpoint.protocol,
                auth: endpoint.auth,
                extensions: endpoint.extensions,
            })
        });
        let endpoints = endpoints.collect::<Result<_, ServiceInfoError>>()?;
        Ok(BookieServiceInfo { endpoints, properties: format.properties })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_info_survives_its_bytes_and_bad_bytes_are_refused() {
        let mut info = BookieServiceInfo::of_bookie(("h", 3181), Some(("::1", 8080)));
        info.properties.insert("zone".into(), "a".into());
        info.offer_tls();
        assert_eq!(info.endpoints[0].extensions, ["tls"]);
        assert!(info.endpoints[1..].iter().all(|endpoint| endpoint.extensions.is_empty()));
        assert_eq!(BookieServiceInfo::decode(&info.encode()), Ok(info));
        let bracketed = BookieServiceInfo::of_bookie(("[::1]", 3181), None);
        assert_eq!(BookieServiceInfo::decode(&bracketed.encode()).unwrap().endpoints[0].host, "::1");
        assert_eq!(BookieServiceInfo::decode(b""), Ok(BookieServiceInfo::default()));
        assert!(BookieServiceInfo::decode(b"\x32\x7f").is_err());
    }

    /// Field 6 with id 1 = "b", port 2 = 70000, host 3 = "h", protocol 4 = "p".
    #[test]
    fn a_port_that_is_none_is_refused() {
        let bytes = b"\x32\x0d\x0a\x01b\x10\xf0\xa2\x04\x1a\x01h\x22\x01p";
        let error = BookieServiceInfo::decode(bytes).unwrap_err();
        assert_eq!(error, ServiceInfoError::Port { id: "b".into(), port: 70000 });
    }
}
