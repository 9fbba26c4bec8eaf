//! Tests that need a process of their own, though they share a program: they measure or change the whole process. They
//! run one at a time: they measure the machine as well.

use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Tells the process that it runs this one test alone.
const ALONE: &str = "SANDSTORM_TEST_ALONE";

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Returns `false` in the test's own process. Elsewhere it runs the test in such a process, checks that it passed, and
/// returns `true`.
///
/// A test begins with `if ran_alone(module_path!(), "its_name") { return; }`.
pub fn ran_alone(module: &str, test: &str) -> bool {
    let (_program, module) = module.split_once("::").expect("a module of a test program");
    let name = format!("{module}::{test}");
    if std::env::var(ALONE).is_ok_and(|alone| alone == name) {
        return false;
    }
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", &name, "--include-ignored", "--nocapture", "--test-threads=1"]);
    let output = command.env(ALONE, &name).output().expect("the program runs");
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    print!("{said}");
    eprint!("{complained}");
    assert!(output.status.success(), "{name} has failed in a process of its own: {}", output.status);
    assert!(said.contains("test result: ok. 1 passed"), "there is no test {name}");
    true
}
