//! Client of the extension bank of a Sandstorm server, made by `sandstorm ext generate`: do not edit.

use sandstorm_client::{Client, TypedCallError};
use serde::{Deserialize, Serialize};

/// What an amount is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    Gift,
    Loan,
    Wage,
}

/// An amount that goes from one account to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

/// An account, and what is in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Account {
    pub name: String,
    pub balance: u64,
}

/// Both accounts after a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Balances {
    pub from: Account,
    pub to: Account,
    pub purpose: Option<Purpose>,
}

/// What is to be done with accounts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Order {
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    Nothing,
    /// What is in the account now.
    Deposited(u64),
    Swapped(Account, Account),
    Moved {
        balances: Balances,
    },
}

/// The functions of the extension.
#[derive(Clone, Debug)]
pub struct BankClient {
    client: Client,
    version: u64,
}

impl BankClient {
    /// Calls by this client, which was opened by name.
    pub fn new(client: Client) -> BankClient {
        BankClient { client, version: 0 }
    }

    /// The same for a kept version of the extension. Its types have to be those of this file.
    pub fn at_version(&self, version: u64) -> BankClient {
        BankClient { client: self.client.clone(), version }
    }

    /// Moves an amount, as one transaction.
    pub async fn transfer(&self, args: &Transfer) -> Result<Balances, TypedCallError> {
        self.client.call_version("bank.transfer", self.version, args).await
    }

    /// Puts an amount into an account; gives what is in it.
    pub async fn deposit(&self, args: &Account) -> Result<u64, TypedCallError> {
        self.client.call_version("bank.deposit", self.version, args).await
    }

    /// The accounts of these names.
    pub async fn statement(&self, args: &[String]) -> Result<Vec<Account>, TypedCallError> {
        self.client.call_version("bank.statement", self.version, args).await
    }

    /// Carries out an order.
    pub async fn order(&self, args: &Order) -> Result<Outcome, TypedCallError> {
        self.client.call_version("bank.order", self.version, args).await
    }
}
