//! Input of an append: files and pipes, cut into entries by a thread of its own.
//!
//! # Data flow
//! ```text
//! file or pipe -> read (as much as there is) -> cut -> chunks (bounded) -> sender
//!                   ^------------------ empty chunks ------------------+
//! ```
//!
//! # Invariants
//! 1. The entries of all chunks, one after another, are the input: nothing is added, dropped or reordered; with `chomp`
//!    and for record lengths, only the delimiters are missing.
//! 2. A whole entry that was read is passed on without waiting for more input.
//! 3. After an error nothing follows; every whole entry before it was passed on.
//!
//! # Limits     [`CHUNKS_COUNT`] chunks of [`READ_SIZE_BYTES`], or of one entry up to [`ENTRY_SIZE_BYTES_MAX`]

use std::fs::File;
use std::io::{self, BufRead, ErrorKind, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Asked of the system at once; a pipe holds 64 KiB by default.
const READ_SIZE_BYTES: usize = 256 << 10;
/// One being read, one being sent, two between them.
const CHUNKS_COUNT: usize = 4;
/// Bounds memory. The client's own limit is lower and says more.
const ENTRY_SIZE_BYTES_MAX: usize = 64 << 20;
/// Length in front of a record: unsigned, highest byte first.
const LENGTH_SIZE_BYTES: usize = 4;

/// How input is split into entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A line, with its newline or without.
    Lines {
        /// Without.
        chomp: bool,
    },
    /// A length and so many bytes.
    LengthDelimited,
    /// All of a file.
    Whole,
}

impl Form {
    /// The noun for one of them, for messages.
    pub fn noun(self) -> &'static str {
        match self {
            Form::Lines { .. } => "line",
            Form::LengthDelimited => "record",
            Form::Whole => "file",
        }
    }
}

/// Where bytes come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Standard input.
    Stdin,
    /// A file.
    File(PathBuf),
}

impl Source {
    /// `-` and nothing at all are standard input.
    pub fn of(files: &[PathBuf]) -> Vec<Source> {
        let source = |path: &PathBuf| {
            if path.as_os_str() == "-" { Source::Stdin } else { Source::File(path.clone()) }
        };
        if files.is_empty() { vec![Source::Stdin] } else { files.iter().map(source).collect() }
    }

    /// For messages.
    pub fn name(&self) -> String {
        match self {
            Source::Stdin => "standard input".into(),
            Source::File(path) => path.display().to_string(),
        }
    }

    /// Length of a regular file, `None` for anything that has none. Fails for what cannot be read as a file.
    pub fn size_bytes(&self) -> io::Result<Option<u64>> {
        let metadata = match self {
            // A redirected file has a length, too.
            Source::Stdin => match Path::new("/proc/self/fd/0").metadata() {
                Ok(metadata) => metadata,
                Err(_) => return Ok(None),
            },
            Source::File(path) => path.metadata()?,
        };
        if metadata.is_dir() {
            return Err(io::Error::from(ErrorKind::IsADirectory));
        }
        Ok(metadata.is_file().then_some(metadata.len()))
    }

    fn open(&self) -> io::Result<Box<dyn Read>> {
        match self {
            Source::Stdin => Ok(Box::new(io::stdin())),
            #[expect(
                clippy::disallowed_methods,
                reason = "a file of the user's, read on a thread of its own"
            )]
            Source::File(path) => Ok(Box::new(File::open(path)?)),
        }
    }
}

/// Some entries, in a buffer that is used again.
#[derive(Debug, Default)]
pub struct Chunk {
    /// Index of the source they are from.
    pub source: usize,
    bytes: Vec<u8>,
    entries: Vec<Range<usize>>,
}

impl Chunk {
    /// The entries in order.
    pub fn entries(&self) -> impl Iterator<Item = &[u8]> {
        self.entries.iter().map(|range| &self.bytes[range.clone()])
    }
}

