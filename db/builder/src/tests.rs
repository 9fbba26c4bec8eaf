//! Tests of the builder's promises.

use std::path::Path;
use std::process::Stdio;
use std::sync::OnceLock;

use sandstorm_net::CodeTier;

use super::*;

pub(super) fn state() -> std::path::PathBuf {
    std::env::temp_dir().join("sandstorm-test-builder")
}

/// One toolchain for all tests of this process, in a folder that later runs reuse.
pub(super) fn toolchain() -> &'static Toolchain {
    static TOOLCHAIN: OnceLock<Toolchain> = OnceLock::new();
    TOOLCHAIN.get_or_init(|| {
        Toolchain::prepare(&ToolchainConfig { state: state(), ..ToolchainConfig::default() }).expect("a toolchain")
    })
}

pub(super) fn job() -> CompileJob {
    CompileJob { launcher: CompilerLauncher::Unsandboxed, limits: CompileLimits::default() }
}

/// Stands in for `sandstorm builder sandbox-exec`: tests of a library have no binary. Does nothing in a normal run.
#[test]
fn sandbox_exec_entry() {
    if std::env::var_os(sandbox::POLICY_VARIABLE).is_some() {
        let code = sandbox_exec();
        std::process::exit(if code == std::process::ExitCode::SUCCESS { 0 } else { code_of(code) });
    }
}

/// `ExitCode` does not expose its number; its debug form shows it.
fn code_of(code: std::process::ExitCode) -> i32 {
    let digits: String = format!("{code:?}").chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(1)
}

