//! Certificates that are made for one test, and files of them.

#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "what an operator puts there")]

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, crypto::ring};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The names of this machine.
const LOCAL: [&str; 2] = ["localhost", "127.0.0.1"];

/// Allowed use of a certificate.
#[derive(Clone, Copy)]
pub enum Use {
    Bookie,
    Client,
}

/// A certificate and its key.
pub struct Issued {
    pub certificate: String,
    pub key: String,
}

/// Somebody who signs certificates.
pub struct Authority {
    pub certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Authority { certificate, issuer: Issuer::new(params, key) }
    }

    /// A certificate that is valid now.
    pub fn issue(&self, usage: Use) -> Issued {
        self.issue_until(usage, 2040)
    }

    /// The same for an organisational unit.
    pub fn issue_to(&self, usage: Use, unit: &str) -> Issued {
        self.issue_with(&LOCAL, usage, 2040, Some(unit))
    }

    /// A certificate that expires with the first day of a year.
    pub fn issue_until(&self, usage: Use, year: i32) -> Issued {
        self.issue_with(&LOCAL, usage, year, None)
    }

    /// A certificate for these names and addresses that expires with the first day of a year.
    pub fn issue_for(&self, names: &[&str], usage: Use, year: i32) -> Issued {
        self.issue_with(names, usage, year, None)
    }

    fn issue_with(&self, names: &[&str], usage: Use, year: i32, unit: Option<&str>) -> Issued {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, "test");
        if let Some(unit) = unit {
            params.distinguished_name.push(rcgen::DnType::OrganizationalUnitName, unit);
        }
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        params.extended_key_usages = vec![match usage {
            Use::Bookie => ExtendedKeyUsagePurpose::ServerAuth,
            Use::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Issued { certificate, key: key.serialize_pem() }
    }

    /// A client that trusts this authority and proves itself with `own`, if anything; all versions unless some are given.
    pub fn client(
        &self,
        own: Option<&Issued>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Arc<ClientConfig> {
        client_of([self], own, versions)
    }
}

/// As [`Authority::client`], of a client that trusts all of these.
pub fn client_of<'a>(
    authorities: impl IntoIterator<Item = &'a Authority>,
    own: Option<&Issued>,
    versions: &[&'static SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(CertificateDer::from_pem_slice(authority.certificate.as_bytes()).unwrap()).unwrap();
    }
    let versions = if versions.is_empty() { rustls::ALL_VERSIONS } else { versions };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap(),
            )
            .unwrap(),
    };
    Arc::new(config)
}

/// The other side, with this certificate, whoever the client is.
pub fn acceptor(own: &Issued) -> Arc<ServerConfig> {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap(),
        );
    Arc::new(config.unwrap())
}

/// Files of certificates in a directory.
pub struct Files {
    pub certificates: PathBuf,
    pub key: PathBuf,
    pub authorities: PathBuf,
}

impl Files {
    /// Writes a bookie's certificate and key, and whom it believes.
    pub fn write(dir: &Path, bookie: &Issued, authorities: &str) -> Files {
        let files = Files {
            certificates: dir.join("bookie.pem"),
            key: dir.join("bookie.key"),
            authorities: dir.join("authorities.pem"),
        };
        std::fs::write(&files.certificates, &bookie.certificate).unwrap();
        std::fs::write(&files.key, &bookie.key).unwrap();
        std::fs::write(&files.authorities, authorities).unwrap();
        files
    }
}
