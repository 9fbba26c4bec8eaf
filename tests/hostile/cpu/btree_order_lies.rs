//! expect: ok or killed TotalBudget or killed Panic
//! A map whose keys are ordered otherwise each time.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct K(u32, core::cell::Cell<u32>);
impl PartialEq for K {
    fn eq(&self, _: &K) -> bool {
        false
    }
}
impl Eq for K {}
impl PartialOrd for K {
    fn partial_cmp(&self, other: &K) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for K {
    fn cmp(&self, other: &K) -> core::cmp::Ordering {
        self.1.set(self.1.get().wrapping_mul(1664525).wrapping_add(other.0));
        if self.1.get() & 64 == 0 { core::cmp::Ordering::Less } else { core::cmp::Ordering::Greater }
    }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let mut map = BTreeMap::new();
    for n in 0..2000u32 {
        map.insert(K(n, core::cell::Cell::new(n)), n);
    }
    for n in 0..2000u32 {
        map.remove(&K(n, core::cell::Cell::new(n)));
    }
    let mut map = map.split_off(&K(7, core::cell::Cell::new(1)));
    map.retain(|key, _| key.0 % 2 == 0);
    drop(map);
    db.reply(b"x")
}
