//! expect: ok or killed TotalBudget
//! Grows and shrinks so that size classes are crossed each time.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let mut v: Vec<u8> = Vec::new();
    for round in 0..400usize {
        v.resize((round * 7919) % 60_000, 1);
        v.shrink_to_fit();
        let copy = v.clone();
        assert_eq!(copy.iter().map(|b| usize::from(*b)).sum::<usize>(), v.len());
        if round % 50 == 0 {
            yield_now().await;
        }
    }
    db.reply(b"x")
}
