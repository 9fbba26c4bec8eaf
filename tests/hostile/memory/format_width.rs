//! expect: killed OutOfMemory or killed TotalBudget or killed Panic
//! A number printed sixty thousand characters wide, into a string, for ever.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut text = String::new();
    loop {
        text.push_str(&format!("{:>60000}", text.len()));
    }
}
