//! What to say when there is no TLS with a bookie: which side refused, why, and what to do about it.

use std::io::{self, ErrorKind};
use std::time::Duration;

use rustls::{AlertDescription, CertificateError, Error};

use super::TlsOptions;

/// Explains with the options in mind: a bookie that refuses a client without a certificate most often wants one.
pub(super) struct Refusals<'a> {
    pub(super) options: &'a TlsOptions,
}

impl Refusals<'_> {
    /// Why a handshake with a bookie that advertises `host` failed.
    pub(super) fn of_handshake(&self, error: &io::Error, host: &str) -> String {
        match library_error(error) {
            Some(Error::InvalidCertificate(why)) => {
                format!("this client refuses the bookie's certificate: {}", self.of_bookie(why, host))
            }
            Some(Error::AlertReceived(alert)) => self.of_alert(*alert),
            Some(Error::PeerIncompatible(why)) => format!(
                "no version and cipher of TLS is spoken by both sides ({why:?}): compare tlsEnabledProtocols and \
                 tlsEnabledCipherSuites of the bookie with the client's"
            ),
            Some(Error::InvalidMessage(_)) => {
                format!("what answers does not speak TLS ({error}): check that the address is a bookie's")
            }
            Some(other) => format!("the handshake failed: {other}"),
            None if is_closed(error) => "the bookie closed the connection during the handshake: it may want a client \
                                         certificate (TlsOptions::identity, --tls-cert and --tls-key); its log says more"
                .to_owned(),
            None => format!("the handshake failed: {error}"),
        }
    }

    /// The bookie's refusal of a client whose handshake was over, if the error is one.
    pub(super) fn of_first_read(&self, error: &io::Error) -> Option<String> {
        match library_error(error) {
            Some(Error::AlertReceived(alert)) if is_about_client(*alert) => Some(self.of_alert(*alert)),
            _ => None,
        }
    }

    pub(super) fn of_silence(&self) -> String {
        match &self.options.identity {
            None => "it may want a client certificate (TlsOptions::identity, --tls-cert and --tls-key); its log says why".into(),
            Some(files) => format!(
                "it may refuse this client's certificate, {}; its log says why",
                files.certificates.display()
            ),
        }
    }

    fn of_bookie(&self, why: &CertificateError, host: &str) -> String {
        match why {
            CertificateError::UnknownIssuer => format!(
                "it leads to none of the authorities that are trusted, {}. Name the file of the bookies' authority \
                 (TlsOptions::authority, --tls-ca)",
                self.trusted()
            ),
            CertificateError::Expired => {
                "it has expired. Give the bookie a new one, or set this machine's clock".into()
            }
            CertificateError::ExpiredContext { time, not_after } => format!(
                "it expired {} ago. Give the bookie a new one, or set this machine's clock",
                about(Duration::from_secs(time.as_secs().saturating_sub(not_after.as_secs())))
            ),
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "it is not valid yet. Compare the clocks of this machine and of the one where it was made"
                    .into()
            }
            CertificateError::NotValidForName => format!("it is not for {host}. {}", name_advice(host)),
            CertificateError::NotValidForNameContext { presented, .. } => {
                let names = match presented.is_empty() {
                    true => "no name at all (subjectAltName)".to_owned(),
                    false => presented.iter().map(|name| bare(name)).collect::<Vec<_>>().join(", "),
                };
                format!(
                    "it is for {names}, not for {host}, which the bookie advertises. {}",
                    name_advice(host)
                )
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                "it is not for servers. Issue one for the bookie whose extendedKeyUsage has serverAuth".into()
            }
            CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                "it is an authority's own. Issue one for the bookie, signed by that authority (CA:FALSE)"
                    .into()
            }
            other => format!("{other}. Give the bookie another one"),
        }
    }

    fn trusted(&self) -> String {
        match self.options.authorities.is_empty() {
            true => "those of this system".to_owned(),
            false => {
                let files: Vec<String> =
                    self.options.authorities.iter().map(|path| path.display().to_string()).collect();
                format!("those in {}", files.join(", "))
            }
        }
    }

    fn of_alert(&self, alert: AlertDescription) -> String {
        let said = format!("{alert:?}");
        if !is_about_client(alert) {
            return match alert {
                AlertDescription::ProtocolVersion | AlertDescription::InsufficientSecurity => format!(
                    "the bookie refuses the versions or ciphers of TLS that this client offers ({said}): compare \
                     tlsEnabledProtocols and tlsEnabledCipherSuites of the bookie with the client's"
                ),
                _ => format!("the bookie ended the handshake ({said}); its log says why"),
            };
        }
        match &self.options.identity {
            None => format!(
                "the bookie refuses a client without a certificate ({said}): give one \
                 (TlsOptions::identity, --tls-cert and --tls-key)"
            ),
            Some(files) => format!(
                "the bookie refuses this client's certificate, {} ({said}): it must lead to an authority in the bookie's \
                 tlsTrustStore, be valid now, and be for clients (extendedKeyUsage clientAuth)",
                files.certificates.display()
            ),
        }
    }
}

fn library_error(error: &io::Error) -> Option<&Error> {
    error.get_ref().and_then(|error| error.downcast_ref::<Error>())
}

fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
    )
}

/// Alerts by which servers refuse a client's certificate, or that there is none. Servers of TLS 1.2 say the latter with
/// `HandshakeFailure` (RFC 5246, 7.4.6).
fn is_about_client(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::CertificateRequired
            | AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::HandshakeFailure
    )
}

fn name_advice(host: &str) -> String {
    let kind = if host.parse::<std::net::IpAddr>().is_ok() { "IP" } else { "DNS" };
    format!(
        "Give the bookie a certificate with {kind}:{host} under subjectAltName, let it advertise a name that its certificate has, \
         or skip the check (TlsOptions::skip_name_check, --tls-skip-name-check)"
    )
}

/// The library writes names as `DnsName("x")` and `IpAddress(127.0.0.1)`.
fn bare(name: &str) -> &str {
    let inside = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inside.trim_matches('"')
}

/// A time in its largest unit.
fn about(time: Duration) -> String {
    let seconds = time.as_secs();
    let (count, unit) = match seconds {
        0..=119 => (seconds, "second"),
        120..=7_199 => (seconds / 60, "minute"),
        7_200..=172_799 => (seconds / 3_600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural}")
}
