//! Both tiers of code side by side: the same sources as native libraries and as sandboxed images, by turns in one run.
//! Run: `cargo bench -p sandstorm-experiments --bench tiers`, with ` -- TEXT` for the rows that have the text. Ratios
//! within one run are what counts.
//!
//! It also prints how long the slices of an endless loop are in either tier.
//!
//! Each row: calls under way at once, nanoseconds of a call in each tier (medians of the rounds), and native /
//! sandboxed with the smallest and the largest ratio of a round. 1.00: as fast; 0.50: twice as long. The last rows do
//! the same for arithmetic without checks for overflow, and with them, in each tier, and for calls whose bytes are read
//! by hand and by types.

use std::collections::VecDeque;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use sandstorm_builder as builder;
use sandstorm_builder::{
    CompileJob, CompileLimits, CompilerLauncher, PushedSource, SourceFile, Toolchain, ToolchainConfig,
};
use sandstorm_catalog::{Directory, NewTable, NewTenant, TenantView};
use sandstorm_extension::{Budget, BudgetOverride, ExtensionLibrary, LoadedExtension};
use sandstorm_runtime::{Engine, InvocationHandle, PollOutcome, Watchdog};
use sandstorm_store::{Epochs, Participant, WriteOptions};

const ROUNDS: usize = 9;
/// Tenants by turns, none of which finds what it left: more than a worker keeps memories for.
const TENANTS: usize = 2_000;
/// CPU time of a slice beside another tenant, microseconds: that of the server's workers.
const CONTENDED_SLICE_US: u64 = 50;
/// Records of the table: more than the processor's caches hold.
const RECORDS: u64 = 1_000_000;
/// Records that the caches hold.
const HOT_RECORDS: u64 = 64;

const EMPTY: &str = "#![no_std]
use sandstorm_api::prelude::*;

/// Does nothing.
pub async fn run(_: Db<'_>, _: &[u8]) -> Result<(), Error> {
    Ok(())
}
";

const ENDLESS: &str = "#![no_std]
use sandstorm_api::prelude::*;

/// Never ends.
pub async fn run(_: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let mut number = 0_u64;
    loop {
        number = core::hint::black_box(number.wrapping_mul(3) + 1);
    }
}
";
/// Slices of the endless loop that are measured in each tier.
const SLICES: usize = 10_000;

/// Arithmetic without a read: what compilers make of it.
const KERNELS: &str = include_str!("kernels.rs");

/// The kernels, by their numbers.
const ARITHMETIC: [&str; 5] = ["hash loop", "dependent walk", "matrix product 64x64", "numbers parsed", "sorted map"];

/// The same code in two forms: native and sandboxed, say.
struct Pair {
    one: Arc<LoadedExtension>,
    other: Arc<LoadedExtension>,
}

struct TierBench {
    engine: Engine,
    participant: Participant,
    views: Vec<Arc<TenantView>>,
    toolchain: Toolchain,
    running: VecDeque<InvocationHandle>,
}

impl TierBench {
    fn new() -> TierBench {
        let watchdog = Watchdog::spawn().expect("a watchdog");
        let epochs = Epochs::new();
        let directory = Directory::new(Arc::clone(&epochs));
        let participant = epochs.register();
        let names: Vec<String> = (0..TENANTS).map(|tenant| format!("tenant-{tenant}")).collect();
        for name in &names {
            directory.create_tenant(NewTenant::named(name)).expect("a tenant");
            let table = NewTable {
                quota_bytes: Some(if *name == names[0] { 2 << 30 } else { 1 << 20 }),
                ..NewTable::named("records")
            };
            directory.create_table(name, table).expect("a table");
        }
        let snapshot = directory.snapshot();
        let views: Vec<_> = names.iter().map(|name| Arc::clone(snapshot.by_name(name).expect("it"))).collect();
        let state = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/extension-tests");
        let toolchain = Toolchain::prepare(&ToolchainConfig { state, ..Default::default() }).expect("a toolchain");
        let engine = Engine::new(&watchdog, 0).expect("an engine");
        TierBench { engine, participant, views, toolchain, running: VecDeque::new() }
    }

    /// Prints how much memory a loaded library takes beside the bytes of its file, in each tier.
    fn library_memory(&self) {
        /// Libraries, each loaded anew.
        const LIBRARIES: usize = 1_000;
        let resident = || -> usize {
            let status = std::fs::read_to_string("/proc/self/status").expect("a status");
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident memory");
            line.trim().trim_end_matches("kB").trim().parse().expect("a number")
        };
        let (elf, image) = self.build("get", include_str!("../ext/get/src/lib.rs"), "");
        for (tier, bytes) in [("native", &elf), ("sandboxed", &image)] {
            let before = resident();
            let load = |_| match tier {
                "native" => ExtensionLibrary::load(bytes, builder::api_fingerprint()),
                _ => ExtensionLibrary::load_sandboxed(bytes, builder::api_fingerprint()),
            };
            let libraries: Vec<_> = (0..LIBRARIES).map(|at| load(at).expect("it loads")).collect();
            let each = (resident() - before) as f64 / libraries.len() as f64;
            let file = bytes.len() as f64 / 1024.0;
            println!("a loaded library, {tier}: {each:.1} KiB of memory; its file has {file:.1} KiB");
        }
    }

