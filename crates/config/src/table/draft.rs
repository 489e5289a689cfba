//! The settings under construction: rows of the table put values into it, then rules put together what several keys say.

use crate::bookie_security::BookieSecurity;
use crate::repair::RepairRoleSettings;
use crate::sources::values::Given;
use crate::tier::TierSettings;
use bindery_metadata::MetadataUri;
use bindery_reconciler::TiererConfig;
use bindery_server::config::BookieConfig;
use bindery_server::tier::TrimConfig;
use bindery_tls::store::PasswordSource;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Settings, as far as they are known.
#[derive(Debug, Default)]
pub struct Draft {
    /// The bookie's own.
    pub config: BookieConfig,
    /// Where the cluster is.
    pub metadata: Option<MetadataUri>,
    /// The object store that ledgers are kept in, and how they are moved there; the second is whether this process moves any.
    pub tier: Option<(TierSettings, bool)>,
    /// Auditor and replication worker of this process.
    pub repair: RepairRoleSettings,
    /// How the clients of this process, tierer and repair, speak to bookies.
    pub security: BookieSecurity,
    /// The values in the file or in the environment.
    pub given: BTreeMap<String, Given>,
    pub(crate) places: PlaceKeys,
    pub(crate) address: AddressKeys,
    pub(crate) limits: LimitKeys,
    pub(crate) object: ObjectKeys,
    pub(crate) tls: TlsKeys,
    pub(crate) admin_tls: AdminTlsKeys,
    pub(crate) auth: AuthKeys,
    pub(crate) zookeeper: ZooKeeperKeys,
    /// The JAAS file: the users who may log in to the bookie, and the bookie's own login to ZooKeeper.
    pub(crate) jaas_file: Option<PathBuf>,
}

impl Draft {
    /// The text of a key, if it was given.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        let given = self.given.get(key)?;
        Some(given.text.clone()).filter(|text| !text.is_empty())
    }
}

/// Values of which the rules of places make where the cluster's metadata and the bookie's directories are.
#[derive(Debug, Default)]
pub(crate) struct PlaceKeys {
    pub metadata: Option<String>,
    pub servers: Option<String>,
    pub root: Option<String>,
    pub journals: Option<String>,
    pub journal: Option<String>,
    pub ledgers: Option<String>,
}

/// Values of which the rules of addresses make where the bookie listens and what it is called.
#[derive(Debug, Default)]
pub(crate) struct AddressKeys {
    pub port: Option<u16>,
    pub interface: Option<String>,
    pub advertised: Option<String>,
    pub is_by_host_name: Option<bool>,
    pub is_short: Option<bool>,
    pub admin_enabled: Option<bool>,
    pub admin_host: Option<String>,
    pub admin_port: Option<u16>,
    pub metrics_host: Option<String>,
    pub metrics_port: Option<u16>,
}

/// Values that bound each other.
#[derive(Debug, Default)]
pub(crate) struct LimitKeys {
    /// Losses are accepted when both are true.
    pub checks_integrity: Option<bool>,
    pub stamps_cookies: Option<bool>,
    pub disk_low_water: Option<f64>,
    pub log_creation_bytes: Option<u64>,
    pub high_priority_bytes: Option<u64>,
    pub compaction_rate: Option<u64>,
    pub is_throttled_by_bytes: Option<bool>,
    pub average_entry_bytes: Option<u64>,
    pub adds_in_progress: Option<i128>,
    pub has_keepalive: Option<bool>,
    pub unanswered: Option<Duration>,
}

impl LimitKeys {
    /// To convert a limit given in entries into bytes.
    pub(crate) fn average_entry_bytes(&self) -> u64 {
        self.average_entry_bytes.unwrap_or(4096)
    }
}

/// Values of object storage; without a store nothing comes of them.
#[derive(Debug, Default)]
pub(crate) struct ObjectKeys {
    pub url: Option<String>,
    pub has_role: Option<bool>,
    pub config: TiererConfig,
    pub read_memory: Option<u64>,
    pub trim: TrimConfig,
}

/// A file of keys or certificates.
#[derive(Debug, Default)]
pub(crate) struct StoreKeys {
    pub path: Option<PathBuf>,
    pub form: Option<String>,
    /// The password, or the file that holds it. A file wins, as in Java, because its row comes later.
    pub password: Option<PasswordSource>,
}

impl StoreKeys {
    /// Its form, or BookKeeper's default.
    pub(crate) fn form_or_default(&self) -> &str {
        self.form.as_deref().unwrap_or("JKS")
    }
}

/// Settings of TLS with clients. Without `factory` only `is_required` counts.
#[derive(Debug, Default)]
pub(crate) struct TlsKeys {
    pub factory: Option<String>,
    pub is_required: Option<bool>,
    pub asks_for_certificates: Option<bool>,
    pub key: StoreKeys,
    pub authorities: StoreKeys,
    pub certificates: Option<PathBuf>,
    pub refresh: Option<Duration>,
    pub ciphers: Option<String>,
    pub versions: Option<String>,
}

/// Settings of TLS on the admin port.
#[derive(Debug, Default)]
pub(crate) struct AdminTlsKeys {
    pub is_on: Option<bool>,
    pub key: StoreKeys,
    pub authorities: StoreKeys,
    pub serves_without_certificate: Option<bool>,
}

/// Settings of authentication and authorisation.
#[derive(Debug, Default)]
pub(crate) struct AuthKeys {
    pub class: Option<String>,
    pub section: Option<String>,
    pub allowed_ids: Option<String>,
    pub users: Option<PathBuf>,
    pub roles: Option<String>,
    pub requires_reader: Option<bool>,
    pub startup_users: Option<String>,
}

/// Settings of TLS and login to the metadata store.
#[derive(Debug, Default)]
pub(crate) struct ZooKeeperKeys {
    pub has_tls: Option<bool>,
    pub authorities: StoreKeys,
    pub identity: StoreKeys,
    pub verifies_names: Option<bool>,
    pub logs_in: Option<bool>,
    pub user: Option<String>,
    pub password_file: Option<PathBuf>,
    pub section: Option<String>,
}
