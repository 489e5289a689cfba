//! What ties a bookie to one cluster: the instance id and its cookie (protocol reference, section 5.3).
//!
//! A start compares both with the directories. A process lives through many sessions with the store, and what answers under
//! the same address later may be another cluster, or one that was told to forget this bookie: the same ledger ids then
//! mean other ledgers. So each session is asked again before the bookie is listed under it.

use bindery_types::BookieId;

use super::{CookiesError, Layout, RegistrationError};
use crate::cookie::Cookie;

/// A bookie, and what its cluster said of itself and of the bookie when that started.
#[derive(Debug, Clone)]
pub struct Membership {
    layout: Layout,
    bookie_id: BookieId,
    instance_id: Option<String>,
    cookie: Option<Cookie>,
}

impl Membership {
    /// Of a bookie whose start found, or wrote, these: `None` where the cluster has none.
    pub fn new(
        layout: Layout,
        bookie_id: BookieId,
        instance_id: Option<String>,
        cookie: Option<Cookie>,
    ) -> Membership {
        Membership { layout, bookie_id, instance_id, cookie }
    }

    /// The bookie's id.
    pub fn bookie_id(&self) -> &BookieId {
        &self.bookie_id
    }

    /// Where it is a member.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Asks the store whether all is as it was. Whoever is refused must not serve: its ledgers may be others there.
    pub async fn check(&self) -> Result<(), RegistrationError> {
        let found = self.layout.instance_id().await.map_err(RegistrationError::Store)?;
        if found != self.instance_id {
            let (root, expected) = (self.layout.root().to_owned(), self.instance_id.clone());
            return Err(RegistrationError::OtherCluster { root, expected, found });
        }
        let changed = || RegistrationError::CookieChanged { bookie_id: self.bookie_id.clone() };
        match self.layout.cookies().get(&self.bookie_id).await {
            Ok(found) if found.as_ref().map(|found| &found.cookie) == self.cookie.as_ref() => Ok(()),
            Ok(_) | Err(CookiesError::Malformed { .. }) => Err(changed()),
            Err(CookiesError::Store(error)) => Err(RegistrationError::Store(error)),
            Err(
                CookiesError::NotFound { .. } | CookiesError::Exists { .. } | CookiesError::Changed { .. },
            ) => Err(changed()),
        }
    }
}