/// Why reading ended early.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The system says so.
    #[error("cannot read {name}: {error}")]
    Io {
        /// The source.
        name: String,
        /// Why.
        error: io::Error,
    },
    /// Larger than any entry.
    #[error(
        "{noun} {number} of {name} is larger than {ENTRY_SIZE_BYTES_MAX} bytes, no entry can be: split it"
    )]
    TooLarge {
        /// The kind of entry, for the message.
        noun: &'static str,
        /// Its number in the source, from 1.
        number: u64,
        /// The source.
        name: String,
    },
    /// The input ends inside a record.
    #[error("record {number} of {name} is cut short: {found} of {expected} bytes are there")]
    Truncated {
        /// Its number in the source, from 1.
        number: u64,
        /// The source.
        name: String,
        /// Bytes there are, of the length or of the record.
        found: usize,
        /// Bytes there should be.
        expected: usize,
    },
}

/// The chunks of an input.
pub struct Input {
    chunks: mpsc::Receiver<Result<Chunk, InputError>>,
    empty: mpsc::Sender<Chunk>,
}

impl Input {
    /// Starts reading. The thread ends with the input, or when this is dropped and its read returns; a read of a silent
    /// pipe ends with the process.
    pub fn start(sources: Vec<Source>, form: Form) -> io::Result<Input> {
        let (sender, chunks) = mpsc::channel(CHUNKS_COUNT);
        let (empty, spare) = mpsc::channel(CHUNKS_COUNT);
        for _ in 0..CHUNKS_COUNT {
            let _ = empty.try_send(Chunk::default());
        }
        std::thread::Builder::new().name("bindery-input".into()).spawn(move || {
            let mut cutter = Cutter { form, chunks: sender, spare };
            for (index, source) in sources.iter().enumerate() {
                match cutter.cut_source(index, source) {
                    Ok(()) => {}
                    Err(Ended::NobodyListens) => return,
                    Err(Ended::Failed(error)) => {
                        let _ = cutter.chunks.blocking_send(Err(error));
                        return;
                    }
                }
            }
        })?;
        Ok(Input { chunks, empty })
    }

    /// The next chunk, `None` at the end. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Chunk, InputError>> {
        self.chunks.recv().await
    }

    /// Returns a chunk that was sent.
    pub fn give_back(&self, chunk: Chunk) {
        // There are no more chunks than places; a thread that has ended needs none.
        let _ = self.empty.try_send(chunk);
    }
}

enum Ended {
    NobodyListens,
    Failed(InputError),
}

struct Cutter {
    form: Form,
    chunks: mpsc::Sender<Result<Chunk, InputError>>,
    spare: mpsc::Receiver<Chunk>,
}

/// Where the next entry ends, or how much is missing.
enum Cut {
    /// The payload, and where the one after it begins.
    Entry { payload: Range<usize>, end: usize },
    /// Not all there; the entry and its delimiter take at least so many bytes, if that is known.
    Missing { size_bytes_min: usize },
}

impl Cutter {
    fn cut_source(&mut self, source: usize, from: &Source) -> Result<(), Ended> {
        let opened = from.open();
        let failed = |error| Ended::Failed(InputError::Io { name: from.name(), error });
        self.cut_all(source, from, &mut *opened.map_err(failed)?)
    }

