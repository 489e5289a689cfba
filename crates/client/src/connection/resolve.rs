//! From a bookie's id to its address (protocol reference, section 5.2).

use std::time::Duration;

use bindery_metadata::codec::service_info::PROTOCOL_BOOKIE_RPC;
use bindery_metadata::layout::Registration;
use bindery_types::{BookieId, bare_host};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::transport::BookieError;

/// Where to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    /// Name or IP address.
    pub(super) host: String,
    pub(super) port: u16,
}

/// Finds one bookie's address, and remembers it as long as connections come about there.
///
/// Nothing on the wire says who answers. A bookie whose id is not its address may have moved, and another may have got the
/// address; so each connection that ends makes the next one look again.
pub(super) struct Resolver {
    registration: Registration,
    bookie: BookieId,
    /// How long one whose id is its address is looked up.
    lookup_max: Duration,
    known: Mutex<Option<Address>>,
}

impl Resolver {
    pub(super) fn new(registration: Registration, bookie: BookieId, connect_timeout: Duration) -> Resolver {
        let lookup_max = connect_timeout / 3;
        Resolver { registration, bookie, lookup_max, known: Mutex::new(None) }
    }

    /// The address last found, or what the registration says now. Cancelled, it leaves nothing behind.
    pub(super) async fn resolve(&self) -> Result<Address, BookieError> {
        if let Some(known) = self.known.lock().clone() {
            return Ok(known);
        }
        let looked_up = self.registration.service_info(&self.bookie);
        let looked_up = match of_id(&self.bookie) {
            // A store that is away answers late, if at all.
            Some(address) => match timeout(self.lookup_max, looked_up).await {
                Ok(looked_up) => looked_up,
                Err(_) => return Ok(address),
            },
            None => looked_up.await,
        };
        // An id that is an address is right whatever the registration says, also where it cannot be read. Where a bookie with
        // another id was may be somebody else now.
        let or_of_id = |why: String| of_id(&self.bookie).ok_or(BookieError::Unreachable(why));
        let found = match looked_up {
            Err(error) => return or_of_id(format!("look its address up: {error}")),
            Ok(Some(Err(error))) => return or_of_id(format!("read its registration: {error}")),
            Ok(Some(Ok(info))) => {
                let endpoint = info.endpoints.into_iter().find(|known| known.protocol == PROTOCOL_BOOKIE_RPC);
                endpoint.map(|endpoint| Address { host: endpoint.host, port: endpoint.port })
            }
            Ok(None) => None,
        };
        // Old bookies register without endpoints. One that is not registered may just have lost its session, and what it
        // stores can still be read. Either way the id says where it is, if it is an address.
        let found = found.or_else(|| of_id(&self.bookie)).ok_or(BookieError::NotRegistered)?;
        *self.known.lock() = Some(found.clone());
        Ok(found)
    }

    /// Looks the address up again next time.
    pub(super) fn forget(&self) {
        *self.known.lock() = None;
    }
}

/// `host:port`, as ids are unless they were chosen.
fn of_id(bookie: &BookieId) -> Option<Address> {
    let (host, port) = bookie.as_str().rsplit_once(':')?;
    let (host, port) = (bare_host(host), port.parse().ok()?);
    (!host.is_empty()).then(|| Address { host: host.into(), port })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_metadata::memory::MemoryCluster;
    use bindery_metadata::store::CreateMode;
    use bindery_metadata::{Layout, LedgerLayout, MetadataStore, layout};
    use bytes::Bytes;
    use std::sync::Arc;

    #[tokio::test]
    async fn a_registration_that_cannot_be_read_hides_no_bookie_whose_id_is_its_address() {
        let store = MemoryCluster::new().open();
        layout::init_cluster(&store, "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
        for name in ["bookie.example:3181", "bookie-0"] {
            let path = format!("/ledgers/available/{name}");
            store.create(&path, Bytes::from_static(b"\xffgarbage"), CreateMode::Ephemeral).await.unwrap();
        }
        let layout = Layout::open(Arc::new(store), "/ledgers", None).await.unwrap();
        let resolve = async |name| {
            let bookie = BookieId::new(name).unwrap();
            Resolver::new(layout.registration(), bookie, Duration::from_secs(3)).resolve().await
        };
        let found = resolve("bookie.example:3181").await;
        assert_eq!(found, Ok(Address { host: "bookie.example".into(), port: 3181 }));
        let error = resolve("bookie-0").await.unwrap_err().to_string();
        assert!(error.contains("read its registration"), "{error}");
    }

    #[test]
    fn an_id_that_is_an_address_says_where_the_bookie_is() {
        let of = |id| of_id(&BookieId::new(id).unwrap()).map(|found| (found.host, found.port));
        assert_eq!(of("10.0.0.1:3181"), Some(("10.0.0.1".into(), 3181)));
        assert_eq!(of("bookie-0.example:1"), Some(("bookie-0.example".into(), 1)));
        assert_eq!(of("[::1]:3181"), Some(("::1".into(), 3181)));
        assert_eq!(of("2001:db8::7:3181"), Some(("2001:db8::7".into(), 3181)), "as BookKeeper makes it");
        for id in ["bookie-0", ":3181", "host:", "host:65536", "host:x"] {
            assert_eq!(of(id), None, "{id}");
        }
    }
}
