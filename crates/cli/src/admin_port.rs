//! The admin port of a process without a bookie: of a tierer, or of auditor and replication worker.

use crate::exit::{self, Failure};
use bindery_config::rules::admin_tls;
use bindery_server::admin::access::{Access, read_tokens};
use bindery_server::admin::extension::{AdminExtension, Part, open_tls, serve_extension};
use bindery_server::config::BookieConfig;
use bindery_server::latch::Latch;
use bindery_server::sockets::listen;
use bindery_server::tls::TlsConfig;
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// Whether there is one, and how it is asked.
#[derive(Debug, Clone, Args)]
pub struct AdminPortArgs {
    /// Address for state, metrics and orders over HTTP; none without it
    #[arg(long, value_name = "IP:PORT")]
    pub admin: Option<SocketAddr>,
    /// A file with the tokens, one in a line, that allow changes over the admin port from other machines; without it only
    /// this machine may change anything there
    #[arg(long, value_name = "FILE", requires = "admin")]
    pub admin_tokens: Option<PathBuf>,
    /// A file that says how the admin port speaks TLS, and whether it asks for certificates: httpServerTlsEnable and the other
    /// httpServer keys of a bk_server.conf, httpServerTokenRequired among them. That of a bookie will do
    #[arg(long, value_name = "FILE", requires = "admin")]
    pub admin_config: Option<PathBuf>,
}

/// An admin port as its arguments say, or none.
pub struct AdminPort {
    address: Option<SocketAddr>,
    access: Access,
    tls: Option<TlsConfig>,
}

impl AdminPortArgs {
    /// Reads the files that they name.
    pub fn read(self) -> Result<AdminPort, Failure> {
        if let Some(file) = &self.admin_tokens {
            read_tokens(file).map_err(|why| Failure::usage(format!("--admin-tokens: {why}")))?;
        }
        let (tls, is_token_required) = match &self.admin_config {
            Some(file) => {
                let found = admin_tls::of_file(file).map_err(|faults| {
                    let why = faults.join(exit::BETWEEN_FAULTS);
                    Failure::usage(format!("--admin-config {}: {why}", file.display()))
                });
                found.map(|(tls, is_token_required)| (Some(tls), is_token_required))?
            }
            None => (None, false),
        };
        if is_token_required && self.admin_tokens.is_none() {
            return Err(Failure::usage(
                "httpServerTokenRequired=true of --admin-config without --admin-tokens: nobody could change anything; give a file \
                 of tokens",
            ));
        }
        let access = Access::new(self.admin_tokens).requiring_token(is_token_required);
        Ok(AdminPort { address: self.admin, access, tls })
    }
}

impl AdminPort {
    /// As a bookie with these settings has it: TLS and tokens are theirs.
    pub fn of(config: &BookieConfig) -> AdminPort {
        let access = Access::new(config.admin_tokens.clone()).requiring_token(config.admin_token_required);
        AdminPort { address: config.admin, access, tls: config.admin_tls.clone() }
    }

    /// Serves what `extension`, the only part of this process, shows.
    pub async fn open(self, part: Part, extension: Arc<dyn AdminExtension>) -> Result<OpenPort, Failure> {
        let Some(address) = self.address else { return Ok(OpenPort(None)) };
        let tls = match self.tls {
            Some(config) => Some(open_tls(config).await.map_err(Failure::usage)?),
            None => None,
        };
        let listener = listen(address).map_err(|error| {
            Failure::new(format!("cannot listen on {address}: {error}; choose another address with --admin"))
        })?;
        let bound = listener.local_addr().map_err(Failure::new)?;
        tracing::info!(admin = %bound, tls = tls.is_some(), "the admin port is open");
        let serving =
            serve_extension(listener, self.access, tls, (part, extension), Arc::new(Latch::default()));
        Ok(OpenPort(Some(tokio::spawn(serving))))
    }
}

/// An admin port that is open until this is dropped.
pub struct OpenPort(Option<JoinHandle<()>>);

impl Drop for OpenPort {
    fn drop(&mut self) {
        if let Some(serving) = &self.0 {
            serving.abort();
        }
    }
}
