//! Jute, as far as a test client needs it: big-endian integers, length-prefixed buffers, vectors.

/// A record being written.
#[derive(Default, Clone)]
pub(super) struct Writer(pub Vec<u8>);

impl Writer {
    pub(super) fn i32(&mut self, value: i32) -> &mut Writer {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn i64(&mut self, value: i64) -> &mut Writer {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn bool(&mut self, value: bool) -> &mut Writer {
        self.0.push(u8::from(value));
        self
    }

    /// A buffer; `None` is the null that some fields may hold.
    pub(super) fn buffer(&mut self, value: Option<&[u8]>) -> &mut Writer {
        match value {
            Some(bytes) => {
                self.i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
                self.0.extend_from_slice(bytes);
            }
            None => drop(self.i32(-1)),
        }
        self
    }

    pub(super) fn string(&mut self, value: &str) -> &mut Writer {
        self.buffer(Some(value.as_bytes()))
    }

    pub(super) fn strings(&mut self, values: &[String]) -> &mut Writer {
        self.i32(i32::try_from(values.len()).unwrap_or(i32::MAX));
        for value in values {
            self.string(value);
        }
        self
    }
}

/// A reply is shorter than its fields need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Short;

/// A record being read.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, size: usize) -> Result<&'a [u8], Short> {
        if size > self.0.len() {
            return Err(Short);
        }
        let (head, rest) = self.0.split_at(size);
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Short> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn i32(&mut self) -> Result<i32, Short> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4)?);
        Ok(i32::from_be_bytes(bytes))
    }

    pub(super) fn i64(&mut self) -> Result<i64, Short> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(i64::from_be_bytes(bytes))
    }

    /// `None` is null.
    pub(super) fn buffer(&mut self) -> Result<Option<&'a [u8]>, Short> {
        match self.i32()? {
            -1 => Ok(None),
            size => self.take(usize::try_from(size).map_err(|_| Short)?).map(Some),
        }
    }

    pub(super) fn string(&mut self) -> Result<String, Short> {
        Ok(String::from_utf8_lossy(self.buffer()?.unwrap_or_default()).into_owned())
    }

    pub(super) fn strings(&mut self) -> Result<Vec<String>, Short> {
        let count = self.i32()?.max(0);
        (0..count).map(|_| self.string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_a_lying_length_is_an_error() {
        let mut out = Writer::default();
        out.i32(-7).i64(1 << 40).bool(true).buffer(None).string("é").strings(&["a".into(), "".into()]);
        let mut input = Reader(&out.0);
        assert_eq!((input.i32(), input.i64(), input.u8()), (Ok(-7), Ok(1 << 40), Ok(1)));
        assert_eq!((input.buffer(), input.string()), (Ok(None), Ok("é".into())));
        assert_eq!(input.strings(), Ok(vec!["a".into(), String::new()]));
        assert_eq!(input.u8(), Err(Short));
        assert_eq!(Reader(&[0, 0, 0, 9, 1]).buffer(), Err(Short));
        assert_eq!(Reader(&[0xff, 0xff, 0xff, 0xfe]).buffer(), Err(Short));
    }
}
