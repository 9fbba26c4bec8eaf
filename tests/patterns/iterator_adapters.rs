//! An iterator adapter with a trait that gives it to all iterators.
//@ call: 1, 4,9 -> 1<4 4<9
//@ call: 5 -> none
//@ call: 5,5,3 -> 5=5 5>3
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

use core::cmp::Ordering;
use sandstorm_api::prelude::*;

pub struct Pairs<I: Iterator> {
    rest: I,
    last: Option<I::Item>,
}

impl<I: Iterator> Iterator for Pairs<I>
where
    I::Item: Clone,
{
    type Item = (I::Item, I::Item);

    fn next(&mut self) -> Option<(I::Item, I::Item)> {
        let next = self.rest.next()?;
        let last = self.last.replace(next.clone())?;
        Some((last, next))
    }
}

pub trait Paired: Iterator + Sized {
    fn pairs(mut self) -> Pairs<Self> {
        let last = self.next();
        Pairs { rest: self, last }
    }
}

impl<I: Iterator> Paired for I {}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let text = core::str::from_utf8(args).map_err(|_| Error::invalid("text"))?;
    let numbers = text.split(',').filter_map(|part| part.trim().parse::<u64>().ok());
    let sign = |a: u64, b: u64| match a.cmp(&b) {
        Ordering::Less => '<',
        Ordering::Equal => '=',
        Ordering::Greater => '>',
    };
    let shown: Vec<String> = numbers.pairs().map(|(a, b)| format!("{a}{}{b}", sign(a, b))).collect();
    let shown = if shown.is_empty() { String::from("none") } else { shown.join(" ") };
    db.reply(shown.as_bytes())
}
