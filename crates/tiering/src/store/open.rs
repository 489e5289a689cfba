//! A store that can be used.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Once};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};

use super::error::reason_of;
use super::local::Bounded;
use super::read_ahead::ReadAhead;
use super::{StoreError, StoreKind, StoreUrl};

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
    #[error("{url}: {reason}; looked at {}", url.kind().credentials())]
    Settings {
        /// The store.
        url: StoreUrl,
        /// What is wrong.
        reason: String,
    },
}

/// An open store: the library's, and where ours is in it.
#[derive(Clone)]
pub struct Store {
    url: StoreUrl,
    inner: Arc<dyn ObjectStore>,
    read_ahead: Option<Arc<ReadAhead>>,
}

impl Store {
    /// A store that is open already, for tests.
    pub fn new(url: StoreUrl, inner: Arc<dyn ObjectStore>) -> Store {
        Store { url, inner, read_ahead: None }
    }

    /// The same store, which reads ahead when extents of an object lie one behind the other. It keeps up to 24 MiB, and its
    /// clones share them. `account` is called before each request of a read with the bytes that are asked for, and waited for.
    pub fn with_read_ahead(
        &self,
        account: impl Fn(u64) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Store {
        Store { read_ahead: Some(Arc::new(ReadAhead::new(account))), ..self.clone() }
    }

    /// The same store, which calls `account` as one does that reads ahead, and reads what is asked for.
    #[cfg(test)]
    pub(crate) fn with_account(
        &self,
        account: impl Fn(u64) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Store {
        Store { read_ahead: Some(Arc::new(ReadAhead::exact(account))), ..self.clone() }
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
        let end = range.end;
        self.read_part(name, range, end).await
    }

    /// A range of the object `name` below the prefix. A store that reads ahead does so up to `end`.
    pub(crate) async fn read_part(
        &self,
        name: &str,
        range: Range<u64>,
        end: u64,
    ) -> Result<Bytes, StoreError> {
        let fetch = |range: Range<u64>| {
            let (key, inner) = (self.key(name), self.inner.clone());
            async move { inner.get_range(&key, range).await.map_err(|error| StoreError::of(&key, &error)) }
        };
        match &self.read_ahead {
            Some(read_ahead) => read_ahead.read(name, range, end, fetch).await,
            None => fetch(range).await,
        }
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
    let client = || {
        let prefix = url.kind().variables();
        client_options(
            prefix,
            options,
            std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
        )
        .map_err(|reason| OpenError::Settings { url: url.clone(), reason })
    };
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
            Arc::new(Bounded::new(local.with_fsync(true).with_automatic_cleanup(true)))
        }
        StoreKind::S3 => {
            choose_cryptography();
            let builder = AmazonS3Builder::from_env().with_bucket_name(url.bucket()).with_retry(retry);
            let endpoints = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
            check_http(url, "AWS_ALLOW_HTTP", &endpoints)?;
            Arc::new(builder.with_client_options(client()?).build().map_err(settings)?)
        }
        StoreKind::Gcs => {
            choose_cryptography();
            let builder =
                GoogleCloudStorageBuilder::from_env().with_bucket_name(url.bucket()).with_retry(retry);
            Arc::new(builder.with_client_options(client()?).build().map_err(settings)?)
        }
        StoreKind::Azure => {
            choose_cryptography();
            let builder =
                MicrosoftAzureBuilder::from_env().with_container_name(url.bucket()).with_retry(retry);
            let endpoints = ["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"];
            check_http(url, "AZURE_ALLOW_HTTP", &endpoints)?;
            Arc::new(builder.with_client_options(client()?).build().map_err(settings)?)
        }
    };
    Ok(Store::new(url.clone(), inner))
}

/// Client options of the environment (`AWS_PROXY_URL` and its like), and ours. Options that are given to a builder replace those that it
/// took from there, so they are read once more.
fn client_options(
    prefix: &str,
    options: &StoreOptions,
    environment: impl Iterator<Item = (String, String)>,
) -> Result<ClientOptions, String> {
    let mut client = ClientOptions::new().with_user_agent(user_agent());
    for (name, value) in environment {
        let Some(rest) = name.strip_prefix(prefix) else { continue };
        match rest.to_ascii_lowercase().parse() {
            Ok(ClientConfigKey::Timeout | ClientConfigKey::ConnectTimeout | ClientConfigKey::ReadTimeout) => {
                return Err(format!("{name} is set, and the time limits are Bindery's own: unset it"));
            }
            Ok(key) => client = client.with_config(key, value),
            // Another setting than one of the client.
            Err(_) => {}
        }
    }
    Ok(client.with_connect_timeout(options.connect_timeout).with_timeout(options.request_timeout))
}

fn is_set(variable: &str) -> bool {
    let is_yes = |value: String| matches!(&*value.to_lowercase(), "true" | "1" | "yes" | "on" | "y");
    std::env::var(variable).is_ok_and(is_yes)
}

/// An endpoint without TLS has to be allowed; without this, each request would fail in words that say nothing.
fn check_http(url: &StoreUrl, allows: &str, endpoints: &[&str]) -> Result<(), OpenError> {
    let plain =
        endpoints.iter().find(|name| std::env::var(name).is_ok_and(|value| value.starts_with("http://")));
    match plain {
        Some(name) if !is_set(allows) => Err(OpenError::Settings {
            url: url.clone(),
            reason: format!(
                "{name} is an address without TLS; set {allows}=true if that is meant, or use https"
            ),
        }),
        _ => Ok(()),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<ClientOptions, String> {
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        client_options("AWS_", &StoreOptions::default(), variables)
    }

    /// Client options of the environment are honoured, or refused where that is impossible.
    #[test]
    fn client_options_of_the_environment_are_honoured_or_refused() {
        let client = of(&[
            ("AWS_PROXY_URL", "http://proxy:3128"),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_ALLOW_INVALID_CERTIFICATES", "true"),
            ("AWS_REGION", "somewhere"),
            ("GOOGLE_PROXY_EXCLUDES", "localhost"),
        ])
        .unwrap();
        let value = |key| client.get_config_value(&key);
        assert_eq!(value(ClientConfigKey::ProxyUrl).as_deref(), Some("http://proxy:3128"));
        assert_eq!(value(ClientConfigKey::AllowHttp).as_deref(), Some("true"));
        assert_eq!(value(ClientConfigKey::AllowInvalidCertificates).as_deref(), Some("true"));
        assert_eq!(value(ClientConfigKey::ProxyExcludes), None, "of another kind of store");
        assert_eq!(value(ClientConfigKey::Timeout).as_deref(), Some("30s"));
        assert!(value(ClientConfigKey::UserAgent).is_some_and(|agent| agent.contains("bindery")));
        for name in ["AWS_TIMEOUT", "AWS_CONNECT_TIMEOUT"] {
            let refused = of(&[(name, "5s")]).unwrap_err();
            assert!(refused.contains(name) && refused.contains("unset"), "{refused}");
        }
    }
}
