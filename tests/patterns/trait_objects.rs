//! Objects of a trait of one's own, in a list that is kept over an await.
//@ call: 4 -> holds
//@ call: 2 -> breaks at least 3
//@ call: 5 -> breaks even
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

use sandstorm_api::prelude::*;

trait Rule {
    fn name(&self) -> String;
    fn holds(&self, x: u64) -> bool;
}

struct Least(u64);

impl Rule for Least {
    fn name(&self) -> String {
        format!("at least {}", self.0)
    }

    fn holds(&self, x: u64) -> bool {
        x >= self.0
    }
}

struct Even;

impl Rule for Even {
    fn name(&self) -> String {
        String::from("even")
    }

    fn holds(&self, x: u64) -> bool {
        x % 2 == 0
    }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let x: u64 = core::str::from_utf8(args).ok().and_then(|text| text.parse().ok()).ok_or(Error::invalid("a number"))?;
    let rules: Vec<Box<dyn Rule>> = vec![Box::new(Least(3)), Box::new(Even)];
    let table = db.table("t")?;
    for rule in &rules {
        db.increment(table, rule.name().as_bytes(), 1).await?;
        if !rule.holds(x) {
            return db.reply(format!("breaks {}", rule.name()).as_bytes());
        }
    }
    db.reply(b"holds")
}
