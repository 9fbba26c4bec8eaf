//! expect: refused jump
//! The same by an operator of the tenant's own.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

struct To<'a>(Option<&'a mut u64>);
impl<'a> core::ops::AddAssign<(&mut Option<&'a str>, u64)> for To<'a> {
    fn add_assign(&mut self, _: (&mut Option<&'a str>, u64)) {}
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (mut to, mut kept) = (To(None), None);
    loop {
        to += (&mut kept, if args.is_empty() { break } else { 1 });
    }
    db.reply(&[])
}
