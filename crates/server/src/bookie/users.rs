//! Reloads of the files of users, and what they mean for open connections.

use crate::auth::{self, Identity};
use crate::reload::{Reload, Wording};
use crate::shared::Shared;
use std::sync::Arc;

/// The users of a bookie and its connections.
pub(super) struct ReloadUsers(pub(super) Arc<Shared>);

impl Reload for ReloadUsers {
    const WORDING: Wording = auth::WORDING;

    fn reload(&self, is_last_try: bool) -> bool {
        let Some(auth) = &self.0.auth else { return false };
        let is_failed = auth.reload(is_last_try);
        for connection in self.0.connections.all() {
            if connection.identity().is_some_and(|identity| !auth.holds(identity)) {
                let (peer, user) = (connection.peer(), connection.identity().map(Identity::name));
                tracing::info!(target: "bindery::audit", %peer, user, "connection closed: its user was changed or removed");
                connection.close();
            }
        }
        is_failed
    }
}
