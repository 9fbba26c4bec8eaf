//! What each tenant uses: counters, the admission of its invocations, its request rate, its pushes, its recent kills, its Redis and memcached
//! clients; and tokens. It outlives changes of the tenant's settings.
#![forbid(unsafe_code)]

mod clients;
mod commands;
pub mod limits;
mod slow;
mod tallies;
pub mod token;
mod usage;

pub use clients::{Client, Clients, Entered, Stands};
pub use commands::CommandStat;
pub use slow::{Preview, Slow, SlowLog};
pub use tallies::{Row, Tally, Totals};
pub use token::TokenHash;
pub use usage::{Kill, MEMORY_TEXT, Notice, Pace, Usage, memory_units};
