//! The bytes of typed functions' arguments and replies, for the code that the builder writes around an extension with
//! such functions. `docs/types.md` has the format.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::Error;

/// Reads the arguments of a call.
#[derive(Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
    len: usize,
}

macro_rules! numbers {
    ($($type:ident)*) => {
        impl Decoder<'_> {
            $(
                /// Reads a number.
                #[inline]
                pub fn $type(&mut self) -> Result<$type, Error> {
                    self.take().map($type::from_le_bytes)
                }
            )*
        }

        impl Encoder {
            $(
                /// Writes a number.
                #[inline]
                pub fn $type(&mut self, number: $type) {
                    self.bytes.extend_from_slice(&number.to_le_bytes());
                }
            )*
        }
    };
}
numbers!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64);

impl<'a> Decoder<'a> {
    /// A reader of these arguments.
    pub fn new(args: &'a [u8]) -> Decoder<'a> {
        Decoder { rest: args, len: args.len() }
    }

    /// Reads the fingerprint of the function that is called.
    #[inline]
    pub fn function(&mut self) -> Result<u32, Error> {
        self.u32().map_err(|_| {
            Error::invalid("the extension's functions are typed: call it with its types, as `ext show` prints them")
        })
    }

    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let Some((first, rest)) = self.rest.split_first_chunk::<N>() else { return Err(self.wrong("end too early")) };
        self.rest = rest;
        Ok(*first)
    }

    /// Reads a boolean.
    #[inline]
    pub fn bool(&mut self) -> Result<bool, Error> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.wrong("have a boolean that is neither 0 nor 1")),
        }
    }

    #[inline]
    fn slice(&mut self) -> Result<&'a [u8], Error> {
        let len = self.u32()? as usize;
        let Some((bytes, rest)) = self.rest.split_at_checked(len) else { return Err(self.wrong("end too early")) };
        self.rest = rest;
        Ok(bytes)
    }

    /// Reads a text.
    #[inline]
    pub fn string(&mut self) -> Result<String, Error> {
        let bytes = self.slice()?;
        core::str::from_utf8(bytes).map(ToString::to_string).map_err(|_| self.wrong("have a text that is no UTF-8"))
    }

    /// Reads bytes.
    #[inline]
    pub fn bytes(&mut self) -> Result<Vec<u8>, Error> {
        self.slice().map(<[u8]>::to_vec)
    }

    /// Reads a value, or that there is none.
    #[inline]
    pub fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<Option<T>, Error> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }

    /// Reads a list.
    #[inline]
    pub fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T, Error>) -> Result<Vec<T>, Error> {
        let count = self.u32()? as usize;
        // Each value has at least a byte.
        if count > self.rest.len() {
            return Err(self.wrong("have a list that ends too early"));
        }
        let mut values = Vec::with_capacity(count);
        for _ in 0..count {
            values.push(read(self)?);
        }
        Ok(values)
    }

    /// Checks that all has been read.
    #[inline]
    pub fn finish(&self) -> Result<(), Error> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.wrong("go on behind their end")) }
    }

    /// The error of arguments that are not of the function's type.
    #[cold]
    pub fn wrong(&self, what: &str) -> Error {
        Error::invalid(format!(
            "the arguments are not of the function's types: they {what} (at byte {} of {})",
            self.len - self.rest.len(),
            self.len
        ))
    }

    /// The error of a call whose fingerprint is of none of the functions.
    #[cold]
    pub fn unknown_function() -> Error {
        Error::invalid("the caller has the types of another version of the extension: read its schema again")
    }
}

/// Bytes of a reply for which there is room from the start: most are no longer, and memory of a call that nobody
/// touches costs nothing.
const START_BYTES: usize = 256;

/// Writes a reply.
#[derive(Debug, Default)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    /// An empty reply.
    pub fn new() -> Encoder {
        Encoder { bytes: Vec::with_capacity(START_BYTES) }
    }

    /// What was written.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes a boolean.
    #[inline]
    pub fn bool(&mut self, on: bool) {
        self.bytes.push(u8::from(on));
    }

    /// Writes a text.
    #[inline]
    pub fn string(&mut self, text: &str) {
        self.slice(text.as_bytes());
    }

    /// Writes bytes; more than a reply may have are refused when the reply is made.
    #[inline]
    pub fn slice(&mut self, bytes: &[u8]) {
        // At once, and not for its length and for itself.
        self.bytes.reserve(bytes.len().saturating_add(size_of::<u32>()));
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes a value, or that there is none.
    #[inline]
    pub fn option<T>(&mut self, value: &Option<T>, write: impl FnOnce(&mut Self, &T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// Writes a list.
    #[inline]
    pub fn list<T>(&mut self, values: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.u32(u32::try_from(values.len()).unwrap_or(u32::MAX));
        for value in values {
            write(self, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut to = Encoder::new();
        to.u8(1);
        to.i64(-2);
        to.f32(0.5);
        to.bool(true);
        to.string("ä");
        to.slice(b"\0\x01");
        to.option(&None::<u16>, |to, value| to.u16(*value));
        to.option(&Some(3), |to, value| to.u16(*value));
        to.list(&[4, 5], |to, value| to.u32(*value));
        let mut from = Decoder::new(to.as_slice());
        assert_eq!((from.u8(), from.i64(), from.f32(), from.bool()), (Ok(1), Ok(-2), Ok(0.5), Ok(true)));
        assert_eq!((from.string(), from.bytes()), (Ok("ä".to_string()), Ok(vec![0, 1])));
        assert_eq!((from.option(Decoder::u16), from.option(Decoder::u16)), (Ok(None), Ok(Some(3))));
        assert!(from.finish().is_err());
        assert_eq!((from.list(Decoder::u32), from.finish()), (Ok(vec![4, 5]), Ok(())));
    }

    #[test]
    fn what_is_too_short_or_wrong_is_an_error_and_takes_no_memory() {
        assert!(Decoder::new(b"abc").function().is_err());
        assert!(Decoder::new(&[2]).bool().is_err());
        assert!(Decoder::new(&[255, 255, 255, 255, 0]).list(Decoder::u8).is_err());
        assert!(Decoder::new(&[255, 255, 255, 255, 0]).bytes().is_err());
        assert!(Decoder::new(&[1, 0, 0, 0, 0xff]).string().is_err());
    }
}
