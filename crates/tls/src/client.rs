//! The side that connects: which servers are trusted, and the certificate that is presented to them.

use crate::file::trust;
use crate::store::{StoreContents, StoreError, StoreFile};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{VerifierBuilderError, WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::sync::Arc;

/// Files of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientFiles {
    /// Certificates of the authorities one of which must have signed a server's.
    pub authorities: StoreFile,
    /// The client's own key and certificates, for servers that ask for them.
    pub identity: Option<StoreFile>,
    /// A server's certificate must have the name, or the IP address, that the client connects to.
    pub verifies_names: bool,
}

/// The contents of the files at one moment.
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

    /// Takes a server's certificate of any name: anyone with one of a trusted authority can pose as a server.
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
        let authorities = self.authorities.authorities(&contents.authorities)?;
        trust(&mut roots, authorities).map_err(|error| self.authorities.unusable(error))?;
        let verifier = verifier(roots, provider.clone(), self.verifies_names)
            .map_err(|error| self.authorities.unfit(error.to_string()))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the library speaks its own versions")
            .dangerous()
            .with_custom_certificate_verifier(verifier);
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

/// Checks servers: that a certificate leads to one of `roots` and is valid now, and, if `verifies_names`, that it is for the server.
///
/// # Errors
/// Without an authority.
pub fn verifier(
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
    verifies_names: bool,
) -> Result<Arc<dyn ServerCertVerifier>, VerifierBuilderError> {
    let roots = Arc::new(roots);
    let whole = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone()).build()?;
    Ok(match verifies_names {
        true => whole,
        false => Arc::new(AnyName { whole, roots, provider }),
    })
}

/// As the library verifies, but for the name.
#[derive(Debug)]
struct AnyName {
    whole: Arc<WebPkiServerVerifier>,
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.whole.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.whole.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.whole.supported_verify_schemes()
    }
}
