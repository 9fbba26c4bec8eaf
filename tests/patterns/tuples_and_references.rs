//! Implementations of a trait of one's own for tuples, references, slices and str.
//@ call: apple -> 15 10
//@ call: é -> 6 4
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

use sandstorm_api::prelude::*;

trait Size {
    fn size(&self) -> usize;
}

impl<A: Size, B: Size> Size for (A, B) {
    fn size(&self) -> usize {
        self.0.size() + self.1.size()
    }
}

impl<T: Size + ?Sized> Size for &T {
    fn size(&self) -> usize {
        (**self).size()
    }
}

impl<T: Size> Size for [T] {
    fn size(&self) -> usize {
        self.iter().map(Size::size).sum()
    }
}

impl Size for str {
    fn size(&self) -> usize {
        self.len()
    }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let text = core::str::from_utf8(args).map_err(|_| Error::invalid("text"))?;
    let (tuple, list) = ((text, (text, text)).size(), [text, text][..].size());
    db.reply(format!("{tuple} {list}").as_bytes())
}
