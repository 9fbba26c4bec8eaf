//! A trait with an associated type and a constant, for what is read from and written to a table.
//@ call: 7,8 -> u8 7, pair 7 8
//@ call: 255,0 -> u8 255, pair 255 0
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

use sandstorm_api::prelude::*;

trait Codec {
    const NAME: &'static str;
    type Value: PartialEq;
    fn read(&self, from: &[u8]) -> Option<Self::Value>;
    fn show(&self, value: &Self::Value) -> String;
}

struct Byte;

impl Codec for Byte {
    const NAME: &'static str = "u8";
    type Value = u8;

    fn read(&self, from: &[u8]) -> Option<u8> {
        from.first().copied()
    }

    fn show(&self, value: &u8) -> String {
        value.to_string()
    }
}

struct Pair<C>(C);

impl<C: Codec> Codec for Pair<C> {
    const NAME: &'static str = "pair";
    type Value = (C::Value, C::Value);

    fn read(&self, from: &[u8]) -> Option<Self::Value> {
        Some((self.0.read(from)?, self.0.read(from.get(1..)?)?))
    }

    fn show(&self, (first, second): &Self::Value) -> String {
        format!("{} {}", self.0.show(first), self.0.show(second))
    }
}

async fn stored<C: Codec>(db: Db<'_>, codec: &C, bytes: &[u8]) -> Result<String, Error> {
    let table = db.table("t")?;
    db.put(table, C::NAME.as_bytes(), bytes).await?;
    let record = db.get(table, C::NAME.as_bytes()).await?.ok_or(Error::not_found("what was just written"))?;
    let value = codec.read(record.value()).ok_or(Error::invalid("too short"))?;
    if codec.read(bytes).as_ref() != Some(&value) {
        return Err(Error::invalid("another value"));
    }
    Ok(format!("{} {}", C::NAME, codec.show(&value)))
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let text = core::str::from_utf8(args).map_err(|_| Error::invalid("text"))?;
    let bytes: Vec<u8> = text.split(',').filter_map(|part| part.parse().ok()).collect();
    let (one, two) = (stored(db, &Byte, &bytes).await?, stored(db, &Pair(Byte), &bytes).await?);
    db.reply(format!("{one}, {two}").as_bytes())
}
