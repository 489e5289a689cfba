//! How the connection to ZooKeeper is protected, and who may use the nodes that are created over it.

use bindery_tls::store::StoreFile;

/// Protection of a metadata store. The default is none: plain TCP, no identity, nodes that anybody may change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Security {
    /// TLS to the servers, on their secure client ports; `None` for plain TCP.
    pub tls: Option<TlsOptions>,
    /// New nodes may be read and changed by this process's identity only (`zkEnableSecurity`). The identity is that of SASL, and
    /// of the certificate that TLS presents: all processes of a cluster need the same one.
    pub is_restricted: bool,
}

impl Security {
    /// Whether a server that asks for it is told an identity of ours.
    pub fn has_identity(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.identity.is_some())
    }

    pub(super) fn access(&self) -> Access {
        if self.is_restricted { Access::Creator } else { Access::Anybody }
    }
}

/// TLS to ZooKeeper's servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsOptions {
    /// Certificates of the authorities one of which must have signed a server's.
    pub authorities: StoreFile,
    /// Our key and certificates, for servers that ask for them (`ssl.clientAuth`).
    pub identity: Option<StoreFile>,
    /// A server's certificate must have the name, or the IP address, that the URI has for it.
    pub verifies_names: bool,
}

/// The access list of new nodes, as `ZkUtils.getACLs` of BookKeeper chooses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// `OPEN_ACL_UNSAFE`
    Anybody,
    /// `CREATOR_ALL_ACL`: the server puts the identities of the connection in its place.
    Creator,
}
