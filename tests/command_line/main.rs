//! The command line as users type it: the real binary, in processes of its own.

#[path = "../common/mod.rs"]
mod common;

mod applications;
mod call_versions;
mod cli;
mod dev;
mod errors_by_name;
mod exchange;
mod generated;
#[allow(unreachable_pub, reason = "it is as users get it")]
mod generated_bank;
mod load;
mod mistakes;
mod page_programs;
mod page_samples;
mod page_table;
mod positions;
mod python;
mod readme;
mod refusals;
mod shell;
mod transaction;
mod typed;
mod typed_catalogue;
mod typed_redis;
mod typed_replies;
