//! Audits a closed economy: transfers between its accounts must not change their sum.

use super::dataset::INITIAL_BALANCE;
use super::{Class, Data};
use crate::raw::{Connection, operation_error};
use crate::{Config, Error};

/// Accounts read in one message.
const ACCOUNTS_PER_MESSAGE: u64 = 32;

/// The result of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceAudit {
    /// The sum of all accounts.
    pub sum: u128,
    /// The sum that it has to be.
    pub wanted: u128,
}

impl BalanceAudit {
    /// Returns whether nothing was lost, or made.
    pub fn is_right(self) -> bool {
        self.sum == self.wanted
    }
}

/// Sums up all accounts of a load that has ended.
///
/// # Errors
/// As of any get; [`Error::Protocol`] where an account is not one.
pub fn audit(config: &Config, data: &Data) -> Result<BalanceAudit, Error> {
    let mut connection = Connection::connect(config)?;
    let (mut sum, mut key) = (0u128, Vec::new());
    for first in (0..data.accounts).step_by(ACCOUNTS_PER_MESSAGE as usize) {
        let mut message = connection.message();
        let last = (first + ACCOUNTS_PER_MESSAGE).min(data.accounts);
        for id in first..last {
            data.write_key_of(Class::Balance, id, &mut key);
            message.get(data.table, &key);
        }
        connection.send(0, message)?;
        let (mut result, mut ended) = (Ok(()), false);
        while !ended {
            let took = connection.poll(|_, answer| {
                ended = true;
                result = answer.and_then(|answer| {
                    for operation in answer.operations() {
                        let operation = operation?;
                        if let Some(error) = operation_error(&operation) {
                            return Err(error);
                        }
                        // An account that has nothing is not there.
                        let balance = operation.value.try_into().map(u64::from_le_bytes);
                        let none = operation.value.is_empty();
                        sum += u128::from(balance.or(if none { Ok(0) } else { Err(malformed_account()) })?);
                    }
                    Ok(())
                });
            });
            if took == 0 {
                std::thread::yield_now();
            }
        }
        result?;
    }
    Ok(BalanceAudit { sum, wanted: u128::from(INITIAL_BALANCE) * u128::from(data.accounts) })
}

fn malformed_account() -> Error {
    Error::Protocol { text: "an account's record is not 8 bytes".into() }
}
