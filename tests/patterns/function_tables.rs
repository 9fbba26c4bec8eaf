//! A table of names and function pointers, some of which are closures.
//@ call: len abc -> 3
//@ call: sum abc -> 294
//@ call: first abc -> 97
//@ call: other abc -> no such command
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

use sandstorm_api::prelude::*;

type Command = fn(&[u8]) -> u64;

const COMMANDS: &[(&str, Command)] =
    &[("len", len), ("sum", |x| x.iter().map(|x| u64::from(*x)).sum()), ("first", first)];

fn len(x: &[u8]) -> u64 {
    x.len() as u64
}

fn first(x: &[u8]) -> u64 {
    x.first().copied().map_or(0, u64::from)
}

fn call(name: &str, x: &[u8]) -> Option<u64> {
    let (_, command) = COMMANDS.iter().find(|(known, _)| *known == name)?;
    Some(command(x))
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let text = core::str::from_utf8(args).map_err(|_| Error::invalid("text"))?;
    let (name, rest) = text.split_once(' ').ok_or(Error::invalid("a command and its argument"))?;
    match call(name, rest.as_bytes()) {
        Some(number) => db.reply(number.to_string().as_bytes()),
        None => db.reply(b"no such command"),
    }
}
