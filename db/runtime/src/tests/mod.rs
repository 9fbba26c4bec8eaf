//! Tests of the extension runtime. Here: a small world to run invocations in, with this program's own functions or with
//! compiled sources as extensions.
//!
//! Guarantees: unsafe code is in functions that stand for a library's, bad ones among them. It only touches the
//! invocation that they are given or memory that is not there.
#![allow(unsafe_code)]

mod ahead;
mod budget;
mod calls;
mod counts;
mod grants;
mod guest_memories;
mod handed_on;
mod isolation;
mod judging;
mod kills;
mod library;
mod machine_code;
mod memory;
mod naps;
mod nested;
mod nested_typed;
mod own_calls;
mod parking;
mod positions;
mod preempt;
mod ranges;
mod sampling;
mod sandbox_limits;
mod sandboxed;
mod toolbox;
mod transactions;
mod waits;
mod walks;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::stack_switch::GuestFunction;
use super::*;
use sandstorm_builder as builder;
use sandstorm_catalog::{Directory, NewTable, NewTenant, TableEntry, TenantView};
use sandstorm_extension::{
    Budget, BudgetOverride, ExtensionLibrary, KillCause, LibraryVtable, LoadError, LoadedExtension, TransactionCounts,
    kill_text,
};
use sandstorm_store::{Epochs, Participant, WriteOptions};

/// Milliseconds since the Unix epoch, as the tests' invocations see it.
const NOW_MS: u64 = 1_700_000_000_000;

/// A tenant with one table, and a worker's needs. The engine stays on the thread that made it.
struct World {
    engine: Engine,
    participant: Participant,
    view: Arc<TenantView>,
    shared: Arc<SharedWorld>,
}

/// The state that several workers share.
struct SharedWorld {
    watchdog: Arc<Watchdog>,
    epochs: Arc<Epochs>,
    directory: Arc<Directory>,
}

impl SharedWorld {
    fn new() -> Arc<SharedWorld> {
        let epochs = Epochs::new();
        let directory = Directory::new(Arc::clone(&epochs));
        for name in ["ada", "bob"] {
            directory.create_tenant(NewTenant { open: false, ..NewTenant::named(name) }).unwrap();
            directory
                .create_table(name, NewTable { quota_bytes: Some(64 << 20), ..NewTable::named("numbers") })
                .unwrap();
        }
        Arc::new(SharedWorld { watchdog: Watchdog::spawn().unwrap(), epochs, directory })
    }

    fn view(&self, tenant: &str) -> Arc<TenantView> {
        Arc::clone(self.directory.snapshot().by_name(tenant).unwrap())
    }
}

impl World {
    fn new() -> World {
        World::on(SharedWorld::new(), 0)
    }

    fn on(shared: Arc<SharedWorld>, worker: usize) -> World {
        let engine = Engine::new(&shared.watchdog, worker).unwrap();
        World { engine, participant: shared.epochs.register(), view: shared.view("ada"), shared }
    }

    /// So many more tenants.
    fn crowd(&self, tenants: usize) -> Vec<Arc<TenantView>> {
        let of_crowd = |number: usize| {
            let name = format!("of-crowd-{number}");
            self.shared.directory.create_tenant(NewTenant::named(&name)).unwrap();
            self.shared.view(&name)
        };
        (0..tenants).map(of_crowd).collect()
    }

    fn table(&self) -> &TableEntry {
        self.view.table_by_name("numbers").unwrap()
    }

    fn put(&self, key: &[u8], value: &[u8]) {
        let table = &self.table().table;
        table.put(&self.participant, table.hash(key), key, value, &WriteOptions::default(), NOW_MS).unwrap();
    }

    fn begin(&mut self, extension: &Arc<LoadedExtension>, args: &[u8], budget: Budget) -> InvocationHandle {
        self.engine.begin(&self.view, extension, args, budget).unwrap()
    }

    fn poll(&mut self, invocation: &mut InvocationHandle) -> PollOutcome {
        self.engine.poll(&self.participant, invocation, NOW_MS, true)
    }

    /// Polls until the end.
    fn complete(&mut self, invocation: &mut InvocationHandle) -> PollOutcome {
        loop {
            match self.poll(invocation) {
                PollOutcome::Pending | PollOutcome::Preempted => {}
                end => return end,
            }
        }
    }

