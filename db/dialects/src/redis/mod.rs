//! The Redis protocol on a tenant's tables.
//!
//! - `session`: one connection: finds commands, prefetches what a batch of them will read, runs them in order
//! - `commands`: the table of all commands; `dispatch`: their handlers; `command_call`: what a handler is given
//! - `strings`, `numbers`, `expiry`, `keys`: commands on records; all that read and write do so in one `Table::update`
//! - `bits`, `lcs`: commands on parts of values, whose work has a limit of its own
//! - `long_commands`: commands that can take long and are run in pieces
//! - `transactions`, `stripe_locks`: MULTI and EXEC, and other changes of several keys at once
//! - `functions`, `typed_calls`: FCALL; `connection`, `clients`, `server`, `settings`, `info`, `introspect`: the rest;
//!   `unsupported`: missing commands, and their alternatives

mod arguments;
mod backed_changes;
mod backed_keys;
mod bits;
mod clients;
mod cluster;
mod command_call;
mod commands;
mod connection;
mod dispatch;
mod errors;
mod expiry;
mod float;
mod functions;
mod glob;
mod info;
mod introspect;
mod keys;
mod lcs;
mod long_commands;
mod numbers;
mod server;
mod session;
mod session_state;
mod settings;
mod strings;
mod stripe_locks;
#[cfg(test)]
mod tests;
mod tracking;
mod transaction_state;
mod transactions;
mod typed_calls;
mod unsupported;

pub(crate) use session::RedisSession;
