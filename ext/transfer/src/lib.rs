//! Moves an amount from one account to another, as one transaction: every reader finds the same sum, before, after,
//! and in between. A closed economy, so that a store's transactions can be put to the test.
//!
//! - args: `table u64 | amount u64 | from_len u16 | from | to` (integers little-endian; the second account's key is the
//!   rest)
//! - reply: `from u64 | to u64`, the balances afterwards
//! - accounts: the record under a key is its balance, u64; an account that is not there has 0, one with 0 is deleted
//! - errors: `Invalid` for arguments that are not like that, both accounts the same among them, and for a record that
//!   is no balance; one of its own where there is not enough to move. Nothing has changed then. Status `Conflict`:
//!   others moved from or to the same accounts each time that it was tried
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const FORMAT: &str = "args: table u64, amount u64, from_len u16, from, to (the rest), not the same";

/// Moves the amount in `args` from the first account there to the second.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, amount, from, to) =
        parse_args(args).filter(|(.., from, to)| from != to).ok_or(Error::invalid(FORMAT))?;
    let accounts = db.transaction();
    let mut balances = [0; 2];
    for (balance, found) in balances.iter_mut().zip(accounts.get_many(table, &[from, to]).await?) {
        *balance = u64::from_le_bytes(found.map_or(Ok([0; 8]), |record| record.value().try_into())?);
    }
    let from_rest = balances[0].checked_sub(amount).ok_or(Error::new("the account has not as much"))?;
    let to_sum = balances[1].checked_add(amount).ok_or(Error::new("the account cannot hold as much"))?;
    for (account, balance) in [(from, from_rest), (to, to_sum)] {
        if balance > 0 {
            accounts.put(table, account, &balance.to_le_bytes())?;
        } else {
            accounts.delete(table, account).await?;
        }
        db.reply(&balance.to_le_bytes())?;
    }
    Ok(())
}

fn parse_args(args: &[u8]) -> Option<(TableId, u64, &[u8], &[u8])> {
    let (table, rest) = args.split_first_chunk::<8>()?;
    let (amount, rest) = rest.split_first_chunk::<8>()?;
    let (from_len, rest) = rest.split_first_chunk::<2>()?;
    let (from, to) = rest.split_at_checked(usize::from(u16::from_le_bytes(*from_len)))?;
    Some((TableId(u64::from_le_bytes(*table)), u64::from_le_bytes(*amount), from, to))
}

#[cfg(test)]
mod tests {
    use sandstorm_api::testing::TestStore;

    use super::*;

    fn args(table: TableId, amount: u64, from: &[u8], to: &[u8]) -> Vec<u8> {
        let from_len = (from.len() as u16).to_le_bytes();
        [&table.0.to_le_bytes()[..], &amount.to_le_bytes(), &from_len, from, to].concat()
    }

    fn balances(from: u64, to: u64) -> Vec<u8> {
        [from.to_le_bytes(), to.to_le_bytes()].concat()
    }

    #[test]
    fn moves_what_there_is_and_no_more() {
        let mut store = TestStore::new();
        let table = store.table("accounts");
        store.put(table, b"ann", &100_u64.to_le_bytes());
        assert_eq!(store.invoke(run, &args(table, 30, b"ann", b"bob")), Ok(balances(70, 30)));
        assert_eq!(store.get(table, b"bob"), Some(&30_u64.to_le_bytes()[..]));
        assert!(store.invoke(run, &args(table, 71, b"ann", b"bob")).is_err());
        assert_eq!(store.get(table, b"ann"), Some(&70_u64.to_le_bytes()[..]), "nothing was moved");
        assert_eq!(store.invoke(run, &args(table, 70, b"ann", b"bob")), Ok(balances(0, 100)));
        assert_eq!(store.get(table, b"ann"), None);
    }

    #[test]
    fn another_transfer_in_between_is_seen() {
        let mut store = TestStore::new();
        let table = store.table("accounts");
        store.put(table, b"ann", &100_u64.to_le_bytes());
        let mut polls = 0;
        store.between_polls(move |store| {
            polls += 1;
            // After the accounts were read, or while they are: whichever, it is run once more.
            if polls == 2 {
                store.put(table, b"bob", &5_u64.to_le_bytes());
            }
        });
        assert_eq!(store.invoke(run, &args(table, 30, b"ann", b"bob")), Ok(balances(70, 35)));
    }

    #[test]
    fn nothing_is_moved_where_not_all_fits_or_the_args_are_wrong() {
        let mut store = TestStore::new();
        let table = store.table("accounts");
        store.put(table, b"ann", &100_u64.to_le_bytes());
        store.limit_bytes(15);
        let refused = store.invoke(run, &args(table, 30, b"ann", b"bob")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
        assert_eq!((store.get(table, b"ann"), store.get(table, b"bob")), (Some(&100_u64.to_le_bytes()[..]), None));
        let whole = args(table, 30, b"ann", b"");
        for short in 0..whole.len() {
            assert_eq!(store.invoke(run, &whole[..short]), Err(Error::invalid(FORMAT)));
        }
        assert_eq!(store.invoke(run, &args(table, 1, b"ann", b"ann")), Err(Error::invalid(FORMAT)));
        store.put(table, b"odd", b"7");
        assert_eq!(store.invoke(run, &args(table, 1, b"ann", b"odd")).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
