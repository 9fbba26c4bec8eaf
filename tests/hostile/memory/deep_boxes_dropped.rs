//! expect: killed StackOverflow or ok or killed OutOfMemory
//! A chain of boxes across yields, dropped at the end.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Node(Option<Box<Node>>);

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let mut head = None;
    for n in 0..200_000u32 {
        head = Some(Box::new(Node(head)));
        if n % 10_000 == 0 {
            yield_now().await;
        }
    }
    let is = head.is_some_and(|node| node.0.is_some());
    db.reply(&[is as u8])
}
