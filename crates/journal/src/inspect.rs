//! A journal file in words, for `bindery inspect journal`. Needs no server and changes nothing.

use crate::file::{FileHeader, HeaderProblem};
use crate::group::GroupHeader;
use crate::reader::{OpenError, Reader};
use crate::record::Record;
use bindery_io::{BLOCK_SIZE_BYTES, Disk};
use std::path::Path;
use std::sync::Arc;

/// The content at a place of a journal file.
pub enum Item<'a> {
    /// The header block.
    Header(Result<FileHeader, HeaderProblem>),
    /// A good group and its records.
    Group(&'a GroupHeader, &'a [Record<'a>]),
    /// No good group here.
    End {
        /// Offset in the file.
        offset: u64,
        /// Why it is not a group.
        why: String,
        /// Length of the file.
        file_length: u64,
    },
}

/// Shows `visit` the header, then the groups of the file's current use, then why they end.
pub fn walk(disk: &Arc<dyn Disk>, path: &Path, mut visit: impl FnMut(Item<'_>)) -> Result<(), OpenError> {
    let reader = Reader::patient(disk, path.to_owned())?;
    let header = reader.header()?;
    let identity = header.as_ref().ok().map(|h| h.identity);
    visit(Item::Header(header));
    let (mut offset, mut buffer) = (BLOCK_SIZE_BYTES as u64, Vec::new());
    loop {
        match reader.group_at(offset, identity, &mut buffer)? {
            Ok(group) => {
                let records = reader.records(&group, &buffer).expect("group_at checked the parts");
                visit(Item::Group(&group, &records));
                offset += group.total_bytes;
            }
            Err(bad) => {
                let why = reader.why(offset, bad);
                visit(Item::End { offset, why, file_length: reader.length() });
                return Ok(());
            }
        }
    }
}
