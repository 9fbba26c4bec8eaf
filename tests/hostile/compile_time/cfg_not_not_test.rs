//! expect: refused or compile-error
//! A test configuration, twice denied.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[cfg(not(not(not(test))))]
mod tests {
    pub const X: &str = include_str!("/etc/passwd");
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(tests::X.as_bytes())
}
