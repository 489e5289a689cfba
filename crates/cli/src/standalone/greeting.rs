//! The greeting that a newcomer reads once everything serves.

use crate::args::DEFAULT_METADATA;
use bindery_metadata::MetadataUri;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How to use a cluster that serves.
#[derive(Debug)]
pub struct Greeting {
    /// The coordinator, as clients name it.
    pub metadata: String,
    /// The coordinator for clients of Oxia.
    pub oxia: Option<SocketAddr>,
    /// The value of `BINDERY_METADATA`: the command line goes there by itself.
    pub environment: Option<String>,
    /// Where bookies listen.
    pub bookies: Vec<SocketAddr>,
    /// Where their admin ports listen.
    pub admins: Vec<SocketAddr>,
    /// Where everything is kept.
    pub home: PathBuf,
    /// With TLS: the authority that commands are to trust, if it is none of the system's.
    pub tls: Option<Option<PathBuf>>,
    /// How long the start took.
    pub took: Duration,
    /// Bookies that have data here and were not started: the first one's number and the last one's.
    pub left_out: Option<(usize, usize)>,
}

impl Greeting {
    /// The line that tells the commands of a shell where the cluster is; `None` if they find it by default.
    fn export(&self) -> Option<String> {
        let found = self.environment.as_deref().unwrap_or(DEFAULT_METADATA).parse::<MetadataUri>();
        let wanted = self.metadata.parse::<MetadataUri>();
        let is_found = matches!((found, wanted), (Ok(found), Ok(wanted))
            if (&found.servers, &found.root) == (&wanted.servers, &wanted.root));
        (!is_found).then(|| format!("export BINDERY_METADATA={}", self.metadata))
    }
}

impl fmt::Display for Greeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bookies = match self.bookies.len() {
            0 => "a coordinator and no bookie".to_owned(),
            1 => "1 bookie".to_owned(),
            count => format!("{count} bookies"),
        };
        let ms = self.took.as_millis();
        writeln!(f, "bindery {} serves: {bookies}, started in {ms} ms", env!("CARGO_PKG_VERSION"))?;
        writeln!(f)?;
        if !self.bookies.is_empty() {
            if let Some(export) = self.export() {
                writeln!(f, "  first          {export}")?;
            }
            writeln!(f, "  command line   bindery ledger create")?;
            if let Some(authority) = &self.tls {
                let option = match authority {
                    Some(file) => format!("--tls-ca {}", file.display()),
                    None => "--tls".to_owned(),
                };
                writeln!(f, "  over TLS       bindery ledger append {option} LEDGER")?;
            }
        }
        writeln!(f, "  Java client    {}", self.metadata)?;
        if let Some(oxia) = self.oxia {
            writeln!(f, "  Oxia           oxia://{oxia}")?;
        }
        if !self.bookies.is_empty() {
            let listed: Vec<String> = self.bookies.iter().map(SocketAddr::to_string).collect();
            writeln!(f, "  bookies        {}", listed.join(" "))?;
            let urls: Vec<String> =
                self.admins.iter().map(|admin| format!("http://{admin}/metrics")).collect();
            writeln!(f, "  metrics        {}", urls.join(" "))?;
        }
        writeln!(f, "  data           {}", self.home.display())?;
        writeln!(f, "  to stop        Ctrl-C, or kill {}", std::process::id())?;
        if let Some((first, last)) = self.left_out {
            writeln!(f)?;
            writeln!(
                f,
                "bookie-{first} to bookie-{last} have data here and were not started, so ledgers may lack copies: \
                 --bookies {last} starts them"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting() -> Greeting {
        Greeting {
            metadata: DEFAULT_METADATA.to_owned(),
            oxia: Some("127.0.0.1:6648".parse().unwrap()),
            environment: None,
            bookies: vec!["127.0.0.1:3181".parse().unwrap()],
            admins: vec!["127.0.0.1:8080".parse().unwrap()],
            home: PathBuf::from("/d"),
            took: Duration::from_millis(42),
            left_out: None,
            tls: None,
        }
    }

    #[test]
    fn with_tls_a_command_says_whom_it_trusts() {
        assert!(!greeting().to_string().contains("TLS"));
        let own = Greeting { tls: Some(Some(PathBuf::from("/ca.pem"))), ..greeting() }.to_string();
        assert!(own.contains("bindery ledger append --tls-ca /ca.pem LEDGER\n"), "{own}");
        let of_system = Greeting { tls: Some(None), ..greeting() }.to_string();
        assert!(of_system.contains("bindery ledger append --tls LEDGER\n"), "{of_system}");
    }

    #[test]
    fn defaults_need_no_options_and_everything_else_is_spelled_out() {
        let text = greeting().to_string();
        assert!(
            text.contains("command line   bindery ledger create\n") && !text.contains("export"),
            "{text}"
        );
        assert!(text.contains("http://127.0.0.1:8080/metrics\n"), "{text}");
        assert!(text.contains("Oxia           oxia://127.0.0.1:6648\n"), "{text}");
        let elsewhere = "zk+hierarchical://127.0.0.1:9999/ledgers".to_owned();
        let other = Greeting { metadata: elsewhere.clone(), ..greeting() }.to_string();
        assert!(other.contains(&format!("first          export BINDERY_METADATA={elsewhere}\n")), "{other}");
        assert!(other.contains("command line   bindery ledger create\n"), "{other}");
        let by_environment =
            Greeting { environment: Some(elsewhere.clone()), metadata: elsewhere, ..greeting() };
        assert!(!by_environment.to_string().contains("export"), "{by_environment}");
        let other_form = Greeting { environment: Some("127.0.0.1:2181".to_owned()), ..greeting() };
        assert!(!other_form.to_string().contains("export"), "{other_form}");
        let misled = Greeting { environment: Some("zk://other/l".to_owned()), ..greeting() };
        assert!(misled.to_string().contains(&format!("BINDERY_METADATA={DEFAULT_METADATA}\n")), "{misled}");
    }

    #[test]
    fn a_coordinator_alone_has_no_bookies_to_talk_of() {
        let alone = Greeting { bookies: Vec::new(), admins: Vec::new(), ..greeting() }.to_string();
        assert!(alone.contains("no bookie") && !alone.contains("ledger create"), "{alone}");
        let fewer = Greeting { left_out: Some((2, 3)), ..greeting() }.to_string();
        assert!(fewer.contains("--bookies 3"), "{fewer}");
    }
}
