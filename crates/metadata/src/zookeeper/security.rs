//! How the connection to ZooKeeper is protected, and who may use the nodes that are created over it.

use bindery_tls::client::ClientFiles;
use std::path::PathBuf;

/// Protection of a metadata store. The default is none: plain TCP, no identity, nodes that anybody may change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Security {
    /// TLS to the servers, on their secure client ports; `None` for plain TCP.
    pub tls: Option<ClientFiles>,
    /// How to log in to the servers by SASL DIGEST-MD5; `None` for no login.
    pub sasl: Option<SaslLogin>,
    /// Only this process's identity may read and change nodes that it creates (`zkEnableSecurity`). The identity is the SASL user
    /// and the certificate presented over TLS; all processes of a cluster need the same one.
    pub is_restricted: bool,
}

impl Security {
    /// No protection.
    pub fn new() -> Security {
        Security::default()
    }

    /// Speaks TLS to the servers.
    pub fn tls(mut self, tls: ClientFiles) -> Security {
        self.tls = Some(tls);
        self
    }

    /// Logs in to the servers.
    pub fn sasl(mut self, login: SaslLogin) -> Security {
        self.sasl = Some(login);
        self
    }

    /// Whether new nodes are [restricted](Self::is_restricted) to this process's identity.
    pub fn restricted(mut self, is_restricted: bool) -> Security {
        self.is_restricted = is_restricted;
        self
    }

    /// Whether connections may have an identity that could own nodes: by SASL, or by a certificate. Known only when connecting, as a
    /// JAAS file may lack the section. Without any identity, settings with `zkEnableSecurity` are refused.
    pub fn may_have_identity(&self) -> bool {
        self.sasl.is_some() || self.tls.as_ref().is_some_and(|tls| tls.identity.is_some())
    }

    pub(super) fn access(&self) -> Access {
        if self.is_restricted { Access::Creator } else { Access::Anybody }
    }
}

/// Where to find the user and the password for SASL. The files are read again for each connection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SaslLogin {
    /// `username` and `password` of a section of a JAAS login configuration file.
    Jaas {
        /// The file (`java.security.auth.login.config`).
        file: PathBuf,
        /// The section (`zookeeper.sasl.clientconfig`).
        section: String,
        /// Whether the section has to be there. If not, a missing one means no login, as for Java's client, unless this process has
        /// logged in before or new nodes need the user as their owner.
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
    /// `CREATOR_ALL_ACL`, which the server replaces by the identities of the connection.
    Creator,
}
