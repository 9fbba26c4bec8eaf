//! Macros of a few lines: one that makes types, one that returns early.
//@ call: 7 -> User(7) of User, Order of 8 is another
//@ call: 8 -> more than 7
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

use sandstorm_api::prelude::*;

macro_rules! id {
    ($($name:ident),*) => { $(
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name(pub u64);

        impl $name {
            #[inline]
            pub fn name() -> &'static str {
                stringify!($name)
            }
        }
    )* };
}

id!(User, Order);

macro_rules! at_most {
    ($value:expr, $most:expr) => {
        if $value > $most {
            return Err(concat!("more than ", $most));
        }
    };
}

fn user(x: u64) -> Result<User, &'static str> {
    at_most!(x, 7);
    Ok(User(x))
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let x: u64 = core::str::from_utf8(args).ok().and_then(|text| text.parse().ok()).ok_or(Error::invalid("a number"))?;
    let reply = match user(x) {
        Ok(user) => {
            let (order, other) = (Order(x + 1), Order(x));
            let is_other = if order == other { "the same" } else { "another" };
            format!("{user:?} of {}, {} of {} is {is_other}", User::name(), Order::name(), order.0)
        }
        Err(why) => String::from(why),
    };
    db.reply(reply.as_bytes())
}
