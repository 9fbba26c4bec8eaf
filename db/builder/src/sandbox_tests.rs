//! Tests of the limits of a confined process. They run through this test binary, which has threads and so gets no user
//! namespace: unless root runs them, they cover the weaker of the two sandboxes. `tests/extensions/builder.rs` tests
//! the binary's own.

use std::path::Path;
use std::time::Duration;

use super::confined_command::{CompilerOutcome, ConfinedCommand};
use super::tests::sandboxed;
use super::{BuildError, CompileLimits};

/// Runs a shell script in the sandbox with a scratch folder of its own; `None` where there is no sandbox.
fn shell(script: &str, limits: &CompileLimits) -> Option<Result<CompilerOutcome, BuildError>> {
    let job = sandboxed()?;
    let folder = super::tests::toolchain().scratch.folder("shell-").expect("a folder");
    let bash = Path::new("/bin/bash");
    if !bash.exists() {
        eprintln!("skipped: no /bin/bash");
        return None;
    }
    let readable = ["/bin", "/usr/bin"].map(Into::into).to_vec();
    let arguments = vec!["-c".into(), script.into()];
    let (cpu, wall) = (limits.cpu, limits.wall);
    Some(job.launcher.run(&ConfinedCommand {
        program: bash,
        arguments,
        folder: folder.path(),
        readable,
        limits,
        cpu,
        wall,
    }))
}

fn limits() -> CompileLimits {
    CompileLimits { cpu: Duration::from_secs(2), wall: Duration::from_secs(60), ..CompileLimits::default() }
}

#[track_caller]
fn fails_with(script: &str, what: &str) {
    let Some(outcome) = shell(script, &limits()) else { return };
    let outcome = outcome.expect("it runs");
    assert!(!outcome.success, "`{script}` succeeded");
    // Files that are forbidden in the weaker sandbox do not exist in the stronger one.
    let absent =
        what == "Permission denied" && ["No such file", "Read-only"].iter().any(|why| outcome.stderr.contains(why));
    assert!(outcome.stderr.contains(what) || absent, "`{script}`: {}", outcome.stderr);
}

#[track_caller]
fn limited(script: &str, limits: &CompileLimits, what: &str) {
    let Some(outcome) = shell(script, limits) else { return };
    match outcome {
        Err(BuildError::Limit(why)) => assert!(why.contains(what), "`{script}`: {why}"),
        Ok(outcome) => panic!("`{script}` ran to its end: {} {}", outcome.success, outcome.stderr),
        Err(error) => panic!("`{script}`: {error}"),
    }
}

#[test]
fn it_runs_and_writes_in_its_own_folder() {
    let Some(outcome) = shell("echo one > file && read line < file && [ $line = one ]", &limits()) else { return };
    let outcome = outcome.expect("it runs");
    assert!(outcome.success, "{}", outcome.stderr);
}

#[test]
fn it_sees_no_file_but_its_own() {
    let state = super::tests::state();
    std::fs::write(state.join("secret"), "secret").expect("a file");
    fails_with("read line < /etc/passwd", "Permission denied");
    fails_with(&format!("read line < {}/secret", state.display()), "Permission denied");
    fails_with("echo x > /tmp/sandstorm-escaped", "Permission denied");
    fails_with("ls /root", "Permission denied");
    assert!(!Path::new("/tmp/sandstorm-escaped").exists());
}

#[test]
fn it_inherits_no_environment() {
    fails_with("[ -n \"$HOME$CARGO_MANIFEST_DIR$SANDSTORM_SANDBOX_POLICY\" ] || { echo none >&2; false; }", "none");
}

#[test]
fn it_opens_no_socket() {
    fails_with("echo x > /dev/tcp/127.0.0.1/80", "Function not implemented");
}

#[test]
fn it_makes_no_namespace() {
    fails_with("unshare --user true", "");
}

#[test]
fn cpu_time_is_limited() {
    limited("while :; do :; done", &limits(), "CPU time");
}

#[test]
fn waiting_is_limited() {
    let few = CompileLimits { wall: Duration::from_millis(300), ..limits() };
    match shell("sleep 1000", &few) {
        // Where the machine has no time even to start it, the error says so.
        None | Some(Err(BuildError::Limit(_) | BuildError::Busy(_))) => {}
        Some(Err(error)) => panic!("{error}"),
        Some(Ok(_)) => panic!("it slept to its end"),
    }
}

#[test]
fn cpu_time_of_all_processes_counts_together() {
    let few = CompileLimits { cpu: Duration::from_secs(1), ..limits() };
    match shell("for n in 1 2 3 4; do while :; do :; done & done; wait; sleep 1000", &few) {
        None | Some(Err(BuildError::Limit(_) | BuildError::Busy(_))) => {}
        Some(Err(error)) => panic!("{error}"),
        Some(Ok(_)) => panic!("it ran to its end"),
    }
}

#[test]
fn all_files_count_together() {
    let few = CompileLimits { scratch_bytes: 1 << 20, ..limits() };
    limited("for n in 1 2 3 4; do printf %0600000d 1 > $n; done; sleep 1000", &few, "MiB of files");
}

#[test]
fn files_are_limited() {
    limited("printf %0100000d 1 > big", &CompileLimits { file_bytes: 10_000, ..limits() }, "a file of more than");
}

#[test]
fn output_is_limited() {
    let few = CompileLimits { output_bytes: 1000, ..limits() };
    limited("while :; do echo 0123456789 >&2; done", &few, "printed more than");
}
