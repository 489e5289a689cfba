//! How the connection to ZooKeeper is protected, and who may use the nodes that are created over it.

use bindery_tls::client::ClientFiles;
use std::path::PathBuf;

/// Protection of a metadata store. The default is none: plain TCP, no identity, nodes that anybody may change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Security {
    /// TLS to the servers, on their secure client ports; `None` for plain TCP.
    pub tls: Option<ClientFiles>,
    /// The login at the servers, by SASL DIGEST-MD5; `None` for none.
    pub sasl: Option<SaslLogin>,
    /// New nodes may be read and changed by this process's identity only (`zkEnableSecurity`). The identity is that of SASL, and
    /// of the certificate that TLS presents: all processes of a cluster need the same one.
    pub is_restricted: bool,
}

impl Security {
    /// None.
    pub fn new() -> Security {
        Security::default()
    }

    /// Speaks TLS to the servers.
    pub fn tls(mut self, tls: ClientFiles) -> Security {
        self.tls = Some(tls);
        self
    }

    /// Logs in at the servers.
    pub fn sasl(mut self, login: SaslLogin) -> Security {
        self.sasl = Some(login);
        self
    }

    /// Whether new nodes are [restricted](Self::is_restricted) to this process's identity.
    pub fn restricted(mut self, is_restricted: bool) -> Security {
        self.is_restricted = is_restricted;
        self
    }

    /// Whether a server may learn an identity of ours. A JAAS file may turn out to have none.
    pub fn may_have_identity(&self) -> bool {
        self.sasl.is_some() || self.tls.as_ref().is_some_and(|tls| tls.identity.is_some())
    }

    pub(super) fn access(&self) -> Access {
        if self.is_restricted { Access::Creator } else { Access::Anybody }
    }
}

/// Where the user and the password for SASL are. The files are read again for each connection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SaslLogin {
    /// `username` and `password` of a section of a JAAS login configuration file.
    Jaas {
        /// The file (`java.security.auth.login.config`).
        file: PathBuf,
        /// The section (`zookeeper.sasl.clientconfig`).
        section: String,
        /// False: without such a section there is no SASL, as for Java's client.
        is_needed: bool,
    },
    /// A user, and a file with the password on its first line.
    User {
        /// The user.
        name: String,
        /// The file.
        password_file: PathBuf,
    },
}

/// The access list of new nodes, as `ZkUtils.getACLs` of BookKeeper chooses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// `OPEN_ACL_UNSAFE`
    Anybody,
    /// `CREATOR_ALL_ACL`: the server puts the identities of the connection in its place.
    Creator,
}