    fn source(&self, name: &str, text: &str, libraries: &str) -> (PushedSource, CompileJob) {
        let manifest = format!("name = \"{name}\"\nlibraries = [{libraries}]\n");
        let files = vec![SourceFile { path: "src/lib.rs".into(), text: text.into() }];
        let job = CompileJob { launcher: CompilerLauncher::Unsandboxed, limits: CompileLimits::default() };
        (PushedSource::new(&manifest, files).expect("a source"), job)
    }

    /// A source as a native library and as a sandboxed image.
    fn build(&self, name: &str, text: &str, libraries: &str) -> (Vec<u8>, Vec<u8>) {
        let (source, job) = self.source(name, text, libraries);
        let elf = builder::compile(&self.toolchain, &source, &job).expect("a library");
        let image = builder::build_sandboxed(&self.toolchain, &source, &job).expect("an image").elf;
        (elf, image)
    }

    fn pair(&self, name: &str, text: &str, libraries: &str) -> Pair {
        let (elf, image) = self.build(name, text, libraries);
        loaded(name, &elf, &image)
    }

    /// The same without checks for overflow.
    fn unchecked_pair(&self, name: &str, text: &str) -> Pair {
        let (source, job) = self.source(name, text, "");
        let elf = builder::build_library_unchecked(&self.toolchain, &source, &job).expect("a library").elf;
        let image = builder::build_sandboxed_unchecked(&self.toolchain, &source, &job).expect("an image").elf;
        loaded(name, &elf, &image)
    }

    fn put(&self, key: &[u8], value: &[u8]) {
        let table = &self.views[0].table_by_name("records").expect("the table").table;
        table.put(&self.participant, table.hash(key), key, value, &WriteOptions::default(), 0).expect("room");
    }

    /// Runs calls, so many at once, of the case's tenants by turns; returns nanoseconds a call.
    fn calls(&mut self, extension: &Arc<LoadedExtension>, case: &Case<'_>, number: u64) -> f64 {
        let budget = Budget { total_us: 60_000_000, slice_us: 60_000_000, ..Budget::default() };
        let started = Instant::now();
        let mut begun = 0;
        self.engine.turn();
        while begun < number || !self.running.is_empty() {
            while begun < number && self.running.len() < case.at_once {
                let view = &self.views[begun as usize % case.tenants];
                let args = (case.args)(begun);
                self.running.push_back(self.engine.begin(view, extension, &args, budget).expect("it fits"));
                begun += 1;
            }
            let Some(mut invocation) = self.running.pop_front() else { break };
            let interleave = !self.running.is_empty();
            match self.engine.poll(&self.participant, &mut invocation, 0, interleave) {
                PollOutcome::Pending | PollOutcome::Preempted => self.running.push_back(invocation),
                PollOutcome::Done => {
                    black_box(invocation.reply());
                    self.engine.finish(&self.participant, invocation);
                }
                other => panic!("{other:?}: {}", String::from_utf8_lossy(invocation.text())),
            }
            self.engine.tidy();
        }
        started.elapsed().as_nanos() as f64 / number as f64
    }

    /// Prints how long the slices of an endless loop are beside another tenant's calls, as a worker limits them then.
    fn slices(&mut self, beside: &Pair) {
        if !is_wanted("slices of an endless loop") {
            return;
        }
        let endless = self.pair("endless", ENDLESS, "");
        let budget = Budget { total_us: 60_000_000, ..Budget::default() };
        let call = Case { name: "", at_once: 1, tenants: 1, number: 1, args: &|_| Vec::new() };
        self.engine.limit_slices(Some(CONTENDED_SLICE_US));
        for (tier, extension) in [("native", &endless.one), ("sandboxed", &endless.other)] {
            let mut slices_us = Vec::new();
            let mut invocation = self.engine.begin(&self.views[1], extension, &[], budget).expect("it fits");
            while slices_us.len() < SLICES {
                self.calls(&beside.other, &call, 1);
                let started = Instant::now();
                let polled = self.engine.poll(&self.participant, &mut invocation, 0, true);
                assert_eq!(polled, PollOutcome::Preempted, "{}", String::from_utf8_lossy(invocation.text()));
                slices_us.push(started.elapsed().as_nanos() as f64 / 1_000.0);
            }
            self.engine.finish(&self.participant, invocation);
            slices_us.sort_by(f64::total_cmp);
            let at = |share: f64| slices_us[((SLICES - 1) as f64 * share) as usize];
            let within = slices_us.partition_point(|us| *us <= 200.0) as f64 / SLICES as f64;
            println!(
                "an endless loop's slices, {tier}: p50 {:.0} us, p99 {:.0}, p99.9 {:.0}, longest {:.0}; \
                 {:.2} % up to 200 us",
                at(0.5),
                at(0.99),
                at(0.999),
                at(1.0),
                within * 100.0
            );
        }
        self.engine.limit_slices(None);
    }

