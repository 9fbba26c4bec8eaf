//! The Sandstorm server and its command line.
#![deny(unsafe_code)]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    // The builder's own processes first: they must not have started a thread yet.
    sandstorm_builder::process_mode().unwrap_or_else(cli::main)
}