/// The sandbox through this test binary; `None`, with a line of output, where the kernel does not offer one.
pub(super) fn sandboxed() -> Option<CompileJob> {
    let program = std::env::current_exe().expect("this test");
    let arguments = ["--exact", "tests::sandbox_exec_entry", "--test-threads=1"].map(str::to_owned).to_vec();
    match CompilerLauncher::strongest(program, arguments, 0, &BuilderConfig::default(), toolchain()) {
        Ok(launcher) => Some(CompileJob { launcher, limits: CompileLimits::default() }),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// A job whose compilers are soon ended: an honest source takes 0.3 s of CPU time, and a loop all that there is.
pub(super) fn tight_job() -> CompileJob {
    let cpu = std::time::Duration::from_secs(2);
    let limits = CompileLimits { cpu, memory_bytes: 1 << 30, ..CompileLimits::default() };
    CompileJob { limits, ..sandboxed().unwrap_or_else(job) }
}

#[test]
fn an_extension_compiles_in_the_sandbox() {
    let Some(job) = sandboxed() else { return };
    eprintln!("{job:?}");
    let text = "#![no_std]\nuse sandstorm_api::prelude::*;\n\
                pub async fn run(_: Db<'_>, _: &[u8]) -> Result<(), Error> { Ok(()) }\n";
    let elf = compile(toolchain(), &source(text), &job).expect("it compiles");
    assert!(elf.starts_with(b"\x7fELF"));
}

pub(super) fn source(text: &str) -> PushedSource {
    let files = vec![SourceFile { path: ROOT_FILE.to_owned(), text: text.to_owned() }];
    PushedSource::new("name = \"test\"\n", files).expect("a valid source")
}

/// The extensions of this repository: name and source.
pub(super) fn extensions() -> Vec<(String, PushedSource)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ext");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("ext/") {
        let path = entry.expect("ext/").path();
        if path.join(MANIFEST_FILE).is_file() {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            found.push((name, PushedSource::read(&path).expect("a readable extension")));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(found.len() >= 10, "{}", found.len());
    found
}

/// The files of `tests/ordinary`: path and source. Each is a crate of many small extensions.
pub(super) fn ordinary() -> Vec<(String, PushedSource)> {
    const RUN: &str =
        "pub async fn run(_: sandstorm_api::Db<'_>, _: &[u8]) -> Result<(), sandstorm_api::Error> { Ok(()) }";
    let entries = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/ordinary")).expect("the folder");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("text");
        (path.display().to_string(), source(&format!("{text}\n{RUN}\n")))
    };
    entries.map(read).collect()
}

#[test]
fn every_extension_here_passes_the_checker_and_becomes_a_library() {
    let job = sandboxed().unwrap_or_else(job);
    for (name, source) in extensions() {
        let libraries = toolchain().crate_names(&source).expect("known libraries");
        check(&source, &libraries, CodeTier::Native).unwrap_or_else(|error| panic!("{name}: {error}"));
        let started = std::time::Instant::now();
        let built = build_library(toolchain(), &source, &job).unwrap_or_else(|error| panic!("{name}: {error}"));
        eprintln!("{name}: {:?}, {} bytes, {} warnings", started.elapsed(), built.elf.len(), built.warnings.len());
        assert!(built.elf.starts_with(b"\x7fELF"));
        assert!(built.warnings.is_empty(), "{name}: {:?}", built.warnings);
    }
}

#[test]
fn compiler_errors_name_file_line_and_code() {
    let text = "#![no_std]\npub async fn run() {\n    let x: u8 = \"\";\n}\n";
    let Err(BuildError::Compile(found)) = compile(toolchain(), &source(text), &job()) else {
        panic!("must not compile")
    };
    assert_eq!(found.len(), 1, "{found:?}");
    let first = &found[0];
    assert_eq!((first.file.as_str(), first.line, first.column), ("src/lib.rs", 3, 17));
    assert_eq!(first.rule.as_deref(), Some("E0308"));
    assert!(first.rendered.contains("src/lib.rs:3:17"), "{}", first.rendered);
}

/// The compiler accepts unstable options; even so a source must not use unstable features.
#[test]
fn no_feature_is_allowed_even_where_the_checker_lets_it_pass() {
    let text = "#![no_std]\n#![feature(never_type)]\npub fn never() -> Option<!> { None }\n";
    let Err(BuildError::Compile(found)) = compile(toolchain(), &source(text), &job()) else {
        panic!("must not compile")
    };
    assert!(found.iter().any(|one| one.rule.as_deref() == Some("E0725")), "{found:?}");
}

#[test]
fn a_function_pointer_that_nobody_spelled_is_refused() {
    let text = "#![no_std]
pub fn bar<'x>(_: &'static &'static (), _: &'x u64) -> &'static u64 { loop {} }
pub fn baz<'x>(_: &'static &'static (), _: &'x u64) -> &'static u64 { loop {} }
pub struct Outer<'b>(&'b ());
impl<'b> Outer<'b> {
    pub fn foo<T>(&self, v: &'b T) -> &T { v }
}
pub fn bad(x: &u64) -> usize {
    let f = [bar, baz][0];
    core::mem::size_of_val(&f) + (*x as usize)
}
";
    check(&source(text), &[], CodeTier::Native).expect("no syntax shows it");
    let found = match compile(toolchain(), &source(text), &job()) {
        Err(BuildError::Refused(found)) => found,
        other => panic!("{other:?}"),
    };
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].line, found[0].rule.as_deref()), (8, Some("fn-pointer")));
}

#[test]
fn a_new_extension_passes_the_check_and_its_own_tests() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("visits");
    offline::new_extension(&folder, "visits", &TEMPLATES[0]).expect("written");
    let config = BuilderConfig { state: state(), ..BuilderConfig::default() };
    let answers = offline::check_dir(&folder, Some(&config), None).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(answers.iter().map(|answer| answer.tier).collect::<Vec<_>>(), [CodeTier::Sandboxed, CodeTier::Native]);
    assert!(
        answers.iter().all(|answer| answer.outcome.as_ref().is_ok_and(|built| built.warnings.is_empty())),
        "{answers:?}"
    );
    assert!(test_build::test_dir(&folder, Some(&config), &[], Stdio::inherit(), None).expect("run").success());
    assert!(offline::new_extension(&folder, "visits", &TEMPLATES[0]).is_err(), "a folder in use is left alone");
    let text = std::fs::read_to_string(folder.join(ROOT_FILE)).expect("the source");
    std::fs::write(folder.join(ROOT_FILE), text.replace("b\"2\".to_vec()", "b\"3\".to_vec()")).expect("written");
    // Its output is discarded: it would read as if a test of this project had failed.
    let failing = test_build::test_dir(&folder, Some(&config), &[], Stdio::null(), None);
    assert!(!failing.expect("run").success(), "a failing test is seen");
}

