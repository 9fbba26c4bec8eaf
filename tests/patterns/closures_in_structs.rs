//! Closures in structs, as a parameter and as objects with borrows.
//@ call: 5 -> 8
//@ call: 0 -> 3
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

use sandstorm_api::prelude::*;

type Hook<'a> = Box<dyn for<'x> Fn(&'x str) -> &'x str + 'a>;

pub struct Step<'a, F: Fn(u64) -> u64 + 'a> {
    run: F,
    hooks: Vec<Hook<'a>>,
}

impl<'a, F: Fn(u64) -> u64 + 'a> Step<'a, F> {
    pub fn run(&self, x: u64) -> u64 {
        self.hooks.iter().fold((self.run)(x), |sum, hook| sum + hook("ab").len() as u64)
    }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let x: u64 = core::str::from_utf8(args).ok().and_then(|text| text.parse().ok()).ok_or(Error::invalid("a number"))?;
    let cut = 1;
    let hooks: Vec<Hook<'_>> = vec![Box::new(|text| &text[cut..]), Box::new(|text| text.trim_end_matches('b'))];
    let step = Step { run: move |y| y + x, hooks };
    db.reply(step.run(1).to_string().as_bytes())
}