    fn compare(&mut self, pair: &Pair, case: &Case<'_>) {
        if !is_wanted(case.name) {
            return;
        }
        let (mut ones, mut others, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let one = self.calls(&pair.one, case, case.number);
            let other = self.calls(&pair.other, case, case.number);
            // The first round warms up.
            if round > 0 {
                ones.push(one);
                others.push(other);
                ratios.push(one / other);
            }
        }
        let [one, other, ratio] = [&mut ones, &mut others, &mut ratios].map(|list| {
            list.sort_by(f64::total_cmp);
            list[list.len() / 2]
        });
        println!(
            "{:<34} {:>3} {one:>12.0} {other:>12.0}   {ratio:.2} ({:.2} to {:.2})",
            case.name,
            case.at_once,
            ratios[0],
            ratios[ratios.len() - 1]
        );
    }
}

/// Whether a row is among those that the command line names.
fn is_wanted(name: &str) -> bool {
    std::env::args().nth(1).is_none_or(|wanted| wanted.starts_with('-') || name.contains(&wanted))
}

struct Case<'a> {
    name: &'a str,
    at_once: usize,
    tenants: usize,
    number: u64,
    args: &'a dyn Fn(u64) -> Vec<u8>,
}

fn key_of(number: u64) -> Vec<u8> {
    format!("key-{number:026}").into_bytes()
}

/// A permutation of the records' numbers that looks random.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % RECORDS
}

fn main() {
    let mut bench = TierBench::new();
    let table_id = bench.views[0].table_by_name("records").expect("the table").id;
    for number in 0..RECORDS {
        let next = key_of(scattered(number + 1));
        let mut value = vec![next.len() as u8];
        value.extend(next);
        value.resize(100, 7);
        bench.put(&key_of(number), &value);
    }
    const LISTS: u64 = 10_000;
    for list in 0..LISTS {
        let mut value = Vec::new();
        for index in 0..32 {
            let key = key_of(scattered(list * 32 + index));
            value.extend((key.len() as u16).to_le_bytes());
            value.extend(key);
        }
        bench.put(format!("list-{list}").as_bytes(), &value);
    }
    let tree = decision_tree(6);
    bench.put(b"tree", &tree);
    let with_key = |rest: Vec<u8>| [table_id.to_le_bytes().to_vec(), rest].concat();
    let list_of = |number: u64| format!("list-{}", number % LISTS).into_bytes();
    bench.library_memory();
    println!("{:<34} {:>3} {:>12} {:>12}   native / sandboxed", "case", "n", "native ns", "sandboxed ns");

    let empty = bench.pair("empty", EMPTY, "");
    let none = |_: u64| Vec::new();
    for (name, tenants) in [
        ("empty call, same tenant", 1),
        ("empty call, two tenants by turns", 2),
        ("empty call, memory from fresh", TENANTS),
    ] {
        bench.compare(
            &empty,
            &Case { name, at_once: 1, tenants, number: 200_000 / tenants.isqrt() as u64, args: &none },
        );
    }
    bench.slices(&empty);
    let get = bench.pair("get", include_str!("../ext/get/src/lib.rs"), "");
    let get_args = |number: u64| with_key(key_of(scattered(number)));
    let chain = bench.pair("chain", include_str!("../ext/chain/src/lib.rs"), "");
    let chain_args = |number: u64| with_key([8_u32.to_le_bytes().to_vec(), key_of(scattered(number))].concat());
    let sum = bench.pair("aggregate", include_str!("../ext/aggregate/src/lib.rs"), "");
    let sum_args = |number: u64| with_key([0_u32.to_le_bytes().to_vec(), list_of(number)].concat());
    for at_once in [1, 32] {
        let case = |name, number, args| Case { name, at_once, tenants: 1, number, args };
        bench.compare(&get, &case("one get", 100_000, &get_args));
        bench.compare(&chain, &case("chain of 8", 50_000, &chain_args));
        bench.compare(&sum, &case("sum of 32", 20_000, &sum_args));
    }
    let digest = bench.pair("checksum", include_str!("../ext/checksum/src/lib.rs"), "\"hmac-sha256\"");
    let digest_args = |number: u64| with_key(list_of(number));
    bench.compare(&digest, &Case { name: "checksum", at_once: 8, tenants: 1, number: 5_000, args: &digest_args });
    let analysis = bench.pair("analysis", include_str!("../ext/analysis/src/lib.rs"), "");
    let analysis_args = |number: u64| {
        let parts = [table_id.to_le_bytes().to_vec(), 4_u16.to_le_bytes().to_vec(), b"tree".to_vec(), list_of(number)];
        with_key(parts.concat())
    };
    bench.compare(&analysis, &Case { name: "analysis", at_once: 8, tenants: 1, number: 10_000, args: &analysis_args });
    let kernels = bench.pair("kernels", KERNELS, "");
    for (index, name) in ARITHMETIC.iter().enumerate() {
        let args = move |_: u64| vec![index as u8];
        bench.compare(&kernels, &Case { name, at_once: 1, tenants: 1, number: 50, args: &args });
    }
    compare_checks(&mut bench, kernels);
    compare_types(&mut bench, table_id);
}

