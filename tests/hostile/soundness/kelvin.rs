//! expect: refused identifier
//! A blanket impl by a parameter named with the Kelvin sign, which the compiler takes for a K.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn only<K: AsRef<[u8]>>(k: K) {}
trait Size { fn size(&self) -> usize; }
impl<K: AsRef<[u8]>> Size for K { fn size(&self) -> usize { self.as_ref().len() } }
fn attack() -> String { let n = vec![1u8].size(); n.to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
