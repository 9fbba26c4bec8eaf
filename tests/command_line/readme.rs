//! Promise: the README's and the tutorial's commands print what the pages say; their Rust passes the checker, compiles
//! and gives the right answers. The program of the client's page runs after them, and every link between the pages has
//! a target. Runs the real binary on free ports.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use sandstorm_api::change::{Change, ChangeOp};
use sandstorm_catalog::testing::code;
use serde_json::Value;

use crate::common::process::state_in;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

pub(super) fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The text under a heading, up to the next heading of its level.
fn section<'p>(page: &'p str, heading: &str) -> &'p str {
    let start = page.find(heading).unwrap_or_else(|| panic!("no {heading:?}")) + heading.len();
    let end = page[start..].find("\n## ").map_or(page.len(), |end| start + end);
    &page[start..end]
}

/// Fenced blocks in order: language and text.
pub(super) fn blocks(text: &str) -> Vec<(&str, String)> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push((language, body.join("\n") + "\n"));
        }
    }
    blocks
}

/// The commands of a terminal session, each with the output lines that the page shows.
pub(super) fn commands(block: &str) -> Vec<(String, Vec<String>)> {
    let mut commands: Vec<(String, Vec<String>)> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command.to_owned(), Vec::new())),
            (None, Some((_, printed))) => printed.push(line.to_owned()),
            (None, None) => panic!("output before any command: {line}"),
        }
    }
    commands
}

