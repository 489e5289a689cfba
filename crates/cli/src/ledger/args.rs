//! Command line of `bindery ledger` and `bindery bookie list`, and what `bindery bench` shares with them.

use super::placement::PlacementArgs;
use crate::args::MetadataArgs;
use crate::bookie_security::args::BookieSecurityArgs;
use crate::live::DrawArgs;
use crate::parse::{duration, ledger_id, parse_size, seconds};
use bindery_client::{FrameLimit, LedgerInfo, QuorumSizes};
use bindery_types::{DigestType, EntryId, LedgerId};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub enum LedgerCommand {
    /// Create a ledger and print its id. Without sizes it keeps three copies on three bookies, two of which acknowledge, or
    /// as many as there are bookies
    Create(CreateArgs),
    /// Append lines, records or whole files to a ledger
    Append(AppendArgs),
    /// Close a ledger for good; stops a writer that still lives
    Close(CloseArgs),
    /// Recover ledgers whose writers are gone, and close them. Asks when a writer may live, unless --yes
    Recover(RecoverArgs),
    /// Read every copy of every entry from the bookies that should have it, and compare them
    Verify(LedgerVerifyArgs),
    /// Write entries to standard output, byte for byte
    Read(ReadArgs),
    /// Write the last entries, then new ones as they come, until the ledger is closed
    Tail(TailArgs),
    /// Ids of all ledgers, one on each line
    List(ListArgs),
    /// All that the metadata says of a ledger, and where it is in object storage
    Show(ShowArgs),
    /// Delete ledgers. Asks, unless --yes
    Delete(DeleteArgs),
}

/// How the cluster is reached.
#[derive(Debug, Clone, Args)]
pub struct AccessArgs {
    #[command(flatten)]
    pub metadata: MetadataArgs,
    /// Longest wait for the metadata store to be reached, and for one answer of a bookie
    /// [default: 3s for the store, 5s for a bookie]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Largest frame of the bookies, their nettyMaxFrameSizeBytes; an entry is some 500 bytes smaller
    /// [default: 5253120 to read, 5242880 to write]
    #[arg(long, value_name = "SIZE", value_parser = frame_limit)]
    pub frame_limit: Option<FrameLimit>,
    /// Say on standard error what goes on inside; repeat for more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    #[command(flatten)]
    pub security: BookieSecurityArgs,
}

/// What opens a ledger.
#[derive(Debug, Clone, Args)]
pub struct PasswordArgs {
    /// Password of the ledger. Others on this machine can see a command line: the variable is safer
    #[arg(
        long,
        value_name = "PASSWORD",
        env = "BINDERY_PASSWORD",
        hide_env_values = true,
        default_value = ""
    )]
    #[arg(hide_default_value = true)]
    pub password: String,
}

/// What opens ledgers for their operator: whoever can read the metadata has the passwords.
#[derive(Debug, Clone, Args)]
pub struct StoredPasswordArgs {
    /// Password of the ledgers [default: the one in their metadata]
    #[arg(long, value_name = "PASSWORD", env = "BINDERY_PASSWORD", hide_env_values = true)]
    pub password: Option<String>,
}

impl StoredPasswordArgs {
    /// The password of this ledger.
    pub fn of<'a>(&'a self, info: &'a LedgerInfo) -> &'a [u8] {
        let stored = info.metadata.secret.as_ref().map(|secret| secret.password.as_slice());
        self.password.as_ref().map(String::as_bytes).or(stored).unwrap_or_default()
    }
}

/// On how many bookies entries are.
#[derive(Debug, Clone, Args)]
pub struct QuorumArgs {
    /// Bookies that the ledger's entries are spread over [default: as many as there are copies]
    #[arg(long, value_name = "N")]
    pub ensemble: Option<usize>,
    /// Copies of each entry, each on another bookie [default: 3, or as many as there are bookies]
    #[arg(long, value_name = "N")]
    pub write_quorum: Option<usize>,
    /// Copies that must be stored before an entry is acknowledged [default: 2, or 1 of one copy]
    #[arg(long, value_name = "N")]
    pub ack_quorum: Option<usize>,
}

impl QuorumArgs {
    /// What the flags say.
    pub fn sizes(&self) -> QuorumSizes {
        QuorumSizes { ensemble: self.ensemble, write_quorum: self.write_quorum, ack_quorum: self.ack_quorum }
    }
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub quorum: QuorumArgs,
    /// Checksum of each entry, verified by every reader
    #[arg(long, value_name = "TYPE", default_value = "crc32c")]
    pub digest: Digest,
    #[command(flatten)]
    pub password: PasswordArgs,
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Extra property, stored with the ledger; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = property)]
    pub property: Vec<(String, String)>,
    /// Print an object instead of the bare id
    #[arg(long)]
    pub json: bool,
}

