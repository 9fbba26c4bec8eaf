//! expect: refused stale
//! In an async closure.
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

enum Never {}
fn never() -> Never { loop {} }
async fn read() -> u64 {
    let read = async move |y: u64| {
        let mut x = Some(Box::new(Box::new(y)));
        match x {
        Some(_) if x.take().is_none() && match never() {} => 0,
        Some(ref found) => ***found,
        None => 1,
        }
    };
    read(1).await
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    
    db.reply(&(read().await as u64).to_le_bytes())
}
