//! Accounts, with typed functions: callers give and get structs, from any language.
//!
//! - accounts: the record under an account's name in the table `accounts` is its balance, u64; one that is not there
//!   has 0
//! - errors: one of its own where there is not enough to move; `Invalid` for the same account twice. Status `Conflict`:
//!   others moved from or to the same accounts each time that it was tried
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

/// An amount that goes from one account to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// The account that pays.
    pub from: String,
    /// The account that is paid.
    pub to: String,
    /// How much.
    pub amount: u64,
    /// What for.
    pub purpose: Option<Purpose>,
}

/// What an amount is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Purpose {
    Gift,
    Loan,
    Wage,
}

/// An account, and what is in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    pub name: String,
    pub balance: u64,
}

/// Both accounts after a transfer.
#[derive(Clone, Debug, PartialEq)]
pub struct Balances {
    pub from: Account,
    pub to: Account,
    pub purpose: Option<Purpose>,
}

/// Moves an amount, as one transaction.
pub async fn transfer(db: Db<'_>, args: Transfer) -> Result<Balances, Error> {
    if args.from == args.to {
        return Err(Error::invalid("from and to are the same account"));
    }
    let (table, accounts) = (db.table("accounts")?, db.transaction());
    let found = accounts.get_many(table, &[args.from.as_bytes(), args.to.as_bytes()]).await?;
    let mut balances = [0; 2];
    for (balance, found) in balances.iter_mut().zip(found) {
        *balance = u64::from_le_bytes(found.map_or(Ok([0; 8]), |record| record.value().try_into())?);
    }
    let from = balances[0].checked_sub(args.amount).ok_or(Error::new("the account has not as much"))?;
    let to = balances[1].checked_add(args.amount).ok_or(Error::new("the account cannot hold as much"))?;
    accounts.put(table, args.from.as_bytes(), &from.to_le_bytes())?;
    accounts.put(table, args.to.as_bytes(), &to.to_le_bytes())?;
    let account = |name, balance| Account { name, balance };
    Ok(Balances { from: account(args.from, from), to: account(args.to, to), purpose: args.purpose })
}

/// Puts an amount into an account; gives what is in it.
pub async fn deposit(db: Db<'_>, args: Account) -> Result<u64, Error> {
    let (table, accounts) = (db.table("accounts")?, db.transaction());
    let found = accounts.get(table, args.name.as_bytes()).await?;
    let balance = u64::from_le_bytes(found.map_or(Ok([0; 8]), |record| record.value().try_into())?);
    let balance = balance.checked_add(args.balance).ok_or(Error::new("the account cannot hold as much"))?;
    accounts.put(table, args.name.as_bytes(), &balance.to_le_bytes())?;
    Ok(balance)
}

/// The accounts of these names.
pub async fn statement(db: Db<'_>, names: Vec<String>) -> Result<Vec<Account>, Error> {
    let table = db.table("accounts")?;
    let keys: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    let mut balances = Vec::with_capacity(keys.len());
    for record in db.get_many(table, &keys).await? {
        balances.push(u64::from_le_bytes(record.map_or(Ok([0; 8]), |record| record.value().try_into())?));
    }
    Ok(names.into_iter().zip(balances).map(|(name, balance)| Account { name, balance }).collect())
}

/// What is to be done with accounts.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Nothing: to ask whether the bank is open.
    Nothing,
    /// Puts an amount into an account.
    Deposit(Account),
    /// Exchanges what is in two accounts.
    Swap(String, String),
    /// Moves an amount.
    Move {
        from: String,
        to: String,
        /// How much.
        amount: u64,
        purpose: Option<Purpose>,
    },
}

/// What was done.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Nothing,
    /// What is in the account now.
    Deposited(u64),
    Swapped(Account, Account),
    Moved {
        balances: Balances,
    },
}

/// Carries out an order.
pub async fn order(db: Db<'_>, order: Order) -> Result<Outcome, Error> {
    Ok(match order {
        Order::Nothing => Outcome::Nothing,
        Order::Deposit(account) => Outcome::Deposited(deposit(db, account).await?),
        Order::Move { from, to, amount, purpose } => {
            Outcome::Moved { balances: transfer(db, Transfer { from, to, amount, purpose }).await? }
        }
        Order::Swap(one, other) => {
            let (table, accounts) = (db.table("accounts")?, db.transaction());
            let found = accounts.get_many(table, &[one.as_bytes(), other.as_bytes()]).await?;
            let mut balances = [0; 2];
            for (balance, found) in balances.iter_mut().zip(found) {
                *balance = u64::from_le_bytes(found.map_or(Ok([0; 8]), |record| record.value().try_into())?);
            }
            let [first, second] = balances;
            accounts.put(table, one.as_bytes(), &second.to_le_bytes())?;
            accounts.put(table, other.as_bytes(), &first.to_le_bytes())?;
            Outcome::Swapped(Account { name: one, balance: second }, Account { name: other, balance: first })
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandstorm_api::testing::TestStore;

    fn account(name: &str, balance: u64) -> Account {
        Account { name: name.into(), balance }
    }

    #[test]
    fn what_one_account_pays_the_other_has() {
        let mut store = TestStore::new();
        store.table("accounts");
        assert_eq!(store.call(deposit, account("ann", 10)), Ok(10));
        let order = Transfer { from: "ann".into(), to: "bob".into(), amount: 4, purpose: Some(Purpose::Gift) };
        let paid = store.call(transfer, order.clone()).expect("a transfer");
        assert_eq!((paid.from, paid.to, paid.purpose), (account("ann", 6), account("bob", 4), Some(Purpose::Gift)));
        let refused = store.call(transfer, Transfer { amount: 7, ..order.clone() }).unwrap_err();
        assert_eq!(refused.text(), "the account has not as much");
        let same = store.call(transfer, Transfer { to: "ann".into(), ..order }).unwrap_err();
        assert_eq!(same.kind(), ErrorKind::Invalid);
        let all = store.call(statement, ["bob", "nobody", "ann"].map(String::from).to_vec());
        assert_eq!(all, Ok([account("bob", 4), account("nobody", 0), account("ann", 6)].to_vec()));
    }
    #[test]
    fn orders_are_carried_out() {
        let mut store = TestStore::new();
        store.table("accounts");
        assert_eq!(store.call(order, Order::Nothing), Ok(Outcome::Nothing));
        assert_eq!(store.call(order, Order::Deposit(account("ann", 10))), Ok(Outcome::Deposited(10)));
        let moved = Order::Move { from: "ann".into(), to: "bob".into(), amount: 4, purpose: None };
        let balances = Balances { from: account("ann", 6), to: account("bob", 4), purpose: None };
        assert_eq!(store.call(order, moved), Ok(Outcome::Moved { balances }));
        let swapped = store.call(order, Order::Swap("ann".into(), "bob".into()));
        assert_eq!(swapped, Ok(Outcome::Swapped(account("ann", 4), account("bob", 6))));
    }
}
