//! Promise: however often bad code is killed, the worker continues with right answers, and nothing is left behind: no
//! mapping, no open file, no memory. It is one test, so that no other code in the process changes these numbers.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::common::alone::ran_alone;
use sandstorm_builder as builder;
use sandstorm_builder::{
    CompileJob, CompileLimits, CompilerLauncher, PushedSource, SourceFile, Toolchain, ToolchainConfig,
};
use sandstorm_catalog::{Directory, NewTable, NewTenant, TenantView};
use sandstorm_extension::{Budget, BudgetOverride, ExtensionLibrary, KillCause, LoadedExtension};
use sandstorm_runtime::{Engine, PollOutcome, Watchdog};
use sandstorm_store::{Epochs, Participant, WriteOptions};

/// Modes of `ext/bad`, the end of each, and its budget of (slice, total) in microseconds.
const KINDS: [(&str, KillCause, (u64, u64)); 9] = [
    ("loop", KillCause::TotalBudget, (50, 500)),
    ("loop-scans", KillCause::TotalBudget, (50, 500)),
    ("memcpy", KillCause::TotalBudget, (50, 500)),
    ("slow-drop", KillCause::TotalBudget, (50, 500)),
    ("yields", KillCause::TotalBudget, (1_000_000, 100)),
    ("recursion", KillCause::StackOverflow, (1_000_000, 10_000_000)),
    ("frame", KillCause::StackOverflow, (1_000_000, 10_000_000)),
    ("allocation", KillCause::OutOfMemory, (1_000_000, 10_000_000)),
    ("panic", KillCause::Panic, (1_000_000, 10_000_000)),
];

/// Kills of each kind; `SANDSTORM_KILLS` asks for more.
const KILLS: usize = 500;
/// Good calls after each kill.
const GOOD_CALLS: usize = 10;

struct Worker {
    engine: Engine,
    participant: Participant,
    view: Arc<TenantView>,
}

impl Worker {
    fn run(&mut self, extension: &Arc<LoadedExtension>, args: &[u8], budget: Budget) -> (PollOutcome, Vec<u8>) {
        let mut invocation = self.engine.begin(&self.view, extension, args, budget).unwrap();
        let end = loop {
            match self.engine.poll(&self.participant, &mut invocation, 0, true) {
                PollOutcome::Pending | PollOutcome::Preempted => {}
                end => break end,
            }
        };
        let reply = invocation.reply().to_vec();
        self.engine.finish(&self.participant, invocation);
        self.participant.quiescent();
        (end, reply)
    }
}

fn library(toolchain: &Toolchain, name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ext").join(name);
    let manifest = fs::read_to_string(folder.join("extension.toml")).unwrap();
    let text = fs::read_to_string(folder.join("src/lib.rs")).unwrap();
    let source = PushedSource::new(&manifest, vec![SourceFile { path: "src/lib.rs".into(), text }]).unwrap();
    let job = CompileJob { launcher: CompilerLauncher::Unsandboxed, limits: CompileLimits::default() };
    builder::compile(toolchain, &source, &job).unwrap()
}

fn load(name: &str, elf: &[u8]) -> Arc<LoadedExtension> {
    let library = ExtensionLibrary::load(elf, builder::api_fingerprint()).unwrap();
    Arc::new(LoadedExtension::new(name, 1, library, BudgetOverride::default()))
}

/// Mappings, open files and resident pages of this process.
fn footprint() -> [usize; 3] {
    let mappings = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let files = fs::read_dir("/proc/self/fd").unwrap().count();
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    [mappings, files, pages.split(' ').nth(1).unwrap().parse().unwrap()]
}

#[test]
fn kills_leave_nothing_behind_and_affect_no_other_invocation() {
    if ran_alone(module_path!(), "kills_leave_nothing_behind_and_affect_no_other_invocation") {
        return;
    }
    let state = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/extension-tests");
    let toolchain = Toolchain::prepare(&ToolchainConfig { state, ..Default::default() }).unwrap();
    let (good_elf, bad_elf) = (library(&toolchain, "get"), library(&toolchain, "bad"));
    let epochs = Epochs::new();
    let directory = Directory::new(Arc::clone(&epochs));
    directory.create_tenant(NewTenant::named("ada")).unwrap();
    let entry = directory.create_table("ada", NewTable::named("numbers")).unwrap();
    let participant = epochs.register();
    entry.table.put(&participant, entry.table.hash(b"one"), b"one", b"first", &WriteOptions::default(), 0).unwrap();
    let view = Arc::clone(directory.snapshot().by_name("ada").unwrap());
    let watchdog = Watchdog::spawn().unwrap();
    let mut worker = Worker { engine: Engine::new(&watchdog, 0).unwrap(), participant, view };
    let good = load("get", &good_elf);
    let good_args = [entry.id.to_le_bytes().as_slice(), b"one"].concat();

    let mut round = |kills: usize| {
        for (kind, cause, (slice_us, total_us)) in KINDS {
            // A new version, which is unloaded after its last kill.
            let bad = load("bad", &bad_elf);
            let bad_args = [entry.id.to_le_bytes().as_slice(), kind.as_bytes()].concat();
            let budget = Budget { slice_us, total_us, ..Budget::default() };
            for _ in 0..kills {
                assert_eq!(worker.run(&bad, &bad_args, budget).0, PollOutcome::Killed(cause), "{kind}");
                for _ in 0..GOOD_CALLS {
                    // A budget with time for a good call, however slow the machine is.
                    let patient = Budget { slice_us: 1_000_000, total_us: 10_000_000, ..Budget::default() };
                    let answer = worker.run(&good, &good_args, patient);
                    assert_eq!(answer, (PollOutcome::Done, b"first".to_vec()), "after {kind}");
                }
            }
            assert_eq!((bad.stats.read().killed_total(), bad.stats.read().live()), (kills as u64, 0));
        }
    };
    let kills = std::env::var("SANDSTORM_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    round(20);
    let before = footprint();
    round(kills);
    let after = footprint();
    assert!(after[0] <= before[0] + 4, "mappings {before:?} -> {after:?}");
    assert_eq!(after[1], before[1], "open files {before:?} -> {after:?}");
    assert!(after[2] <= before[2] + 1024, "resident pages {before:?} -> {after:?}");
    assert_eq!(good.stats.read().ok, (KINDS.len() * GOOD_CALLS * (kills + 20)) as u64);
}
