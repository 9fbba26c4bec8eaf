//! A trait with parameters, for several of which one type has it.
//@ call: 7 -> "7" 14 [7, 0]
//@ call: 200 -> "200" 400 [200, 0]
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

use sandstorm_api::prelude::*;

trait Convert<T> {
    fn convert(self) -> T;
}

impl Convert<String> for u8 {
    fn convert(self) -> String {
        self.to_string()
    }
}

impl Convert<u64> for u8 {
    fn convert(self) -> u64 {
        u64::from(self) * 2
    }
}

impl<const N: usize> Convert<[u8; N]> for u8 {
    fn convert(self) -> [u8; N] {
        let mut bytes = [0; N];
        bytes[0] = self;
        bytes
    }
}

fn both<T>(x: impl Convert<T> + Copy) -> (T, T) {
    (x.convert(), x.convert())
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let x: u8 = core::str::from_utf8(args).ok().and_then(|text| text.parse().ok()).ok_or(Error::invalid("a number"))?;
    let (text, _): (String, String) = both(x);
    let (sum, _): (u64, u64) = both(x);
    let pair: [u8; 2] = x.convert();
    db.reply(format!("{text:?} {sum} {pair:?}").as_bytes())
}