/// Replaces the parts of a line that differ from run to run: times, sizes of libraries, tokens, and versions of
/// records, which depend on the keys that share a counter.
pub(super) fn settled(line: &str) -> String {
    for head in ["token: ", "token_hash: ", "sandstorm-token-1:", "version "] {
        if line.starts_with(head) {
            return head.to_owned();
        }
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    let unit = |at: usize| words.get(at + 1).map(|word| word.trim_end_matches(')'));
    let settle = |(at, word): (usize, &&str)| match unit(at) {
        Some("ms" | "KiB") if word.trim_start_matches('(').parse::<u32>().is_ok() => "N".to_owned(),
        _ => (*word).to_owned(),
    };
    words.iter().enumerate().map(settle).collect::<Vec<_>>().join(" ")
}

/// A server of the test's own, a working folder, and the binary on the path.
pub(super) struct Terminal {
    process: Child,
    /// What the server has said of its addresses.
    pub(super) said: Value,
    pub(super) control: String,
    pub(super) folder: tempfile::TempDir,
    pub(super) here: PathBuf,
}

impl Terminal {
    pub(super) fn open() -> Terminal {
        Terminal::open_in(tempfile::tempdir().unwrap(), &[])
    }

    /// Opens a terminal with its state in this folder, and these options.
    fn open_in(folder: tempfile::TempDir, options: &[&str]) -> Terminal {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandstorm-under-test"));
        command.args(["serve", "--json", "--no-pin", "--workers", "1", "--code", code().name()]).args(options);
        command.env_remove("SANDSTORM_STATE");
        command.args(["--data", "127.0.0.1:0", "--control", "127.0.0.1:0", "--state"]).arg(state_in(folder.path()));
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).expect("the server says where it is");
        let control = said["control"].as_str().unwrap().to_owned();
        let here = folder.path().join("work");
        fs::create_dir(&here).unwrap();
        // Links the binary under the name that the pages use.
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        symlink(env!("CARGO_BIN_EXE_sandstorm-under-test"), bin.join("sandstorm")).unwrap();
        Terminal { process, said, control, folder, here }
    }

    /// Runs a line in a shell; it must succeed. Returns its output.
    pub(super) fn run(&mut self, line: &str) -> String {
        if let Some(folder) = line.strip_prefix("cd ") {
            self.here.push(folder);
            return String::new();
        }
        let output = self.shell(line).output().unwrap();
        assert!(output.status.success(), "$ {line}\n{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// A shell that runs a line here.
    pub(super) fn shell(&self, line: &str) -> Command {
        let path = format!("{}:{}", self.folder.path().join("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("sh");
        for name in ["SANDSTORM_TOKEN", "SANDSTORM_TENANT", "RUST_LOG"] {
            command.env_remove(name);
        }
        command.env("PATH", path).env("SANDSTORM_SERVER", &self.control);
        command.env("SANDSTORM_STATE", self.folder.path().join("state"));
        command.env("XDG_CACHE_HOME", self.folder.path().join("cache"));
        command.args(["-c", line]).current_dir(&self.here).stdin(Stdio::null());
        command
    }

    /// Runs the commands of a block and compares their output with the page's, where the page shows any.
    pub(super) fn follow(&mut self, block: &str) {
        for (command, expected) in commands(block) {
            // The server runs already, on ports of its own; the binary exists.
            if command.starts_with("sandstorm serve") || command.starts_with("cargo ") {
                continue;
            }
            let printed = self.run(&command);
            if !expected.is_empty() {
                let settle = |lines: Vec<&str>| lines.into_iter().map(settled).collect::<Vec<_>>();
                let expected = settle(expected.iter().map(String::as_str).collect());
                assert_eq!(settle(printed.lines().collect()), expected, "$ {command}");
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.here = self.folder.path().to_path_buf();
        let stop = Command::new(env!("CARGO_BIN_EXE_sandstorm-under-test"))
            .args(["stop", "--server", &self.control, "--state"])
            .arg(self.folder.path().join("state"))
            .output();
        if !stop.is_ok_and(|output| output.status.success()) {
            let _ended_already = self.process.kill();
        }
        let _status = self.process.wait();
    }
}

#[test]
fn the_readmes_first_extension_does_what_it_says() {
    let readme = page("README.md");
    let mut terminal = Terminal::open();
    let mut sources = 0;
    for (language, text) in blocks(section(&readme, "## Your first extension")) {
        if language == "rust" {
            fs::write(terminal.here.join("sum/src/lib.rs"), text).unwrap();
            sources += 1;
        } else {
            terminal.follow(&text);
        }
    }
    assert_eq!(sources, 1, "one sample");
    assert_eq!(terminal.run("printf 'pear' | sandstorm invoke sum -"), "4\n");
    the_clients_page_goes_on(&mut terminal);
}

/// The second program of the client's page, copied exactly.
mod shop {
    include!("../pages/shop.rs");

    /// Runs what its `main` does, at the test's own server. It runs twice: no cleanup is needed in between.
    pub(super) fn run(control: &str, token: &str) {
        let _never_called = main;
        let (config, items, prices) = ids(control, token).expect("both tables");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        for time in 1..=2 {
            runtime
                .block_on(shop(config.clone(), items, prices))
                .unwrap_or_else(|error| panic!("time {time}: {error}"));
        }
    }
}

fn the_clients_page_goes_on(terminal: &mut Terminal) {
    let client = page("docs/client.md");
    let blocks = blocks(&client);
    for (_, session) in blocks.iter().filter(|(_, text)| text.starts_with("$ ")) {
        terminal.follow(session);
    }
    let program = fs::read_to_string(root().join("tests/pages/shop.rs")).unwrap();
    assert!(blocks.iter().any(|(_, text)| *text == program), "tests/pages/shop.rs is no program of docs/client.md");
    let printed: Value = serde_json::from_str(&terminal.run("sandstorm tenant token shop --json")).unwrap();
    shop::run(&terminal.control, printed["token"].as_str().expect("a token"));
    assert_eq!(terminal.run("sandstorm get items apple"), "7\n");
}

#[test]
fn the_tutorials_steps_and_samples_do_what_they_say() {
    let tutorial = page("docs/extensions.md");
    let mut terminal = Terminal::open();
    terminal.run("sandstorm tenant create shop");
    let steps = blocks(section(&tutorial, "## From nothing to a reply"));
    let [("", session), ("rust", template)] = steps.as_slice() else { panic!("a session and a sample: {steps:?}") };
    terminal.follow(session);

    // The page shows the template without its comments and tests.
    let written = fs::read_to_string(terminal.here.join("src/lib.rs")).unwrap();
    let code = written.split("#[cfg(test)]").next().unwrap().lines();
    let bare = |lines: &mut dyn Iterator<Item = &str>| -> Vec<String> {
        lines.filter(|line| !line.trim().is_empty() && !line.trim().starts_with("//")).map(str::to_owned).collect()
    };
    assert_eq!(bare(&mut template.lines()), bare(&mut code.into_iter()));

    let samples = blocks(section(&tutorial, "## Testing"));
    let [("rust", tests)] = samples.as_slice() else { panic!("a sample: {samples:?}") };
    fs::write(terminal.here.join("src/lib.rs"), format!("{template}{tests}")).unwrap();
    assert!(terminal.run("sandstorm ext test").contains("1 passed"));

    let samples = blocks(section(&tutorial, "## What you can call"));
    let [("rust", scan)] = samples.as_slice() else { panic!("a sample: {samples:?}") };
    let whole = "#![no_std]\n#![forbid(unsafe_code)]\nuse sandstorm_api::prelude::*;\n\
         pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {\n\
         let table = db.table(\"visits\")?;\nlet mut count = 0;\nSCAN\ndb.reply(count.to_string().as_bytes())\n}\n";
    fs::write(terminal.here.join("src/lib.rs"), whole.replace("SCAN", scan)).unwrap();
    terminal.run("sandstorm ext push");
    assert_eq!(terminal.run("sandstorm invoke hello"), "1\n", "one record, a value of one byte");
}

#[test]
fn the_examples_answer_as_their_page_says() {
    let mut terminal = Terminal::open();
    terminal.run("sandstorm tenant create shop");
    terminal.run("sandstorm table create t");
    let examples = page("ext/README.md");
    let [("", session)] = &blocks(&examples)[..] else { panic!("one session") };
    terminal.here = root().join("ext");
    terminal.follow(session);
}

#[test]
fn the_cookbooks_applications_do_what_they_say() {
    let text = page("docs/cookbook.md");
    let mut terminal = Terminal::open();
    terminal.run("sandstorm tenant create shop");
    let sessions: Vec<(&str, String)> = blocks(&text).into_iter().filter(|(language, _)| language.is_empty()).collect();
    assert_eq!(sessions.len(), 9, "one for each");
    // As the page says: all of them in one tenant.
    let with_quotas = |session: &str| session.replace("table create ", "table create --quota 64MiB ");
    sessions.iter().for_each(|(_, session)| terminal.follow(&with_quotas(session)));

    // The first sample of the page about types, whose table is the shop's.
    let types = page("docs/types.md");
    let [("rust", sample), ("", session), ..] = &blocks(&types)[..] else { panic!("a sample and its session") };
    terminal.run("sandstorm ext new bank; sandstorm put accounts ann 10");
    fs::write(terminal.here.join("bank/src/lib.rs"), sample).unwrap();
    terminal.follow(session);
}

/// The copy of the page about triggers is right if an old change comes behind a newer one, as a replay does.
#[test]
fn the_copy_of_the_triggers_page_keeps_the_newest_change() {
    let text = page("docs/triggers.md");
    let samples = blocks(section(&text, "## For changes of a table"));
    let (_, sample) = samples.iter().find(|(language, _)| *language == "rust").expect("a sample");
    let mut terminal = Terminal::open();
    terminal.run("sandstorm tenant create shop; sandstorm table create copies; sandstorm table create seen");
    terminal.run("sandstorm ext new copy");
    let head = "#![no_std]\n#![forbid(unsafe_code)]\n";
    fs::write(terminal.here.join("copy/src/lib.rs"), format!("{head}{sample}")).unwrap();
    terminal.run("sandstorm ext push copy");
    let mut call = |op, value: &[u8], version| {
        let change = Change { op, key: b"o17", value, version, expires_at_ms: 0, position: version };
        fs::write(terminal.here.join("change"), change.encode()).unwrap();
        terminal.run("sandstorm invoke copy - < change");
        terminal.run("sandstorm get copies o17 --raw || true")
    };
    assert_eq!(call(ChangeOp::Put, b"good17", 9), "good17");
    assert_eq!(call(ChangeOp::Put, b"bad", 7), "good17", "a replay");
    assert_eq!(call(ChangeOp::Delete, b"", 10), "");
    assert_eq!(call(ChangeOp::Put, b"good17", 9), "", "a replay behind a delete");
}

#[test]
fn the_social_graphs_page_does_what_it_says() {
    let text = page("docs/tao.md");
    let mut terminal = Terminal::open();
    terminal.run("sandstorm tenant create friends");
    terminal.here = root();
    let sessions: Vec<String> =
        blocks(&text).into_iter().filter(|(language, _)| language.is_empty()).map(|(_, text)| text).collect();
    assert_eq!(sessions.len(), 3);
    sessions.iter().for_each(|session| terminal.follow(session));
}

#[test]
fn the_operators_page_does_what_it_says() {
    let operations = page("docs/operations.md");
    let mut terminal = Terminal::open();
    for (language, text) in blocks(&operations) {
        // Sessions on two machines and parts of a configuration are not run.
        if language.is_empty() && text.starts_with("$ ") {
            terminal.follow(&text);
        }
    }
}

/// The server, started as systemd would: with the unit's environment and systemd's own variables, and nothing else.
struct Service {
    folder: tempfile::TempDir,
    unit: String,
}

impl Service {
    /// Writes the page's unit with this machine's files. `builder` is the configuration's section of that name.
    fn new(builder: &str) -> Service {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let config =
            format!("data = '127.0.0.1:0'\ncontrol = '127.0.0.1:0'\nworkers = 1\npin = false\n[builder]\n{builder}\n");
        fs::write(at("sandstorm.toml"), config).unwrap();
        fs::create_dir_all(at("rust/bin")).unwrap();
        let operations = page("docs/operations.md");
        let blocks = blocks(section(&operations, "## As a service"));
        let (_, unit) = blocks.iter().find(|(language, _)| *language == "ini").expect("the unit");
        let mut unit = unit.replace("User=sandstorm\n", "");
        for (theirs, ours) in [
            ("/usr/local/bin/sandstorm", env!("CARGO_BIN_EXE_sandstorm-under-test")),
            ("/var/lib/sandstorm", &at("state")),
            ("/etc/sandstorm.toml", &at("sandstorm.toml")),
            ("/opt/rust", &at("rust")),
        ] {
            assert!(unit.contains(theirs), "{theirs}");
            unit = unit.replace(theirs, ours);
        }
        fs::write(at("sandstorm.service"), &unit).unwrap();
        Service { folder, unit }
    }

    /// Returns its first line, or else its standard error, after checking that it ended with an error.
    fn start(&self, change: impl Fn(&str) -> String) -> Result<String, String> {
        let unit = change(&self.unit);
        let lines = |key: &str| {
            let prefix = format!("{key}=");
            unit.lines().filter_map(move |line| line.strip_prefix(&prefix).map(str::to_owned)).collect::<Vec<_>>()
        };
        let start = lines("ExecStart").remove(0);
        let mut words = start.split_whitespace();
        let mut command = Command::new(words.next().unwrap());
        command.args(words).env_clear().current_dir("/").stdin(Stdio::null());
        command.env("HOME", self.folder.path().join("home")).env("USER", "sandstorm").env("LANG", "C.UTF-8");
        for line in lines("Environment") {
            let (name, value) = line.split_once('=').unwrap();
            command.env(name, value);
        }
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.is_empty() {
            let output = process.wait_with_output().unwrap();
            assert!(!output.status.success());
            return Err(String::from_utf8(output.stderr).unwrap());
        }
        let stop = Command::new("kill").arg(process.id().to_string()).status().unwrap();
        assert!(stop.success());
        assert!(process.wait().unwrap().success(), "SIGTERM stops it in order");
        Ok(line)
    }
}

/// The path of the compiler itself, not of rustup's proxy.
fn rustc() -> PathBuf {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    Path::new(String::from_utf8(output.stdout).unwrap().trim()).join("bin/rustc")
}

#[test]
fn the_pages_unit_starts_a_server_wherever_rustc_comes_from() {
    let same = |unit: &str| unit.to_owned();
    // No rustc but those that the test installs: the machine's own may be anywhere.
    let bare = |unit: &str| {
        let path = unit.lines().find(|line| line.starts_with("Environment=PATH=")).unwrap();
        unit.replace(path, path.split_once(':').unwrap().0)
    };
    let as_rustup = Service::new("");
    let proxy = as_rustup.folder.path().join("rust/bin/rustc");
    fs::write(&proxy, format!("#!/bin/sh\nexec '{}' \"$@\"\n", rustc().display())).unwrap();
    fs::set_permissions(&proxy, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let output_text = as_rustup.start(same).unwrap();
    assert!(output_text.starts_with("sandstorm "), "{output_text}");

    let named = Service::new(&format!("rustc = '{}'", rustc().display()));
    assert!(named.start(bare).unwrap().starts_with("sandstorm "));

    let none = Service::new("");
    let error = none.start(bare).unwrap_err();
    for part in ["error: ", "there is none on the PATH", "rust/bin", "home/.cargo/bin", "--rustc FILE", "[builder]"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let unit = none.folder.path().join("sandstorm.service");
    let verify = Command::new("systemd-analyze").arg("verify").arg(&unit).output();
    match verify {
        // Units of other packages may be wrong, too.
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let ours: Vec<&str> = text.lines().filter(|line| line.contains("sandstorm.service")).collect();
            assert!(ours.is_empty(), "{ours:?}");
        }
        Err(error) => println!("systemd-analyze does not look at the unit: {error}"),
    }
}

#[test]
fn the_state_directory_has_the_files_and_modes_that_the_page_says() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
    let folder = tempfile::tempdir().unwrap();
    // The state that an older server has left.
    let state = folder.path().join("state");
    fs::create_dir_all(state.join("builder")).unwrap();
    fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).unwrap();
    fs::set_permissions(state.join("builder"), PermissionsExt::from_mode(0o755)).unwrap();
    let mut terminal = Terminal::open_in(folder, &["--control-tls"]);
    terminal.run("sandstorm tenant create shop");
    terminal.here = root().join("ext");
    terminal.run("sandstorm ext push get");
    terminal.run("sandstorm table create carts --durability interval");

    let operations = page("docs/operations.md");
    // The first table; those behind it are about what is in the files.
    let rows = section(&operations, "## Files").lines().skip_while(|line| !line.starts_with("| `"));
    let rows = rows.take_while(|line| line.starts_with('|')).filter_map(|line| line.strip_prefix("| `"));
    let mut output_told: Vec<(String, u32)> = Vec::new();
    for row in rows {
        let (names, rest) = row.split_once(" | ").unwrap();
        let mode = u32::from_str_radix(rest.split_once(" | ").unwrap().0, 8).unwrap();
        output_told.extend(names.split(", ").map(|name| (name.trim_matches(['`', '/']).to_owned(), mode)));
    }
    // What only a damaged log leaves behind (tests/operations/backups.rs).
    output_told.retain(|(name, _)| !name.contains('*'));
    // What comes with the first trigger, with webhooks in the configuration, with the first line at a shell, and
    // with a copy of another server's log.
    output_told.retain(|(name, _)| !["triggers", "webhooks", "shell-history", "copies"].contains(&name.as_str()));
    output_told.sort();
    let entries = fs::read_dir(&state).unwrap().map(|entry| entry.unwrap());
    let mut found: Vec<(String, u32)> =
        entries.map(|entry| (entry.file_name().into_string().unwrap(), mode(&entry.path()))).collect();
    found.sort();
    assert_eq!(found, output_told);

    // Compilers that run as other users may read the builder's folder where they have access, but never its key.
    let mut waiting = vec![state.join("extensions"), state.join("tokens")];
    assert_eq!(mode(&state.join("builder/builder.key")), 0o600);
    while let Some(path) = waiting.pop() {
        for entry in fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()) {
            assert_eq!(mode(&entry), if entry.is_dir() { 0o700 } else { 0o600 }, "{}", entry.display());
            waiting.extend(Some(entry).filter(|entry| entry.is_dir()));
        }
    }
}

#[test]
fn links_lead_somewhere() {
    let mut pages =
        vec!["README.md".to_owned(), "CHANGELOG.md".to_owned(), "ext/README.md".to_owned(), "net/README.md".to_owned()];
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") {
            pages.push(format!("docs/{name}"));
        }
    }
    pages.extend(["CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned));
    pages.extend(["db/README.md", "client/README.md", "sandstorm-api/README.md"].map(str::to_owned));
    for entry in fs::read_dir(root().join("db")).unwrap() {
        let name = format!("db/{}/README.md", entry.unwrap().file_name().into_string().unwrap());
        if root().join(&name).exists() {
            pages.push(name);
        }
    }
    let mut dead = Vec::new();
    for name in &pages {
        let text = page(name);
        let mut fenced = false;
        for line in text.lines() {
            fenced ^= line.starts_with("```");
            let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
            for target in targets.filter(|target| !fenced && !target.contains("://")) {
                if let Err(reason) = leads(name, target) {
                    dead.push(format!("{name}: ({target}): {reason}"));
                }
            }
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

/// Returns an error unless a link of the page leads to a file, or to a heading of one.
fn leads(from: &str, target: &str) -> Result<(), String> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = root().join(from).parent().unwrap().to_path_buf();
    let file = if path.is_empty() { root().join(from) } else { folder.join(path) };
    if !file.exists() {
        return Err("no such file".to_owned());
    }
    if anchor.is_empty() {
        return Ok(());
    }
    let text = fs::read_to_string(&file).map_err(|error| error.to_string())?;
    let slug = |heading: &str| -> String {
        let kept = heading.trim().to_lowercase();
        kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>().replace(' ', "-")
    };
    let found = text.lines().any(|line| line.starts_with('#') && slug(line.trim_start_matches('#')) == anchor);
    if found { Ok(()) } else { Err("no such heading".to_owned()) }
}
