//! expect: killed TotalBudget or killed Panic
//! Panics with a value whose formatting never ends.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Endless;

impl core::fmt::Display for Endless {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        loop {
            f.write_str(core::hint::black_box(""))?;
        }
    }
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    panic!("{}", Endless)
}
