//! Outcomes of requests that were not done: each kind calls for another reaction.

use std::error::Error as StdError;
use std::io::ErrorKind;

use object_store::path::Path;

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
    /// Credentials are missing, wrong or expired, or do not allow the request; or a directory cannot be written to.
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
    /// The store answers that the request is wrong as it stands: a setting, its own or ours, that no waiting mends.
    #[error("{key}: the store refuses this: {reason}")]
    Refused {
        /// The key.
        key: String,
        /// What the server says, with the setting that it is about as far as that is known.
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
        let (key, said) = (key.to_string(), Said::by(error));
        let (kind, reason) = (said.kind(), said.reason());
        match error {
            Error::NotFound { .. } => StoreError::NotFound { key },
            Error::AlreadyExists { .. } | Error::Precondition { .. } => StoreError::Exists { key },
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                StoreError::Denied { key, reason }
            }
            Error::NotSupported { .. } | Error::NotImplemented { .. } => {
                StoreError::Unsupported { key, reason }
            }
            _ => match kind {
                Kind::Denied => StoreError::Denied { key, reason },
                Kind::Unsupported => StoreError::Unsupported { key, reason },
                Kind::Refused => StoreError::Refused { key, reason },
                Kind::Unknown => StoreError::Unavailable { key, reason },
            },
        }
    }

    /// The same without the key, which says little to an operator when it is one of a check.
    pub fn without_key(&self) -> String {
        let text = self.to_string();
        let (StoreError::NotFound { key }
        | StoreError::Exists { key }
        | StoreError::Denied { key, .. }
        | StoreError::Unsupported { key, .. }
        | StoreError::Refused { key, .. }
        | StoreError::Unavailable { key, .. }) = self;
        text.strip_prefix(&format!("{key}: ")).unwrap_or(&text).to_owned()
    }

    /// Whether it says which setting is at fault, or none is.
    pub fn names_setting(&self) -> bool {
        match self {
            StoreError::Denied { reason, .. } | StoreError::Refused { reason, .. } => {
                SETTINGS.iter().any(|(_, setting)| reason.contains(setting))
            }
            StoreError::NotFound { .. } => false,
            StoreError::Exists { .. } | StoreError::Unsupported { .. } | StoreError::Unavailable { .. } => {
                true
            }
        }
    }

    /// Whether the same request may succeed later without anybody's doing.
    pub fn is_transient(&self) -> bool {
        matches!(self, StoreError::Unavailable { .. })
    }
}

/// Where machines of a cloud ask for credentials when the environment has none.
const METADATA_ADDRESSES: [&str; 3] =
    ["//169.254.169.254/", "//169.254.170.2/", "//metadata.google.internal/"];

