//! The builder as the server uses it: a process of its own, confined compilers, signed artifacts.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use sandstorm_api::abi::ABI_VERSION;
use sandstorm_builder::protocol::BuildRequest;
use sandstorm_builder::{
    ArtifactRequirements, BuildError, BuilderConfig, BuilderHandle, CompileLimits, PushedSource, RemoteBuilder,
    RemoteCertificate, RemoteConfig, SourceFile, TOKEN_FILE, api_fingerprint, checker_fingerprint,
};
use sandstorm_control::builder_service::BuilderServer;
use sandstorm_control::config::PortTls;
use sandstorm_net::CodeTier;

/// The tier that these tests build for: what they are about is the same in each.
const TIER: CodeTier = CodeTier::Native;

fn config() -> BuilderConfig {
    BuilderConfig {
        state: std::env::temp_dir().join("sandstorm-test-builder"),
        program: Some(PathBuf::from(env!("CARGO_BIN_EXE_sandstorm-under-test"))),
        // The kernel of the machine that runs the tests may offer no sandbox; the tests of the sandbox itself say so.
        allow_unsandboxed: true,
        ..BuilderConfig::default()
    }
}

fn source(body: &str) -> PushedSource {
    let text = format!(
        "#![no_std]\nuse sandstorm_api::prelude::*;\n\
         pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {{\n    {body}\n}}\n"
    );
    PushedSource::new("name = \"test\"", vec![SourceFile { path: "src/lib.rs".to_owned(), text }]).expect("a source")
}

/// What a server sends to a builder on another host.
fn request(tenant: u32, version: u64, body: &str) -> BuildRequest {
    BuildRequest { tenant, version, source: source(body).into(), tier: TIER, denied: Vec::new(), check_only: false }
}

