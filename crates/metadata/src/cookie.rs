//! Cookies: which directories and which cluster belong to a bookie (protocol reference, section 5.3).
//!
//! A cookie lies in every directory (file `VERSION`) and in the metadata store. Comparing them at start is what keeps a
//! bookie with a lost disk, another bookie's disk or another cluster's data from serving as if nothing were missing.
//! [`validate`] is the whole decision, without any I/O.
//!
//! ```text
//! text := "5" LF protobuf text of {bookieHost journalDir ledgerDirs instanceId? indexDirs?}
//! journalDir := dir ("," dir)*          ledgerDirs, indexDirs := count (TAB dir)*
//! layout 3 := "3" LF bookieHost LF journalDir LF ledgerDirs LF
//! ```
//!
//! # Invariants
//! 1. A bookie starts as new only when the store has no cookie for it and no directory holds anything but a cookie
//!    that matches (an interrupted first start).
//! 2. A directory that the store's cookie knows never starts without its own cookie: its disk may be lost.

use bindery_types::BookieId;

use crate::codec::text::{self, Printer, TextError};

/// The layout written; 3 and 4 are read too.
const LAYOUT_VERSION: u32 = 5;
const LAYOUT_VERSION_TEXT_LINES: u32 = 3;

/// One cookie. Directory lists are kept as Java writes them, because they are compared as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cookie {
    /// The bookie's id.
    pub bookie_id: String,
    /// Journal directories, joined with commas.
    pub journal_dirs: String,
    /// Ledger directories: their count, then each after a tab.
    pub ledger_dirs: String,
    /// Index directories in the same form; `None` means the ledger directories.
    pub index_dirs: Option<String>,
    /// The cluster's `INSTANCEID`; `None` in a cluster without one.
    pub instance_id: Option<String>,
}

/// Why a text is not a cookie this version reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CookieError {
    /// The first line is no number.
    #[error("a cookie starts with its layout version, this one with {0:?}")]
    NoVersion(String),
    /// A version outside 3..=5.
    #[error("cookie layout version {0} is not supported (3 to {LAYOUT_VERSION} are)")]
    Version(u32),
    /// Layout 3 with fewer lines than it has fields.
    #[error("the cookie ends early")]
    Truncated,
    /// The text after the version cannot be read.
    #[error("cookie: {0}")]
    Text(#[from] TextError),
    /// Not UTF-8.
    #[error("the cookie is not UTF-8 text")]
    NotText,
}

fn encode_dirs(dirs: &[String]) -> String {
    let mut text = dirs.len().to_string();
    for dir in dirs {
        text.push('\t');
        text.push_str(dir);
    }
    text
}

/// The directories in an encoded list. As in Java, the text before the first tab is the count and is not checked.
fn decode_dirs(text: &str) -> Vec<&str> {
    match text.split_once('\t') {
        Some((_count, dirs)) => dirs.split('\t').collect(),
        None => Vec::new(),
    }
}

impl Cookie {
    /// The cookie that a configuration calls for. `index_dirs` is `None` when they are not configured separately.
    pub fn new(
        bookie_id: &BookieId,
        journal_dirs: &[String],
        ledger_dirs: &[String],
        index_dirs: Option<&[String]>,
        instance_id: Option<&str>,
    ) -> Cookie {
        Cookie {
            bookie_id: bookie_id.to_string(),
            journal_dirs: journal_dirs.join(","),
            ledger_dirs: encode_dirs(ledger_dirs),
            index_dirs: index_dirs.map(encode_dirs),
            instance_id: instance_id.map(String::from),
        }
    }

    /// The text for the file and the store.
    pub fn to_text(&self) -> String {
        let mut printer = Printer::default();
        printer.bytes("bookieHost", self.bookie_id.as_bytes());
        printer.bytes("journalDir", self.journal_dirs.as_bytes());
        printer.bytes("ledgerDirs", self.ledger_dirs.as_bytes());
        if let Some(instance_id) = &self.instance_id {
            printer.bytes("instanceId", instance_id.as_bytes());
        }
        if let Some(index_dirs) = &self.index_dirs {
            printer.bytes("indexDirs", index_dirs.as_bytes());
        }
        format!("{LAYOUT_VERSION}\n{}", printer.finish())
    }

