//! Ledger metadata bytes, versions 1 to 3 (protocol reference, section 5.5).
//!
//! ```text
//! "BookieMetadataFormatVersion" TAB version LF body
//! body 1 := Qw LF E LF length LF (firstEntry (TAB bookie)* LF)* (lastEntry TAB "CLOSED")?    -102 = in recovery
//! body 2 := protobuf text of LedgerMetadataFormat
//! body 3 := varint(size) protobuf of LedgerMetadataFormat
//! ```
//!
//! # Invariants
//! 1. Metadata that was read in one version is written in that version.
//! 2. No bytes make the decoder panic or allocate more than they are long.

use bindery_types::{
    BookieId, DigestType, EntryId, InvalidBookieId, InvalidQuorum, InvalidSegment, LedgerMetadata,
    LedgerSecret, LedgerState, MetadataFormatVersion, Quorum, Segment,
};
use prost::Message;

use super::proto::LedgerMetadataFormat;
use super::proto::ledger_metadata_format::{
    CustomMetadataEntry, DigestType as DigestFormat, Segment as SegmentFormat, State,
};
use super::text::{self, Field, Printer, TextError};

const HEADER: &str = "BookieMetadataFormatVersion\t";
const V1_IN_RECOVERY: i64 = -102;
const V1_CLOSED: &str = "CLOSED";

