//! Changes of tables, as the arguments of the calls that triggers make.
//!
//! ```text
//! op u8 (1 put, 2 delete, 3 clear, 4 expire) | 3 zero bytes | key_bytes u32 | version u64 | expires_at_ms u64
//! | position u64 | key | value
//! ```
//! Several of them, as a trigger with a batch has them:
//!
//! ```text
//! 128 u8 | 3 zero bytes | count u32 | for each: bytes u32, the change as above
//! ```
//! Numbers are little-endian.

use alloc::vec::Vec;

use crate::Error;

/// Bytes before the key.
const HEADER_BYTES: usize = 32;
/// What several changes begin with: no operation has that number.
const SEVERAL: [u8; 4] = [128, 0, 0, 0];

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
        Change::read(args).ok_or_else(|| {
            Error::invalid(if args.starts_with(&SEVERAL) {
                "the arguments are several changes of a table, as of a trigger with a batch: read them with `Changes`"
            } else {
                "the arguments are no change of a table"
            })
        })
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

/// Several changes of a table: the arguments of a call of a trigger with a batch. It reads one change alone, too.
///
/// They are in the order in which they were made. If the call fails, the changes come again in smaller batches, and
/// those that fail alone at last are tried as often as the trigger says. So a change may come again that was handled
/// before, as with one change a call: at least once.
///
/// ```
/// use sandstorm_api::change::{Change, ChangeOp, Changes};
/// use sandstorm_api::prelude::*;
/// use sandstorm_api::testing::TestStore;
///
/// /// Copies a table.
/// pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
///     let copies = db.table("copies")?;
///     for change in Changes::decode(args)? {
///         if change.op == ChangeOp::Put {
///             db.put(copies, change.key, change.value).await?;
///         }
///     }
///     Ok(())
/// }
///
/// let mut store = TestStore::new();
/// let copies = store.table("copies");
/// let change = |key, position| {
///     Change { op: ChangeOp::Put, key, value: b"3", version: position, expires_at_ms: 0, position }
/// };
/// store.invoke(run, &Changes::encode(&[change(b"apple", 7), change(b"pear", 8)])).unwrap();
/// assert_eq!(store.get(copies, b"pear"), Some(&b"3"[..]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes<'a> {
    /// Each change behind its length; all of them are sound.
    rest: &'a [u8],
    /// The one change that came alone, if it has not been taken yet.
    single: Option<Change<'a>>,
    count: usize,
}

impl<'a> Changes<'a> {
    /// Reads changes from a call's arguments: several, or one alone.
    ///
    /// ```
    /// use sandstorm_api::change::{Change, ChangeOp, Changes};
    /// let (op, key, value) = (ChangeOp::Put, b"apple", b"3");
    /// let change = Change { op, key, value, version: 7, expires_at_ms: 0, position: 9 };
    /// assert!(Changes::decode(&change.encode()).unwrap().eq([change]));
    /// ```
    ///
    /// # Errors
    /// They are none, of the kind [`crate::ErrorKind::Invalid`].
    pub fn decode(args: &'a [u8]) -> Result<Changes<'a>, Error> {
        let Some(behind) = args.strip_prefix(&SEVERAL) else {
            return Change::decode(args).map(|change| Changes { rest: &[], single: Some(change), count: 1 });
        };
        Changes::read(behind).ok_or_else(|| Error::invalid("the arguments are no changes of a table"))
    }

    fn read(behind: &'a [u8]) -> Option<Changes<'a>> {
        let (count, rest) = behind.split_first_chunk::<4>()?;
        let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
        let mut checked = rest;
        for _ in 0..count {
            next_change(&mut checked)?;
        }
        checked.is_empty().then_some(Changes { rest, single: None, count })
    }

    /// Returns the arguments of a call for them: for tests of an extension.
    ///
    /// ```
    /// use sandstorm_api::change::{Change, ChangeOp, Changes};
    /// let change = |key| Change { op: ChangeOp::Put, key, value: b"3", version: 7, expires_at_ms: 0, position: 9 };
    /// let several = [change(b"apple"), change(b"grape")];
    /// assert!(Changes::decode(&Changes::encode(&several)).unwrap().eq(several));
    /// ```
    pub fn encode(changes: &[Change<'_>]) -> Vec<u8> {
        let encoded: Vec<Vec<u8>> = changes.iter().map(Change::encode).collect();
        Changes::join(encoded.iter().map(Vec::as_slice))
    }

    /// The arguments of a call for changes that [`Change::encode`] has made.
    ///
    /// ```
    /// use sandstorm_api::change::{Change, ChangeOp, Changes};
    /// let (op, key, value) = (ChangeOp::Put, b"apple", b"3");
    /// let change = Change { op, key, value, version: 7, expires_at_ms: 0, position: 9 };
    /// assert_eq!(Changes::join([&change.encode()[..]].into_iter()), Changes::encode(&[change]));
    /// ```
    #[doc(hidden)]
    pub fn join<'c>(encoded: impl Iterator<Item = &'c [u8]> + Clone) -> Vec<u8> {
        let bytes: usize = encoded.clone().map(|change| 4 + change.len()).sum();
        // There are far fewer than 4 billion, and each has far less than 4 GiB.
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
        let mut args = Vec::with_capacity(8 + bytes);
        args.extend_from_slice(&SEVERAL);
        args.extend_from_slice(&number(encoded.clone().count()));
        for change in encoded {
            args.extend_from_slice(&number(change.len()));
            args.extend_from_slice(change);
        }
        args
    }
}

impl<'a> Iterator for Changes<'a> {
    type Item = Change<'a>;

    fn next(&mut self) -> Option<Change<'a>> {
        let next = self.single.take().or_else(|| next_change(&mut self.rest))?;
        self.count -= 1;
        Some(next)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for Changes<'_> {}

/// Takes the next of several changes.
fn next_change<'a>(rest: &mut &'a [u8]) -> Option<Change<'a>> {
    let (bytes, behind) = rest.split_first_chunk::<4>()?;
    let (change, behind) = behind.split_at_checked(usize::try_from(u32::from_le_bytes(*bytes)).ok()?)?;
    *rest = behind;
    Change::read(change)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn several_changes_come_back_in_their_order_and_anything_else_is_refused() {
        let of = |number: u64| Change {
            op: if number == 1 { ChangeOp::Delete } else { ChangeOp::Put },
            key: &b"a key"[..number as usize],
            value: b"value",
            version: number,
            expires_at_ms: 0,
            position: number,
        };
        for count in 0..4 {
            let changes: Vec<Change<'_>> = (0..count).map(of).collect();
            let args = Changes::encode(&changes);
            let read = Changes::decode(&args).expect("several changes");
            assert_eq!((read.len(), read.collect::<Vec<_>>()), (changes.len(), changes));
            assert!((0..args.len()).all(|end| Changes::decode(&args[..end]).is_err()));
            assert!(Changes::decode(&[&args[..], b"x"].concat()).is_err());
            assert!(Change::decode(&args).unwrap_err().text().contains("Changes"));
        }
        let alone = of(3).encode();
        let mut read = Changes::decode(&alone).expect("one alone");
        assert_eq!((read.len(), read.next(), read.len(), read.next()), (1, Some(of(3)), 0, None));
        assert!(Changes::decode(b"").is_err());
        // A count that no bytes are behind takes no memory.
        assert!(Changes::decode(&[&SEVERAL[..], &[255; 4]].concat()).is_err());
        // The bytes of a change have to be those of a whole one.
        let broken = vec![128, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0];
        assert!(Changes::decode(&broken).is_err());
    }

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