    fn cut_all(&mut self, source: usize, from: &Source, reader: &mut dyn Read) -> Result<(), Ended> {
        let failed = |error| Ended::Failed(InputError::Io { name: from.name(), error });
        let mut number = 1;
        // Bytes of an entry that is not all there yet.
        let mut rest = Vec::new();
        loop {
            let mut chunk = self.spare.blocking_recv().ok_or(Ended::NobodyListens)?;
            chunk.source = source;
            chunk.entries.clear();
            if chunk.bytes.len() != READ_SIZE_BYTES {
                chunk.bytes = vec![0; READ_SIZE_BYTES.max(rest.len() + 1)];
            }
            if rest.len() >= chunk.bytes.len() {
                chunk.bytes.resize(rest.len() + 1, 0);
            }
            chunk.bytes[..rest.len()].copy_from_slice(&rest);
            let mut filled = rest.len();
            rest.clear();
            let (mut begin, mut searched) = (0, 0);
            let is_end = loop {
                let size = read_some(reader, &mut chunk.bytes[filled..]).map_err(failed)?;
                filled += size;
                if size == 0 {
                    break true;
                }
                let mut size_bytes_min = 0;
                while begin < filled {
                    match self.cut(&chunk.bytes[..filled], begin, searched.max(begin)) {
                        Cut::Entry { payload, end } => {
                            chunk.entries.push(payload);
                            begin = end;
                        }
                        Cut::Missing { size_bytes_min: missing } => {
                            size_bytes_min = missing;
                            break;
                        }
                    }
                }
                searched = filled;
                let number = number + chunk.entries.len() as u64;
                if size_bytes_min > ENTRY_SIZE_BYTES_MAX + LENGTH_SIZE_BYTES {
                    self.send(&mut chunk)?;
                    return Err(Ended::Failed(self.too_large(number, from)));
                }
                if !chunk.entries.is_empty() {
                    break false;
                }
                if filled == chunk.bytes.len() {
                    if filled > ENTRY_SIZE_BYTES_MAX + LENGTH_SIZE_BYTES {
                        return Err(Ended::Failed(self.too_large(number, from)));
                    }
                    // Doubled, or at once to what is known to be needed.
                    let size =
                        (2 * filled).max(size_bytes_min).min(ENTRY_SIZE_BYTES_MAX + LENGTH_SIZE_BYTES + 1);
                    chunk.bytes.resize(size, 0);
                }
            };
            if is_end {
                // Only what no delimiter ends is left: all else was cut when it was read.
                let whole = filled - begin;
                number += chunk.entries.len() as u64;
                match self.form {
                    Form::Whole => chunk.entries.push(begin..filled),
                    Form::Lines { .. } if whole > 0 => chunk.entries.push(begin..filled),
                    Form::Lines { .. } => {}
                    Form::LengthDelimited if whole > 0 => {
                        let expected = record_size(&chunk.bytes[begin..filled]);
                        self.send(&mut chunk)?;
                        return Err(Ended::Failed(InputError::Truncated {
                            number,
                            name: from.name(),
                            found: whole,
                            expected,
                        }));
                    }
                    Form::LengthDelimited => {}
                }
                return self.send(&mut chunk);
            }
            number += chunk.entries.len() as u64;
            rest.extend_from_slice(&chunk.bytes[begin..filled]);
            self.send(&mut chunk)?;
        }
    }

    /// The entry that begins at `begin`; `searched` bytes hold no newline that was not cut at.
    fn cut(&self, bytes: &[u8], begin: usize, searched: usize) -> Cut {
        match self.form {
            Form::Whole => Cut::Missing { size_bytes_min: bytes.len() },
            Form::Lines { chomp } => {
                let mut unsearched = &bytes[searched..];
                // The search of the standard library, as fast as memchr.
                let size = unsearched.skip_until(b'\n').expect("a slice can be read");
                let end = searched + size;
                if size == 0 || bytes[end - 1] != b'\n' {
                    return Cut::Missing { size_bytes_min: end - begin };
                }
                Cut::Entry { payload: begin..end - usize::from(chomp), end }
            }
            Form::LengthDelimited => {
                let bytes = &bytes[begin..];
                let size = record_size(bytes);
                if bytes.len() < LENGTH_SIZE_BYTES || bytes.len() < size {
                    return Cut::Missing { size_bytes_min: size };
                }
                Cut::Entry { payload: begin + LENGTH_SIZE_BYTES..begin + size, end: begin + size }
            }
        }
    }

    fn too_large(&self, number: u64, from: &Source) -> InputError {
        InputError::TooLarge { noun: self.form.noun(), number, name: from.name() }
    }

    /// Invariant 2. An empty chunk is sent, too: it comes back.
    fn send(&mut self, chunk: &mut Chunk) -> Result<(), Ended> {
        self.chunks.blocking_send(Ok(std::mem::take(chunk))).map_err(|_| Ended::NobodyListens)
    }
}

/// Length of the first record with its length field; of the field alone while that is not all there.
fn record_size(bytes: &[u8]) -> usize {
    match bytes.first_chunk::<LENGTH_SIZE_BYTES>() {
        Some(length) => LENGTH_SIZE_BYTES + u32::from_be_bytes(*length) as usize,
        None => LENGTH_SIZE_BYTES,
    }
}

fn read_some(reader: &mut dyn Read, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match reader.read(into) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
#[path = "input_tests.rs"]
mod tests;
