//! Promise: sandboxed code never reads, ends or delays another tenant, whatever its source: here no checker has seen
//! it, and it may be unsafe code. The programs are those of tests/hostile; the folder `sandbox` has those that are made
//! for this.
//!
//! Each call ends in one of the known ways. Another tenant is served right meanwhile, on the same worker and on
//! another. No reply, text or record of the hostile tenant has bytes of a random canary, which is in the other tenant's
//! records, in its replies, in memory that its calls have used, and in the server's heap.
//!
//! `SANDSTORM_DEEP=1` runs all programs of all folders, and looks at every page of the 32-bit addresses.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rand::{Rng, RngCore};
use sandstorm_builder::{BuildError, PushedSource, api_fingerprint};
use sandstorm_catalog::{Directory, NewTable, NewTenant, TenantView};
use sandstorm_extension::{Budget, BudgetOverride, ExtensionLibrary, LoadedExtension};
use sandstorm_net::CodeTier;
use sandstorm_runtime::{self as extensions, Engine, PollOutcome, Watchdog};
use sandstorm_store::{Epochs, Participant, WriteOptions};

use crate::common::alone::ran_alone;
use crate::hostile::{End, Program, builder, programs};

const BUDGET: Budget = Budget { slice_us: 100, total_us: 50_000, memory_bytes: 4 << 20, reply_bytes: 1 << 20 };
const NOW_MS: u64 = 1_700_000_000_000;
/// Of the programs that are made for the native tier, an ordinary run has one in so many.
const ONE_IN: usize = 8;
/// Bytes from one address that a program looks at to the next: in an ordinary run, and in a deep one.
const STEP: u32 = 509 * 4096;
const DEEP_STEP: u32 = 4096;
/// Polls of a hostile call between two calls of the other tenant on the same worker.
const POLLS_BETWEEN: usize = 8;
/// Polls after which a call of the other tenant, which reads one record, counts as not answered.
const VICTIM_POLLS: usize = 1_000_000;
/// Known ends.
const ANY_END: &str = "ok or failed or killed";

fn is_deep() -> bool {
    std::env::var_os("SANDSTORM_DEEP").is_some()
}

/// Bytes that only their tenant may see.
#[derive(Clone)]
struct Canary {
    bytes: [u8; 32],
    /// Whether some eight bytes of it begin with these two.
    begins: Arc<[bool]>,
}

impl Canary {
    fn new() -> Canary {
        let mut bytes = [0; 32];
        rand::rng().fill_bytes(&mut bytes);
        let mut begins = vec![false; 1 << 16];
        bytes.windows(8).for_each(|window| begins[usize::from(u16::from_le_bytes([window[0], window[1]]))] = true);
        Canary { bytes, begins: begins.into() }
    }

    /// Returns whether eight bytes of it are among these.
    fn is_in(&self, bytes: &[u8]) -> bool {
        bytes.windows(8).any(|window| {
            self.begins[usize::from(u16::from_le_bytes([window[0], window[1]]))]
                && self.bytes.windows(8).any(|one| one == window)
        })
    }
}

/// The tenant that is to be left alone, and what it calls.
struct Victim {
    view: Arc<TenantView>,
    /// Replies with a record, in either tier.
    get: [Arc<LoadedExtension>; 2],
    canary: Canary,
    calls: usize,
    answered: usize,
}

impl Victim {
    /// Reads one of its records, and has the right answer.
    fn call(&mut self, engine: &mut Engine, participant: &Participant) {
        self.calls += 1;
        let table = self.view.table_by_name("t").expect("its table").id;
        let key = [b'k', (self.calls % 4) as u8];
        let args = [&table.to_le_bytes()[..], &key].concat();
        let mut invocation =
            engine.begin(&self.view, &self.get[self.calls % 2], &args, Budget::default()).expect("it begins");
        let end = (0..VICTIM_POLLS).find_map(|_| match engine.poll(participant, &mut invocation, NOW_MS, true) {
            PollOutcome::Pending | PollOutcome::Preempted => None,
            end => Some(end),
        });
        let Some(end) = end else { return engine.finish(participant, invocation) };
        self.answered += 1;
        assert_eq!(end, PollOutcome::Done, "{}", String::from_utf8_lossy(invocation.text()));
        let expected = self.canary.bytes.repeat(record_repeats(key[1]));
        assert!(invocation.reply() == expected, "the other tenant got a wrong answer");
        engine.finish(participant, invocation);
    }
}

