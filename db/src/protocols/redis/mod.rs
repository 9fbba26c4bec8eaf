//! The Redis protocol on a tenant's tables.
//!
//! - `session`: one connection: finds commands, prefetches what a batch of them will read, runs them in order
//! - `commands`: the table of all commands; `call`: what a handler is given
//! - `strings`, `numbers`, `expiry`, `keys`: commands on records; all that read and write do so in one `Table::update`
//! - `pieces`: commands that can take long, and are run in pieces
//! - `transactions`, `held`: MULTI and EXEC, and what has to happen to several keys at once
//! - `functions`: FCALL; `connection`, `server`, `introspect`: the rest

mod call;
mod commands;
mod connection;
mod expiry;
mod float;
mod functions;
mod glob;
mod held;
mod introspect;
mod keys;
mod numbers;
mod pieces;
mod server;
mod session;
mod strings;
#[cfg(test)]
mod tests;
mod transactions;

pub(crate) use session::Session;
