//! How connections are made, and who this client proves to be on them.

use std::sync::Arc;

pub use crate::hooks::*;
use crate::tls::Tls;

/// All hooks of a client; none by default.
#[derive(Clone, Default)]
pub struct Hooks {
    /// How connections are made, if not by TCP.
    pub connector: Option<Arc<dyn Connector>>,
    /// The client's own TLS, over what the connector makes. The connector's TLS is not used then.
    pub tls: Option<Arc<Tls>>,
    /// How this client proves who it is, if it does.
    pub authenticator: Option<Arc<dyn Authenticator>>,
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plugin = self.authenticator.as_ref().map(|authenticator| authenticator.plugin_name().to_owned());
        f.debug_struct("Hooks")
            .field("has_connector", &self.connector.is_some())
            .field("tls", &self.tls)
            .field("auth_plugin", &plugin)
            .finish()
    }
}
