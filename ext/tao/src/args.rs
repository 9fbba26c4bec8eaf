//! The arguments, read from front to back.

use sandstorm_api::prelude::*;

/// What is left of the arguments, and what they have to be.
#[derive(Clone, Copy)]
pub(crate) struct ArgReader<'a> {
    rest: &'a [u8],
    format: &'static str,
}

impl<'a> ArgReader<'a> {
    pub(crate) fn new(rest: &'a [u8], format: &'static str) -> ArgReader<'a> {
        ArgReader { rest, format }
    }

    /// The same from here on, of this format.
    pub(crate) fn of(self, format: &'static str) -> ArgReader<'a> {
        ArgReader { format, ..self }
    }

    /// The error of arguments that are not of their format.
    pub(crate) fn wrong(&self) -> Error {
        Error::invalid(self.format)
    }

    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (chunk, rest) = self.rest.split_first_chunk::<N>().ok_or(Error::invalid(self.format))?;
        self.rest = rest;
        Ok(*chunk)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Error> {
        self.chunk::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Error> {
        self.chunk().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Error> {
        self.chunk().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Error> {
        self.chunk().map(u64::from_le_bytes)
    }

    /// The next `len` bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Error::invalid(self.format))?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// All that is left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Refuses what is left over.
    pub(crate) fn end(&self) -> Result<(), Error> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.wrong()) }
    }
}
