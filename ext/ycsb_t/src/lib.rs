//! The closed economy of YCSB+T (Dey et al., ICDE workshops 2014): accounts whose sum never changes, so that a store's
//! transactions can be measured and put to the test at once. Each call is one transaction.
//!
//! - args: `table u64 | command u8`, then by command (integers little-endian)
//!   - 0, read: `account`; reply: `balance u64`
//!   - 1, transfer: `amount u64 | from_len u16 | from | to`; reply: `moved u64 | from u64 | to u64`, the balances
//!     afterwards. What the account has is moved if that is less than the amount: a workload needs no retries of its
//!     own for it
//!   - 2, audit: `count u32 | first account`, 1 to 1000 accounts whose keys end in a number, from that one on; reply:
//!     `sum u64 | counted u32 | missing u32`, all of one moment
//! - accounts: the record under a key begins with its balance, u64; what else is in it stays as it is. None is made or
//!   deleted here
//! - errors: `Invalid` for arguments that are not like that, both accounts the same among them, and for a record that
//!   is too short for a balance; `NotFound` for an account that is not there; one of its own where a balance or a sum
//!   passes 2^64. Nothing has changed then. Status `Conflict`: others changed the same accounts each time that it was
//!   tried
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const FORMAT: &str = "args: table u64, then u8:0 account, or u8:1 amount u64, from_len u16, from, to (another one), \
                      or u8:2 count u32 (1 to 1000), first account (it ends in a digit)";
const NO_ACCOUNT: &str = "there is no such account";
const TOO_SHORT: &str = "the record is too short for a balance";
/// Fewer than a transaction may read.
const MAX_AUDITED_ACCOUNTS: u32 = 1000;

/// Does what `args` say.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, rest) = args.split_first_chunk::<8>().ok_or(Error::invalid(FORMAT))?;
    let (table, tx) = (TableId(u64::from_le_bytes(*table)), db.transaction());
    match rest.split_first() {
        Some((0, account)) => {
            let found = tx.get(table, account).await?.ok_or(Error::not_found(NO_ACCOUNT))?;
            db.reply(&balance(found)?.to_le_bytes())
        }
        Some((1, rest)) => {
            let (amount, from, to) = parse_transfer(rest).ok_or(Error::invalid(FORMAT))?;
            let done = transfer(tx, table, amount, from, to).await?;
            done.iter().try_for_each(|number| db.reply(&number.to_le_bytes()))
        }
        Some((2, rest)) => {
            let (count, first) = parse_audit(rest).ok_or(Error::invalid(FORMAT))?;
            let (sum, counted, missing) = audit(tx, table, count, first).await?;
            db.reply(&sum.to_le_bytes())?;
            db.reply(&counted.to_le_bytes())?;
            db.reply(&missing.to_le_bytes())
        }
        _ => Err(Error::invalid(FORMAT)),
    }
}

/// What was moved, and both balances afterwards.
async fn transfer(tx: Transaction<'_>, table: TableId, amount: u64, from: &[u8], to: &[u8]) -> Result<[u64; 3], Error> {
    let found = tx.get_many(table, &[from, to]).await?;
    let (Some(giver), Some(taker)) = (found[0], found[1]) else { return Err(Error::not_found(NO_ACCOUNT)) };
    let moved = amount.min(balance(giver)?);
    let rest = balance(giver)? - moved;
    let sum = balance(taker)?.checked_add(moved).ok_or(Error::new("the account cannot hold as much"))?;
    for (account, balance) in [(giver, rest), (taker, sum)] {
        let mut value = account.value().to_vec();
        value[..8].copy_from_slice(&balance.to_le_bytes());
        tx.put_with(table, account.key(), &value, account.flags(), 0)?;
    }
    Ok([moved, rest, sum])
}

