//! The command line as users type it: the real binary, in processes of its own.

#[path = "../common/mod.rs"]
mod common;

mod cli;
mod exchange;
mod load;
mod readme;
