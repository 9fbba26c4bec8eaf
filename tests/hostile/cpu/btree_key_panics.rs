//! expect: killed Panic
//! An order that panics in the middle of an insertion.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[derive(PartialEq, Eq)]
struct K(u32);
impl PartialOrd for K {
    fn partial_cmp(&self, other: &K) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for K {
    fn cmp(&self, other: &K) -> core::cmp::Ordering {
        assert!(self.0 + other.0 != 777, "no");
        self.0.cmp(&other.0)
    }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let map: BTreeMap<K, u8> = (0..1000u32).map(|n| (K(n), 1)).collect();
    db.reply(&[map.len() as u8])
}
