//! The Redis protocol on a tenant's tables.
//!
//! - `session`: one connection: finds commands, prefetches what a batch of them will read, runs them in order
//! - `commands`: the table of all commands; `call`: what a handler is given
//! - `strings`, `numbers`, `expiry`, `keys`: commands on records; all that read and write do so in one `Table::update`
//! - `bits`, `lcs`: commands on parts of values whose work has a bound of its own
//! - `pieces`: commands that can take long, and are run in pieces
//! - `transactions`, `held`: MULTI and EXEC, and what has to happen to several keys at once
//! - `functions`: FCALL; `connection`, `clients`, `server`, `settings`, `info`, `introspect`: the rest; `absent`: what is not there, and what to do instead

mod absent;
mod bits;
mod call;
mod clients;
mod commands;
mod connection;
mod expiry;
mod float;
mod functions;
mod glob;
mod held;
mod info;
mod introspect;
mod keys;
mod lcs;
mod numbers;
mod pieces;
mod server;
mod session;
mod settings;
mod state;
mod strings;
#[cfg(test)]
mod tests;
mod tracking;
mod transactions;

pub(crate) use session::Session;
