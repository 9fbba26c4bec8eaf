//! expect: refused stale
//! By a method of a trait, in a generic implementation.
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

enum Never {}
fn never() -> Never { loop {} }
trait Clear {
    fn clear(&mut self) -> bool;
}
impl<T> Clear for Option<T> {
    fn clear(&mut self) -> bool {
        *self = None;
        true
    }
}
struct Holder<T> { inner: T }
impl<T> Holder<Option<Box<T>>> {
    fn read(&mut self) -> Option<&T> {
        match self.inner {
            Some(_) if self.inner.clear() && match never() {} => None,
            Some(ref found) => Some(&**found),
            None => None,
        }
    }
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let mut x = Holder { inner: Some(Box::new(7_u64)) };
    db.reply(&(x.read().copied().unwrap_or(1) as u64).to_le_bytes())
}