    /// Reads a cookie of layout 3, 4 or 5.
    pub fn parse(bytes: &[u8]) -> Result<Cookie, CookieError> {
        let text = std::str::from_utf8(bytes).map_err(|_| CookieError::NotText)?;
        let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
        let version = first.trim().parse::<u32>();
        let version = version.map_err(|_| CookieError::NoVersion(first.chars().take(80).collect()))?;
        match version {
            LAYOUT_VERSION_TEXT_LINES => Cookie::parse_lines(rest),
            4..=LAYOUT_VERSION => Cookie::parse_text_format(rest),
            other => Err(CookieError::Version(other)),
        }
    }

    fn parse_lines(text: &str) -> Result<Cookie, CookieError> {
        let mut lines = text.lines().map(String::from);
        let mut line = || lines.next().ok_or(CookieError::Truncated);
        Ok(Cookie {
            bookie_id: line()?,
            journal_dirs: line()?,
            ledger_dirs: line()?,
            index_dirs: None,
            instance_id: None,
        })
    }

    fn parse_text_format(text: &str) -> Result<Cookie, CookieError> {
        let fields = text::parse(text.as_bytes())?;
        let get = |name: &'static str| -> Result<Option<String>, TextError> {
            // As in protobuf, the last of a repeated scalar counts; as in Java, an empty optional field counts as absent.
            match fields.iter().rev().find(|field| field.name == name) {
                Some(field) => Ok(Some(field.string()?)),
                None => Ok(None),
            }
        };
        let required = |name: &'static str| get(name)?.ok_or(TextError::Missing { name });
        let optional = |name| Ok::<_, TextError>(get(name)?.filter(|value| !value.is_empty()));
        Ok(Cookie {
            bookie_id: required("bookieHost")?,
            journal_dirs: required("journalDir")?,
            ledger_dirs: required("ledgerDirs")?,
            index_dirs: optional("indexDirs")?,
            instance_id: optional("instanceId")?,
        })
    }

    /// The index directories, encoded: the ledger directories unless index directories are configured separately.
    fn index_or_ledger_dirs(&self) -> &str {
        self.index_dirs.as_deref().unwrap_or(&self.ledger_dirs)
    }

    /// The first difference between `found` and this, the expected cookie. With `expansion` the expected cookie may have
    /// more ledger and index directories than the one found, and either may have more journals at the end of its list: a
    /// journal is known by its place in it.
    fn mismatch(&self, found: &Cookie, expansion: bool) -> Option<Mismatch> {
        let same_dirs = |expected: &str, found: &str| {
            if !expansion {
                return expected == found;
            }
            let expected = decode_dirs(expected);
            decode_dirs(found).iter().all(|dir| expected.contains(dir))
        };
        let differ = |what, expected: &str, found: &str| {
            Some(Mismatch { what, expected: expected.replace('\t', " "), found: found.replace('\t', " ") })
        };
        let none = "(none)";
        if self.bookie_id != found.bookie_id {
            differ("bookie id", &self.bookie_id, &found.bookie_id)
        } else if !self.has_journals_of(found, expansion) {
            differ("journal directories", &self.journal_dirs, &found.journal_dirs)
        } else if !same_dirs(&self.ledger_dirs, &found.ledger_dirs) {
            differ("ledger directories", &self.ledger_dirs, &found.ledger_dirs)
        } else if !same_dirs(self.index_or_ledger_dirs(), found.index_or_ledger_dirs()) {
            differ("index directories", self.index_or_ledger_dirs(), found.index_or_ledger_dirs())
        } else if self.instance_id != found.instance_id {
            let text = |id: &Option<String>| id.clone().unwrap_or_else(|| none.into());
            differ("cluster instance id", &text(&self.instance_id), &text(&found.instance_id))
        } else {
            None
        }
    }

    /// Whether the journals are the same; with `expansion` one list may be longer than the other.
    fn has_journals_of(&self, found: &Cookie, expansion: bool) -> bool {
        let mut both = self.journals().zip(found.journals());
        self.journal_dirs == found.journal_dirs || (expansion && both.all(|(ours, theirs)| ours == theirs))
    }

    fn journals(&self) -> impl Iterator<Item = &str> {
        self.journal_dirs.split(',')
    }

    /// The journal directories that `found` lists beyond the end of this cookie's list.
    fn journals_behind(&self, found: &Cookie) -> Vec<String> {
        found.journals().skip(self.journals().count()).map(String::from).collect()
    }

    /// Whether this cookie names the directory. Java leaves out the journal directories, so that a wiped journal passes
    /// as a new directory.
    fn knows(&self, dir: &str) -> bool {
        decode_dirs(&self.ledger_dirs).contains(&dir)
            || decode_dirs(self.index_or_ledger_dirs()).contains(&dir)
            || self.journals().any(|journal| journal == dir)
    }
}

