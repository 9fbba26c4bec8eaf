//! expect: killed OutOfMemory or killed TotalBudget
//! A map that grows.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut map = BTreeMap::new();
    let mut number = 0u64;
    loop {
        map.insert(number.wrapping_mul(0x9e37_79b9_7f4a_7c15), [number; 8]);
        number += 1;
    }
}