#[test]
fn every_template_passes_both_tiers_and_its_own_tests() {
    let config = BuilderConfig { state: state(), ..BuilderConfig::default() };
    for template in &TEMPLATES[1..] {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join(template.name);
        offline::new_extension(&folder, template.name, template).expect("written");
        let answers = offline::check_dir(&folder, Some(&config), None).unwrap_or_else(|error| panic!("{error}"));
        for answer in &answers {
            let built = answer.outcome.as_ref().unwrap_or_else(|error| panic!("{}: {error}", template.name));
            assert!(built.warnings.is_empty(), "{}: {:?}", template.name, built.warnings);
        }
        let passed = test_build::test_dir(&folder, Some(&config), &[], Stdio::inherit(), None);
        assert!(passed.expect("run").success(), "{}", template.name);
        let page = std::fs::read_to_string(folder.join("README.md")).expect("a page");
        assert!(!["NAME", "ABOUT", "TABLES", "CALL", "ENTRY"].iter().any(|left| page.contains(left)), "{page}");
    }
}

/// What passes in no tier but the sandboxed one, and what passes in none.
#[test]
fn a_check_tells_the_tiers_in_which_a_source_passes() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("own");
    offline::new_extension(&folder, "own", &TEMPLATES[0]).expect("written");
    let config = BuilderConfig { state: state(), ..BuilderConfig::default() };
    let text = std::fs::read_to_string(folder.join(ROOT_FILE)).expect("the source");
    let answers = |added: &str| {
        std::fs::write(folder.join(ROOT_FILE), format!("{text}{added}")).expect("written");
        let answers = offline::check_dir(&folder, Some(&config), None).unwrap_or_else(|error| panic!("{error}"));
        answers.map(|answer| match answer.outcome {
            Ok(built) => format!("{} warnings", built.warnings.len()),
            Err(error) => error.diagnostics()[0].rule.clone().expect("a rule"),
        })
    };
    assert_eq!(answers("pub static LIMIT: u32 = 5;\n"), ["0 warnings", "static"]);
    assert_eq!(answers("pub fn wrong() -> u32 { \"\" }\n"), ["E0308", "E0308"]);
    assert_eq!(answers("pub fn wrong() { unsafe {} }\n"), ["unsafe", "unsafe"]);
}

/// A read that is not awaited does nothing, and a result that is not looked at may be an error: neither is built, in
/// either tier, nor with the tests.
#[test]
fn a_forgotten_await_is_refused_with_its_place() {
    let entry = |body: &str| {
        format!(
            "#![no_std]\nuse sandstorm_api::prelude::*;\nasync fn own(_: Db<'_>) {{}}\n\
             pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {{\n    let table = db.table(\"t\")?;\n    \
             {body}\n    Ok(())\n}}\n"
        )
    };
    let forgotten = ["db.put(table, args, args);", "db.delete(table, args);", "own(db);", "db.reply(args);"];
    let tiers = [CodeTier::Sandboxed, CodeTier::Native];
    for (body, tier) in forgotten.into_iter().flat_map(|body| tiers.map(|tier| (body, tier))) {
        let source = source(&entry(body));
        let built = match tier {
            CodeTier::Native => build_library(toolchain(), &source, &job()),
            CodeTier::Sandboxed => build_sandboxed(toolchain(), &source, &job()),
        };
        let Err(BuildError::Compile(found)) = built else { panic!("{body} passes in the {tier} tier") };
        assert_eq!((found[0].file.as_str(), found[0].line), (ROOT_FILE, 6), "{found:?}");
        assert_eq!(found[0].rule.as_deref(), Some("unused_must_use"));
        assert!(found[0].rendered.contains("end it with `.await?`"), "{}", found[0].rendered);
    }
    build_sandboxed(toolchain(), &source(&entry("let _ = db.reply(args);")), &job()).expect("on purpose");
}

