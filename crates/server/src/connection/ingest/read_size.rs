//! How much a connection is read at once: as much as there is room for answers, in slices that grow while they are filled.

/// Read at least, when there is little room.
pub(super) const READ_BYTES_MIN: usize = 2048;
/// A read's bytes are doubled up to this, from the least.
const SLICE_BYTES_MAX: usize = 1024 * 1024;

/// How much to read at once.
pub(super) struct ReadSize {
    /// Bytes of requests that go with a byte of promised answers, in eighths: the last that were seen, but at most doubled
    /// by one read. No answer is promised more than eight times the size of its request.
    eighths: usize,
    /// Doubled by each read that fills it, so that a crowd that comes at once is read in small pieces first.
    pub(super) slice: usize,
}

impl ReadSize {
    pub(super) fn new() -> ReadSize {
        ReadSize { eighths: 1, slice: READ_BYTES_MIN }
    }

    /// A read brought `bytes` of the `most` it could.
    pub(super) fn filled(&mut self, bytes: usize, most: usize) {
        if bytes == most {
            self.slice = (2 * self.slice).min(SLICE_BYTES_MAX);
        } else if bytes < self.slice / 4 {
            self.slice = (self.slice / 2).max(READ_BYTES_MIN);
        }
    }

    pub(super) fn learn(&mut self, requests: usize, answers: usize) {
        if let Some(eighths) = (requests * 8).checked_div(answers) {
            self.eighths = eighths.clamp(1, 2 * self.eighths);
        }
    }

    /// Bytes of requests that `room` for answers is enough for.
    pub(super) fn fits(&self, room: usize) -> usize {
        room.saturating_mul(self.eighths) / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_appetite_falls_at_once_and_grows_slowly() {
        let mut read_size = ReadSize::new();
        assert_eq!(read_size.fits(800), 100, "nothing is known yet");
        for _ in 0..10 {
            read_size.learn(64_000, 64 * 28);
        }
        assert!(read_size.fits(4096) > 64 * 1024, "adds of 1 KiB take little room");
        read_size.learn(28, 40);
        assert!(read_size.fits(4000) <= 2800, "reads take more than they are long");
        read_size.learn(64_000, 28);
        assert!(read_size.fits(4000) <= 5600);
        read_size.learn(0, 0);
        read_size.learn(1, 1 << 20);
        assert_eq!(read_size.fits(8), 1);
    }

    #[test]
    fn reads_grow_while_they_are_filled() {
        let mut read_size = ReadSize::new();
        assert_eq!(read_size.slice, READ_BYTES_MIN, "a crowd that comes at once is read in small pieces");
        for _ in 0..20 {
            read_size.filled(read_size.slice, read_size.slice);
        }
        assert_eq!(read_size.slice, SLICE_BYTES_MAX);
        read_size.filled(read_size.slice / 2, read_size.slice);
        assert_eq!(read_size.slice, SLICE_BYTES_MAX);
        for _ in 0..20 {
            read_size.filled(100, read_size.slice);
        }
        assert_eq!(read_size.slice, READ_BYTES_MIN);
    }
}
