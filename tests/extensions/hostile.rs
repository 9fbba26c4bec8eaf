//! Tests that hostile extensions end as the first line of each says: refused, not compiled, ended, or harmless. See
//! tests/hostile/README.md for the format. Prints a table:
//! `cargo test -p sandstorm-tests --test extensions hostile:: -- --nocapture`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use sandstorm_builder::{
    Artifact, BuildError, BuilderConfig, CompileLimits, InProcessBuilder, MANIFEST_FILE, PushedSource, ROOT_FILE,
    SourceFile, api_fingerprint,
};
use sandstorm_catalog::{Directory, NewTable, NewTenant, TenantView};
use sandstorm_extension::{Budget, BudgetOverride, ExtensionLibrary, KillCause, LoadedExtension};
use sandstorm_net::CodeTier;
use sandstorm_runtime as extensions;
use sandstorm_runtime::{Engine, PollOutcome, Watchdog};
use sandstorm_store::{Epochs, Participant, WriteOptions};

/// The corpus must not shrink unnoticed.
const LEAST_PROGRAMS: usize = 200;
/// The variable with another folder of programs: groups of files, as in tests/hostile.
const FOLDER_VARIABLE: &str = "HOSTILE_FOLDER";
/// Builds at the same time.
const BUILDERS: usize = 2;
/// CPU time of a build: an honest one takes 0.3 s, and those that never end take all of it.
const BUILD_CPU: Duration = Duration::from_secs(5);

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// One builder for all tests, with a sandbox where the machine has one.
pub(super) fn builder() -> &'static InProcessBuilder {
    static BUILDER: OnceLock<InProcessBuilder> = OnceLock::new();
    BUILDER.get_or_init(|| {
        let config = BuilderConfig {
            state: std::env::temp_dir().join("sandstorm-test-hostile"),
            program: Some(PathBuf::from(env!("CARGO_BIN_EXE_sandstorm-under-test"))),
            limits: CompileLimits { cpu: BUILD_CPU, ..CompileLimits::default() },
            ..BuilderConfig::default()
        };
        InProcessBuilder::open(&config).expect("a builder")
    })
}

/// A hostile program and the accepted ends.
pub(super) struct Program {
    pub(super) name: String,
    expected: Vec<Vec<String>>,
    pub(super) manifest: String,
    pub(super) files: Vec<SourceFile>,
}

impl Program {
    fn read(path: &Path, name: String) -> Program {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let first = text.lines().next().and_then(|line| line.strip_prefix("//! expect: "));
        let first = first.unwrap_or_else(|| panic!("{name}: the first line must be `//! expect: …`"));
        let words = |end: &str| end.split_whitespace().map(str::to_owned).collect();
        let expected: Vec<Vec<String>> = first.split(" or ").map(words).collect();
        let known = ["refused", "compile-error", "limit", "not-loaded", "killed", "failed", "ok"];
        let sound =
            |end: &Vec<String>| end.first().is_some_and(|word| known.contains(&word.as_str())) && end.len() <= 2;
        assert!(expected.iter().all(sound), "{name}: expectations must be some of {known:?}: {first}");
        let mut manifest = "name = \"hostile\"\n".to_owned();
        let mut files = Vec::new();
        for part in repeated(&text).split("\n//@ file: ").enumerate() {
            match part {
                (0, root) => files.push(SourceFile { path: ROOT_FILE.to_owned(), text: root.to_owned() }),
                (_, part) => match part.split_once('\n') {
                    Some((MANIFEST_FILE, text)) => manifest = text.to_owned(),
                    Some((path, text)) => files.push(SourceFile { path: path.to_owned(), text: text.to_owned() }),
                    None => panic!("{name}: a file without a line"),
                },
            }
        }
        Program { name, expected, manifest, files }
    }

    /// Returns whether it may be run: a program that must be refused is never run, lest it do harm.
    fn may_run(&self) -> bool {
        self.expected.iter().any(|expected| !["refused", "compile-error", "limit"].contains(&expected[0].as_str()))
    }

    fn expects(&self, end: &End) -> bool {
        self.expected.iter().any(|expected| {
            let detail = expected.get(1);
            expected[0] == end.word && detail.is_none_or(|detail| end.details.iter().any(|found| found == detail))
        })
    }
}

