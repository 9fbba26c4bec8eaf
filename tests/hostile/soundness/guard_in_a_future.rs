//! expect: refused stale
//! In a future, and used behind an `.await`.
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

enum Never {}
fn never() -> Never { loop {} }
async fn read(mut x: Option<Box<Box<u64>>>) -> u64 {
    match x {
        Some(_) if x.take().is_none() && match never() {} => 0,
        Some(ref found) => {
            yield_now().await;
            ***found
        }
        None => 1,
    }
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let x = Some(Box::new(Box::new(7)));
    db.reply(&(read(x).await as u64).to_le_bytes())
}
