//! The command line of the server, and the server behind it. A library, so that the program that people run and the one
//! that the tests run are the same few lines around it.
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

/// Is the program: reads the process's arguments, does what they say, and gives the status to end with.
#[must_use]
pub fn main() -> ExitCode {
    // The builder's own processes first: they must not have started a thread yet.
    sandstorm_builder::process_mode().unwrap_or_else(cli::main)
}
