//! expect: ok
//! rust-lang/rust 158206: a comparison that is true where it is tested, and nowhere else.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

/// The compiler of these extensions optimised the comparison away where a branch follows in the same block, and left
/// what else uses its result with nothing: `load undef`.
#[inline]
fn count(kind: u32, seen: &mut u64) -> bool {
    let same = kind == 5;
    *seen += same as u64;
    same
}

#[inline(never)]
fn looked_up(kind: u32, table: &[u64; 2]) -> Option<u64> {
    let mut seen = 0;
    if !count(kind, &mut seen) {
        return None;
    }
    Some(table[seen as usize])
}

/// The same with a result of another kind in its place: what a bit that was never set is used for.
pub enum Kept {
    Bytes([u8; 15]),
    Flag(bool),
}

#[inline]
fn keep(kind: u32, kept: &mut Kept) -> bool {
    let same = kind == 5;
    *kept = Kept::Flag(same);
    same
}

#[inline(never)]
fn kept(kind: u32, table: &[u64; 2], mut kept: Kept) -> Option<u64> {
    if !keep(kind, &mut kept) {
        return None;
    }
    match core::hint::black_box(&kept) {
        Kept::Flag(flag) => Some(table[*flag as usize]),
        Kept::Bytes(_) => None,
    }
}

/// Found in the wild: one byte of an enum is compared.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Word,
    Other,
}

pub struct Reader(usize);

impl Reader {
    fn peek(&self, kinds: &[Kind; 4]) -> Kind {
        kinds[self.0 % 4]
    }

    #[inline]
    fn take(&mut self, kinds: &[Kind; 4]) -> bool {
        let taken = self.peek(kinds) == Kind::Word;
        self.0 += taken as usize;
        taken
    }
}

#[inline(never)]
fn read(kinds: &[Kind; 4], mut reader: Reader) -> usize {
    if !reader.take(kinds) {
        return 0;
    }
    reader.0
}

pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let five = core::hint::black_box(5);
    let table = core::hint::black_box([1, 2]);
    let kinds = core::hint::black_box([Kind::Word, Kind::Other, Kind::Word, Kind::Other]);
    let found = (looked_up(five, &table), kept(five, &table, Kept::Bytes([200; 15])), read(&kinds, Reader(0)));
    if found != (Some(2), Some(2), 1) {
        return Err(Error::new(format!("{found:?}: what was compared is equal and is not")));
    }
    db.reply(b"equal")
}
