//! A store that can be used.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Once};
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};

use super::{StoreKind, StoreUrl};

/// Time limits of requests.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Until a connection is made. Start: 5 s.
    pub connect_timeout: Duration,
    /// For one try, its body included. Start: 30 s, enough for a part of 16 MiB at 5 Mbit/s.
    pub request_timeout: Duration,
    /// For a request with its retries; none begins later. Start: 60 s.
    pub retry_timeout: Duration,
    /// Tries after the first. Start: 5.
    pub retries_max: usize,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            retry_timeout: Duration::from_secs(60),
            retries_max: 5,
        }
    }
}

/// Why a store cannot be opened. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory does not exist, or is none.
    #[error("{url}: {error}; make the directory first")]
    Directory {
        /// The store.
        url: StoreUrl,
        /// What the system says.
        error: io::Error,
    },
    /// Its settings, from the environment, are incomplete or wrong.
    #[error("{url}: {reason}; credentials and settings come from {}", url.kind().credentials())]
    Settings {
        /// The store.
        url: StoreUrl,
        /// What is wrong.
        reason: String,
    },
}

/// What a request to a store came to, when it was not done. Every kind asks for something else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// There is no such key, or no such bucket: several servers answer both in the same way, and an unknown access key too.
    /// Never the proof that something was deleted or that a catalogue is empty.
    #[error("{key}: not found (no such key or bucket, or the access key is unknown)")]
    NotFound {
        /// The key.
        key: String,
    },
    /// A key that was to be created is there already. After a retry it may be the caller's own: compare.
    #[error("{key}: exists already")]
    Exists {
        /// The key.
        key: String,
    },
    /// Credentials are missing, wrong or expired, or do not allow the request.
    #[error("{key}: not permitted: {reason}")]
    Denied {
        /// The key.
        key: String,
        /// What the server says.
        reason: String,
    },
    /// The store does not know the operation.
    #[error("{key}: the store does not support this: {reason}")]
    Unsupported {
        /// The key.
        key: String,
        /// The operation.
        reason: String,
    },
    /// The store did not answer, or answered that it cannot at the moment. Whether a write took effect is unknown.
    #[error("{key}: the store cannot be reached or does not serve at the moment: {reason}")]
    Unavailable {
        /// The key.
        key: String,
        /// What happened.
        reason: String,
    },
}

impl StoreError {
    /// From the library's, about `key`.
    pub fn of(key: &Path, error: &object_store::Error) -> StoreError {
        use object_store::Error;
        let (key, reason) = (key.to_string(), reason_of(error));
        match error {
            Error::NotFound { .. } => StoreError::NotFound { key },
            Error::AlreadyExists { .. } | Error::Precondition { .. } => StoreError::Exists { key },
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                StoreError::Denied { key, reason }
            }
            Error::NotSupported { .. } | Error::NotImplemented { .. } => {
                StoreError::Unsupported { key, reason }
            }
            _ if METADATA_ADDRESSES.iter().any(|address| reason.contains(address)) => StoreError::Denied {
                key,
                reason: format!(
                    "no credentials were found, and the machine has no role that gives any ({reason})"
                ),
            },
            _ => StoreError::Unavailable { key, reason },
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, StoreError::Unavailable { .. })
    }
}

/// Where machines of a cloud ask for credentials when the environment has none.
const METADATA_ADDRESSES: [&str; 3] =
    ["//169.254.169.254/", "//169.254.170.2/", "//metadata.google.internal/"];

/// The library wraps an error in its own words several times; the first that names the request says most, with the innermost
/// cause. Servers add pages of XML, of which the message is kept.
fn reason_of(error: &object_store::Error) -> String {
    let mut texts = vec![error.to_string()];
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
        texts.push(inner.to_string());
    }
    let innermost = texts.last().cloned().unwrap_or_default();
    let request = texts.iter().rev().find(|text| text.starts_with("Error performing")).or(texts.first());
    let mut reason = request.cloned().unwrap_or_default();
    if !reason.contains(&innermost) {
        reason = format!("{reason}: {innermost}");
    }
    if let Some((before, page)) = reason.split_once('<') {
        let of = |tag: &str| page.split_once(&format!("<{tag}>")).and_then(|(_, rest)| rest.split_once("</"));
        let said: Vec<&str> =
            [of("Code"), of("Message")].into_iter().flatten().map(|(text, _)| text).collect();
        reason = format!("{}{}", before, said.join(": "));
    }
    let line: String = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(REASON_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

const REASON_CHARS_MAX: usize = 400;

/// An open store: the library's, and where ours is in it.
#[derive(Clone)]
pub struct Store {
    url: StoreUrl,
    inner: Arc<dyn ObjectStore>,
}

impl Store {
    /// A store that is open already, for tests.
    pub fn new(url: StoreUrl, inner: Arc<dyn ObjectStore>) -> Store {
        Store { url, inner }
    }

    /// Where it is.
    pub fn url(&self) -> &StoreUrl {
        &self.url
    }

    /// The library's store.
    pub fn inner(&self) -> &Arc<dyn ObjectStore> {
        &self.inner
    }

    /// The key of `name` below the prefix.
    pub fn key(&self, name: &str) -> Path {
        match self.url.prefix() {
            "" => Path::from(name),
            prefix => Path::from(format!("{prefix}/{name}")),
        }
    }

    /// Length of the object `name` below the prefix.
    pub async fn size_bytes(&self, name: &str) -> Result<u64, StoreError> {
        let key = self.key(name);
        let head = self.inner.head(&key).await;
        head.map(|meta| meta.size).map_err(|error| StoreError::of(&key, &error))
    }

    /// A range of the object `name` below the prefix.
    pub async fn read(&self, name: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let key = self.key(name);
        self.inner.get_range(&key, range).await.map_err(|error| StoreError::of(&key, &error))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.url)
    }
}

