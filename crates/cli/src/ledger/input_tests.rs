//! Goal: whatever the sizes of reads, the entries are the input (input invariants 1 to 3). Method: a reader that returns
//! pieces of given sizes in front of the cutter, compared with a plain split.

use super::*;

/// Returns its bytes in pieces of the given sizes, over and over.
struct Pieces {
    bytes: Vec<u8>,
    at: usize,
    sizes: Vec<usize>,
    turn: usize,
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let size = self.sizes[self.turn % self.sizes.len()];
        self.turn += 1;
        let size = size.min(into.len()).min(self.bytes.len() - self.at);
        into[..size].copy_from_slice(&self.bytes[self.at..self.at + size]);
        self.at += size;
        Ok(size)
    }
}

/// Entries, and the error at the end.
fn cut(form: Form, bytes: &[u8], sizes: &[usize]) -> (Vec<Vec<u8>>, Option<String>) {
    let (sender, mut chunks) = mpsc::channel(CHUNKS_COUNT);
    let (empty, spare) = mpsc::channel(CHUNKS_COUNT);
    for _ in 0..CHUNKS_COUNT {
        empty.try_send(Chunk::default()).unwrap();
    }
    let mut reader = Pieces { bytes: bytes.to_vec(), at: 0, sizes: sizes.to_vec(), turn: 0 };
    let thread = std::thread::spawn(move || {
        let mut cutter = Cutter { form, chunks: sender, spare };
        match cutter.cut_all(0, &Source::Stdin, &mut reader) {
            Err(Ended::Failed(error)) => Some(error.to_string()),
            Ok(()) => None,
            Err(Ended::NobodyListens) => panic!("somebody listens"),
        }
    });
    let mut entries = Vec::new();
    while let Some(chunk) = chunks.blocking_recv() {
        let chunk = chunk.unwrap();
        entries.extend(chunk.entries().map(<[u8]>::to_vec));
        let _ = empty.try_send(chunk);
    }
    (entries, thread.join().unwrap())
}

const SIZES: [&[usize]; 5] = [&[1], &[2, 3, 5], &[4096], &[usize::MAX], &[1, usize::MAX]];

/// Text with lines of many lengths, one of them longer than several reads.
fn text(last_newline: bool) -> Vec<u8> {
    let mut text = b"\n\nfirst\n".to_vec();
    for size in [0, 1, 1023, 70_000, 3, READ_SIZE_BYTES - 1, READ_SIZE_BYTES, 3 * READ_SIZE_BYTES, 7] {
        text.extend(std::iter::repeat_n(b'a' + (size % 26) as u8, size));
        text.push(b'\n');
    }
    if last_newline {
        text.push(b'\n');
    } else {
        text.extend_from_slice(b"\r\0last");
    }
    text
}

#[test]
fn lines_are_the_input_whatever_reads_return() {
    for text in [text(true), text(false)] {
        let expected: Vec<Vec<u8>> =
            text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        let chomped: Vec<Vec<u8>> =
            expected.iter().map(|line| line.strip_suffix(b"\n").unwrap_or(line).to_vec()).collect();
        for sizes in SIZES {
            let (entries, error) = cut(Form::Lines { chomp: false }, &text, sizes);
            assert!(entries == expected && error.is_none(), "invariant 1, reads of {sizes:?}");
            assert_eq!(entries.concat(), text, "nothing is added or lost");
            let (entries, _) = cut(Form::Lines { chomp: true }, &text, sizes);
            assert!(entries == chomped, "invariant 1, chomp, reads of {sizes:?}");
        }
    }
    for form in [Form::Lines { chomp: false }, Form::LengthDelimited] {
        assert_eq!(cut(form, b"", &[1]), (Vec::new(), None), "no input, no entry");
    }
}

#[test]
fn records_are_cut_by_their_lengths() {
    let mut input = Vec::new();
    let records: Vec<Vec<u8>> =
        [0, 1, 5, 0, 100_000, READ_SIZE_BYTES * 2, 3].map(|size| vec![b'\n'; size]).to_vec();
    for record in &records {
        input.extend_from_slice(&(record.len() as u32).to_be_bytes());
        input.extend_from_slice(record);
    }
    for sizes in SIZES {
        assert!(cut(Form::LengthDelimited, &input, sizes) == (records.clone(), None), "reads of {sizes:?}");
        for (missing, found) in [(1, 6), (3, 4), (5, 2)] {
            let (entries, error) = cut(Form::LengthDelimited, &input[..input.len() - missing], sizes);
            assert!(entries == records[..6], "invariant 3: all whole ones");
            let expected = if found < 4 { 4 } else { 7 };
            let said =
                format!("record 7 of standard input is cut short: {found} of {expected} bytes are there");
            assert_eq!(error, Some(said));
        }
    }
}

#[test]
fn a_whole_file_is_one_entry_even_an_empty_one() {
    for sizes in SIZES {
        let bytes = text(false);
        assert!(cut(Form::Whole, &bytes, sizes) == (vec![bytes.clone()], None), "reads of {sizes:?}");
        assert_eq!(cut(Form::Whole, b"", sizes), (vec![Vec::new()], None));
    }
}

#[test]
fn what_no_entry_can_hold_is_refused_after_all_before_it() {
    let mut huge = b"one\ntwo\n".to_vec();
    huge.resize(huge.len() + ENTRY_SIZE_BYTES_MAX + 100, b'x');
    let (entries, error) = cut(Form::Lines { chomp: false }, &huge, &[usize::MAX]);
    assert_eq!(entries, [b"one\n", b"two\n"], "invariant 3");
    assert!(error.unwrap().starts_with("line 3 of standard input is larger than"));
    let mut record = vec![0, 0, 0, 1, b'a'];
    record.extend_from_slice(&[0xff; 8]);
    let (entries, error) = cut(Form::LengthDelimited, &record, &[3]);
    assert_eq!(entries, [b"a"], "no memory is taken for a length alone");
    assert!(error.unwrap().starts_with("record 2 of standard input is larger than"));
}

#[test]
fn a_line_is_passed_on_before_the_next_one_comes() {
    /// Yields one line, then asks whether it arrived.
    struct Asking(std::sync::mpsc::Receiver<()>, bool);
    impl Read for Asking {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if std::mem::replace(&mut self.1, true) {
                self.0.recv_timeout(std::time::Duration::from_secs(10)).expect("invariant 2");
                return Ok(0);
            }
            into[..8].copy_from_slice(b"line\nres");
            Ok(8)
        }
    }
    let (sender, mut chunks) = mpsc::channel(CHUNKS_COUNT);
    let (empty, spare) = mpsc::channel(CHUNKS_COUNT);
    for _ in 0..CHUNKS_COUNT {
        empty.try_send(Chunk::default()).unwrap();
    }
    let (arrived, asked) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::spawn(move || {
        let mut cutter = Cutter { form: Form::Lines { chomp: false }, chunks: sender, spare };
        cutter.cut_all(0, &Source::Stdin, &mut Asking(asked, false)).is_ok()
    });
    let first = chunks.blocking_recv().unwrap().unwrap();
    assert_eq!(first.entries().collect::<Vec<_>>(), [b"line\n"]);
    arrived.send(()).unwrap();
    let second = chunks.blocking_recv().unwrap().unwrap();
    assert_eq!(second.entries().collect::<Vec<_>>(), [b"res"]);
    assert!(thread.join().unwrap());
}
