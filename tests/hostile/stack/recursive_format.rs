//! expect: killed StackOverflow
//! A value that prints itself inside of itself.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Inside;

impl core::fmt::Display for Inside {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "({})", Inside)
    }
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(format!("{}", Inside).as_bytes())
}
