//! The side that connects: which servers are trusted, and the certificate that is presented to them.

use crate::store::{StoreContents, StoreError, StoreFile};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::sync::Arc;

/// Files of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// Certificates of the authorities one of which must have signed a server's.
    pub authorities: StoreFile,
    /// The client's own key and certificates, for servers that ask for them.
    pub identity: Option<StoreFile>,
    /// A server's certificate must have the name, or the IP address, that the client connects to.
    pub verifies_names: bool,
}

/// What they contain at one moment.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientContents {
    authorities: StoreContents,
    identity: Option<StoreContents>,
}

impl ClientFiles {
    /// Trusts servers of these authorities under the name that the client connects to; no certificate of the client's own.
    pub fn new(authorities: StoreFile) -> ClientFiles {
        ClientFiles { authorities, identity: None, verifies_names: true }
    }

    /// Presents a certificate of the client's own.
    pub fn identity(mut self, identity: StoreFile) -> ClientFiles {
        self.identity = Some(identity);
        self
    }

    /// Takes a server's certificate of any name: whoever has one of a trusted authority can pose as a server.
    pub fn skip_name_check(mut self) -> ClientFiles {
        self.verifies_names = false;
        self
    }

    /// Reads all files. Blocks.
    ///
    /// # Errors
    /// The file that cannot be read.
    pub fn read(&self) -> Result<ClientContents, StoreError> {
        let authorities = self.authorities.read()?;
        let identity = self.identity.as_ref().map(StoreFile::read).transpose()?;
        Ok(ClientContents { authorities, identity })
    }

    /// The configuration that they make, for TLS 1.2 and 1.3.
    ///
    /// # Errors
    /// The file that cannot be used, and what to do.
    pub fn configure(&self, contents: &ClientContents) -> Result<ClientConfig, StoreError> {
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        for certificate in self.authorities.authorities(&contents.authorities)? {
            roots.add(certificate).map_err(|error| {
                self.authorities
                    .unfit(format!("a certificate in it cannot be trusted: {error}. Remove or replace it"))
            })?;
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let verifier = verifier.build().map_err(|error| self.authorities.unfit(error.to_string()))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the library speaks its own versions");
        let builder = match self.verifies_names {
            true => builder.with_webpki_verifier(verifier),
            false => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyName(verifier))),
        };
        match (&self.identity, &contents.identity) {
            (Some(file), Some(contents)) => {
                let own = file.identity(contents)?;
                builder.with_client_auth_cert(own.certificates, own.key).map_err(|error| {
                    file.unfit(format!("its key and its first certificate cannot be used together: {error}"))
                })
            }
            _ => Ok(builder.with_no_client_auth()),
        }
    }
}

/// Checks all of a certificate but the name in it.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // The library compares names last, when it has accepted all else.
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
