//! The arguments that a Redis client gives an extension: `FCALL name numkeys key... arg...` makes its keys and
//! arguments the bytes that `run` gets as `args`.
//!
//! ```text
//! number of keys u32 | number of keys and arguments together u32 | each: length u32, bytes     (all little-endian)
//! ```

use alloc::vec::Vec;

/// The keys and arguments of an `FCALL`.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    keys: usize,
    count: usize,
    rest: &'a [u8],
}

fn read_u32(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    Some((usize::try_from(u32::from_le_bytes(*number)).ok()?, rest))
}

impl<'a> Call<'a> {
    /// Decodes an extension's `args`; `None` if they are not from an `FCALL`.
    ///
    /// ```
    /// use sandstorm_api::redis::{Call, encode};
    /// let args = encode(&[b"apple"], &[b"3"]); // of FCALL f 1 apple 3
    /// assert!(Call::parse(&args).is_some() && Call::parse(b"x").is_none());
    /// ```
    pub fn parse(args: &'a [u8]) -> Option<Call<'a>> {
        let (keys, rest) = read_u32(args)?;
        let (count, rest) = read_u32(rest)?;
        let call = Call { keys, count, rest };
        let mut left = Parts { left: count, rest };
        (keys <= count && left.by_ref().count() == count && left.rest.is_empty()).then_some(call)
    }

    /// The keys.
    ///
    /// ```
    /// use sandstorm_api::redis::{Call, encode};
    /// let args = encode(&[b"apple", b"pear"], &[b"3"]);
    /// assert!(Call::parse(&args).unwrap().keys().eq([&b"apple"[..], b"pear"]));
    /// ```
    pub fn keys(&self) -> Parts<'a> {
        Parts { left: self.keys, rest: self.rest }
    }

    /// The arguments after the keys.
    ///
    /// ```
    /// use sandstorm_api::redis::{Call, encode};
    /// let args = encode(&[b"apple", b"pear"], &[b"3"]);
    /// assert!(Call::parse(&args).unwrap().args().eq([&b"3"[..]]));
    /// ```
    pub fn args(&self) -> Parts<'a> {
        let mut all = Parts { left: self.count, rest: self.rest };
        for _ in 0..self.keys {
            let _key = all.next();
        }
        all
    }
}

/// Keys or arguments, one after the other.
#[derive(Clone, Debug)]
pub struct Parts<'a> {
    left: usize,
    rest: &'a [u8],
}

impl<'a> Iterator for Parts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let (len, rest) = read_u32(self.rest)?;
        let (part, rest) = rest.split_at_checked(len)?;
        self.rest = rest;
        Some(part)
    }
}

/// Encodes what [`Call::parse`] reads: for the server, and for tests of extensions.
///
/// ```
/// use sandstorm_api::redis::{Call, encode};
/// assert_eq!(encode(&[b"k"], &[]), b"\x01\0\0\0\x01\0\0\0\x01\0\0\0k");
/// ```
pub fn encode(keys: &[&[u8]], args: &[&[u8]]) -> Vec<u8> {
    let bytes: usize = keys.iter().chain(args).map(|part| part.len() + 4).sum();
    let mut out = Vec::with_capacity(bytes + 8);
    for count in [keys.len(), keys.len() + args.len()] {
        out.extend_from_slice(&(count as u32).to_le_bytes());
    }
    for part in keys.iter().chain(args) {
        out.extend_from_slice(&(part.len() as u32).to_le_bytes());
        out.extend_from_slice(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_arguments_are_told_apart() {
        let bytes = encode(&[b"a", b""], &[b"x y"]);
        let call = Call::parse(&bytes).expect("whole");
        assert_eq!(call.keys().collect::<Vec<_>>(), [&b"a"[..], b""]);
        assert_eq!(call.args().collect::<Vec<_>>(), [b"x y"]);
        for cut in 0..bytes.len() {
            assert!(Call::parse(&bytes[..cut]).is_none(), "{cut}");
        }
        assert!(Call::parse(&[bytes.as_slice(), b"!"].concat()).is_none());
        assert!(Call::parse(b"\x02\0\0\0\x01\0\0\0\0\0\0\0").is_none(), "more keys than there is");
    }
}
