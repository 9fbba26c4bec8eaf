//! Promise: `sandstorm shell` runs commands one after the other, calls typed functions by their names, and tells at its
//! end whether any failed.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::typed::bank;
use crate::common::EVENTUALLY;
use crate::common::process::Server;

/// What a shell that is given these lines prints, and whether all went well.
fn shell(server: &Server, options: &[&str], lines: &str) -> (bool, String, String) {
    let mut command = server.command();
    command.args(options).arg("shell").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_shell_runs_commands_and_calls_functions() {
    let (server, _) = bank();
    let lines = "# a remark\n\nput accounts 'a b' 3\nget accounts 'a b'\n\
                 bank.deposit {\"name\": \"ann\", \"balance\": 10}\n  sandstorm invoke bank.statement [\"ann\"]\nexit\nget nothing x\n";
    let (ok, out, error) = shell(&server, &[], lines);
    assert!(ok, "{out}{error}");
    let (shown, statement) = out.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(shown, "version 1\n3\n10", "{error}");
    let statement: serde_json::Value = serde_json::from_str(statement).unwrap();
    assert_eq!(statement, serde_json::json!([{"name": "ann", "balance": 10}]));

    // A command that fails is told, the next one runs, and the shell's status says it.
    let (ok, out, error) = shell(&server, &[], "get nothing x\nput accounts \"k\nbank.nothing\nget accounts 'a b'\n");
    assert!(!ok && out == "3\n", "{out}{error}");
    for text in [
        "no table \"nothing\"",
        "the quote \" is not closed",
        "there is no function \"nothing\"",
        "3 of the commands failed",
    ] {
        assert!(error.contains(text), "{text} is not in {error}");
    }

    // Options of the shell are those of its commands, until `use` or a command says otherwise.
    let wrong = ["--tenant", "nobody"];
    assert!(!shell(&server, &wrong, "get accounts 'a b'\n").0);
    let (ok, out, error) =
        shell(&server, &wrong, "use shop\nget accounts 'a b'\nuse\nget accounts 'a b' --tenant shop\n");
    assert!(ok && out == "3\n3\n", "{out}{error}");
    let (_, out, _) = shell(&server, &["--json"], "get accounts 'a b'\n");
    assert!(out.trim_start().starts_with(['{', '[', '"']), "{out}");
}

/// A shell at a terminal, which util-linux' `script` makes: what is typed, and what it shows.
struct Terminal {
    process: Child,
    keys: ChildStdin,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const UP: &str = "\x1b[A";

impl Terminal {
    /// `None` without `script`.
    fn open(server: &Server) -> Option<Terminal> {
        if !Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success()) {
            println!("left out: there is no `script` (util-linux)");
            return None;
        }
        let shell = server.command();
        let mut command = Command::new("script");
        // Without `exec` a shell between the two stays, gets each ^C as well, and some (dash) die of it in the end.
        let line = format!("exec '{}' shell", shell.get_program().to_str().unwrap());
        command.args(["-q", "-e", "-c", &line, "/dev/null"]).env("SHELL", "/bin/sh");
        command.envs(shell.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (keys, mut out) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let shown = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&shown);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = out.read(&mut bytes) {
                all.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&bytes[..read]);
            }
        });
        Some(Terminal { process, keys, shown, reader: Some(reader) })
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// What is shown behind a place.
    fn since(&self, from: usize) -> String {
        self.shown().get(from..).unwrap_or_default().to_owned()
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until a text is shown behind a place; returns the place behind it.
    fn wait_for(&self, from: usize, text: &str) -> usize {
        let until = Instant::now() + EVENTUALLY;
        loop {
            let shown = self.shown();
            if let Some(at) = shown.get(from..).and_then(|rest| rest.find(text)) {
                return from + at + text.len();
            }
            assert!(Instant::now() < until, "{text:?} is not shown: {shown:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Types a line that reads as `line` once Tab has done its part; returns what is shown from there to the next
    /// prompt.
    fn enter(&mut self, keys: &str, line: &str) -> String {
        let from = self.shown().len();
        self.press(keys);
        let typed = self.wait_for(from, line);
        self.press("\r");
        // The line's end, and then the prompt.
        let ended = self.wait_for(typed, "\n");
        let prompt = self.wait_for(ended, "sandstorm> ");
        self.shown()[ended..prompt].to_owned()
    }

    /// Waits for the end, which has to be one without an error.
    fn end(&mut self) {
        let until = Instant::now() + EVENTUALLY;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                assert!(status.success(), "{status}: {:?}", self.shown());
                return;
            }
            assert!(Instant::now() < until, "it does not end: {:?}", self.shown());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
        if let Some(reader) = self.reader.take() {
            let _ended = reader.join();
        }
    }
}

#[test]
fn at_a_terminal_a_shell_completes_remembers_and_is_not_ended_by_what_its_commands_do() {
    let (server, _) = bank();
    let hostile = server.command().args(["put", "accounts", "title", "\x1b]0;owned\x07"]).output().unwrap();
    assert!(hostile.status.success(), "{hostile:?}");
    let Some(mut terminal) = Terminal::open(&server) else { return };
    terminal.wait_for(0, "sandstorm> ");
    let answer = terminal.enter("put accounts apple seven", "put accounts apple seven");
    assert!(answer.contains("version 1"), "{answer:?}");
    // A command, a table and a function are completed; a function is called with JSON, and its reply is one of types.
    let answer = terminal.enter("ge\tacc\tapple", "get accounts apple");
    assert!(answer.contains("seven"), "{answer:?}");
    let call = "bank.deposit {\"name\": \"ann\", \"balance\": 10}";
    let answer = terminal.enter("bank.de\t{\"name\": \"ann\", \"balance\": 10}", call);
    assert!(answer.trim_start().starts_with("10"), "{answer:?}");
    // What a record has in it is shown, and the terminal does not obey it.
    let answer = terminal.enter("get accounts title", "get accounts title");
    let is_shown = answer.contains("hex:1b5d303b6f776e656407");
    assert!(is_shown && !answer.contains("\x1b]") && !answer.contains('\x07'), "{answer:?}");
    // Without an end of its line an answer stays as well.
    let answer = terminal.enter("get accounts apple --raw", "get accounts apple --raw");
    assert!(answer.starts_with("seven ") || answer.contains("seven\r\n"), "{answer:?}");

    // ^C gives up a line: it is not run.
    let from = terminal.shown().len();
    terminal.press("put accounts pear 5");
    let from = terminal.wait_for(from, "put accounts pear 5");
    terminal.press(CTRL_C);
    terminal.wait_for(from, "sandstorm> ");
    // And a command that would follow for ever, but not the shell.
    let from = terminal.shown().len();
    terminal.press("changes accounts --follow\r");
    let until = Instant::now() + EVENTUALLY;
    while !terminal.since(from).contains("live") {
        server.json("put accounts live 1");
        assert!(Instant::now() < until, "{:?}", terminal.shown());
        std::thread::sleep(Duration::from_millis(20));
    }
    let from = terminal.shown().len();
    while !terminal.since(from).contains("sandstorm> ") {
        terminal.press(CTRL_C);
        assert!(Instant::now() < until, "{:?}", terminal.shown());
        std::thread::sleep(Duration::from_millis(50));
    }
    let answer = terminal.enter("get accounts apple", "get accounts apple");
    assert!(answer.contains("seven"), "{answer:?}");
    assert!(!server.output("get accounts pear").status.success(), "it was given up");
    terminal.press(CTRL_D);
    terminal.end();

    // The next shell remembers.
    let history = std::fs::read_to_string(server.state().join("shell-history")).unwrap();
    assert!(history.ends_with("get accounts apple\n") && !history.contains("pear"), "{history}");
    let mut terminal = Terminal::open(&server).unwrap();
    terminal.wait_for(0, "sandstorm> ");
    let answer = terminal.enter(UP, "get accounts apple");
    assert!(answer.contains("seven"), "{answer:?}");
    let from = terminal.shown().len();
    terminal.press(&format!("{UP}{UP}"));
    terminal.wait_for(from, "changes accounts --follow");
    terminal.press(&format!("{CTRL_C}exit\r"));
    terminal.end();
}