/// Compares a call whose bytes are read by hand with the same by types, in each tier.
fn compare_types(bench: &mut TierBench, table_id: u64) {
    const TYPED: &str = include_str!("typed_lookup.rs");
    let untyped = bench.pair("lookup", include_str!("untyped_lookup.rs"), "");
    let typed = bench.pair("lookup", TYPED, "");
    let (source, _) = bench.source("lookup", TYPED, "");
    let schema = builder::schema_of(&source).expect("types").expect("a typed function");
    let fingerprint = schema.functions[0].fingerprint;
    let args = |number: u64| {
        let key = key_of(scattered(number));
        let head =
            [&fingerprint.to_le_bytes()[..], &table_id.to_le_bytes(), &(key.len() as u32).to_le_bytes()].concat();
        [head, key].concat()
    };
    // They stay in the caches: what the types cost is a larger part of such a call.
    let hot = |number: u64| args(number % HOT_RECORDS);
    println!("{:<34} {:>3} {:>12} {:>12}   by hand / typed", "types", "n", "by hand ns", "typed ns");
    for (tier, one, other) in [("native", untyped.one, typed.one), ("sandboxed", untyped.other, typed.other)] {
        let pair = Pair { one, other };
        for at_once in [1, 32] {
            let name = format!("one get, types, {tier}");
            bench.compare(&pair, &Case { name: &name, at_once, tenants: 1, number: 100_000, args: &args });
            let name = format!("one of few records, types, {tier}");
            bench.compare(&pair, &Case { name: &name, at_once, tenants: 1, number: 100_000, args: &hot });
        }
    }
}

/// Compares arithmetic without checks for overflow with the same with them, in each tier.
fn compare_checks(bench: &mut TierBench, kernels: Pair) {
    let unchecked = bench.unchecked_pair("kernels", KERNELS);
    println!("{:<34} {:>3} {:>12} {:>12}   unchecked / checked", "overflow checks", "n", "without ns", "with ns");
    let tiers = [("native", unchecked.one, kernels.one), ("sandboxed", unchecked.other, kernels.other)];
    for (tier, one, other) in tiers {
        let pair = Pair { one, other };
        for (index, name) in ARITHMETIC.iter().enumerate() {
            let (args, name) = (move |_: u64| vec![index as u8], format!("{name}, checks, {tier}"));
            bench.compare(&pair, &Case { name: &name, at_once: 1, tenants: 1, number: 50, args: &args });
        }
    }
}

/// A source's two forms, native and sandboxed.
fn loaded(name: &str, elf: &[u8], image: &[u8]) -> Pair {
    let fingerprint = builder::api_fingerprint();
    let native = ExtensionLibrary::load(elf, fingerprint).expect("it loads");
    let sandboxed = ExtensionLibrary::load_sandboxed(image, fingerprint).expect("it loads");
    let loaded = |library| Arc::new(LoadedExtension::new(name, 1, library, BudgetOverride::default()));
    Pair { one: loaded(native), other: loaded(sandboxed) }
}

/// A whole tree of so many levels, as `ext/analysis` reads it.
fn decision_tree(levels: u32) -> Vec<u8> {
    let inner = (1_u16 << levels) - 1;
    let mut bytes = Vec::new();
    for node in 0..2 * inner + 1 {
        let (feature, left, right) =
            if node < inner { (node % 12, 2 * node + 1, 2 * node + 2) } else { (u16::MAX, 0, 0) };
        for field in [feature, left, right, node % 5] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(i64::from(node).wrapping_mul(0x0101_0101_0101).to_le_bytes());
    }
    bytes
}
