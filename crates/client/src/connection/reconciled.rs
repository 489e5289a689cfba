//! Answers to RECONCILE_LEDGERS.

use bindery_types::{EntryId, LedgerId};
use bindery_wire::ErrorCode;
use bindery_wire::v3::proto;
use bindery_wire::v3::reconcile::Reconciled;

use crate::transport::BookieError;

/// Checks an answer (invariant 2 of [`crate::reconcile`]) to a request for `asked`: ledgers, and their last entries in object storage.
pub(super) fn results_of(
    asked: &[(LedgerId, Option<EntryId>)],
    response: proto::ReconcileLedgersResponse,
) -> Result<Vec<Reconciled>, BookieError> {
    let unexpected = |text: String| BookieError::Unexpected(format!("RECONCILE_LEDGERS: {text}"));
    match ErrorCode::from_v3(response.status) {
        Some(ErrorCode::Ok) => {}
        Some(code) => return Err(BookieError::Refused(code)),
        None => return Err(unexpected(format!("unknown status {}", response.status))),
    }
    if response.results.len() != asked.len() {
        let (found, wanted) = (response.results.len(), asked.len());
        return Err(unexpected(format!("{found} results for {wanted} ledgers")));
    }
    let results = response.results.iter().zip(asked).map(|(result, (ledger, last))| {
        let result = Reconciled::from_message(result).map_err(|error| unexpected(error.0.into()))?;
        if result.ledger != *ledger {
            return Err(unexpected(format!("a result for ledger {} in place of {ledger}", result.ledger)));
        }
        if result.code == ErrorCode::Ok && result.last < *last {
            let (found, wanted) = (EntryId::to_wire(result.last), EntryId::to_wire(*last));
            return Err(unexpected(format!(
                "ledger {ledger} has register {found} after an update to {wanted}"
            )));
        }
        Ok(result)
    });
    results.collect()
}
