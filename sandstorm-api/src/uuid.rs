//! Universally unique identifiers (RFC 9562).
//!
//! ```
//! use sandstorm_api::prelude::*;
//! use sandstorm_api::uuid::Uuid;
//!
//! /// Appends to a journal whose keys are in the order of time.
//! async fn run(db: Db<'_>, entry: &[u8]) -> Result<(), Error> {
//!     let id = Uuid::v7(&db);
//!     db.put(db.table("journal")?, &id.0, entry).await?;
//!     db.reply(id.to_string().as_bytes())
//! }
//!
//! let mut store = sandstorm_api::testing::TestStore::new();
//! store.ordered_table("journal");
//! let first = String::from_utf8(store.invoke(run, b"a").unwrap()).unwrap();
//! store.set_now_ms(store.now_ms() + 1);
//! let second = String::from_utf8(store.invoke(run, b"b").unwrap()).unwrap();
//! assert!(first < second && Uuid::parse(&first).unwrap().version() == 7);
//! ```

use core::fmt::{Display, Formatter};

use crate::{Db, Error};

/// A UUID: its 16 bytes, in the order in which they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// A random one (version 4): 122 bits that cannot be guessed.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// use sandstorm_api::uuid::Uuid;
    /// # async fn example(db: Db<'_>, orders: TableId) -> Result<(), Error> {
    /// let order = Uuid::v4(&db);
    /// db.put(orders, order.to_string().as_bytes(), b"open").await?;
    /// # Ok(()) }
    /// ```
    pub fn v4(db: &Db<'_>) -> Uuid {
        let mut bytes = [0; 16];
        db.random_bytes(&mut bytes);
        Uuid::marked(bytes, 4)
    }

    /// One that begins with the time (version 7): the milliseconds of [`Db::now_us`], 12 bits of the rest of it, then
    /// 62 random bits. Those of one microsecond, about, are in no order.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// use sandstorm_api::uuid::Uuid;
    /// # async fn example(db: Db<'_>, orders: TableId) -> Result<(), Error> {
    /// db.put(orders, &Uuid::v7(&db).0, b"open").await?; // in the order of time
    /// # Ok(()) }
    /// ```
    pub fn v7(db: &Db<'_>) -> Uuid {
        let now_us = db.now_us();
        let (ms, rest_us) = (now_us / 1_000, now_us % 1_000);
        let mut bytes = [0; 16];
        db.random_bytes(&mut bytes);
        bytes[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
        // RFC 9562, 6.2, method 3: a fraction of the millisecond, of 4,096 parts.
        let fraction = (rest_us * 4_096 / 1_000) as u16;
        bytes[6..8].copy_from_slice(&fraction.to_be_bytes());
        Uuid::marked(bytes, 7)
    }

    fn marked(mut bytes: [u8; 16], version: u8) -> Uuid {
        bytes[6] = bytes[6] & 0x0f | version << 4;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Uuid(bytes)
    }

    /// The version, 4 and 7 for those that are made here.
    ///
    /// ```
    /// use sandstorm_api::uuid::Uuid;
    /// assert_eq!(Uuid::parse("67e55044-10b1-426f-9247-bb680e5fe0c8").unwrap().version(), 4);
    /// ```
    pub fn version(self) -> u8 {
        self.0[6] >> 4
    }

    /// Reads one in its usual form, `67e55044-10b1-426f-9247-bb680e5fe0c8`, in lower or upper case.
    ///
    /// ```
    /// use sandstorm_api::uuid::Uuid;
    /// assert!(Uuid::parse("67e55044-10b1-426f-9247-bb680e5fe0c8").is_ok() && Uuid::parse("67e5").is_err());
    /// ```
    ///
    /// # Errors
    /// `Invalid`: it has another form.
    pub fn parse(text: &str) -> Result<Uuid, Error> {
        let wrong = || Error::invalid("no UUID such as 67e55044-10b1-426f-9247-bb680e5fe0c8");
        let text = text.as_bytes();
        if text.len() != 36 || [8, 13, 18, 23].iter().any(|at| text[*at] != b'-') {
            return Err(wrong());
        }
        let mut digits = text.iter().enumerate().filter(|(at, _)| ![8, 13, 18, 23].contains(at));
        let mut digit = || digits.next().and_then(|(_, byte)| char::from(*byte).to_digit(16)).ok_or_else(wrong);
        let mut bytes = [0; 16];
        for byte in &mut bytes {
            *byte = (digit()? << 4 | digit()?) as u8;
        }
        Ok(Uuid(bytes))
    }
}

impl Display for Uuid {
    fn fmt(&self, f: &mut Formatter<'_>) -> core::fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}