/// Opens the store that a URL names, with credentials from where users of that kind of store keep them
/// ([`StoreKind::credentials`]). Makes no request.
pub fn open(url: &StoreUrl, options: &StoreOptions) -> Result<Store, OpenError> {
    let settings =
        |error: object_store::Error| OpenError::Settings { url: url.clone(), reason: reason_of(&error) };
    let client = ClientOptions::new()
        .with_connect_timeout(options.connect_timeout)
        .with_timeout(options.request_timeout)
        // As the environment of each kind says (AWS_ALLOW_HTTP and its like): those of the builder are kept.
        .with_user_agent(user_agent());
    let retry = RetryConfig {
        max_retries: options.retries_max,
        retry_timeout: options.retry_timeout,
        backoff: BackoffConfig::default(),
    };
    let inner: Arc<dyn ObjectStore> = match url.kind() {
        StoreKind::Local => {
            let directory = url.directory().unwrap_or_default();
            let local = LocalFileSystem::new_with_prefix(&directory).map_err(|error| {
                OpenError::Directory { url: url.clone(), error: io::Error::other(reason_of(&error)) }
            })?;
            // Directories of keys that were deleted go, too.
            Arc::new(local.with_fsync(true).with_automatic_cleanup(true))
        }
        StoreKind::S3 => {
            choose_cryptography();
            let builder = AmazonS3Builder::from_env().with_bucket_name(url.bucket()).with_retry(retry);
            let endpoints = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
            let client = allow_http(url, client, "AWS_ALLOW_HTTP", &endpoints)?;
            Arc::new(builder.with_client_options(client).build().map_err(settings)?)
        }
        StoreKind::Gcs => {
            choose_cryptography();
            let builder =
                GoogleCloudStorageBuilder::from_env().with_bucket_name(url.bucket()).with_retry(retry);
            Arc::new(builder.with_client_options(client).build().map_err(settings)?)
        }
        StoreKind::Azure => {
            choose_cryptography();
            let builder =
                MicrosoftAzureBuilder::from_env().with_container_name(url.bucket()).with_retry(retry);
            let endpoints = ["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"];
            let client = allow_http(url, client, "AZURE_ALLOW_HTTP", &endpoints)?;
            Arc::new(builder.with_client_options(client).build().map_err(settings)?)
        }
    };
    Ok(Store::new(url.clone(), inner))
}

/// Client options given to a builder replace those that it took from the environment.
fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| matches!(&*value.to_lowercase(), "true" | "1" | "yes"))
}

/// An endpoint without TLS has to be allowed; without this, each request would fail in words that say nothing.
fn allow_http(
    url: &StoreUrl,
    client: ClientOptions,
    allows: &str,
    endpoints: &[&str],
) -> Result<ClientOptions, OpenError> {
    let is_allowed = is_set(allows);
    let plain =
        endpoints.iter().find(|name| std::env::var(name).is_ok_and(|value| value.starts_with("http://")));
    match plain {
        Some(name) if !is_allowed => Err(OpenError::Settings {
            url: url.clone(),
            reason: format!(
                "{name} is an address without TLS; set {allows}=true if that is meant, or use https"
            ),
        }),
        _ => Ok(client.with_allow_http(is_allowed)),
    }
}

fn user_agent() -> http::HeaderValue {
    http::HeaderValue::from_static(concat!("bindery/", env!("CARGO_PKG_VERSION")))
}

/// The HTTP client is built without a provider of cryptography of its own.
fn choose_cryptography() {
    static ONCE: Once = Once::new();
    // An error says that the process has chosen one already.
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}
