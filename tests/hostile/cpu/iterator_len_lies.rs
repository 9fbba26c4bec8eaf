//! expect: killed Panic or killed OutOfMemory or killed TotalBudget or ok
//! Iterators that lie about their lengths.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Liar(u32);
impl Iterator for Liar {
    type Item = u32;
    fn next(&mut self) -> Option<u32> {
        self.0 += 1;
        (self.0 < 5000).then_some(self.0)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (3, Some(2))
    }
}
impl ExactSizeIterator for Liar {
    fn len(&self) -> usize {
        1
    }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let mut v: Vec<u32> = Liar(0).collect();
    v.splice(1..3, Liar(0));
    v.extend(Liar(0).rev_if());
    let b: Box<[u32]> = Liar(0).zip(Liar(0)).map(|(a, _)| a).collect();
    db.reply(&(v.len() + b.len()).to_le_bytes())
}

trait RevIf: Sized {
    fn rev_if(self) -> Self {
        self
    }
}
impl RevIf for Liar {}