/// The sum of so many accounts, how many there are of them, and how many are not.
async fn audit(tx: Transaction<'_>, table: TableId, count: u32, first: &[u8]) -> Result<(u64, u32, u32), Error> {
    let mut accounts = Vec::with_capacity(count as usize);
    let mut next = Some(first.to_vec());
    while let Some(account) = next.take().filter(|_| accounts.len() < count as usize) {
        next = next_numbered_key(&account);
        accounts.push(account);
    }
    let (mut sum, mut counted) = (0_u64, 0);
    for found in tx.get_many(table, &accounts).await?.into_iter().flatten() {
        sum = sum.checked_add(balance(found)?).ok_or(Error::new("the sum passes 2^64"))?;
        counted += 1;
    }
    Ok((sum, counted, count - counted))
}

fn balance(account: TransactionRecord<'_>) -> Result<u64, Error> {
    let balance = account.value().first_chunk::<8>().ok_or(Error::invalid(TOO_SHORT))?;
    Ok(u64::from_le_bytes(*balance))
}

/// The key whose number is one more; `None` when all its digits are nines.
fn next_numbered_key(key: &[u8]) -> Option<Vec<u8>> {
    let mut key = key.to_vec();
    for digit in key.iter_mut().rev() {
        match *digit {
            b'9' => *digit = b'0',
            b'0'..=b'8' => {
                *digit += 1;
                return Some(key);
            }
            _ => return None,
        }
    }
    None
}

fn parse_transfer(args: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let (amount, rest) = args.split_first_chunk::<8>()?;
    let (from_len, rest) = rest.split_first_chunk::<2>()?;
    let (from, to) = rest.split_at_checked(usize::from(u16::from_le_bytes(*from_len)))?;
    (from != to).then_some((u64::from_le_bytes(*amount), from, to))
}

fn parse_audit(args: &[u8]) -> Option<(u32, &[u8])> {
    let (count, first) = args.split_first_chunk::<4>()?;
    let count = u32::from_le_bytes(*count);
    let numbered = first.last().is_some_and(u8::is_ascii_digit);
    (numbered && (1..=MAX_AUDITED_ACCOUNTS).contains(&count)).then_some((count, first))
}

#[cfg(test)]
mod tests {
    use sandstorm_api::testing::TestStore;

    use super::*;

    fn read(table: TableId, account: &str) -> Vec<u8> {
        [&table.0.to_le_bytes()[..], &[0], account.as_bytes()].concat()
    }

    fn transfer(table: TableId, amount: u64, from: &str, to: &str) -> Vec<u8> {
        let from_len = (from.len() as u16).to_le_bytes();
        [&table.0.to_le_bytes()[..], &[1], &amount.to_le_bytes(), &from_len, from.as_bytes(), to.as_bytes()].concat()
    }

    fn audit(table: TableId, count: u32, first: &str) -> Vec<u8> {
        [&table.0.to_le_bytes()[..], &[2], &count.to_le_bytes(), first.as_bytes()].concat()
    }

