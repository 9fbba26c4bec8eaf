//! expect: killed StackOverflow
//! A comparison that compares for ever.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Same;

impl PartialEq for Same {
    #[allow(clippy::only_used_in_recursion)]
    fn eq(&self, other: &Same) -> bool {
        let here = core::hint::black_box([1u8; 64]);
        core::hint::black_box(self == other) && here[0] == 1
    }
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(&[u8::from(Same == Same)])
}
