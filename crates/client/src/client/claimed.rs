//! Ledgers that were taken for appending ([`crate::claims`]).

use tokio::runtime::Handle;

use crate::claims::UnderWay;
use crate::writer::LedgerWriter;

/// A writer on its way to the call that asked for it.
pub(crate) struct Claimed(Option<(LedgerWriter, UnderWay)>);

impl Claimed {
    pub fn new(writer: LedgerWriter, under_way: UnderWay) -> Claimed {
        Claimed(Some((writer, under_way)))
    }

    pub fn take(mut self) -> LedgerWriter {
        self.0.take().expect("it is taken once").0
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let Some((writer, under_way)) = self.0.take() else { return };
        // Without a runtime its writer is of no use either.
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            let ledger_id = writer.id();
            if let Err(error) = writer.hand_over().await {
                tracing::warn!(%ledger_id, %error, "cannot release a ledger that was claimed for a call that is \
                 gone: it stays claimed");
            }
            drop(under_way);
        });
    }
}