/// One field in which two cookies differ.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("its {what} is {found:?}, the configuration says {expected:?}")]
pub struct Mismatch {
    /// The field.
    pub what: &'static str,
    /// By the configuration.
    pub expected: String,
    /// In the cookie.
    pub found: String,
}

/// A journal, ledger or index directory as found at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// Its path as configured, hence as it stands in cookies.
    pub path: String,
    /// Its cookie, if it has one.
    pub cookie: Option<Cookie>,
    /// Whether it holds nothing, apart from a cookie and files that are not data (a lock, a session file).
    pub is_empty: bool,
}

/// How a bookie may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartKind {
    /// For the first time: write the expected cookie into every directory, then create the one in the store.
    New,
    /// Everything matches: nothing to write.
    Restart,
    /// With more directories than before: write the expected cookie into the directories in this order, then replace
    /// the one in the store, expecting its version. The bookie must not serve before that is done.
    Expansion {
        /// Every directory, new ones first.
        stamp: Vec<String>,
    },
    /// With fewer journals than before: when these prove to be drained, write the expected cookie into the directories,
    /// then replace the one in the store, expecting its version, and serve.
    JournalsRemoved {
        /// Their directories, in the order of the former cookie.
        former: Vec<String>,
        /// Every configured directory.
        stamp: Vec<String>,
    },
    /// Despite lost directories, because an operator accepts the loss: as [`StartKind::Expansion`], and the bookie must
    /// not deny having anything that it may have held.
    Lost {
        /// Every directory, the empty ones first.
        stamp: Vec<String>,
    },
}

/// Why a bookie must not start. The text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CookieProblem {
    /// The store's cookie describes another configuration.
    #[error(
        "the cookie of bookie {bookie_id} in the metadata store does not match: {mismatch}. \
         Start with the former configuration (see it with: bindery cluster cookie show {bookie_id}); \
         or, if this bookie's data is gone for good and its ledgers are re-replicated, remove the cookie \
         (bindery cluster cookie delete {bookie_id}) and start with empty directories"
    )]
    StoredMismatch {
        /// Whose cookie.
        bookie_id: String,
        /// The difference.
        mismatch: Mismatch,
    },
    /// A directory's cookie describes another bookie or configuration.
    #[error(
        "directory {directory} belongs to another bookie, cluster or configuration: {mismatch}. \
         Configure the directory of this bookie, or correct the id or the metadata URI; nothing was changed"
    )]
    DirectoryMismatch {
        /// Which directory.
        directory: String,
        /// The difference.
        mismatch: Mismatch,
    },
    /// There is data, but the store does not know the bookie.
    #[error(
        "directories {} hold data of bookie {bookie_id}, but the metadata store has no cookie for it: the bookie was \
         decommissioned, or the metadata URI names another cluster. Correct the URI (bindery cluster cookie list shows \
         the bookies of a cluster), or start with empty directories",
        directories.join(", ")
    )]
    NotInStore {
        /// The bookie.
        bookie_id: String,
        /// The directories that are not empty.
        directories: Vec<String>,
    },
    /// A directory that should have a cookie has none.
    #[error(
        "directories {} have no cookie although bookie {bookie_id} is known to the cluster: a disk may be missing or not \
         mounted. Mount it; or, if its data is gone for good, re-replicate this bookie's ledgers, remove its cookie \
         (bindery cluster cookie delete {bookie_id}) and start with empty directories, or start with \
         dataIntegrityChecking=true and dataIntegrityStampMissingCookies=true, and it answers \
         \"unknown\" for what is lost. New directories need allowStorageExpansion=true",
        directories.join(", ")
    )]
    DirectoryLost {
        /// The bookie.
        bookie_id: String,
        /// The directories without a cookie.
        directories: Vec<String>,
    },
    /// Directories are to be added and journals removed in one start.
    #[error(
        "directories {} are to be added to bookie {bookie_id}, and journal directories {} are to go: change one of the \
         two, start once, then the other",
        directories.join(", "),
        former.join(", ")
    )]
    AddedAndRemoved {
        /// The bookie.
        bookie_id: String,
        /// The new directories.
        directories: Vec<String>,
        /// The journal directories that are no longer configured.
        former: Vec<String>,
    },
    /// An expansion was requested, but a new directory has contents.
    #[error(
        "directories {} are to be added to bookie {bookie_id} but are not empty: empty them or name others",
        directories.join(", ")
    )]
    ExpansionNotEmpty {
        /// The bookie.
        bookie_id: String,
        /// The directories at fault.
        directories: Vec<String>,
    },
}

