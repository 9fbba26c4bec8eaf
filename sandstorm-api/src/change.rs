//! Changes of tables, as the arguments of the calls that triggers make.
//!
//! ```text
//! op u8 (1 put, 2 delete, 3 clear, 4 expire) | 3 zero bytes | key_bytes u32 | version u64 | expires_at_ms u64
//! | position u64 | key | value
//! ```
//! Numbers are little-endian.

use alloc::vec::Vec;

use crate::Error;

/// Bytes before the key.
const HEADER_BYTES: usize = 32;

/// What happened to a record, or to all of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeOp {
    /// The key has this value from here on.
    Put,
    /// The key has no record from here on.
    Delete,
    /// The table has no record of this version or a lower one.
    Clear,
    /// The key has no record from here on, since its time was over: only for triggers that name `expire`.
    Expire,
}

/// A change of a table: the arguments of a call that a trigger with `--on TABLE` makes.
///
/// Such a call is made at least once for each change, and for the changes of a key in their order. After a crash, or
/// when an answer was lost, it is made again: a higher [`Change::version`] than the last one tells what is new.
///
/// ```
/// use sandstorm_api::change::{Change, ChangeOp};
/// use sandstorm_api::prelude::*;
/// use sandstorm_api::testing::TestStore;
///
/// /// Keeps the number of orders by customer; orders have keys such as `ann/17`.
/// pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
///     let change = Change::decode(args)?;
///     let customer = change.key.split(|byte| *byte == b'/').next().ok_or(Error::invalid("no customer"))?;
///     let (counts, seen) = (db.table("counts")?, db.table("seen")?);
///     let version = change.version.to_le_bytes();
///     // A change that comes again is known by its version.
///     if db.get(seen, change.key).await?.is_some_and(|record| record.value() == version) {
///         return Ok(());
///     }
///     let step = match change.op {
///         ChangeOp::Put => 1,
///         ChangeOp::Delete | ChangeOp::Expire => -1,
///         ChangeOp::Clear => return Ok(()),
///     };
///     db.increment(counts, customer, step).await?;
///     db.put(seen, change.key, &version).await?;
///     Ok(())
/// }
///
/// let mut store = TestStore::new();
/// let (counts, _) = (store.table("counts"), store.table("seen"));
/// let (op, key, value) = (ChangeOp::Put, b"ann/17", b"book");
/// let change = Change { op, key, value, version: 3, expires_at_ms: 0, position: 9 };
/// store.invoke(run, &change.encode()).unwrap();
/// store.invoke(run, &change.encode()).unwrap();
/// assert_eq!(store.get(counts, b"ann"), Some(&b"1"[..]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// What happened.
    pub op: ChangeOp,
    /// The key; empty for [`ChangeOp::Clear`].
    pub key: &'a [u8],
    /// The value of a put; else empty.
    pub value: &'a [u8],
    /// The version of the record, or of its deletion.
    pub version: u64,
    /// Milliseconds since 1970 from which on the record counts as absent; 0: never. Of an expiry: when its time was.
    pub expires_at_ms: u64,
    /// The position of the change in the log: higher ones come later; changes of one transaction have the same.
    pub position: u64,
}

impl<'a> Change<'a> {
    /// Reads a change from a call's arguments.
    ///
    /// ```
    /// use sandstorm_api::change::{Change, ChangeOp};
    /// let (op, key, value) = (ChangeOp::Put, b"apple", b"3");
    /// let change = Change { op, key, value, version: 7, expires_at_ms: 0, position: 9 };
    /// assert_eq!(Change::decode(&change.encode()), Ok(change));
    /// ```
    ///
    /// # Errors
    /// They are none, of the kind [`crate::ErrorKind::Invalid`].
    pub fn decode(args: &'a [u8]) -> Result<Change<'a>, Error> {
        Change::read(args).ok_or_else(|| Error::invalid("the arguments are no change of a table"))
    }

    fn read(args: &'a [u8]) -> Option<Change<'a>> {
        let (header, rest) = args.split_at_checked(HEADER_BYTES)?;
        let op = match header.first_chunk::<4>()? {
            [1, 0, 0, 0] => ChangeOp::Put,
            [2, 0, 0, 0] => ChangeOp::Delete,
            [3, 0, 0, 0] => ChangeOp::Clear,
            [4, 0, 0, 0] => ChangeOp::Expire,
            _ => return None,
        };
        let number = |at: usize| Some(u64::from_le_bytes(header.get(at..at + 8)?.try_into().ok()?));
        let key_bytes = u32::from_le_bytes(header.get(4..8)?.try_into().ok()?);
        let (key, value) = rest.split_at_checked(usize::try_from(key_bytes).ok()?)?;
        Some(Change { op, key, value, version: number(8)?, expires_at_ms: number(16)?, position: number(24)? })
    }

    /// Returns the arguments of a call for it: for tests of an extension.
    ///
    /// ```
    /// use sandstorm_api::change::{Change, ChangeOp};
    /// let (op, key, value) = (ChangeOp::Put, b"apple", b"3");
    /// let change = Change { op, key, value, version: 7, expires_at_ms: 0, position: 9 };
    /// assert!(change.encode().ends_with(b"apple3"));
    /// ```
    pub fn encode(&self) -> Vec<u8> {
        let mut args = Vec::with_capacity(HEADER_BYTES + self.key.len() + self.value.len());
        let op = match self.op {
            ChangeOp::Put => 1,
            ChangeOp::Delete => 2,
            ChangeOp::Clear => 3,
            ChangeOp::Expire => 4,
        };
        args.extend_from_slice(&[op, 0, 0, 0]);
        // A key is far shorter than 4 GiB.
        args.extend_from_slice(&u32::try_from(self.key.len()).unwrap_or(u32::MAX).to_le_bytes());
        for number in [self.version, self.expires_at_ms, self.position] {
            args.extend_from_slice(&number.to_le_bytes());
        }
        args.extend_from_slice(self.key);
        args.extend_from_slice(self.value);
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_comes_back_and_anything_else_is_refused() {
        for op in [ChangeOp::Put, ChangeOp::Delete, ChangeOp::Clear, ChangeOp::Expire] {
            let change = Change { op, key: b"key", value: b"", version: 1 << 40, expires_at_ms: 7, position: u64::MAX };
            let args = change.encode();
            assert_eq!(Change::decode(&args), Ok(change));
            // A shorter one has no whole key.
            assert!((0..args.len()).all(|end| Change::decode(&args[..end]).is_err()));
            for at in 0..4 {
                let mut other = args.clone();
                other[at] = 9;
                assert!(Change::decode(&other).is_err(), "byte {at}");
            }
        }
        let mut long =
            Change { op: ChangeOp::Put, key: b"", value: b"v", version: 0, expires_at_ms: 0, position: 0 }.encode();
        long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Change::decode(&long).is_err());
    }
}
