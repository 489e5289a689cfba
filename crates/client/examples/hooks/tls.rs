//! TLS as bookies speak it: asked for with START_TLS, on each connection, v2 or v3.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bindery_client::{BookieAddress, ByteStream, Connecting, Connector};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Trusts bookies whose certificate is for the address that they are registered with, and signed by one of these.
pub struct Tls(TlsConnector);

impl Tls {
    /// Reads certificates to trust from a PEM file.
    pub fn trusting(path: &Path) -> Result<Tls, Box<dyn Error>> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(path)? {
            roots.add(certificate?)?;
        }
        // A certificate of the client's own goes here, if the bookies want one (`tlsClientAuthentication`).
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(Tls(TlsConnector::from(Arc::new(config))))
    }
}

impl Connector for Tls {
    fn starts_tls(&self) -> bool {
        true
    }

    fn upgrade<'a>(&'a self, stream: ByteStream, to: &'a BookieAddress) -> Connecting<'a> {
        Box::pin(async move {
            let ByteStream::Tcp(socket) = stream else {
                return Err(io::Error::other("connect makes TCP streams"));
            };
            // A name, or an IP address.
            let name = ServerName::try_from(to.host.clone()).map_err(io::Error::other)?;
            Ok(ByteStream::boxed(self.0.connect(name, socket).await?))
        })
    }
}
