//! The cost of the extension runtime: a whole call, a yield, a host call, a kill by the watchdog. Run: `cargo bench -p
//! sandstorm-experiments --bench extensions`. Only ratios within one run mean anything on a shared machine.

use std::collections::VecDeque;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use sandstorm_builder as builder;
use sandstorm_builder::{
    CompileJob, CompileLimits, CompilerLauncher, PushedSource, SourceFile, Toolchain, ToolchainConfig,
};
use sandstorm_catalog::{Directory, NewTable, NewTenant, TenantView};
use sandstorm_extension::{Budget, BudgetOverride, ExtensionLibrary, LoadedExtension};
use sandstorm_runtime::{Engine, InvocationHandle, PollOutcome, Watchdog};
use sandstorm_store::{Epochs, Participant, WriteOptions};

/// `args`: how often to yield (u32), how often to get (u32), both little-endian.
const SOURCE: &str = r#"#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

/// Yields and gets as often as it is told.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let Some((yields, rest)) = args.split_first_chunk::<4>() else { return Ok(()) };
    for _ in 0..u32::from_le_bytes(*yields) {
        yield_now().await;
    }
    let gets: [u8; 4] = rest.try_into()?;
    for _ in 0..u32::from_le_bytes(gets) % u32::MAX {
        core::hint::black_box(db.get(TableId(1), b"key").await?);
    }
    while gets == [0xff; 4] {
        core::hint::black_box(());
    }
    Ok(())
}
"#;

/// Tenants of the cases in which successive calls are of different tenants: the number of side stacks that are kept.
const TENANTS: usize = 1_024;

/// Calls in flight at once in the cases with many.
const IN_FLIGHT: usize = 256;

struct ExtensionBench {
    running: VecDeque<InvocationHandle>,
    ended: Vec<InvocationHandle>,
    engine: Engine,
    participant: Participant,
    /// The tenants; most cases use the first alone.
    views: Vec<Arc<TenantView>>,
    view: Arc<TenantView>,
    extension: Arc<LoadedExtension>,
}

impl ExtensionBench {
    fn new() -> ExtensionBench {
        let watchdog = Watchdog::spawn().expect("a watchdog");
        let epochs = Epochs::new();
        let directory = Directory::new(Arc::clone(&epochs));
        let participant = epochs.register();
        let names: Vec<String> = (0..TENANTS).map(|tenant| format!("bench-{tenant}")).collect();
        for name in &names {
            directory.create_tenant(NewTenant::named(name.as_str())).expect("a tenant");
            let table = directory.create_table(name, NewTable::named("numbers")).expect("a table");
            let hash = table.table.hash(b"key");
            table.table.put(&participant, hash, b"key", &[7; 100], &WriteOptions::default(), 0).expect("room");
        }
        let snapshot = directory.snapshot();
        let view_of = |name: &String| Arc::clone(snapshot.by_name(name).expect("the tenant"));
        let views: Vec<_> = names.iter().map(view_of).collect();
        let view = Arc::clone(&views[0]);
        let engine = Engine::new(&watchdog, 0).expect("an engine");
        let (running, ended, extension) = (VecDeque::new(), Vec::new(), extension());
        ExtensionBench { running, ended, engine, participant, views, view, extension }
    }

    fn begin(&mut self, yields: u32, gets: u32) -> InvocationHandle {
        let args = [yields.to_le_bytes(), gets.to_le_bytes()].concat();
        self.begin_with(&args)
    }

    fn begin_with(&mut self, args: &[u8]) -> InvocationHandle {
        // Endless code must end as it does on a server; all other code may take as long as it needs.
        let total_us = if args.ends_with(&[0xff; 4]) { Budget::default().total_us } else { 60_000_000 };
        let budget = Budget { total_us, ..Budget::default() };
        self.engine.begin(&self.view, &self.extension, args, budget).expect("it fits")
    }

    fn complete(&mut self, invocation: &mut InvocationHandle, interleave: bool) -> PollOutcome {
        loop {
            match self.engine.poll(&self.participant, invocation, 0, interleave) {
                PollOutcome::Pending | PollOutcome::Preempted => {}
                end => return end,
            }
        }
    }