/// As [`validate`], for an operator who accepts that directories were lost: those without a cookie may come back empty.
pub fn validate_with_losses(
    expected: &Cookie,
    stored: &[Cookie],
    directories: &[Directory],
    allow_storage_expansion: bool,
) -> Result<StartKind, CookieProblem> {
    let verdict = validate(expected, stored, directories, allow_storage_expansion);
    let Err(CookieProblem::DirectoryLost { .. }) = &verdict else { return verdict };
    let (missing, present): (Vec<&Directory>, Vec<&Directory>) =
        directories.iter().partition(|directory| directory.cookie.is_none());
    if missing.iter().any(|directory| !directory.is_empty) {
        return verdict;
    }
    Ok(StartKind::Lost { stamp: missing.iter().chain(&present).map(|d| d.path.clone()).collect() })
}

/// Decides whether and how a bookie may start.
///
/// `expected` is built from the configuration and the cluster's instance id; `stored` are the cookies that the store
/// has under any id the bookie may go by (its fixed id alone, or else address:port, host name:port and advertised
/// address:port); `directories` are all journal, ledger and index directories.
pub fn validate(
    expected: &Cookie,
    stored: &[Cookie],
    directories: &[Directory],
    allow_storage_expansion: bool,
) -> Result<StartKind, CookieProblem> {
    let bookie_id = expected.bookie_id.clone();
    for cookie in stored {
        if let Some(mismatch) = expected.mismatch(cookie, allow_storage_expansion) {
            return Err(CookieProblem::StoredMismatch { bookie_id: cookie.bookie_id.clone(), mismatch });
        }
    }
    for directory in directories {
        let mismatch =
            directory.cookie.as_ref().and_then(|found| expected.mismatch(found, allow_storage_expansion));
        if let Some(mismatch) = mismatch {
            return Err(CookieProblem::DirectoryMismatch { directory: directory.path.clone(), mismatch });
        }
    }
    let paths = |wanted: &dyn Fn(&Directory) -> bool| -> Vec<String> {
        directories
            .iter()
            .filter(|directory| wanted(directory))
            .map(|directory| directory.path.clone())
            .collect()
    };
    if stored.is_empty() {
        let directories = paths(&|directory| !directory.is_empty);
        return match directories.is_empty() {
            true => Ok(StartKind::New),
            false => Err(CookieProblem::NotInStore { bookie_id, directories }),
        };
    }
    let missing = paths(&|directory| directory.cookie.is_none());
    let current = |cookie: &Cookie| expected.mismatch(cookie, false).is_none();
    let of_directories = directories.iter().filter_map(|directory| directory.cookie.as_ref());
    let former = stored.iter().chain(of_directories).map(|cookie| expected.journals_behind(cookie));
    let former = former.max_by_key(Vec::len).unwrap_or_default();
    if missing.is_empty() {
        let all_current = stored.iter().chain(directories.iter().flat_map(|dir| &dir.cookie)).all(current);
        // A cookie that names fewer directories: the last expansion stopped half-way.
        return Ok(if all_current {
            StartKind::Restart
        } else if !former.is_empty() {
            StartKind::JournalsRemoved { former, stamp: paths(&|_| true) }
        } else {
            StartKind::Expansion { stamp: paths(&|_| true) }
        });
    }
    // The store's cookie is replaced last, before the bookie serves: a directory that it does not name has no data yet,
    // even when the cookie of another directory, stamped before a crash, names it.
    let known = |path: &str| stored.iter().any(|cookie| cookie.knows(path));
    let lost: Vec<String> =
        missing.iter().filter(|path| !allow_storage_expansion || known(path)).cloned().collect();
    if !lost.is_empty() {
        return Err(CookieProblem::DirectoryLost { bookie_id, directories: lost });
    }
    if !former.is_empty() {
        return Err(CookieProblem::AddedAndRemoved { bookie_id, directories: missing, former });
    }
    let filled = paths(&|directory| directory.cookie.is_none() && !directory.is_empty);
    if !filled.is_empty() {
        return Err(CookieProblem::ExpansionNotEmpty { bookie_id, directories: filled });
    }
    let mut stamp = missing;
    stamp.extend(paths(&|directory| directory.cookie.is_some()));
    Ok(StartKind::Expansion { stamp })
}