/// How long the victim's record of a number is, in canaries.
fn record_repeats(number: u8) -> usize {
    [1, 30, 400, 5_000][usize::from(number)]
}

/// A server's parts, as far as calls need them.
struct World {
    directory: Arc<Directory>,
    engine: Engine,
    participant: Participant,
    victim: Victim,
    /// Copies of the canary in the server's own memory.
    _heap: Vec<Vec<u8>>,
    tenants: usize,
}

fn loaded(name: &str, image: &[u8], tier: CodeTier) -> Result<Arc<LoadedExtension>, String> {
    let library = match tier {
        CodeTier::Native => ExtensionLibrary::load(image, api_fingerprint()),
        CodeTier::Sandboxed => ExtensionLibrary::load_sandboxed(image, api_fingerprint()),
    };
    let library = library.map_err(|error| error.to_string())?;
    Ok(Arc::new(LoadedExtension::new(name, 1, library, BudgetOverride::default())))
}

/// A tenant with a table and a record.
fn tenant(directory: &Directory, participant: &Participant, name: &str) -> Arc<TenantView> {
    directory.create_tenant(NewTenant { open: false, ..NewTenant::named(name) }).expect("a tenant");
    directory.create_table(name, NewTable { quota_bytes: Some(8 << 20), ..NewTable::named("t") }).expect("a table");
    let view = Arc::clone(directory.snapshot().by_name(name).expect("the tenant"));
    put(&view, participant, b"k", b"v");
    view
}

fn put(view: &TenantView, participant: &Participant, key: &[u8], value: &[u8]) {
    let table = &view.table_by_name("t").expect("the table").table;
    table.put(participant, table.hash(key), key, value, &WriteOptions::default(), NOW_MS).expect("a put");
}

impl World {
    fn new(watchdog: &Watchdog) -> (World, Arc<Epochs>, Victim) {
        let epochs = Epochs::new();
        let directory = Directory::new(Arc::clone(&epochs));
        let participant = epochs.register();
        let canary = Canary::new();
        let view = tenant(&directory, &participant, "victim");
        for number in 0..4 {
            put(&view, &participant, &[b'k', number], &canary.bytes.repeat(record_repeats(number)));
        }
        let source = PushedSource::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../ext/get")).expect("ext/get");
        let get = [CodeTier::Native, CodeTier::Sandboxed].map(|tier| {
            let (artifact, _) = builder().build(1, 1, &source, tier).expect("ext/get builds");
            loaded("get", &artifact.elf, tier).expect("ext/get loads")
        });
        let heap = (0..1_000).map(|number| canary.bytes.repeat(1 + number % 60)).collect();
        assert!(canary.is_in(&canary.bytes[11..19]) && !canary.is_in(&[7; 4_000]), "what is looked for is found");
        let victim =
            || Victim { view: Arc::clone(&view), get: get.clone(), canary: canary.clone(), calls: 0, answered: 0 };
        let engine = Engine::new(watchdog, 0).expect("an engine");
        let (here, there) = (victim(), victim());
        (World { directory, engine, participant, victim: here, _heap: heap, tenants: 0 }, epochs, there)
    }

    /// Calls a hostile extension once, and the victim's between its polls.
    fn call(&mut self, view: &Arc<TenantView>, extension: &Arc<LoadedExtension>, args: &[u8]) -> (End, Vec<u8>) {
        let World { engine, participant, victim, .. } = self;
        let mut invocation = match engine.begin(view, extension, args, BUDGET) {
            Ok(invocation) => invocation,
            Err(error) => return (End { word: "failed", details: Vec::new(), note: error.to_string() }, Vec::new()),
        };
        let mut polls = 0;
        let polled = loop {
            match engine.poll(participant, &mut invocation, NOW_MS, true) {
                PollOutcome::Pending | PollOutcome::Preempted if polls % POLLS_BETWEEN == 0 => {
                    victim.call(engine, participant);
                    participant.quiescent();
                }
                PollOutcome::Pending | PollOutcome::Preempted => {}
                ended => break ended,
            }
            polls += 1;
        };
        let text = String::from_utf8_lossy(invocation.text()).into_owned();
        let reply = invocation.reply().to_vec();
        engine.finish(participant, invocation);
        engine.tidy();
        victim.call(engine, participant);
        (End::of(polled, text), reply)
    }

