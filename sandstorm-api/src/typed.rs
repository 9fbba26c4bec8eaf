//! The bytes of typed functions' arguments and replies, for the code that the builder writes around an extension with
//! such functions; and of the tenant's own types in records and in calls of such functions. `docs/types.md` has the
//! format.

pub mod callee;
mod type_text;
mod type_walk;
mod value;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::change::{Change, ChangeOp};
use crate::{Db, Error};
pub use type_text::{TypePasses, TypeText};
pub use value::Typed;
pub(crate) use value::wrong_record;

/// What values are written into.
pub type Bytes = Vec<u8>;

/// Structs and enums within each other, at most, in a value that code reads itself.
const NESTING: u32 = 64;

/// Reads the arguments of a call, or the value of a record.
#[derive(Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
    len: usize,
    part: DecodedPart,
    /// Structs and enums around what is read.
    depth: u32,
}

/// What the bytes are, for the text of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecodedPart {
    Arguments,
    Reply,
    /// Fields at the end may be missing in it.
    RecordValue,
}

/// Where in the bytes a struct begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StructPlace {
    /// Whether fields at its end may be missing: it is all that a record has.
    may_end_early: bool,
}

/// An empty value of a part of a variant, which has that name.
pub fn empty<T: Typed>(_name: &str) -> T {
    T::typed_empty()
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

        impl Encoder<'_> {
            $(
                /// Writes a number.
                #[inline]
                pub fn $type(&mut self, number: $type) {
                    self.put(&number.to_le_bytes());
                }
            )*
        }
    };
}
numbers!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64);

impl<'a> Decoder<'a> {
    /// A reader of these arguments.
    pub fn new(args: &'a [u8]) -> Decoder<'a> {
        Decoder { rest: args, len: args.len(), part: DecodedPart::Arguments, depth: 0 }
    }

    /// A reader of the value of a record.
    pub fn of_record(value: &'a [u8]) -> Decoder<'a> {
        Decoder { part: DecodedPart::RecordValue, ..Decoder::new(value) }
    }

    /// A reader of the reply of a function that was called.
    pub(crate) fn of_reply(reply: &'a [u8]) -> Decoder<'a> {
        Decoder { part: DecodedPart::Reply, ..Decoder::new(reply) }
    }

    /// Begins a struct or an enum.
    pub fn enter(&mut self) -> Result<StructPlace, Error> {
        let may_end_early = self.part == DecodedPart::RecordValue && self.depth == 0 && self.rest.len() == self.len;
        self.depth += 1;
        if self.depth > NESTING { Err(self.wrong("are nested too deep")) } else { Ok(StructPlace { may_end_early }) }
    }

    /// Ends a struct or an enum.
    pub fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Reads a field of the struct that begins there.
    #[inline]
    pub fn field<T: Typed>(&mut self, place: StructPlace) -> Result<T, Error> {
        if place.may_end_early
            && self.rest.is_empty()
            && let Some(missing) = T::typed_missing()
        {
            return Ok(missing);
        }
        T::typed_read(self)
    }

    /// Reads a part of a variant, which has that name.
    #[inline]
    pub fn part<T: Typed>(&mut self, _name: &str) -> Result<T, Error> {
        T::typed_read(self)
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
        // No more memory than the bytes themselves take, whatever the count says; a value may be larger than its bytes.
        let mut values = Vec::with_capacity(count.min(self.rest.len() / size_of::<T>().max(1)));
        for _ in 0..count {
            values.push(read(self)?);
        }
        Ok(values)
    }

    /// Reads a change of a table, as a trigger gives it to a typed function.
    pub fn change(&mut self) -> Result<Change<'a>, Error> {
        let op = match self.u8()? {
            0 => ChangeOp::Put,
            1 => ChangeOp::Delete,
            2 => ChangeOp::Clear,
            3 => ChangeOp::Expire,
            _ => return Err(self.wrong("have an enum without a variant of that number")),
        };
        let (key, value) = (self.slice()?, self.slice()?);
        let (version, expires_at_ms, position) = (self.u64()?, self.u64()?, self.u64()?);
        Ok(Change { op, key, value, version, expires_at_ms, position })
    }

    /// Checks that all has been read.
    #[inline]
    pub fn finish(&self) -> Result<(), Error> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.wrong("go on behind their end")) }
    }

    /// The error of bytes that are not of their type, such as those of arguments.
    #[cold]
    pub fn wrong(&self, what: &str) -> Error {
        let of = match self.part {
            DecodedPart::Arguments => "the arguments are not of the function's types: ",
            DecodedPart::Reply | DecodedPart::RecordValue => "",
        };
        Error::invalid(format!("{of}they {what} (at byte {} of {})", self.len - self.rest.len(), self.len))
    }

    /// The error of a call whose fingerprint is of none of the functions.
    #[cold]
    pub fn unknown_function() -> Error {
        Error::invalid(
            "the caller has the types of another version of the extension: generate the client again (`sandstorm ext \
             generate`), or read the schema again (`sandstorm ext show`)",
        )
    }
}

/// Bytes of a reply that are gathered before the server gets them: most replies are no longer, and one call hands them
/// over. What is longer goes there from where it lies. The buffer is filled with zeroes: a module writes so many with
/// eight stores, and more by a call of the server.
const GATHERED_BYTES: usize = if cfg!(target_arch = "wasm32") { 64 } else { 192 };

