//! expect: killed Panic or killed StackOverflow or killed TotalBudget
//! A panic whose text panics.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct D;
impl core::fmt::Display for D {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("half")?;
        panic!("{}", D)
    }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    panic!("{}", D)
}
