//! expect: killed StackOverflow or killed OutOfMemory or killed TotalBudget
//! A long list whose drop recurses.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Link {
    next: Option<Box<Link>>,
    number: u64,
}

impl Drop for Link {
    fn drop(&mut self) {
        core::hint::black_box(&self.next);
    }
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut list = None;
    for number in 0..100_000u64 {
        list = Some(Box::new(Link { next: list, number }));
    }
    _db.reply(&list.map_or(0, |link| link.number).to_le_bytes())
}