/// `--digest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Digest {
    Crc32,
    Crc32c,
    Mac,
    Dummy,
}

impl Digest {
    /// The type it names.
    pub fn digest_type(self) -> DigestType {
        match self {
            Digest::Crc32 => DigestType::Crc32,
            Digest::Crc32c => DigestType::Crc32c,
            Digest::Mac => DigestType::Hmac,
            Digest::Dummy => DigestType::Dummy,
        }
    }

    /// Its name on our command line and in our JSON.
    pub fn name_of(digest: DigestType) -> &'static str {
        match digest {
            DigestType::Crc32 => "crc32",
            DigestType::Crc32c => "crc32c",
            DigestType::Hmac => "mac",
            DigestType::Dummy => "dummy",
        }
    }
}

#[derive(Debug, Args)]
pub struct AppendArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub password: PasswordArgs,
    #[command(flatten)]
    pub placement: PlacementArgs,
    #[command(flatten)]
    pub form: FormArgs,
    /// Longest wait for bookies that come back, when too few are left to acknowledge entries; 0 to stop at once
    #[arg(long, value_name = "TIME", value_parser = patience, default_value = "30s")]
    pub patience: Duration,
    /// If the writer of the ledger died having it, recover it and go on in a new ledger that continues it; a writer that still lives is
    /// stopped. The message names the new ledger
    #[arg(long)]
    pub take_over: bool,
    /// Leave the newline out of each entry
    #[arg(long, conflicts_with_all = ["length_delimited", "whole"])]
    pub chomp: bool,
    /// Write the id of each entry on standard output once it is acknowledged, one on each line
    #[arg(long)]
    pub print_ids: bool,
    /// Close the ledger at the end; without this the next append goes on where this one stopped
    #[arg(long)]
    pub close: bool,
    /// Say at the end what was appended, as an object on standard output
    #[arg(long, conflicts_with = "print_ids")]
    pub json: bool,
    /// No summary on standard error
    #[arg(short, long)]
    pub quiet: bool,
    /// The ledger
    #[arg(value_parser = ledger_id)]
    pub ledger: LedgerId,
    /// Files to append, in order; - is standard input [default: standard input]
    pub files: Vec<PathBuf>,
}

/// How input is split into entries.
#[derive(Debug, Clone, Args)]
#[group(multiple = false)]
pub struct FormArgs {
    /// Each line is an entry, with its newline (the default)
    #[arg(long)]
    pub lines: bool,
    /// Each record is an entry: its length as 4 bytes, highest first, then so many bytes
    #[arg(long)]
    pub length_delimited: bool,
    /// Each file is one entry
    #[arg(long)]
    pub whole: bool,
}

#[derive(Debug, Args)]
pub struct CloseArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub password: PasswordArgs,
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Print an object
    #[arg(long)]
    pub json: bool,
    /// The ledger
    #[arg(value_parser = ledger_id)]
    pub ledger: LedgerId,
}

#[derive(Debug, Args)]
pub struct RecoverArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub password: StoredPasswordArgs,
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Do not ask: a writer that still lives is stopped
    #[arg(long)]
    pub yes: bool,
    /// Print an object for each ledger
    #[arg(long)]
    pub json: bool,
    /// The ledgers
    #[arg(required = true, value_name = "LEDGER", value_parser = ledger_id)]
    pub ledgers: Vec<LedgerId>,
}

/// `bindery ledger verify`.
#[derive(Debug, Args)]
pub struct LedgerVerifyArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub password: StoredPasswordArgs,
    /// Every ledger of the cluster
    #[arg(long, conflicts_with_all = ["ledgers", "first", "last"])]
    pub all: bool,
    /// First entry to look at [default: 0]
    #[arg(long, value_name = "ENTRY", value_parser = entry_id)]
    pub first: Option<EntryId>,
    /// Last entry to look at [default: the last one known to be acknowledged]
    #[arg(long, value_name = "ENTRY", value_parser = entry_id)]
    pub last: Option<EntryId>,
    /// Print an object for each ledger
    #[arg(long)]
    pub json: bool,
    /// The ledgers
    #[arg(required_unless_present = "all", value_name = "LEDGER", value_parser = ledger_id)]
    pub ledgers: Vec<LedgerId>,
}

