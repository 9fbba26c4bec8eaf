//! The command line of the server, and the server itself. It is a library, so that the shipped program and the tests'
//! program are the same few lines around it.
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

/// Runs the program: parses the process's arguments, runs the command, and returns the exit status.
#[must_use]
pub fn main() -> ExitCode {
    // The builder's own processes come first: they must not have started a thread yet.
    sandstorm_builder::process_mode().unwrap_or_else(cli::main)
}
