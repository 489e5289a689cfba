//! The URLs of object stores.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The kinds of store that a URL can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// `file:///directory`
    Local,
    /// `s3://bucket/prefix`: AWS, and servers that speak its protocol.
    S3,
    /// `gs://bucket/prefix`: Google Cloud Storage.
    Gcs,
    /// `az://container/prefix`: Azure Blob Storage.
    Azure,
}

impl StoreKind {
    /// How the names of variables begin that a store of this kind is set up with.
    pub(super) const fn variables(self) -> &'static str {
        match self {
            StoreKind::Local => "",
            StoreKind::S3 => "AWS_",
            StoreKind::Gcs => "GOOGLE_",
            StoreKind::Azure => "AZURE_",
        }
    }

    /// Where the credentials for a store of this kind are taken from, as text for messages and help.
    pub const fn credentials(self) -> &'static str {
        match self {
            StoreKind::Local => "the permissions of the directory",
            StoreKind::S3 => {
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_CREDENTIALS_*, or \
                 the machine's role"
            }
            StoreKind::Gcs => {
                "GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT_KEY, gcloud's login, or the machine's account"
            }
            StoreKind::Azure => {
                "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_KEY, AZURE_CLIENT_ID with \
                 AZURE_CLIENT_SECRET, or the managed identity"
            }
        }
    }
}

/// A text that names no store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStoreUrl {
    /// Another scheme, or none.
    #[error(
        "{0:?} names no object store; write file:///directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
    )]
    Scheme(String),
    /// A local directory that is not absolute.
    #[error("{0:?} is not an absolute directory; write file:///directory, with three slashes")]
    NotAbsolute(String),
    /// No bucket.
    #[error("{0:?} names no bucket")]
    NoBucket(String),
    /// A user, port, query or fragment: options are taken from the environment.
    #[error("{text:?} holds {part}, which has no place in the URL of a store; {hint}")]
    Extra {
        /// The text, without a password in it.
        text: String,
        /// The part that does not belong there.
        part: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// A prefix with an empty part, `.` or `..`.
    #[error("{0:?}: the prefix has an empty part, \".\" or \"..\"")]
    Prefix(String),
}

/// A store, and the prefix below which everything is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StoreUrl {
    kind: StoreKind,
    /// Empty for a local directory.
    bucket: String,
    /// Without a slash at either end; for a local directory, its path.
    prefix: String,
}

impl StoreUrl {
    /// The kind of store.
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    /// The bucket or container; empty for a local directory.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The key prefix in the bucket; empty for a local directory, which is the root itself.
    pub fn prefix(&self) -> &str {
        if self.kind == StoreKind::Local { "" } else { &self.prefix }
    }

    /// The directory, of a local store.
    pub fn directory(&self) -> Option<PathBuf> {
        (self.kind == StoreKind::Local).then(|| PathBuf::from(format!("/{}", self.prefix)))
    }
}

impl FromStr for StoreUrl {
    type Err = InvalidStoreUrl;

    fn from_str(text: &str) -> Result<StoreUrl, InvalidStoreUrl> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(InvalidStoreUrl::Scheme(text.into()));
        };
        let kind = match scheme {
            "file" => StoreKind::Local,
            "s3" | "s3a" => StoreKind::S3,
            "gs" => StoreKind::Gcs,
            "az" | "azure" => StoreKind::Azure,
            _ => return Err(InvalidStoreUrl::Scheme(text.into())),
        };
        let (authority, path) =
            rest.split_once('/').map_or((rest, ""), |(authority, path)| (authority, path));
        let extra = |part, hint| {
            // Without the part before the @, which may be a password.
            let shown = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            InvalidStoreUrl::Extra { text: format!("{scheme}://{shown}/{path}"), part, hint }
        };
        if kind != StoreKind::Local {
            if authority.contains('@') {
                return Err(extra("a user or password", "credentials are taken from the environment"));
            }
            if authority.contains(':') {
                return Err(extra(
                    "a port",
                    "set AWS_ENDPOINT_URL, or its like, to the address of the server",
                ));
            }
            if path.contains(['?', '#']) {
                return Err(extra("a query or fragment", "options are taken from the environment"));
            }
        }
        let prefix = path.strip_suffix('/').unwrap_or(path);
        let is_clean = prefix.is_empty() || prefix.split('/').all(|part| !matches!(part, "" | "." | ".."));
        if !is_clean {
            return Err(InvalidStoreUrl::Prefix(text.into()));
        }
        match kind {
            StoreKind::Local if !authority.is_empty() || !rest.starts_with('/') || prefix.is_empty() => {
                Err(InvalidStoreUrl::NotAbsolute(text.into()))
            }
            StoreKind::Local => Ok(StoreUrl { kind, bucket: String::new(), prefix: prefix.into() }),
            _ if authority.is_empty() => Err(InvalidStoreUrl::NoBucket(text.into())),
            _ => Ok(StoreUrl { kind, bucket: authority.into(), prefix: prefix.into() }),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.kind {
            StoreKind::Local => return write!(f, "file:///{}", self.prefix),
            StoreKind::S3 => "s3",
            StoreKind::Gcs => "gs",
            StoreKind::Azure => "az",
        };
        write!(f, "{scheme}://{}", self.bucket)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_come_back_as_they_were_written() {
        for text in ["file:///srv/tier", "s3://bucket", "s3://bucket/a/b", "gs://b/p", "az://container/p"] {
            assert_eq!(text.parse::<StoreUrl>().unwrap().to_string(), text);
        }
        let url: StoreUrl = "s3://bucket/a/".parse().unwrap();
        assert_eq!((url.bucket(), url.prefix(), url.directory()), ("bucket", "a", None));
        let url: StoreUrl = "file:///srv/tier/".parse().unwrap();
        assert_eq!((url.prefix(), url.directory()), ("", Some(PathBuf::from("/srv/tier"))));
    }

    #[test]
    fn each_mistake_is_named() {
        let problem = |text: &str| text.parse::<StoreUrl>().unwrap_err().to_string();
        assert!(problem("bucket").contains("s3://bucket/prefix"));
        assert!(problem("http://host/bucket").contains("names no object store"));
        assert!(problem("file://srv/tier").contains("three slashes"));
        assert!(problem("file:///").contains("three slashes"));
        assert!(problem("s3:///prefix").contains("no bucket"));
        assert!(problem("s3://bucket:9000/p").contains("AWS_ENDPOINT_URL"));
        assert!(problem("s3://bucket/a?region=x").contains("environment"));
        assert!(problem("s3://bucket/a//b").contains("empty part"));
        assert!(problem("gs://bucket/../b").contains("\"..\""));
        let secret = problem("s3://key:secret@bucket/p");
        assert!(secret.contains("environment") && !secret.contains("secret"), "{secret}");
    }
}
