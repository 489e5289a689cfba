//! The primitives of jute, read from a frame.

use bytes::{Buf, Bytes};

/// A record ends before its fields do, or a length in it is impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// What is left of a frame.
pub(super) struct Input(pub(super) Bytes);

impl Input {
    pub(super) fn i32(&mut self) -> Result<i32, Malformed> {
        self.0.try_get_i32().map_err(|_| Malformed)
    }

    pub(super) fn i64(&mut self) -> Result<i64, Malformed> {
        self.0.try_get_i64().map_err(|_| Malformed)
    }

    pub(super) fn bool(&mut self) -> Result<bool, Malformed> {
        self.0.try_get_u8().map(|byte| byte != 0).map_err(|_| Malformed)
    }

    /// `None` for null.
    pub(super) fn buffer(&mut self) -> Result<Option<Bytes>, Malformed> {
        match self.i32()? {
            -1 => Ok(None),
            size => match usize::try_from(size) {
                Ok(size) if size <= self.0.len() => Ok(Some(self.0.split_to(size))),
                _ => Err(Malformed),
            },
        }
    }

    /// `None` for null. Bytes that are not UTF-8 become U+FFFD, as in Java; no valid path has that character.
    pub(super) fn string_or_null(&mut self) -> Result<Option<String>, Malformed> {
        Ok(self.buffer()?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Null is malformed.
    pub(super) fn string(&mut self) -> Result<String, Malformed> {
        self.string_or_null()?.ok_or(Malformed)
    }

    /// Null and a negative count are empty. `item_size_min` is the least number of bytes of one item, above 0.
    pub(super) fn vector<T>(
        &mut self,
        item_size_min: usize,
        mut item: impl FnMut(&mut Input) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = usize::try_from(self.i32()?).unwrap_or(0);
        if count > self.0.len() / item_size_min {
            return Err(Malformed);
        }
        (0..count).map(|_| item(self)).collect()
    }

    pub(super) fn strings(&mut self) -> Result<Vec<String>, Malformed> {
        self.vector(4, Input::string)
    }
}
