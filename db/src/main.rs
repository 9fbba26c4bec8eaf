//! The Sandstorm server and its command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    sandstorm_db::builder::process_mode().unwrap_or(ExitCode::FAILURE)
}