/// Writes a reply. It takes no memory of the call: what it gathers lies on the stack.
pub struct Encoder<'a> {
    db: Db<'a>,
    gathered: [u8; GATHERED_BYTES],
    len: usize,
    /// The first error, after which nothing is handed over.
    outcome: Result<(), Error>,
}

impl core::fmt::Debug for Encoder<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Encoder").field("gathered", &self.len).finish_non_exhaustive()
    }
}

impl<'a> Encoder<'a> {
    /// An empty reply of a call.
    #[inline]
    pub fn new(db: Db<'a>) -> Encoder<'a> {
        Encoder { db, gathered: [0; GATHERED_BYTES], len: 0, outcome: Ok(()) }
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        match self.gathered.get_mut(self.len..self.len + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.put_long(bytes),
        }
    }

    /// Hands over what was gathered, and bytes for which it had no room; few of them are gathered.
    fn put_long(&mut self, bytes: &[u8]) {
        self.hand_over();
        match self.gathered.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.len = bytes.len();
            }
            None if self.outcome.is_ok() => self.outcome = self.db.reply(bytes),
            None => {}
        }
    }

    fn hand_over(&mut self) {
        if self.outcome.is_ok() && self.len > 0 {
            let gathered = self.gathered.get(..self.len).unwrap_or_default();
            self.outcome = self.db.reply(gathered);
        }
        self.len = 0;
    }

    /// Ends the reply.
    ///
    /// # Errors
    /// It is longer than the call's budget allows.
    #[inline]
    pub fn finish(&mut self) -> Result<(), Error> {
        self.hand_over();
        core::mem::replace(&mut self.outcome, Ok(()))
    }

    /// Writes a boolean.
    #[inline]
    pub fn bool(&mut self, on: bool) {
        self.u8(u8::from(on));
    }

    /// Writes a text.
    #[inline]
    pub fn string(&mut self, text: &str) {
        self.slice(text.as_bytes());
    }

    /// Writes bytes; more than a reply may have are refused when the reply is made.
    #[inline]
    pub fn slice(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.put(bytes);
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
    use crate::ErrorKind;
    use crate::testing::TestStore;

    /// The reply of a call that writes one.
    fn reply(write: impl Fn(&mut Encoder<'_>)) -> Result<Vec<u8>, Error> {
        TestStore::new().invoke(
            async |db: Db<'_>, _: &[u8]| {
                let mut to = Encoder::new(db);
                write(&mut to);
                to.finish()
            },
            b"",
        )
    }

    #[test]
    fn what_is_written_is_read() {
        let written = reply(|to| {
            to.u8(1);
            to.i64(-2);
            to.f32(0.5);
            to.bool(true);
            to.string("ä");
            to.slice(b"\0\x01");
            to.option(&None::<u16>, |to, value| to.u16(*value));
            to.option(&Some(3), |to, value| to.u16(*value));
            to.list(&[4, 5], |to, value| to.u32(*value));
        });
        let written = written.expect("a short reply");
        let mut from = Decoder::new(&written);
        assert_eq!((from.u8(), from.i64(), from.f32(), from.bool()), (Ok(1), Ok(-2), Ok(0.5), Ok(true)));
        assert_eq!((from.string(), from.bytes()), (Ok("ä".to_string()), Ok(vec![0, 1])));
        assert_eq!((from.option(Decoder::u16), from.option(Decoder::u16)), (Ok(None), Ok(Some(3))));
        assert!(from.finish().is_err());
        assert_eq!((from.list(Decoder::u32), from.finish()), (Ok(vec![4, 5]), Ok(())));
    }

    /// However its parts lie to what is gathered, the reply has all of them in their order.
    #[test]
    fn a_reply_of_any_length_arrives_whole() {
        for first in [0, 1, 7, GATHERED_BYTES - 9, GATHERED_BYTES - 4, GATHERED_BYTES, 3 * GATHERED_BYTES] {
            for second in [0, 1, GATHERED_BYTES - 4, GATHERED_BYTES, 1_000] {
                let (one, other) = (vec![1; first], vec![2; second]);
                let written = reply(|to| {
                    to.slice(&one);
                    to.u64(7);
                    to.slice(&other);
                    to.bool(true);
                });
                let written = written.expect("it fits");
                let mut from = Decoder::new(&written);
                let read = (from.bytes(), from.u64(), from.bytes(), from.bool(), from.finish());
                assert_eq!(read, (Ok(one), Ok(7), Ok(other), Ok(true), Ok(())));
            }
        }
        assert_eq!(reply(|_| {}), Ok(Vec::new()));
    }

    #[test]
    fn a_reply_beyond_its_limit_is_an_error() {
        let long = reply(|to| {
            (0..64).for_each(|_| to.slice(&[0; 1 << 20]));
            to.u8(1);
        });
        assert_eq!(long.map_err(|error| error.kind()), Err(ErrorKind::TooLarge));
    }

    /// Values of 512 bytes that are one byte each: what a list reserves is bounded by its bytes, and then it grows.
    #[test]
    fn a_list_reserves_no_more_than_its_bytes() {
        let bytes = [&1_000u32.to_le_bytes()[..], &[1; 1_000]].concat();
        let list = Decoder::new(&bytes).list(|from| from.u8().map(|_| [0u64; 64])).expect("so many");
        assert_eq!(list.len(), 1_000);
        assert_ne!(list.capacity(), 1_000, "all were reserved at once");
        let numbers = [&3u32.to_le_bytes()[..], &[1, 0, 2, 0, 3, 0]].concat();
        assert_eq!(Decoder::new(&numbers).list(Decoder::u16), Ok(vec![1, 2, 3]));
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
