//! expect: refused or compile-error
//! Forbidden code under a test configuration that is not only a test.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[cfg(any(test, not(test)))]
mod tests {
    pub const X: &str = include_str!("/etc/passwd");
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(tests::X.as_bytes())
}
