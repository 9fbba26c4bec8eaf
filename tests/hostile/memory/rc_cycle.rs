//! expect: ok
//! A cycle of references that nothing frees but the arena.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

extern crate alloc;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    struct Ring(core::cell::RefCell<Option<alloc::rc::Rc<Ring>>>);
    let ring = alloc::rc::Rc::new(Ring(core::cell::RefCell::new(None)));
    *ring.0.borrow_mut() = Some(ring.clone());
    _db.reply(b"left behind")
}
