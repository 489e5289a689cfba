//! Asks the catalogue where entries are, within the time that a read has.

use super::Tier;
use bindery_tiering::catalogue::LocateError;
use bindery_types::tier::TierExtent;
use bindery_types::{EntryId, LedgerId};
use std::time::Duration;

impl Tier {
    /// Returns the extents of a ledger, beginning with the one that contains `entry`: at least one. See [`bindery_tiering::catalogue::Locator::locate`].
    pub(super) async fn locate(
        &self,
        ledger: LedgerId,
        entry: EntryId,
        created_ms: Option<i64>,
        age_max: Duration,
    ) -> Result<Vec<TierExtent>, LocateError> {
        let late = Err(LocateError::Late { after: self.lookup_deadline });
        // Its directory is not there.
        let Some(locator) = self.locator.get() else { return late };
        let located = locator.locate(ledger, entry, created_ms, age_max);
        tokio::time::timeout(self.lookup_deadline, located).await.unwrap_or(late)
    }
}