/// Codes of servers whose cause is a setting, and what to look at.
const SETTINGS: [(&str, &str); 12] = [
    ("InvalidAccessKeyId", "look at AWS_ACCESS_KEY_ID"),
    ("SignatureDoesNotMatch", "look at AWS_SECRET_ACCESS_KEY"),
    ("ExpiredToken", "the credentials have expired: renew them and AWS_SESSION_TOKEN"),
    ("TokenRefreshRequired", "the credentials have expired: renew them and AWS_SESSION_TOKEN"),
    ("InvalidToken", "look at AWS_SESSION_TOKEN"),
    ("AuthorizationHeaderMalformed", "look at AWS_REGION"),
    ("PermanentRedirect", "look at AWS_REGION and AWS_ENDPOINT_URL"),
    ("IllegalLocationConstraintException", "look at AWS_REGION"),
    ("RequestTimeTooSkewed", "set this machine's clock"),
    ("InvalidBucketName", "look at the bucket's name in the URL"),
    ("KMS.", "look at the bucket's KMS key"),
    ("InvalidRequest", "look at the bucket's settings (object lock wants AWS_CHECKSUM_ALGORITHM=SHA256)"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Denied,
    Unsupported,
    Refused,
    Unknown,
}

/// An error of the library, taken apart. It keeps the status of an answer in its text alone.
struct Said {
    text: String,
    status: Option<u16>,
    /// The code of an S3 or Azure server.
    code: Option<String>,
    io: Option<ErrorKind>,
    is_redirect: bool,
    lacks_credentials: bool,
}

impl Said {
    fn by(error: &object_store::Error) -> Said {
        let mut texts = vec![error.to_string()];
        let (mut inner, mut io): (&dyn StdError, _) = (error, None);
        while let Some(source) = inner.source() {
            inner = source;
            texts.push(inner.to_string());
            io = io.or(inner.downcast_ref::<std::io::Error>().map(std::io::Error::kind));
        }
        let is_local = matches!(error, object_store::Error::Generic { store: "LocalFileSystem", .. });
        let all = texts.join("\n");
        let after = |mark: &str| all.split_once(mark).map(|(_, rest)| rest);
        let status = after("non-2xx status code: ").and_then(|rest| rest.get(..3)?.parse().ok());
        let code = tag(&all, "Code").map(str::to_owned).or_else(|| {
            // One key of a deletion of many.
            let (code, _) = after("(code: ")?.split_once(')')?;
            Some(code.to_owned())
        });
        let text = shortened(&texts, code.as_deref(), tag(&all, "Message"));
        Said {
            text,
            status,
            code,
            io: io.filter(|_| is_local),
            is_redirect: all.contains("redirect without LOCATION"),
            lacks_credentials: METADATA_ADDRESSES.iter().any(|address| all.contains(address)),
        }
    }

    fn setting(&self) -> Option<&'static str> {
        let code = self.code.as_deref().unwrap_or("");
        let found = SETTINGS.iter().find(|(begin, _)| code.starts_with(begin));
        found
            .map(|(_, setting)| *setting)
            .or(self.is_redirect.then_some("look at AWS_REGION and AWS_ENDPOINT_URL"))
    }

    fn kind(&self) -> Kind {
        if self.lacks_credentials {
            return Kind::Denied;
        }
        if let Some("AccessDenied" | "AllAccessDisabled") = self.code.as_deref() {
            return Kind::Denied;
        }
        match (self.status, self.io) {
            (Some(501), _) => Kind::Unsupported,
            // Too slow, too early, too often.
            (Some(408 | 425 | 429), _) => Kind::Unknown,
            // Codes of load and time that come with 400.
            (Some(400), _)
                if matches!(
                    self.code.as_deref(),
                    Some("RequestTimeout" | "BadDigest" | "IncompleteBody")
                ) =>
            {
                Kind::Unknown
            }
            // Ranges are the reader's matter: an object may have been cut short.
            (Some(416), _) => Kind::Unknown,
            (Some(300..=499), _) => Kind::Refused,
            (
                None,
                Some(ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::NotADirectory),
            ) => Kind::Denied,
            _ if self.is_redirect => Kind::Refused,
            _ => Kind::Unknown,
        }
    }

    fn reason(self) -> String {
        match (self.lacks_credentials, self.setting()) {
            (true, _) => "no credentials were found, and the machine has no role that gives any".to_owned(),
            (false, Some(setting)) => format!("{} ({setting})", self.text),
            (false, None) => self.text,
        }
    }
}

fn tag<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once("</").map(|(text, _)| text)
}