    /// Many calls in flight at once, polled in turn as a worker does.
    fn many_calls(&mut self, args: &[u8]) {
        self.engine.turn();
        self.running.extend(
            (0..IN_FLIGHT)
                .map(|_| self.engine.begin(&self.view, &self.extension, args, Budget::default()).expect("it fits")),
        );
        while let Some(mut invocation) = self.running.pop_front() {
            match self.engine.poll(&self.participant, &mut invocation, 0, true) {
                PollOutcome::Pending | PollOutcome::Preempted => self.running.push_back(invocation),
                end => {
                    black_box(end);
                    self.ended.push(invocation);
                }
            }
        }
        for invocation in self.ended.drain(..) {
            self.engine.finish(&self.participant, invocation);
        }
    }

    fn whole_call(&mut self, args: &[u8]) {
        let mut invocation = self.begin_with(args);
        black_box(self.complete(&mut invocation, false));
        self.engine.finish(&self.participant, invocation);
    }
}

fn extension() -> Arc<LoadedExtension> {
    let state = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/extension-tests");
    let toolchain = Toolchain::prepare(&ToolchainConfig { state, ..Default::default() }).expect("a toolchain");
    let manifest = "name = \"bench\"\nversion = \"1.0.0\"\nedition = \"2024\"\napi = 1\n";
    let files = vec![SourceFile { path: "src/lib.rs".into(), text: SOURCE.into() }];
    let source = PushedSource::new(manifest, files).expect("a source");
    let job = CompileJob { launcher: CompilerLauncher::Unsandboxed, limits: CompileLimits::default() };
    let elf = builder::compile(&toolchain, &source, &job).expect("a library");
    let library = ExtensionLibrary::load(&elf, builder::api_fingerprint()).expect("it loads");
    Arc::new(LoadedExtension::new("bench", 1, library, BudgetOverride::default()))
}

fn extensions(criterion: &mut Criterion) {
    let mut bench = ExtensionBench::new();
    let gets = |count: u32| [0_u32.to_le_bytes(), count.to_le_bytes()].concat();
    for (name, args) in [("no gets", gets(0)), ("four gets", gets(4)), ("a hundred gets", gets(100))] {
        criterion.bench_function(&format!("begin, poll, finish: {name}"), |b| b.iter(|| bench.whole_call(&args)));
    }
    // No two tenants share a side stack: this measures the change from one to another.
    for (tenants, which) in [(1, "the same tenant"), (2, "two tenants in turn"), (TENANTS, "1,024 tenants in turn")] {
        for (name, args) in [("an empty call", gets(0)), ("one get", gets(1))] {
            let mut turn = 0;
            criterion.bench_function(&format!("{name}: {which}"), |b| {
                b.iter(|| {
                    turn = (turn + 1) % tenants;
                    bench.view = Arc::clone(&bench.views[turn]);
                    bench.whole_call(&args);
                })
            });
        }
    }
    bench.view = Arc::clone(&bench.views[0]);
    criterion.bench_function("256 calls of one get, interleaved", |b| b.iter(|| bench.many_calls(&gets(1))));
    criterion.bench_function("poll that yields", |b| {
        b.iter_custom(|count| {
            let mut invocation = bench.begin(u32::MAX - 1, 0);
            let mut passed = Duration::ZERO;
            for _ in 0..count.div_ceil(1000) {
                bench.engine.turn();
                let start = Instant::now();
                for _ in 0..1000 {
                    black_box(bench.engine.poll(&bench.participant, &mut invocation, 0, true));
                }
                passed += start.elapsed();
            }
            bench.engine.finish(&bench.participant, invocation);
            passed.mul_f64(count as f64 / (count.div_ceil(1000) * 1000) as f64)
        })
    });
    criterion.bench_function("endless code: begin to end of finish, total 10 ms", |b| {
        b.iter(|| bench.whole_call(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]))
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = extensions
}
criterion_main!(benches);
