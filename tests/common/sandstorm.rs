//! The program that the tests run: `sandstorm` itself (db/src/main.rs), under a name of its own. Cargo tells a test
//! only where the programs of its own package are.

use std::process::ExitCode;

fn main() -> ExitCode {
    sandstorm::main()
}