    /// Runs a program in all its variants; returns what was wrong.
    fn run(&mut self, program: &Program, image: &[u8]) -> Vec<String> {
        let extension = match loaded("hostile", image, CodeTier::Sandboxed) {
            Ok(extension) => extension,
            Err(error) => return vec![format!("what the builder has verified does not load: {error}")],
        };
        self.tenants += 1;
        let name = format!("hostile{}", self.tenants);
        let view = tenant(&self.directory, &self.participant, &name);
        let expected = header(program, "//! sandboxed: ").unwrap_or(ANY_END);
        let (mut wrong, mut ends) = (Vec::new(), BTreeMap::<String, usize>::new());
        for args in variants(program) {
            let (end, reply) = self.call(&view, &extension, &args);
            *ends.entry(format!("{} {}", end.word, end.details.join(" "))).or_default() += 1;
            let killed_with_reply = end.word == "killed" && !reply.is_empty();
            if !end.is_one_of(expected) || killed_with_reply {
                let (word, details, note) = (end.word, &end.details, &end.note);
                wrong.push(format!("{args:?}: {word} {details:?} {note}, {} bytes of reply", reply.len()));
            }
            let canary = &self.victim.canary;
            if canary.is_in(&reply) || canary.is_in(end.note.as_bytes()) {
                wrong.push(format!("{args:?}: its reply has another tenant's bytes"));
            }
        }
        println!("{}: {ends:?}", program.name);
        if self.has_leaked_to(&view) {
            wrong.push("its records have another tenant's bytes".to_owned());
        }
        self.directory.delete_tenant(&name).expect("it is there");
        self.participant.quiescent();
        wrong
    }

    /// Returns whether records of a tenant have bytes of the canary.
    fn has_leaked_to(&self, view: &TenantView) -> bool {
        let canary = &self.victim.canary;
        let guard = self.participant.guard();
        view.tables.values().any(|entry| {
            let (mut at, mut found) = (Some(0), false);
            while let Some(cursor) = at {
                at = entry.table.scan(&guard, cursor, 256, NOW_MS, &mut |record| {
                    found |= canary.is_in(record.key()) || canary.is_in(record.value());
                });
            }
            found
        })
    }
}

/// The rest of the first line that begins so.
fn header<'p>(program: &'p Program, begin: &str) -> Option<&'p str> {
    program.files[0].text.lines().take(8).find_map(|line| line.strip_prefix(begin))
}

/// The arguments of a program's calls.
fn variants(program: &Program) -> Vec<Vec<u8>> {
    let number = |number: u32| number.to_le_bytes().to_vec();
    match header(program, "//! variants: ") {
        None => vec![Vec::new()],
        Some("pages") => {
            let step = if is_deep() { DEEP_STEP } else { STEP };
            let first = rand::rng().random_range(0..step / 4096) * 4096;
            let edges = [0, 8, 0xf_f000, 0x10_0000, 0x7fff_f800, 0x8000_0000, 0xc000_0000, 0xffff_f800, 0xffff_fff9];
            let borders = (0..64).flat_map(|at| [at << 26, (at << 26) - (at & 1) * 2048]);
            let pages = (0..u32::MAX / step).map(|page| first.wrapping_add(page.wrapping_mul(step)));
            edges.into_iter().chain(borders).chain(pages).map(number).collect()
        }
        Some(count) => (0..count.parse().expect("a number of variants")).map(number).collect(),
    }
}