/// Why bytes are not a ledger's metadata.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerMetadataError {
    /// They do not start with the header of ledger metadata.
    #[error("not ledger metadata: it does not start with BookieMetadataFormatVersion and a number")]
    NoHeader,
    /// A version from the future.
    #[error("ledger metadata version {0} is not supported (1 to 3 are)")]
    Version(u32),
    /// The body is shorter than it says, or than the fields it must have.
    #[error("the ledger metadata ends early")]
    Truncated,
    /// A line of version 1.
    #[error("line {0:?} is no line of version 1 ledger metadata")]
    Line(String),
    /// The text of version 2.
    #[error("ledger metadata: {0}")]
    Text(#[from] TextError),
    /// The protobuf of version 3.
    #[error("ledger metadata: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// A field with a value that it cannot have.
    #[error("ledger metadata: {field} is {value}")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        value: i64,
    },
    /// Sizes that do not make a quorum.
    #[error("ledger metadata: {0}")]
    Quorum(#[from] InvalidQuorum),
    /// Segments that do not fit.
    #[error("ledger metadata: {0}")]
    Segment(#[from] InvalidSegment),
    /// An ensemble member that is not a bookie id.
    #[error("ledger metadata: {0}")]
    Bookie(#[from] InvalidBookieId),
}

/// Reads a ledger's metadata.
pub fn decode(bytes: &[u8]) -> Result<LedgerMetadata, LedgerMetadataError> {
    let rest = bytes.strip_prefix(HEADER.as_bytes()).ok_or(LedgerMetadataError::NoHeader)?;
    let end = rest.iter().position(|byte| *byte == b'\n').ok_or(LedgerMetadataError::NoHeader)?;
    let (version, body) = (&rest[..end], &rest[end + 1..]);
    let version = std::str::from_utf8(version).ok().and_then(|text| text.parse::<u32>().ok());
    match version.ok_or(LedgerMetadataError::NoHeader)? {
        1 => decode_lines(body),
        2 => from_format(format_of_text(&text::parse(body)?)?, MetadataFormatVersion::V2),
        3 => from_format(LedgerMetadataFormat::decode(delimited(body)?)?, MetadataFormatVersion::V3),
        other => Err(LedgerMetadataError::Version(other)),
    }
}

/// Writes a ledger's metadata in the version it has (invariant 1).
pub fn encode(metadata: &LedgerMetadata) -> Vec<u8> {
    match metadata.format_version {
        MetadataFormatVersion::V1 => format!("{HEADER}1\n{}", encode_lines(metadata)).into_bytes(),
        MetadataFormatVersion::V2 => {
            // Version 2 does not have the token.
            let format = LedgerMetadataFormat { c_token: None, ..to_format(metadata) };
            format!("{HEADER}2\n{}", encode_text(&format)).into_bytes()
        }
        MetadataFormatVersion::V3 => {
            let mut bytes = format!("{HEADER}3\n").into_bytes();
            bytes.extend_from_slice(&to_format(metadata).encode_length_delimited_to_vec());
            bytes
        }
    }
}

/// The message in a body of version 3, which begins with the message's length as a varint. Bytes after the message are ignored, as in
/// Java.
fn delimited(mut body: &[u8]) -> Result<&[u8], LedgerMetadataError> {
    let size = prost::decode_length_delimiter(&mut body)?;
    body.get(..size).ok_or(LedgerMetadataError::Truncated)
}

fn decode_lines(body: &[u8]) -> Result<LedgerMetadata, LedgerMetadataError> {
    let text = std::str::from_utf8(body).map_err(|error| {
        LedgerMetadataError::Line(
            String::from_utf8_lossy(&body[error.valid_up_to()..]).chars().take(80).collect(),
        )
    })?;
    let wrong = |line: &str| LedgerMetadataError::Line(line.chars().take(80).collect());
    let mut lines = text.lines();
    let mut number = || -> Result<i64, LedgerMetadataError> {
        let line = lines.next().ok_or(LedgerMetadataError::Truncated)?;
        line.parse().map_err(|_| wrong(line))
    };
    let (write_quorum_size, ensemble_size, length) = (number()?, number()?, number()?);
    // Version 1 has no ack quorum: every bookie of the write quorum has to acknowledge.
    let quorum = quorum(ensemble_size, write_quorum_size, write_quorum_size)?;
    let secret = LedgerSecret { digest_type: DigestType::Crc32, password: Vec::new() };
    let mut metadata = LedgerMetadata::new(quorum, secret);
    metadata.format_version = MetadataFormatVersion::V1;
    metadata.secret = None;
    for line in lines {
        let mut parts = line.split('\t');
        let first = parts.next().and_then(|part| part.parse::<i64>().ok()).ok_or_else(|| wrong(line))?;
        let members: Vec<&str> = parts.collect();
        if members.first() == Some(&V1_CLOSED) {
            metadata.state = match first {
                V1_IN_RECOVERY => LedgerState::InRecovery,
                last_entry => closed(last_entry, length)?,
            };
            break;
        }
        let ensemble = members.into_iter().map(BookieId::new).collect::<Result<_, _>>()?;
        let first_entry =
            EntryId::new(first).ok_or(LedgerMetadataError::Value { field: "firstEntryId", value: first })?;
        metadata.push_segment(Segment { first_entry, ensemble })?;
    }
    Ok(metadata)
}

fn encode_lines(metadata: &LedgerMetadata) -> String {
    let (last_entry, length) = end_of(metadata);
    let quorum = metadata.quorum;
    let mut text = format!("{}\n{}\n{length}\n", quorum.write_quorum_size(), quorum.ensemble_size());
    for segment in metadata.segments() {
        text.push_str(&segment.first_entry.to_string());
        for bookie in &segment.ensemble {
            text.push('\t');
            text.push_str(bookie.as_str());
        }
        text.push('\n');
    }
    match metadata.state {
        LedgerState::Open => {}
        LedgerState::InRecovery => text.push_str(&format!("{V1_IN_RECOVERY}\t{V1_CLOSED}")),
        LedgerState::Closed { .. } => text.push_str(&format!("{last_entry}\t{V1_CLOSED}")),
    }
    text
}

fn quorum(ensemble: i64, write: i64, ack: i64) -> Result<Quorum, LedgerMetadataError> {
    // A negative size becomes 0, which is no quorum either.
    let size = |value: i64| usize::try_from(value).unwrap_or(0);
    Ok(Quorum::new(size(ensemble), size(write), size(ack))?)
}

fn closed(last_entry: i64, length: i64) -> Result<LedgerState, LedgerMetadataError> {
    if last_entry < -1 {
        return Err(LedgerMetadataError::Value { field: "lastEntryId", value: last_entry });
    }
    let length_bytes =
        u64::try_from(length).map_err(|_| LedgerMetadataError::Value { field: "length", value: length })?;
    Ok(LedgerState::Closed { last_entry: EntryId::new(last_entry), length_bytes })
}

/// Last entry and length as they are written: -1 and 0 unless closed.
fn end_of(metadata: &LedgerMetadata) -> (i64, i64) {
    match metadata.state {
        LedgerState::Open | LedgerState::InRecovery => (-1, 0),
        LedgerState::Closed { last_entry, length_bytes } => {
            (EntryId::to_wire(last_entry), i64::try_from(length_bytes).unwrap_or(i64::MAX))
        }
    }
}

fn to_format(metadata: &LedgerMetadata) -> LedgerMetadataFormat {
    let size = |value: usize| i32::try_from(value).expect("ensembles are far below 2^31 (Quorum::new)");
    let (last_entry, length) = end_of(metadata);
    let state = match metadata.state {
        LedgerState::Open => State::Open,
        LedgerState::InRecovery => State::InRecovery,
        LedgerState::Closed { .. } => State::Closed,
    };
    let digest = metadata.secret.as_ref().map(|secret| match secret.digest_type {
        DigestType::Crc32 => DigestFormat::Crc32,
        DigestType::Hmac => DigestFormat::Hmac,
        DigestType::Crc32c => DigestFormat::Crc32c,
        DigestType::Dummy => DigestFormat::Dummy,
    });
    let segment = |segment: &Segment| SegmentFormat {
        ensemble_member: segment.ensemble.iter().map(BookieId::to_string).collect(),
        first_entry_id: segment.first_entry.get(),
    };
    let custom = metadata
        .custom
        .iter()
        .map(|(key, value)| CustomMetadataEntry { key: Some(key.clone()), value: Some(value.clone()) });
    LedgerMetadataFormat {
        quorum_size: size(metadata.quorum.write_quorum_size()),
        ensemble_size: size(metadata.quorum.ensemble_size()),
        length,
        last_entry_id: Some(last_entry),
        state: state.into(),
        segment: metadata.segments().iter().map(segment).collect(),
        digest_type: digest.map(i32::from),
        password: metadata.secret.as_ref().map(|secret| secret.password.clone()),
        ack_quorum_size: Some(size(metadata.quorum.ack_quorum_size())),
        ctime: metadata.created_ms,
        custom_metadata: custom.collect(),
        c_token: metadata.creation_token,
    }
}

fn from_format(
    format: LedgerMetadataFormat,
    format_version: MetadataFormatVersion,
) -> Result<LedgerMetadata, LedgerMetadataError> {
    let unknown = |field, value: i32| LedgerMetadataError::Value { field, value: i64::from(value) };
    let ack_quorum_size = format.ack_quorum_size.unwrap_or(format.quorum_size);
    let quorum = quorum(format.ensemble_size.into(), format.quorum_size.into(), ack_quorum_size.into())?;
    // As in Java, the digest type counts only if there is a password.
    let secret = match format.password {
        Some(password) => {
            let digest_type = match format.digest_type {
                None => DigestType::Crc32,
                Some(value) => match DigestFormat::try_from(value) {
                    Ok(DigestFormat::Crc32) => DigestType::Crc32,
                    Ok(DigestFormat::Hmac) => DigestType::Hmac,
                    Ok(DigestFormat::Crc32c) => DigestType::Crc32c,
                    Ok(DigestFormat::Dummy) => DigestType::Dummy,
                    Err(_) => return Err(unknown("digestType", value)),
                },
            };
            Some(LedgerSecret { digest_type, password })
        }
        None => None,
    };
    let placeholder = LedgerSecret { digest_type: DigestType::Crc32, password: Vec::new() };
    let mut metadata = LedgerMetadata::new(quorum, placeholder);
    metadata.format_version = format_version;
    metadata.secret = secret;
    metadata.state = match State::try_from(format.state) {
        Ok(State::Open) => LedgerState::Open,
        Ok(State::InRecovery) => LedgerState::InRecovery,
        Ok(State::Closed) => closed(format.last_entry_id.unwrap_or(-1), format.length)?,
        Err(_) => return Err(unknown("state", format.state)),
    };
    metadata.created_ms = format.ctime;
    metadata.creation_token = match format_version {
        MetadataFormatVersion::V3 => format.c_token,
        // The older versions do not have it; writing it there would break older readers.
        MetadataFormatVersion::V1 | MetadataFormatVersion::V2 => None,
    };
    for entry in format.custom_metadata {
        metadata.custom.insert(entry.key.unwrap_or_default(), entry.value.unwrap_or_default());
    }
    for segment in format.segment {
        let first = segment.first_entry_id;
        let first_entry =
            EntryId::new(first).ok_or(LedgerMetadataError::Value { field: "firstEntryId", value: first })?;
        let ensemble = segment.ensemble_member.into_iter().map(BookieId::new).collect::<Result<_, _>>()?;
        metadata.push_segment(Segment { first_entry, ensemble })?;
    }
    Ok(metadata)
}

fn format_of_text(fields: &[Field]) -> Result<LedgerMetadataFormat, TextError> {
    let mut format = LedgerMetadataFormat::default();
    let (mut quorum, mut ensemble, mut length, mut state) = (None, None, None, None);
    for field in fields {
        match field.name.as_str() {
            "quorumSize" => quorum = Some(field.number()?),
            "ensembleSize" => ensemble = Some(field.number()?),
            "length" => length = Some(field.number()?),
            "lastEntryId" => format.last_entry_id = Some(field.number()?),
            "state" => state = Some(enum_value(field, State::from_str_name)?),
            "segment" => format.segment.push(segment_of_text(field.message()?)?),
            "digestType" => format.digest_type = Some(enum_value(field, DigestFormat::from_str_name)?),
            "password" => format.password = Some(field.bytes()?.to_vec()),
            "ackQuorumSize" => format.ack_quorum_size = Some(field.number()?),
            "ctime" => format.ctime = Some(field.number()?),
            "customMetadata" => format.custom_metadata.push(custom_of_text(field.message()?)?),
            "cToken" => format.c_token = Some(field.number()?),
            // A field of a later version.
            _ => {}
        }
    }
    format.quorum_size = quorum.ok_or(TextError::Missing { name: "quorumSize" })?;
    format.ensemble_size = ensemble.ok_or(TextError::Missing { name: "ensembleSize" })?;
    format.length = length.ok_or(TextError::Missing { name: "length" })?;
    format.state = state.ok_or(TextError::Missing { name: "state" })?;
    Ok(format)
}

/// An enum by name or, as text format allows, by number.
fn enum_value<E: Into<i32>>(field: &Field, by_name: impl Fn(&str) -> Option<E>) -> Result<i32, TextError> {
    let word = field.word()?;
    match by_name(word) {
        Some(value) => Ok(value.into()),
        None => field.number(),
    }
}

fn segment_of_text(fields: &[Field]) -> Result<SegmentFormat, TextError> {
    let (mut members, mut first) = (Vec::new(), None);
    for field in fields {
        match field.name.as_str() {
            "ensembleMember" => members.push(field.string()?),
            "firstEntryId" => first = Some(field.number()?),
            _ => {}
        }
    }
    let first_entry_id = first.ok_or(TextError::Missing { name: "firstEntryId" })?;
    Ok(SegmentFormat { ensemble_member: members, first_entry_id })
}

fn custom_of_text(fields: &[Field]) -> Result<CustomMetadataEntry, TextError> {
    let mut entry = CustomMetadataEntry::default();
    for field in fields {
        match field.name.as_str() {
            "key" => entry.key = Some(field.string()?),
            "value" => entry.value = Some(field.bytes()?.to_vec()),
            _ => {}
        }
    }
    Ok(entry)
}

/// In the order of field numbers, as Java prints.
fn encode_text(format: &LedgerMetadataFormat) -> String {
    let mut printer = Printer::default();
    printer.word("quorumSize", format.quorum_size);
    printer.word("ensembleSize", format.ensemble_size);
    printer.word("length", format.length);
    if let Some(last_entry_id) = format.last_entry_id {
        printer.word("lastEntryId", last_entry_id);
    }
    printer.word("state", format.state().as_str_name());
    for segment in &format.segment {
        printer.message("segment", |printer| {
            for member in &segment.ensemble_member {
                printer.bytes("ensembleMember", member.as_bytes());
            }
            printer.word("firstEntryId", segment.first_entry_id);
        });
    }
    if format.digest_type.is_some() {
        printer.word("digestType", format.digest_type().as_str_name());
    }
    if let Some(password) = &format.password {
        printer.bytes("password", password);
    }
    if let Some(ack_quorum_size) = format.ack_quorum_size {
        printer.word("ackQuorumSize", ack_quorum_size);
    }
    if let Some(ctime) = format.ctime {
        printer.word("ctime", ctime);
    }
    for entry in &format.custom_metadata {
        printer.message("customMetadata", |printer| {
            printer.bytes("key", entry.key().as_bytes());
            printer.bytes("value", entry.value());
        });
    }
    if let Some(c_token) = format.c_token {
        printer.word("cToken", c_token);
    }
    printer.finish()
}
