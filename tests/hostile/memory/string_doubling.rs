//! expect: killed OutOfMemory
//! A string that doubles.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut text = String::from("x");
    loop {
        text = text.clone() + &text;
    }
}
