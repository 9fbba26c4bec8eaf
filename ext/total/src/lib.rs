//! Adds up numbers that a Redis client has stored: `FCALL total numkeys key... table`.
//!
//! - args: the keys and the name of their table, as `sandstorm_api::redis` has them
//! - reply: the sum of the decimal numbers under the keys, in decimal; keys without a record count nothing
//! - errors: `Invalid` for other arguments, for a value that is no number and for a sum that does not fit
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;
use sandstorm_api::redis::Call;

/// Replies with the sum of the numbers under the keys.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let call = Call::parse(args).ok_or(Error::invalid("to be called by FCALL"))?;
    let name = call.args().next().and_then(|name| core::str::from_utf8(name).ok());
    let table = db.table(name.ok_or(Error::invalid("FCALL total numkeys key... table"))?)?;
    let keys: Vec<&[u8]> = call.keys().collect();
    let mut sum = 0i64;
    for record in db.get_many(table, &keys).await?.into_iter().flatten() {
        let number = core::str::from_utf8(record.value())?.parse::<i64>()?;
        sum = sum.checked_add(number).ok_or(Error::invalid("the sum does not fit in 64 bits"))?;
    }
    db.reply(sum.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use sandstorm_api::redis::encode;
    use sandstorm_api::testing::TestStore;

    use super::*;

    #[test]
    fn numbers_are_added_up() {
        let mut store = TestStore::new();
        let table = store.table("items");
        store.put(table, b"apple", b"3");
        store.put(table, b"pear", b"-5");
        store.put(table, b"text", b"x");
        let mut total = |keys: &[&[u8]], args: &[&[u8]]| store.invoke(run, &encode(keys, args));
        assert_eq!(total(&[b"apple", b"nothing", b"pear"], &[b"items"]).expect("a sum"), b"-2");
        assert_eq!(total(&[], &[b"items"]).expect("a sum"), b"0");
        assert!(total(&[b"text"], &[b"items"]).is_err());
        assert!(total(&[b"apple"], &[]).is_err());
    }
}