/// Expands `<<<N*TEXT>>>`.
fn repeated(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once("<<<") {
        let (count, behind) = behind.split_once('*').expect("`<<<N*TEXT>>>`");
        let (body, behind) = behind.split_once(">>>").expect("`<<<N*TEXT>>>`");
        // `<<<2*>>>>` repeats the last possible `>`.
        let (body, behind) = match behind.strip_prefix('>') {
            Some(behind) => (format!("{body}>"), behind),
            None => (body.to_owned(), behind),
        };
        out.push_str(before);
        for number in 0..count.parse::<u32>().expect("a count") {
            out.push_str(&body.replace("{n}", &number.to_string()));
        }
        rest = behind;
    }
    out + rest
}

/// The corpus, or the folder that `HOSTILE_FOLDER` names, which serves to try programs out.
fn corpus() -> PathBuf {
    std::env::var_os(FOLDER_VARIABLE).map_or_else(|| folder("tests/hostile"), PathBuf::from)
}

pub(super) fn programs() -> Vec<Program> {
    let mut programs = BTreeMap::new();
    for group in std::fs::read_dir(corpus()).expect("the corpus") {
        let group = group.expect("an entry").path();
        for file in group.is_dir().then(|| std::fs::read_dir(&group).expect("a group")).into_iter().flatten() {
            let path = file.expect("an entry").path();
            let part = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
            let name = format!("{}/{}", part(group.file_name()), part(path.file_stem()));
            programs.insert(name.clone(), Program::read(&path, name));
        }
    }
    programs.into_values().collect()
}

/// A program's end: a word of the format, the text that may follow it, and a line for people.
pub(super) struct End {
    pub(super) word: &'static str,
    pub(super) details: Vec<String>,
    pub(super) note: String,
}

/// The builder's result for a program: a library, or the end.
fn push(program: &Program) -> Result<Artifact, End> {
    let source = PushedSource::new(&program.manifest, program.files.clone());
    match source.and_then(|source| builder().build(1, 1, &source, CodeTier::Native)) {
        Ok((artifact, _)) => Ok(artifact),
        Err(error) => {
            let word = match &error {
                BuildError::Refused(_) => "refused",
                BuildError::Compile(_) => "compile-error",
                BuildError::Limit(_) => "limit",
                _ => "builder-error",
            };
            let details = error.diagnostics().iter().filter_map(|one| one.rule.clone()).collect();
            let note = error.diagnostics().first().map_or_else(|| error.to_string(), |one| one.message.clone());
            Err(End { word, details, note })
        }
    }
}

/// Pushes all programs, several at a time.
fn push_all(programs: &[Program]) -> Vec<Result<Artifact, End>> {
    let next = AtomicUsize::new(0);
    let pushed: Mutex<BTreeMap<usize, Result<Artifact, End>>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..BUILDERS {
            scope.spawn(|| {
                while let Some((at, program)) = next_of(programs, &next) {
                    let end = push(program);
                    pushed.lock().expect("no panic").insert(at, end);
                }
            });
        }
    });
    pushed.into_inner().expect("no panic").into_values().collect()
}

fn next_of<'p>(programs: &'p [Program], next: &AtomicUsize) -> Option<(usize, &'p Program)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    programs.get(at).map(|program| (at, program))
}

/// A worker that calls extensions, and a good one to call in between.
struct World {
    engine: Engine,
    good: Arc<LoadedExtension>,
}

/// A tenant with the table and the record that every program finds.
struct Tenant {
    participant: Participant,
    view: Arc<TenantView>,
}

/// Long enough that memory and stack run out first, also on a slow machine and without optimisation.
const BUDGET: Budget = Budget { slice_us: 100, total_us: 100_000, memory_bytes: 4 << 20, reply_bytes: 1 << 20 };
const NOW_MS: u64 = 1_700_000_000_000;