/// The library wraps an error in its own words several times, and servers add pages of XML. What is kept: code and message of an
/// answer, or its status; of a request without an answer, to which server it went, and the innermost cause.
fn shortened(texts: &[String], code: Option<&str>, message: Option<&str>) -> String {
    let innermost = texts.last().map_or("", |text| text);
    let request = texts.iter().rev().find(|text| text.starts_with("Error performing")).or(texts.first());
    let request = request.map_or("", |text| text);
    let status =
        request.split_once("non-2xx status code: ").map(|(_, rest)| rest.split(':').next().unwrap_or(rest));
    let reason = match (code, message, status) {
        (Some(code), Some(message), _) => format!("{code}: {message}"),
        (Some(code), None, _) if request.contains(code) => request.to_owned(),
        (Some(code), None, _) => code.to_owned(),
        (None, _, Some(status)) => format!("it answers {status}"),
        (None, ..) => match asked(request) {
            Some((server, cause)) if cause.contains(innermost) || innermost.contains(cause) => {
                format!("{server}: {cause}")
            }
            Some((server, _)) => format!("{server}: {innermost}"),
            None if request.contains(innermost) => request.to_owned(),
            None => format!("{request}: {innermost}"),
        },
    };
    let reason = reason.split('<').next().unwrap_or_default();
    let line: String = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(REASON_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// `Error performing GET http://host:port/path in 1s, after 5 retries - cause`: scheme and host, and the cause.
fn asked(request: &str) -> Option<(&str, &str)> {
    let (_, rest) = request.strip_prefix("Error performing ")?.split_once(' ')?;
    let (url, rest) = rest.split_once(' ')?;
    let (_, cause) = rest.split_once(" - ")?;
    let host = url.find("://").map(|at| at + 3)?;
    let end = url[host..].find('/').map_or(url.len(), |at| host + at);
    Some((&url[..end], cause))
}

/// Leaves room for the store, the key and the remedy in a line of 300 characters.
const REASON_CHARS_MAX: usize = 90;

/// The text of the library's error in short.
pub(super) fn reason_of(error: &object_store::Error) -> String {
    Said::by(error).reason()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: text.to_owned().into() }
    }

    fn status(status: &str, code: &str) -> StoreError {
        let text = format!(
            "Error performing PUT http://host/bucket/key in 1.2ms - Server returned non-2xx status code: {status}: <?xml \
             version=\"1.0\"?><Error><Code>{code}</Code><Message>some words of the server</Message></Error>"
        );
        StoreError::of(&Path::from("key"), &generic(&text))
    }

    /// A fault that no waiting mends is not transient, and names its setting.
    #[test]
    fn faults_of_settings_are_no_outage() {
        for (text, code, words) in [
            ("400 Bad Request", "ExpiredToken", "AWS_SESSION_TOKEN"),
            ("400 Bad Request", "AuthorizationHeaderMalformed", "AWS_REGION"),
            ("400 Bad Request", "KMS.DisabledException", "KMS key"),
            ("400 Bad Request", "InvalidBucketName", "bucket's name"),
            ("301 Moved Permanently", "PermanentRedirect", "AWS_REGION"),
            ("400 Bad Request", "SomethingNew", "some words of the server"),
        ] {
            let error = status(text, code);
            assert!(matches!(error, StoreError::Refused { .. }) && !error.is_transient(), "{error:?}");
            let said = error.to_string();
            assert!(said.contains(words) && said.contains(code) && said.len() < 250, "{said}");
        }
        assert!(matches!(status("501 Not Implemented", "NotImplemented"), StoreError::Unsupported { .. }));
        let denied = generic("DeleteObjects request failed for key a/b: Access Denied (code: AccessDenied)");
        assert!(matches!(StoreError::of(&Path::from("a/b"), &denied), StoreError::Denied { .. }));
        let redirect = generic(
            "Error performing PUT http://host/bucket in 1ms - Received redirect without LOCATION, this normally indicates an \
             incorrectly configured region",
        );
        let error = StoreError::of(&Path::from("key"), &redirect);
        assert!(
            matches!(error, StoreError::Refused { .. }) && error.to_string().contains("AWS_REGION"),
            "{error}"
        );
        let lacking =
            generic("Error performing PUT http://169.254.169.254/latest/api/token in 5s - timed out");
        let error = StoreError::of(&Path::from("key"), &lacking);
        assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
    }

    #[test]
    fn faults_of_the_moment_are_transient() {
        for (text, code) in [
            ("500 Internal Server Error", "InternalError"),
            ("503 Service Unavailable", "SlowDown"),
            ("429 Too Many Requests", "TooMany"),
            ("400 Bad Request", "RequestTimeout"),
        ] {
            assert!(status(text, code).is_transient(), "{text}");
        }
        let reset = generic(
            "Error performing GET http://host/ in 1ms, after 5 retries, max_retries: 5, retry_timeout: 60s  - connection reset",
        );
        let error = StoreError::of(&Path::from("key"), &reset);
        assert!(error.is_transient() && error.to_string().contains("connection reset"), "{error}");
        assert!(!error.to_string().contains("max_retries"), "{error}");
    }

    #[test]
    fn a_directory_that_may_not_be_written_to_is_no_outage() {
        for kind in [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem] {
            let source = Box::new(std::io::Error::from(kind));
            let error = object_store::Error::Generic { store: "LocalFileSystem", source };
            assert!(
                matches!(StoreError::of(&Path::from("key"), &error), StoreError::Denied { .. }),
                "{kind}"
            );
        }
        let source = Box::new(std::io::Error::from(ErrorKind::StorageFull));
        let error = object_store::Error::Generic { store: "LocalFileSystem", source };
        assert!(StoreError::of(&Path::from("key"), &error).is_transient());
    }
}
