//! The names that most extensions want in scope: `use sandstorm_api::prelude::*;`.

pub use alloc::borrow::{Cow, ToOwned};
pub use alloc::boxed::Box;
pub use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
pub use alloc::string::{String, ToString};
pub use alloc::vec::Vec;
pub use alloc::{format, vec};

pub use crate::{
    Cursor, Db, Direction, Error, ErrorKind, Keys, Record, ScanPage, Seen, TableId, TimeToLive, Transaction,
    TransactionRecord, Typed, yield_now,
};
pub use crate::{debug, error, info, typed, warn};