impl Tenant {
    fn new() -> Tenant {
        let epochs = Epochs::new();
        let directory = Directory::new(Arc::clone(&epochs));
        directory.create_tenant(NewTenant { open: false, ..NewTenant::named("hostile") }).expect("a tenant");
        let quota = NewTable { quota_bytes: Some(1 << 20), ..NewTable::named("t") };
        directory.create_table("hostile", quota).expect("a table");
        let view = Arc::clone(directory.snapshot().by_name("hostile").expect("the tenant"));
        let participant = epochs.register();
        let table = &view.table_by_name("t").expect("the table").table;
        table.put(&participant, table.hash(b"k"), b"k", b"v", &WriteOptions::default(), NOW_MS).expect("a put");
        Tenant { participant, view }
    }
}

impl World {
    fn new(watchdog: &Watchdog) -> World {
        let source = PushedSource::read(&folder("ext/get")).expect("ext/get");
        let (artifact, _) = builder().build(1, 1, &source, CodeTier::Native).expect("ext/get builds");
        let library = ExtensionLibrary::load(&artifact.elf, api_fingerprint()).expect("ext/get loads");
        let good = Arc::new(LoadedExtension::new("get", 1, library, BudgetOverride::default()));
        World { engine: Engine::new(watchdog, 0).expect("an engine"), good }
    }

    /// Calls a hostile library, then the good one, which must not be affected.
    fn run(&mut self, artifact: &Artifact) -> End {
        let library = match ExtensionLibrary::load(&artifact.elf, api_fingerprint()) {
            Ok(library) => library,
            Err(error) => return End::new("not-loaded", "", error.to_string()),
        };
        let mut tenant = Tenant::new();
        let extension = Arc::new(LoadedExtension::new("hostile", 1, library, BudgetOverride::default()));
        let (end, reply) = call(&mut self.engine, &mut tenant, &extension, b"");
        if end.word != "ok" && !reply.is_empty() {
            return End::new("leaked-reply", "", format!("{} bytes of reply although {}", reply.len(), end.word));
        }
        let mut other = Tenant::new();
        let table = other.view.table_by_name("t").expect("the table").id;
        let good = Arc::clone(&self.good);
        let (after, reply) = call(&mut self.engine, &mut other, &good, &[&table.to_le_bytes()[..], b"k"].concat());
        assert!(after.word == "ok" && reply == b"v", "a good call went wrong: {} {}", after.word, after.note);
        end
    }
}

/// Calls an extension once, to its end; the end and the reply.
fn call(engine: &mut Engine, tenant: &mut Tenant, extension: &Arc<LoadedExtension>, args: &[u8]) -> (End, Vec<u8>) {
    let begun = engine.begin(&tenant.view, extension, args, BUDGET);
    let mut invocation = match begun {
        Ok(invocation) => invocation,
        Err(error) => return (End::new("not-loaded", "", error.to_string()), Vec::new()),
    };
    let polled = loop {
        match engine.poll(&tenant.participant, &mut invocation, NOW_MS, true) {
            PollOutcome::Pending | PollOutcome::Preempted => tenant.participant.quiescent(),
            ended => break ended,
        }
    };
    let end = End::of(polled, String::from_utf8_lossy(invocation.text()).into_owned());
    let reply = invocation.reply().to_vec();
    engine.finish(&tenant.participant, invocation);
    (end, reply)
}

/// What stands in records of another tenant.
const CANARY: &[u8] = b"canary-of-another-tenant";
/// Sizes of those records: pointers that were freed lead to memory of every size.
const CANARY_BYTES: [usize; 7] = [24, 48, 100, 200, 500, 2_000, 5_000];
/// Records of each size.
const CANARIES: usize = 50;

