//! expect: refused impl-parameter
//! rust-lang/rust 84366: the object leaves through an argument.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::Display;
fn f<'x, I: Iterator>(_: &'x I, v: I::Item, out: &mut Vec<Box<dyn Display + 'x>>) where I::Item: Display { out.push(Box::new(v)) }
struct It<F>(F);
impl<T, F: Fn() -> T> Iterator for It<F> { type Item = T; fn next(&mut self) -> Option<T> { None } }
fn forget<'a>(v: &'a str, out: &mut Vec<Box<dyn Display>>) { f(&It(|| -> &'a str { loop {} }), v, out) }
fn attack() -> String { let mut out = vec![]; { let s = String::from("gone gone gone"); forget(&s, &mut out) }; out[0].to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