/// Serialises operations that only one test may do: all tests share one state folder, which is under test, too.
fn handle() -> Arc<BuilderHandle> {
    BuilderHandle::start(config()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_build_is_signed_for_its_tenant_and_compiler() {
    let builder = handle();
    let source = source("db.reply(args)");
    let artifact = builder.build(7, 42, &source, TIER).unwrap_or_else(|error| panic!("{error}"));
    let expected = ArtifactRequirements {
        tenant: 7,
        name: "test".to_owned(),
        tier: TIER,
        compiler: Some(builder.compiler()),
        api_fingerprint: api_fingerprint(),
        checker: checker_fingerprint(),
        abi_version: ABI_VERSION,
        highest: Some(41),
    };
    assert_eq!(artifact.verify(&[builder.public_key()], &expected), Ok(()));
    assert_eq!((artifact.header.version, artifact.header.name.as_str()), (42, "test"));
    assert_eq!(artifact.header.source_digest, source.digest());
    assert!(artifact.elf.starts_with(b"\x7fELF"));
}

#[test]
fn what_is_wrong_with_a_source_comes_back_and_the_builder_goes_on() {
    let builder = handle();
    match builder.build(1, 1, source("unsafe { db.reply(args) }"), TIER) {
        Err(BuildError::Refused(found)) => {
            assert_eq!((found[0].file.as_str(), found[0].line, found[0].column), ("src/lib.rs", 4, 5));
            assert!(found[0].rendered.contains("4 |     unsafe { db.reply(args) }"), "{}", found[0].rendered);
        }
        other => panic!("{other:?}"),
    }
    match builder.build(1, 1, source("db.answer(args)"), TIER) {
        Err(BuildError::Compile(found)) => {
            assert_eq!((found[0].file.as_str(), found[0].line), ("src/lib.rs", 4));
            let told = format!("{found:?}");
            assert!(!told.contains("/tmp") && !told.contains("scratch"), "a path of the server: {told}");
        }
        other => panic!("{other:?}"),
    }
    let mut wrong = source("db.reply(args)");
    wrong.files[0].text =
        wrong.files[0].text.replace("args: &[u8]", "args: &str").replace("reply(args)", "reply(b\"\")");
    match builder.build(1, 1, &wrong, TIER) {
        Err(BuildError::Refused(found)) => {
            assert_eq!((found[0].rule.as_deref(), found[0].line), (Some("types"), 3), "{found:?}");
        }
        other => panic!("{other:?}"),
    }
    wrong = source("db.reply(args)");
    wrong.manifest.libraries.push("serde".to_owned());
    match builder.build(1, 1, &wrong, TIER) {
        Err(BuildError::Refused(found)) => assert!(found[0].message.contains("allowed: hmac-sha256"), "{found:?}"),
        other => panic!("{other:?}"),
    }
    builder.build(1, 1, source("db.reply(args)"), TIER).expect("it goes on");
}

#[test]
fn a_builder_that_dies_is_replaced() {
    let builder = handle();
    builder.build(1, 1, source("db.reply(args)"), TIER).expect("built");
    builder.end_processes();
    let first = builder.build(1, 2, source("db.reply(args)"), TIER);
    assert!(matches!(first, Ok(_) | Err(BuildError::Internal(_))), "{first:?}");
    builder.build(1, 3, source("db.reply(args)"), TIER).expect("a new process builds");
}

#[test]
fn many_builds_at_once_all_get_an_answer() {
    let builder = handle();
    std::thread::scope(|scope| {
        for number in 0..6_u64 {
            let builder = &builder;
            scope.spawn(move || {
                let source = source(&format!("let _n = {number}; db.reply(args)"));
                let artifact = builder.build(1, number, &source, TIER).expect("built");
                assert_eq!(artifact.header.version, number);
            });
        }
    });
}

#[test]
fn a_source_that_takes_too_much_is_a_limit() {
    let limits = CompileLimits { cpu: std::time::Duration::from_secs(2), ..CompileLimits::default() };
    let builder = BuilderHandle::start(BuilderConfig { limits, ..config() }).expect("a builder");
    let mut hungry = source("db.reply(args)");
    hungry.files[0].text.push_str(
        "#[allow(long_running_const_eval)]\nconst X: u64 = { let mut n = 0_u64; while n < u64::MAX { n += 1 } n };\n",
    );
    let answer = builder.build(1, 1, &hungry, TIER);
    assert!(matches!(answer, Err(BuildError::Limit(_))), "{answer:?}");
}

#[test]
fn a_missing_compiler_is_one_clear_line() {
    let none = BuilderConfig { rustc: Some(PathBuf::from("/nowhere/rustc")), ..config() };
    match BuilderHandle::start(none) {
        Err(BuildError::Toolchain(why)) => {
            assert!(why.contains("/nowhere/rustc") && why.contains("install Rust") && !why.contains('\n'), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

/// The position and the user of a confined process.
struct Confined {
    folder: tempfile::TempDir,
    user: Option<u32>,
    namespaces: bool,
    processes: u64,
}

/// The user of the compilers where these tests run as root.
const USER: u32 = 65_533;

impl Confined {
    fn new(namespaces: bool) -> Confined {
        let folder = tempfile::tempdir().expect("a folder");
        let (work, root) = (folder.path().join("work"), folder.path().join("root"));
        [&work, &root].iter().for_each(|folder| std::fs::create_dir(folder).expect("a folder"));
        let user = rustix::process::getuid().is_root().then_some(USER);
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        std::fs::set_permissions(folder.path(), open).expect("our folder");
        std::os::unix::fs::chown(&work, user, user).expect("our folder");
        let processes = if user.is_some() || namespaces { 16 } else { 4_096 };
        Confined { folder, user, namespaces, processes }
    }

    /// Runs a program as compilers run; `None`, with a line of output, where the kernel does not offer that.
    fn run(&self, readable: &[&str], program: &str, arguments: &[&str]) -> Option<Output> {
        let work = self.folder.path().join("work");
        let policy = serde_json::json!({
            "readable": readable,
            "writable": [work],
            "namespaces": self.namespaces, "root": self.folder.path().join("root"), "user": self.user, "search": false,
            "idle": false, "cores": [],
            "cpu_s": 5, "memory_bytes": 1_u64 << 30, "file_bytes": 1 << 20, "open_files": 64,
            "processes": self.processes, "second_stage": false,
            "program": program, "arguments": arguments, "environment": {"TMPDIR": work},
        });
        let output = Command::new(env!("CARGO_BIN_EXE_sandstorm-under-test"))
            .args(["builder", "sandbox-exec"])
            .env("SANDSTORM_SANDBOX_POLICY", policy.to_string())
            .env("SECRET", "of the server")
            .current_dir(&work)
            .output()
            .expect("the binary runs");
        if output.status.code() == Some(125) {
            eprintln!("skipped: {}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        Some(output)
    }

    fn shell(&self, script: &str) -> Option<Output> {
        self.run(&["/bin", "/usr/bin", "/lib64", "/lib", "/usr/lib"], "/bin/bash", &["-c", script])
    }
}

#[test]
fn a_confined_process_is_alone() {
    let Some(output) = Confined::new(true).shell("echo $$ $UID; echo /*") else { return };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let user = if rustix::process::getuid().is_root() { USER } else { 1000 };
    assert_eq!(text.lines().next(), Some(format!("2 {user}").as_str()), "the second process of its world: {text}");
    assert_eq!(text.lines().nth(1), Some("/*"), "and it may not even list its root");
}

#[test]
fn how_a_confined_process_ends_is_passed_on() {
    let Some(output) = Confined::new(true).shell("exit 3") else { return };
    assert_eq!(output.status.code(), Some(3));
    let Some(output) = Confined::new(true).shell("printf %02000000d 1 > big") else { return };
    assert_eq!(output.status.code(), Some(128 + 25), "SIGXFSZ");
}

/// Compiles `tests/probe/main.rs` and runs it in place of a compiler.
fn probe(namespaces: bool) {
    let confined = Confined::new(namespaces);
    let program = confined.folder.path().join("work/probe");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/probe/main.rs");
    let compiled = Command::new("rustc").args(["--edition=2024", "-o"]).arg(&program).arg(source).status();
    assert!(compiled.expect("rustc runs").success());
    let (other, place) = (confined.folder.path().join("other"), confined.folder.path().join("place"));
    let open = || std::os::unix::fs::PermissionsExt::from_mode(0o755);
    for folder in [&other, &place] {
        std::fs::create_dir(folder).expect("a folder");
        std::fs::set_permissions(folder, open()).expect("our folder");
    }
    std::fs::write(other.join("src.rs"), "secret").expect("a file");
    let path = |path: &std::path::Path| path.to_str().expect("a path").to_owned();
    let readable = ["/lib64", "/lib", "/usr/lib", &path(&place)];
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port().to_string();
    let (parent, other) = (std::process::id().to_string(), path(&other));
    let arguments = [port.as_str(), parent.as_str(), other.as_str()];
    let written = confined.run(&readable, &path(&program), &arguments);
    assert!(written.is_none_or(|output| output.stdout.is_empty()), "what it has written itself must not run");
    std::fs::copy(&program, place.join("probe")).expect("a copy");
    let Some(output) = confined.run(&readable, &path(&place.join("probe")), &arguments) else { return };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.ends_with("end\n"), "{text}{errors}");
    let done: Vec<&str> = text.lines().filter(|line| line.ends_with("DONE")).collect();
    assert!(done.is_empty(), "namespaces: {namespaces}: {done:?}");
    assert!(text.lines().count() > 20, "{text}");
}

#[test]
fn nothing_that_a_compiler_must_not_do_succeeds_with_namespaces() {
    probe(true);
}

#[test]
fn nothing_that_a_compiler_must_not_do_succeeds_without_namespaces() {
    probe(false);
}

/// Starts a builder under a kernel without some system calls. It runs on a thread of its own, so that only its child
/// processes are affected.
fn without(calls: &[i64], config: BuilderConfig) -> Result<Arc<BuilderHandle>, BuildError> {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
    let rules = calls.iter().map(|call| (*call, Vec::new())).collect();
    let unknown = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, unknown, TargetArch::x86_64).expect("a filter");
    let program: BpfProgram = filter.try_into().expect("a program");
    let start = move || {
        seccompiler::apply_filter(&program).expect("seccomp is there");
        BuilderHandle::start(config)
    };
    std::thread::spawn(start).join().expect("no panic")
}

#[test]
fn without_namespaces_landlock_and_seccomp_serve() {
    let strict = BuilderConfig { allow_unsandboxed: false, compilers: 1, ..config() };
    let builder = match without(&[libc::SYS_unshare], strict) {
        Ok(builder) => builder,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    assert!(builder.confinement().starts_with("Landlock, seccomp"), "{}", builder.confinement());
    builder.build(1, 1, source("db.reply(args)"), TIER).expect("it builds");
}

#[test]
fn with_neither_the_builder_refuses_and_says_how_to_allow_it() {
    let calls = [libc::SYS_unshare, libc::SYS_landlock_create_ruleset];
    let strict = BuilderConfig { allow_unsandboxed: false, compilers: 1, ..config() };
    match without(&calls, strict) {
        Err(BuildError::Sandbox(why)) => {
            assert!(why.contains("Landlock") && why.contains("builder.allow_unsandboxed"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    let allowed = without(&calls, BuilderConfig { compilers: 1, ..config() }).expect("the operator allows it");
    assert_eq!(allowed.confinement(), "compilers are not confined");
    allowed.build(1, 1, source("db.reply(args)"), TIER).expect("it builds");
}

#[test]
fn the_same_source_again_is_signed_anew_for_its_version() {
    let builder = BuilderHandle::start(BuilderConfig { compilers: 1, ..config() }).expect("a builder");
    let source = source("db.reply(args)");
    let (first, second) =
        (builder.build(1, 1, &source, TIER).expect("built"), builder.build(1, 2, &source, TIER).expect("built"));
    assert_eq!((first.elf == second.elf, first.header.version, second.header.version), (true, 1, 2));
    assert_ne!(first.signature, second.signature);
    assert_eq!(builder.build(2, 1, &source, TIER).expect("built for another tenant").header.tenant, 2);
}

#[test]
fn a_long_compilation_holds_up_no_other() {
    let limits = CompileLimits { cpu: std::time::Duration::from_secs(6), ..CompileLimits::default() };
    let builder = BuilderHandle::start(BuilderConfig { compilers: 2, limits, ..config() }).expect("a builder");
    let mut endless = source("db.reply(args)");
    endless.files[0].text.push_str(
        "#[allow(long_running_const_eval)]\nconst X: u64 = { let mut n = 0_u64; while n < u64::MAX { n += 1 } n };\n",
    );
    std::thread::scope(|scope| {
        let hungry = scope.spawn(|| builder.build(1, 1, &endless, TIER));
        builder.build(2, 1, source("db.reply(args)"), TIER).expect("built");
        assert!(!hungry.is_finished(), "the other one was built meanwhile");
        let ended = hungry.join().expect("no panic");
        assert!(matches!(ended, Err(BuildError::Limit(_) | BuildError::Busy(_))), "{ended:?}");
    });
}

#[test]
fn a_builder_elsewhere_builds_for_who_has_its_token() {
    let state = tempfile::tempdir().expect("a folder");
    let own = BuilderConfig { state: state.path().join("builder"), ..config() };
    let server =
        BuilderServer::bind("127.0.0.1:0".parse().expect("an address"), own.clone(), &PortTls::Off).expect("a builder");
    let (url, key) = (format!("http://{}", server.address()), server.public_key());
    let stop = Arc::new(tokio::sync::Notify::new());
    let stopped = stop.clone();
    let service = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(server.run(async move { stopped.notified().await })).expect("it serves");
    });
    let token_file = own.state.join(TOKEN_FILE);
    let remote = RemoteConfig { url: url.clone(), token_file, certificate: RemoteCertificate::Public };
    let builder = RemoteBuilder::open(&remote, &own).expect("a remote builder");
    assert!(builder.compiler().is_some());
    let artifact = builder.answer(&request(7, 3, "db.reply(args)")).expect("built").0;
    let expected = ArtifactRequirements {
        tenant: 7,
        name: "test".to_owned(),
        tier: TIER,
        compiler: builder.compiler().map(|(fingerprint, _)| fingerprint),
        api_fingerprint: api_fingerprint(),
        checker: checker_fingerprint(),
        abi_version: ABI_VERSION,
        highest: None,
    };
    assert_eq!(artifact.verify(&[key], &expected), Ok(()));
    let refused = builder.answer(&request(7, 4, "unsafe {}"));
    assert!(matches!(refused, Err(BuildError::Refused(_))), "{refused:?}");

    let wrong = state.path().join("wrong-token");
    std::fs::write(&wrong, "a-token-of-somebody-else").expect("a file");
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&wrong, closed).expect("our file");
    let stranger =
        RemoteBuilder::open(&RemoteConfig { url, token_file: wrong, certificate: RemoteCertificate::Public }, &own)
            .expect("opened");
    let refused = stranger.answer(&request(7, 4, "db.reply(args)")).expect_err("not its token").to_string();
    assert!(refused.contains("does not take the token"), "{refused}");
    stop.notify_one();
    service.join().expect("no panic");
    let gone = builder.answer(&request(7, 4, "db.reply(args)"));
    assert!(matches!(gone, Err(BuildError::Toolchain(_))), "{gone:?}");
}
