//! The client of a part of a process that serves: of the tierer, or of the auditor and replication worker. It has a session of its own
//! with the metadata store.

use crate::bookie_security::BookieSecurity;
use crate::exit::{self, Failure};
use bindery_client::{Client, ConnectError};
use bindery_metadata::{ConnectOptions, Layout, MetadataUri, OpenError, Security};
use std::time::Duration;

/// For the end of a session: it would end by its timeout, too.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A client, and the metadata that it uses.
pub struct OwnClient {
    /// The client.
    pub client: Client,
    /// The cluster's metadata.
    pub layout: Layout,
}

/// Why there is none.
pub struct NotOpened {
    /// The failure to report, with its exit code.
    pub failure: Failure,
    /// Whether it passes without action by an operator.
    pub is_transient: bool,
}

impl OwnClient {
    /// Opens a session with the metadata store, and with that a client.
    pub async fn open(
        (metadata, security): &(MetadataUri, Security),
        bookies: &BookieSecurity,
    ) -> Result<OwnClient, NotOpened> {
        let options = ConnectOptions { security: security.clone(), ..ConnectOptions::default() };
        let layout = bindery_metadata::connect(metadata, options).await.map_err(|error| {
            let is_transient = matches!(&error, OpenError::Store(cause) if cause.is_transient());
            let code = if is_transient { exit::UNREACHABLE } else { exit::FAILURE };
            NotOpened { failure: Failure::with_code(code, &error), is_transient }
        })?;
        OwnClient::over(layout, bookies).await
    }

    /// The same session with another client: the one before ends, and its connections to bookies with it.
    pub async fn renew(self, bookies: &BookieSecurity) -> Result<OwnClient, NotOpened> {
        self.client.close().await;
        OwnClient::over(self.layout, bookies).await
    }

    /// Opens a client; without one the session ends.
    async fn over(layout: Layout, bookies: &BookieSecurity) -> Result<OwnClient, NotOpened> {
        match connect(&layout, bookies).await {
            Ok(client) => Ok(OwnClient { client, layout }),
            Err(not_opened) => {
                end_session(&layout).await;
                Err(not_opened)
            }
        }
    }

    /// Ends both.
    pub async fn close(self) {
        self.client.close().await;
        end_session(&self.layout).await;
    }
}

/// Faults of its TLS and secrets are not transient: an operator has to mend them.
async fn connect(layout: &Layout, bookies: &BookieSecurity) -> Result<Client, NotOpened> {
    let builder = Client::builder().layout(layout.clone());
    let secured = bookies.apply(builder).await;
    let secured = secured.map_err(|why| NotOpened { failure: Failure::usage(why), is_transient: false })?;
    secured.connect().await.map_err(|error| NotOpened {
        is_transient: !matches!(error, ConnectError::Tls(_) | ConnectError::NeedsTls),
        failure: Failure::new(error),
    })
}

async fn end_session(layout: &Layout) {
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, layout.store().close()).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_client::LedgerId;
    use bindery_client::transport::BookieError;
    use bindery_metadata::memory::MemoryCluster;
    use bindery_metadata::{LedgerLayout, layout};
    use bindery_types::BookieId;
    use std::sync::Arc;

    #[tokio::test]
    async fn another_client_has_the_same_session() {
        let cluster = MemoryCluster::new();
        layout::init_cluster(&cluster.open(), "/l", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
        let layout = Layout::open(Arc::new(cluster.open()), "/l", None).await.unwrap();
        let bookies = BookieSecurity::default();
        let Ok(own) = OwnClient::over(layout.clone(), &bookies).await else { panic!("a client") };
        let first = own.client.clone();
        let Ok(own) = own.renew(&bookies).await else { panic!("another client") };
        let (bookie, ledger) = (BookieId::new("127.0.0.1:1").unwrap(), LedgerId::MIN);
        assert_eq!(first.entries_of(&bookie, ledger).await.unwrap_err(), BookieError::Closed);
        let refused = own.client.entries_of(&bookie, ledger).await.unwrap_err();
        assert!(matches!(refused, BookieError::Unreachable(_)), "{refused:?}");
        own.close().await;
        assert!(layout.instance_id().await.is_err(), "the session ended with the second one");
    }
}