    /// Runs one invocation; returns how it ended, its reply and its text.
    fn run(&mut self, extension: &Arc<LoadedExtension>, args: &[u8], budget: Budget) -> (PollOutcome, Vec<u8>, String) {
        let mut invocation = self.begin(extension, args, budget);
        let end = self.complete(&mut invocation);
        let answer = (end, invocation.reply().to_vec(), String::from_utf8(invocation.text().to_vec()).unwrap());
        self.engine.finish(&self.participant, invocation);
        answer
    }
}

/// A small budget, for kinds that run into it.
fn short() -> Budget {
    Budget { slice_us: 50, total_us: 500, ..Budget::default() }
}

/// A budget that only endless code uses up, however slow the machine.
fn long() -> Budget {
    Budget { slice_us: 2_000_000, total_us: 10_000_000, ..Budget::default() }
}

/// An extension whose every poll is a call of `entry`.
fn native(entry: GuestFunction) -> Arc<LoadedExtension> {
    native_with(entry, entry, 64, 16)
}

/// One whose first poll is a call of `start` and whose later ones are calls of `poll`, with a future of that shape.
fn native_with(
    start: GuestFunction,
    poll: GuestFunction,
    future_size: usize,
    future_align: usize,
) -> Arc<LoadedExtension> {
    let vtable = LibraryVtable { future_size, future_align, start, poll };
    Arc::new(LoadedExtension::new("native", 1, ExtensionLibrary::of_this_program(vtable), BudgetOverride::default()))
}

/// Compiles and loads an extension, in the tier that the environment names (native by default); the toolchain is
/// prepared once per test run.
fn compiled(name: &str, text: &str) -> Arc<LoadedExtension> {
    if std::env::var_os(sandstorm_catalog::testing::CODE_VARIABLE).is_some_and(|code| code == "sandboxed") {
        return sandboxed(name, text);
    }
    let library = ExtensionLibrary::load(&compile(name, text), builder::api_fingerprint()).unwrap();
    Arc::new(LoadedExtension::new(name, 1, library, BudgetOverride::default()))
}

fn compile(name: &str, text: &str) -> Vec<u8> {
    try_compile(name, text).unwrap()
}

fn try_compile(name: &str, text: &str) -> Result<Vec<u8>, builder::BuildError> {
    builder::compile(toolchain(), &source(name, text), &job())
}

fn toolchain() -> &'static builder::Toolchain {
    static TOOLCHAIN: OnceLock<builder::Toolchain> = OnceLock::new();
    TOOLCHAIN.get_or_init(|| {
        let state = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/extension-tests");
        builder::Toolchain::prepare(&builder::ToolchainConfig { state, ..Default::default() }).unwrap()
    })
}

fn source(name: &str, text: &str) -> builder::PushedSource {
    let manifest = format!("name = \"{name}\"\nversion = \"1.0.0\"\nedition = \"2024\"\napi = 1\n");
    let file = builder::SourceFile { path: "src/lib.rs".into(), text: text.into() };
    builder::PushedSource::new(&manifest, vec![file]).unwrap()
}

fn job() -> builder::CompileJob {
    builder::CompileJob { launcher: builder::CompilerLauncher::Unsandboxed, limits: builder::CompileLimits::default() }
}

/// As [`sandboxed`], of a source that may contain unsafe code.
fn sandboxed_unsafe(name: &str, text: &str) -> Arc<LoadedExtension> {
    let image = builder::build_sandboxed_unsafe(toolchain(), &source(name, text), &job()).unwrap().elf;
    let library = ExtensionLibrary::load_sandboxed(&image, builder::api_fingerprint()).unwrap();
    Arc::new(LoadedExtension::new(name, 1, library, BudgetOverride::default()))
}

/// As [`compiled`], for the sandboxed tier.
fn sandboxed(name: &str, text: &str) -> Arc<LoadedExtension> {
    let image = builder::build_sandboxed(toolchain(), &source(name, text), &job()).unwrap().elf;
    let library = ExtensionLibrary::load_sandboxed(&image, builder::api_fingerprint()).unwrap();
    Arc::new(LoadedExtension::new(name, 1, library, BudgetOverride::default()))
}