    fn numbers(numbers: &[u64]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn audited(sum: u64, counted: u32, missing: u32) -> Vec<u8> {
        [&sum.to_le_bytes()[..], &counted.to_le_bytes(), &missing.to_le_bytes()].concat()
    }

    /// Accounts `a098` to `a102` of 100 each, with something behind the balance.
    fn economy() -> (TestStore, TableId) {
        let mut store = TestStore::new();
        let table = store.table("accounts");
        for account in 98..103 {
            let value = [&100_u64.to_le_bytes()[..], b"name"].concat();
            store.put_with(table, format!("a{account:03}").as_bytes(), &value, 7, 0);
        }
        (store, table)
    }

    #[test]
    fn money_is_moved_and_neither_made_nor_lost() {
        let (mut store, table) = economy();
        assert_eq!(store.invoke(run, &transfer(table, 30, "a099", "a100")), Ok(numbers(&[30, 70, 130])));
        assert_eq!(store.invoke(run, &read(table, "a099")), Ok(numbers(&[70])));
        assert_eq!(
            store.invoke(run, &transfer(table, 71, "a099", "a100")),
            Ok(numbers(&[70, 0, 200])),
            "what there is"
        );
        assert_eq!(store.invoke(run, &transfer(table, 1, "a099", "a100")), Ok(numbers(&[0, 0, 200])));
        assert_eq!(store.get(table, b"a100"), Some(&[&200_u64.to_le_bytes()[..], b"name"].concat()[..]));
        assert_eq!(store.invoke(run, &audit(table, 5, "a098")), Ok(audited(500, 5, 0)));
        assert_eq!(store.invoke(run, &audit(table, 4, "a100")), Ok(audited(400, 3, 1)), "there is no a103");
        assert_eq!(store.invoke(run, &audit(table, 9, "a999")), Ok(audited(0, 0, 9)), "the digits end there");
    }

    /// Any sequence of transfers against plain arithmetic.
    #[test]
    fn transfers_do_what_a_ledger_says() {
        let (mut store, table) = economy();
        let (mut ledger, mut random) = ([100_u64; 5], 7_u64);
        for _ in 0..500 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (from, to, amount) = ((random >> 33) as usize % 5, (random >> 40) as usize % 5, (random >> 50) % 90);
            let name = |number: usize| format!("a{:03}", 98 + number);
            let answer = store.invoke(run, &transfer(table, amount, &name(from), &name(to)));
            if from == to {
                assert_eq!(answer, Err(Error::invalid(FORMAT)));
                continue;
            }
            let moved = amount.min(ledger[from]);
            (ledger[from], ledger[to]) = (ledger[from] - moved, ledger[to] + moved);
            assert_eq!(answer, Ok(numbers(&[moved, ledger[from], ledger[to]])));
            assert_eq!(store.invoke(run, &audit(table, 5, "a098")), Ok(audited(500, 5, 0)));
        }
    }

    #[test]
    fn an_audit_that_meets_a_transfer_runs_again() {
        let (mut store, table) = economy();
        let mut polls = 0;
        store.between_polls(move |store| {
            polls += 1;
            // Both sides of what moved 50, while it reads.
            if polls == 2 {
                store.put(table, b"a098", &50_u64.to_le_bytes());
                store.put(table, b"a102", &150_u64.to_le_bytes());
            }
        });
        assert_eq!(store.invoke(run, &audit(table, 5, "a098")), Ok(audited(500, 5, 0)));
    }

    #[test]
    fn what_cannot_be_is_refused_and_changes_nothing() {
        let (mut store, table) = economy();
        let refused = |store: &mut TestStore, args: &[u8]| store.invoke(run, args).unwrap_err().kind();
        for (from, to) in [("a098", "none"), ("none", "a098")] {
            assert_eq!(refused(&mut store, &transfer(table, 1, from, to)), ErrorKind::NotFound);
        }
        assert_eq!(refused(&mut store, &read(table, "none")), ErrorKind::NotFound);
        store.put(table, b"a098", &u64::MAX.to_le_bytes());
        assert_eq!(refused(&mut store, &transfer(table, 1, "a099", "a098")), ErrorKind::Other);
        assert_eq!(refused(&mut store, &audit(table, 2, "a098")), ErrorKind::Other);
        store.put(table, b"a098", b"short");
        for args in [transfer(table, 1, "a099", "a098"), read(table, "a098"), audit(table, 1, "a098")] {
            assert_eq!(refused(&mut store, &args), ErrorKind::Invalid);
        }
        assert_eq!(store.invoke(run, &read(table, "a099")), Ok(numbers(&[100])));
        for args in [audit(table, 0, "a098"), audit(table, 1001, "a098"), audit(table, 1, "a"), audit(table, 1, "")] {
            assert_eq!(store.invoke(run, &args), Err(Error::invalid(FORMAT)));
        }
        let whole = transfer(table, 1, "a099", "");
        for short in 0..whole.len() {
            assert_eq!(refused(&mut store, &whole[..short]), ErrorKind::Invalid, "{short}");
        }
        assert_eq!(refused(&mut store, &[&table.0.to_le_bytes()[..], &[3]].concat()), ErrorKind::Invalid);
    }
}
