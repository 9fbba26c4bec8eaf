//! expect: killed Panic
//! Panics while it drops what a panic left.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Second;

impl Drop for Second {
    fn drop(&mut self) {
        panic!("second")
    }
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let _second = Second;
    panic!("first")
}
