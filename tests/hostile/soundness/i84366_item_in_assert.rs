//! expect: refused macro-body
//! rust-lang/rust 84366: the same in another macro.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
fn attack() -> String {
    assert!({
        struct Hidden<Q>(Q);
        impl<Q: core::fmt::Debug> Hidden<Q> { fn erase<'l>(self, _: Option<&'l Q>) -> Box<dyn core::fmt::Debug + 'l> { Box::new(self.0) } }
        Hidden(1).erase(None);
        true
    });
    String::new()
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
