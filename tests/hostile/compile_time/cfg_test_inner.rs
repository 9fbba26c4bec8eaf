//! expect: refused or compile-error
//! The test configuration as an inner attribute of a module that the code then uses.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

mod tests {
    #![cfg(test)]
    pub const X: &str = include_str!("/etc/passwd");
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(tests::X.as_bytes())
}
