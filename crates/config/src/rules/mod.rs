//! Rules about several keys at once: defaults that depend on another key, pairs of which one needs the other, security settings made of
//! many keys. They run after the rows of the table have put their values into the draft.
//!
//! # Invariants
//! 1. All rules run whatever the others find, so that all faults are reported at once.
//! 2. A key that a rule takes by its name has a row that says so (tests).

mod addresses;
pub mod admin_tls;
mod auth;
mod clients;
mod limits;
pub mod metadata_security;
mod places;
mod switches;
mod tier;
mod tls;

use crate::sources::host::Host;
use crate::sources::values::Values;
use crate::table::Draft;
use crate::table::flags::BookieArgs;

/// Applies all rules to the draft. Faults are added to the findings of `file`.
pub(crate) fn apply(args: &BookieArgs, file: &mut Values, draft: &mut Draft, host: &dyn Host) {
    places::directories(args, file, draft);
    addresses::apply(args, file, draft, host);
    limits::apply(file, draft);
    draft.config.tls = tls::apply(file, &draft.tls);
    draft.config.admin_tls = admin_tls::apply(file, &draft.admin_tls, draft.config.admin.is_some());
    draft.config.auth = auth::apply(file, draft, host);
    metadata_security::apply(file, draft);
    draft.metadata = places::metadata(args, file, &mut draft.places);
    clients::apply(args, file, draft);
}