/// What `let _ =` keeps from the compiler, the checker refuses.
#[test]
fn what_is_thrown_away_before_it_was_awaited_is_refused_with_its_place() {
    let entry = |body: &str| {
        format!(
            "#![no_std]\nuse sandstorm_api::prelude::*;\nasync fn own(_: Db<'_>) {{}}\nstruct Shop<'a> {{ db: Db<'a> }}\n\
             impl Shop<'_> {{ async fn order(&self) {{}} fn price(&self) -> u8 {{ 1 }} async fn remove(&self) {{}} async fn new() {{}} }}\n\
             pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {{\n    \
             let (table, tx) = (db.table(\"t\")?, db.transaction());\n    let shop = Shop {{ db }};\n    \
             {body}\n    Ok(())\n}}\n"
        )
    };
    let forgotten = [
        "let _ = db.put(table, args, args);",
        "let _ = db.delete(table, args).if_version(1);",
        "let _written = db.touch(table, args, 5);",
        "let _: Put<'_, '_> = db.put(table, args, args);",
        "_ = tx.increment(table, args, 1);",
        "let _ = db.transaction().get(table, args);",
        "let _ = own(db);",
        "drop(shop.order());",
        "let _ = Shop::new();",
        "let _ = (|| 1, async { own(db).await }).1; let _ = async { own(db).await };",
        "let _ = shop.db.call(\"other\", args);",
        "if args.is_empty() { loop { let _ = yield_now(); } }",
    ];
    for body in forgotten {
        let found = check(&source(&entry(body)), &[], CodeTier::Sandboxed);
        let Err(BuildError::Refused(found)) = found else { panic!("{body} passes") };
        assert_eq!((found.len(), found[0].file.as_str(), found[0].line), (1, ROOT_FILE, 9), "{body}: {found:?}");
        assert_eq!(found[0].rule.as_deref(), Some("await"));
    }
    let meant = [
        "let _ = db.put(table, args, args).await;",
        "let _ = tx.put(table, args, args);",
        "let _ = shop.price(); let _ = db.reply(args); drop(args);",
        "let _later = db.get(table, args); let _ = _later.await;",
        "let map = BTreeMap::from([(1, 2)]); let _ = map.get(&1);",
        "let _ = db.get(table, args).await?.map(|one| one.value().len());",
        "let mut map = BTreeMap::from([(1, 2)]); let _ = map.remove(&1); let _ = Vec::<u8>::new();",
        "{ let db = BTreeMap::from([(1, 2)]); let _ = db.get(&1); }",
    ];
    for body in meant {
        check(&source(&entry(body)), &[], CodeTier::Sandboxed).unwrap_or_else(|error| panic!("{body}: {error}"));
    }
}

/// What the tests of an extension compute is what it computes on a server: a sum that is too large ends both.
#[test]
fn tests_of_an_extension_check_its_arithmetic() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("sums");
    offline::new_extension(&folder, "sums", &TEMPLATES[0]).expect("written");
    let config = BuilderConfig { state: state(), ..BuilderConfig::default() };
    let text = "#![no_std]
use sandstorm_api::prelude::*;
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let sum: u8 = args.iter().sum::<u8>() + 1;
    db.reply(&[sum])
}
#[cfg(test)]
mod tests {
    use super::*;
    use sandstorm_api::testing::TestStore;
    #[test]
    #[should_panic(expected = \"attempt to add with overflow\")]
    fn a_sum_does_not_wrap() {
        let _ = TestStore::new().invoke(run, &[255]);
    }
    #[test]
    #[should_panic(expected = \"attempt to add with overflow\")]
    fn nor_in_the_library() {
        let _ = TestStore::new().invoke(run, &[200, 100]);
    }
}
";
    std::fs::write(folder.join(ROOT_FILE), text).expect("written");
    assert!(test_build::test_dir(&folder, Some(&config), &[], Stdio::inherit(), None).expect("run").success());
}

#[test]
fn the_tests_of_an_extension_with_a_library_run_without_a_server() {
    let config = BuilderConfig { state: state(), ..BuilderConfig::default() };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ext/checksum");
    assert!(test_build::test_dir(&folder, Some(&config), &[], Stdio::inherit(), None).expect("run").success());
}