/// Calls a library in this process, beside records of another tenant.
///
/// # Errors
/// What it must not have done: a fault, or another tenant's bytes in its reply or its error.
pub(super) fn run_beside_canaries(elf: &[u8]) -> Result<(), String> {
    extensions::install_process_handlers().expect("signal handlers");
    let watchdog = Watchdog::spawn().expect("a watchdog");
    let mut engine = Engine::new(&watchdog, 0).expect("an engine");
    let (other, mut tenant) = (Tenant::new(), Tenant::new());
    let table = &other.view.table_by_name("t").expect("the table").table;
    for (number, bytes) in CANARY_BYTES.iter().flat_map(|bytes| (0..CANARIES).map(move |number| (number, bytes))) {
        let (key, value) = (format!("{bytes} {number}"), CANARY.repeat(bytes.div_ceil(CANARY.len())));
        let hash = table.hash(key.as_bytes());
        table.put(&other.participant, hash, key.as_bytes(), &value, &WriteOptions::default(), NOW_MS).expect("a put");
    }
    let library = match ExtensionLibrary::load(elf, api_fingerprint()) {
        Ok(library) => library,
        Err(_) => return Ok(()),
    };
    let extension = Arc::new(LoadedExtension::new("hostile", 1, library, BudgetOverride::default()));
    let (end, reply) = call(&mut engine, &mut tenant, &extension, b"");
    let shown = |bytes: &[u8]| bytes.windows(8).any(|window| CANARY.repeat(2).windows(8).any(|one| one == window));
    if shown(&reply) || shown(end.note.as_bytes()) {
        return Err(format!("the reply has another tenant's bytes: {:?}", String::from_utf8_lossy(&reply)));
    }
    match end.details.iter().any(|detail| ["MemoryFault", "IllegalInstruction"].contains(&detail.as_str())) {
        true => Err(format!("a fault: {}", end.note)),
        false => Ok(()),
    }
}

impl End {
    fn new(word: &'static str, detail: &str, note: String) -> End {
        End { word, details: vec![detail.to_owned()], note }
    }

    /// The end of a call, and its text.
    pub(super) fn of(polled: PollOutcome, text: String) -> End {
        match polled {
            PollOutcome::Pending | PollOutcome::Preempted | PollOutcome::Done => End::new("ok", "", text),
            PollOutcome::Failed { code } => End::new("failed", error_kind(code), text),
            // A call that takes long is killed sooner while replaced records wait for it, its own or another program's.
            PollOutcome::Killed(KillCause::ReclaimPressure) => End::new("killed", "TotalBudget", text),
            PollOutcome::Killed(cause) => End::new("killed", &format!("{cause:?}"), text),
        }
    }

    /// Returns whether it is one of these: `killed MemoryFault or ok`, say.
    pub(super) fn is_one_of(&self, ends: &str) -> bool {
        ends.split(" or ").any(|end| match end.split_once(' ') {
            Some((word, detail)) => word == self.word && self.details.iter().any(|found| found == detail),
            None => end == self.word,
        })
    }
}

/// The name of the `ErrorKind` of that number.
fn error_kind(code: u32) -> &'static str {
    match code {
        1 => "NotFound",
        2 => "Conflict",
        3 => "UnknownTable",
        4 => "OutOfMemory",
        5 => "TooLarge",
        6 => "NotANumber",
        7 => "WrongServer",
        8 => "Invalid",
        100 => "Other",
        _ => "unknown",
    }
}

#[test]
fn every_hostile_program_ends_as_it_must() {
    extensions::install_process_handlers().expect("signal handlers");
    let programs = programs();
    let least = if std::env::var_os(FOLDER_VARIABLE).is_some() { 1 } else { LEAST_PROGRAMS };
    assert!(programs.len() >= least, "{} programs: the corpus has shrunk", programs.len());
    let watchdog = Watchdog::spawn().expect("a watchdog");
    let pushed = push_all(&programs);
    let mut world = World::new(&watchdog);
    let mut wrong = Vec::new();
    for (program, pushed) in programs.iter().zip(pushed) {
        let end = match pushed {
            Ok(artifact) if program.may_run() => world.run(&artifact),
            Ok(_) => End::new("built", "", "not run: it must not even be built".to_owned()),
            Err(end) => end,
        };
        let right = program.expects(&end);
        let note = end.note.lines().next().unwrap_or_default();
        let line =
            format!("{} {:44} {:13} {:30.30} {note}", mark(right), program.name, end.word, end.details.join(" "));
        println!("{line}");
        if !right {
            wrong.push(format!("{line}\n    expected: {:?}", program.expected));
        }
    }
    assert!(wrong.is_empty(), "{} of {} ended otherwise:\n{}", wrong.len(), programs.len(), wrong.join("\n"));
}

fn mark(right: bool) -> &'static str {
    if right { "  " } else { "!!" }
}