/// Builds programs, several at a time, without the checker.
fn build_all(programs: &[Program]) -> Vec<Result<Vec<u8>, String>> {
    let (next, built) = (AtomicUsize::new(0), Mutex::new(vec![Err(String::new()); programs.len()]));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((at, program)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, programs.get(at)?)))
                {
                    let source = PushedSource::new(&program.manifest, program.files.clone());
                    let image = source.and_then(|source| builder().build_unsafe(&source));
                    built.lock().expect("no panic")[at] = image.map_err(|error| not_built(&error));
                }
            });
        }
    });
    built.into_inner().expect("no panic")
}

/// Why a program was not built, which is as good an end as any, unless the builder has made what the server refuses.
fn not_built(error: &BuildError) -> String {
    let first = error.diagnostics().first().map_or_else(|| error.to_string(), |one| one.message.clone());
    assert!(!first.contains("bug of the builder"), "{first}");
    assert!(
        matches!(error, BuildError::Refused(_) | BuildError::Compile(_) | BuildError::Limit(_)),
        "the builder itself failed: {error}"
    );
    first
}

/// The programs of this run.
fn chosen() -> Vec<Program> {
    let is_chosen = |(number, program): &(usize, Program)| {
        let group = program.name.split('/').next().unwrap_or_default();
        // Those that are hostile to the compiler are pushed in this tier by a test of the builder, and most do not end.
        group == "sandbox" || is_deep() || (group != "compile_time" && number % ONE_IN == 0)
    };
    programs().into_iter().enumerate().filter(is_chosen).map(|(_, program)| program).collect()
}

#[test]
fn unchecked_programs_harm_nobody_in_the_sandbox() {
    if ran_alone(module_path!(), "unchecked_programs_harm_nobody_in_the_sandbox") {
        return;
    }
    extensions::install_process_handlers().expect("signal handlers");
    let programs = chosen();
    let images = build_all(&programs);
    let watchdog = Watchdog::spawn().expect("a watchdog");
    let (mut world, epochs, mut there) = World::new(&watchdog);
    let (is_over, mut wrong) = (AtomicBool::new(false), Vec::new());
    let (mut run, elsewhere) = (
        0,
        std::thread::scope(|scope| {
            let neighbour = scope.spawn(|| {
                let mut engine = Engine::new(&watchdog, 1).expect("an engine");
                let mut participant = epochs.register();
                while !is_over.load(Ordering::Relaxed) {
                    there.call(&mut engine, &participant);
                    participant.quiescent();
                }
                (there.calls, there.calls - there.answered)
            });
            for (program, image) in programs.iter().zip(&images) {
                match image {
                    Ok(image) => {
                        wrong.extend(world.run(program, image).iter().map(|what| format!("{}: {what}", program.name)));
                    }
                    Err(why) => println!("{}: not built: {}", program.name, why.lines().next().unwrap_or_default()),
                }
            }
            is_over.store(true, Ordering::Relaxed);
            neighbour.join().expect("the neighbour was served right")
        }),
    );
    run += images.iter().filter(|image| image.is_ok()).count();
    let ((elsewhere, unanswered_there), here) = (elsewhere, &world.victim);
    println!("{run} programs; {} calls of the other tenant here, {elsewhere} on another worker", here.calls);
    assert_eq!((here.calls - here.answered, unanswered_there), (0, 0), "calls of the other tenant without an answer");
    assert!(wrong.is_empty(), "{} ended otherwise: {wrong:#?}", wrong.len());
    assert!(run >= 12 && elsewhere > 0 && here.calls > run, "next to nothing ran");
}

#[test]
fn the_programs_of_the_sandbox_call_every_function_of_the_host() {
    let programs = programs();
    let wild = programs.iter().find(|program| program.name == "sandbox/wild_host_calls").expect("the program");
    let text = &wild.files[0].text;
    for function in sandstorm_sandbox::HostFunction::ALL {
        let name = match function.name() {
            "(memory.copy)" => "core::ptr::copy",
            "(memory.fill)" => "core::ptr::write_bytes",
            "(memory.size)" => "memory_size",
            "(memory.grow)" => "memory_grow",
            name => name,
        };
        let calls = text.matches(&format!("{name}(")).count();
        let declared = usize::from(!name.starts_with("core") && !name.starts_with("memory"));
        assert!(calls > declared, "{name} is called {calls} times");
    }
}
