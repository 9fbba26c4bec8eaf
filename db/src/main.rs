//! The Sandstorm server and its command line.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    sandstorm::main()
}