#[derive(Debug, Args)]
pub struct ReadArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub password: PasswordArgs,
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// First entry to read [default: 0]
    #[arg(long, value_name = "ENTRY", value_parser = entry_id)]
    pub first: Option<EntryId>,
    /// Last entry to read [default: the last one there is]
    #[arg(long, value_name = "ENTRY", value_parser = entry_id)]
    pub last: Option<EntryId>,
    /// Read this entry alone
    #[arg(long, value_name = "ENTRY", value_parser = entry_id, conflicts_with_all = ["first", "last"])]
    pub entry: Option<EntryId>,
    /// Close the ledger first, as `ledger close` does: nothing can be appended afterwards. Asks, unless --yes
    #[arg(long)]
    pub recover: bool,
    /// Do not ask before --recover closes the ledger
    #[arg(long, requires = "recover")]
    pub yes: bool,
    /// Read what bookies have beyond the last entry known to be acknowledged; it may not be there next time
    #[arg(long, conflicts_with = "recover")]
    pub unconfirmed: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    /// The ledger
    #[arg(value_parser = ledger_id)]
    pub ledger: LedgerId,
}

/// How entries are written.
#[derive(Debug, Clone, Args)]
pub struct OutputArgs {
    /// Delimiter: newline follows each entry, length (4 bytes, highest first) precedes it
    #[arg(long, value_name = "none|newline|length", default_value = "none")]
    pub delimiter: Delimiter,
    /// One object for each entry and line: entry_id, size_bytes, and text, or base64 if it is not UTF-8
    #[arg(long, conflicts_with = "delimiter")]
    pub json: bool,
}

/// `--delimiter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Delimiter {
    None,
    Newline,
    Length,
}

#[derive(Debug, Args)]
pub struct TailArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub password: PasswordArgs,
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Begin with so many entries from the end
    #[arg(short = 'n', long, visible_alias = "lines", value_name = "N", default_value = "10")]
    pub entries: u64,
    /// Begin with this entry
    #[arg(long, value_name = "ENTRY", value_parser = entry_id, conflicts_with_all = ["entries", "from_start"])]
    pub from: Option<EntryId>,
    /// Begin with the first entry
    #[arg(long, conflicts_with = "entries")]
    pub from_start: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    /// The ledger
    #[arg(value_parser = ledger_id)]
    pub ledger: LedgerId,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    /// Also state, last entry, length, quorums and the ensemble of each ledger
    #[arg(short, long)]
    pub long: bool,
    /// One object on each line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    /// Also what this object store has of the ledger
    #[arg(long, value_name = "URL", env = "BINDERY_TIER")]
    pub store: Option<String>,
    /// Also each extent in the object store
    #[arg(short, long, requires = "store")]
    pub long: bool,
    /// Print an object
    #[arg(long)]
    pub json: bool,
    /// The ledger
    #[arg(value_parser = ledger_id)]
    pub ledger: LedgerId,
}

#[derive(Debug, Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// One object for each ledger that was deleted, on a line
    #[arg(long)]
    pub json: bool,
    /// The ledgers
    #[arg(required = true, value_name = "LEDGER", value_parser = ledger_id)]
    pub ledgers: Vec<LedgerId>,
}

/// `bindery bookie list`.
#[derive(Debug, Args)]
pub struct BookieListArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    /// One object on each line
    #[arg(long)]
    pub json: bool,
}

/// `bindery bookie health`.
#[derive(Debug, Args)]
pub struct BookieHealthArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub password: PasswordArgs,
    /// Read entries of this ledger, too, so that hedges can be seen
    #[arg(long, value_name = "LEDGER", value_parser = ledger_id)]
    pub ledger: Option<LedgerId>,
    /// Look for one interval, print one table and end; as when standard output is no terminal
    #[arg(long)]
    pub once: bool,
    /// The same, one object on each line
    #[arg(long)]
    pub json: bool,
    /// Seconds between two tables
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub interval: f64,
    #[command(flatten)]
    pub draw: DrawArgs,
}

fn frame_limit(text: &str) -> Result<FrameLimit, String> {
    let bytes = parse_size(text).ok_or("not a size: for example 5253120 or 10MiB")?;
    let limit = u32::try_from(bytes).ok().and_then(FrameLimit::new);
    let (least, most) = (FrameLimit::MIN.size_bytes(), FrameLimit::MAX.size_bytes());
    limit.ok_or_else(|| format!("a frame has from {least} to {most} bytes"))
}

/// A time that may be zero.
fn patience(text: &str) -> Result<Duration, String> {
    if text.trim() == "0" { Ok(Duration::ZERO) } else { duration(text) }
}

fn entry_id(text: &str) -> Result<EntryId, String> {
    let raw = text.parse::<i64>().ok();
    raw.and_then(EntryId::new).ok_or_else(|| "an entry id is a number from 0 to 2^63-1".to_owned())
}

fn property(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) | None => Err("a property is KEY=VALUE".to_owned()),
        Some((key, _)) if key.starts_with("bindery.") => {
            Err("keys that begin with bindery. are taken".to_owned())
        }
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
    }
}
