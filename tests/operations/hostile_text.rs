//! Promise: no command lets a terminal act on what tenants and their clients have chosen: keys, values, lines of the
//! log, texts of panics and errors, arguments, texts of events. Each command writes to a terminal (`script` of Debian's
//! `bsdutils`) what a server has after all of these were hostile. (The page: `browser.rs`.)

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandstorm_client::{Config, PutOptions, blocking::Client};

use super::browser::HOSTILE;
use super::http::has_program;
use crate::common::process::{Server, binary};
use crate::common::{PATIENT, Stop};

/// What a terminal acts on: a link, an erased screen, a colour by a C1 control and in bytes that are no text, a turned
/// direction, characters without width, a carriage return, a line that looks like one of the command's own.
const SEQUENCES: &str = "\u{1b}]8;;http://evil/\u{1b}\\x\u{1b}[2J\u{9b}31m\u{202e}\u{2066}\u{200b}\r\nforged\t";
/// The beginning of such bytes that are no text.
const NO_TEXT: &[u8] = b"z\x9b31m\xff\x1b[2J";

/// An extension that writes its arguments to the log, and to its panic or error.
const ECHOES: &str = "#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let text = String::from_utf8_lossy(args).into_owned();
    info!(\"{text}\");
    match args.first() {
        Some(b'p') => panic!(\"{text}\"),
        Some(b'e') => Err(Error::new(text)),
        _ => db.reply(args),
    }
}
";

/// The caller of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    Operator,
    Tenant,
}

use Caller::{Operator, Tenant};

/// Commands, and whose output has to show some of the hostile text, escaped. `KEY` is the hostile key, `ID` the number
/// of a slow request for it.
const COMMANDS: &[(&str, &[Caller])] = &[
    ("top tenants --once", &[]),
    ("top extensions --once", &[]),
    ("top tables --once", &[]),
    ("top tenants --batch --count 1", &[]),
    ("top extensions --batch --count 1", &[]),
    ("top tables --batch --count 1", &[]),
    ("kills", &[Operator, Tenant]),
    ("kills --places", &[Operator, Tenant]),
    ("hot", &[]),
    ("hot items --seconds 1", &[Tenant]),
    ("big items", &[Tenant]),
    ("heat items --seconds 1 --ranges 4", &[]),
    ("slow", &[Tenant]),
    ("explain ID", &[]),
    ("events --limit 1000", &[Operator, Tenant]),
    ("ext logs echoes", &[Tenant]),
    ("ext list", &[]),
    ("ext show echoes", &[]),
    ("ext profile echoes --seconds 1", &[]),
    ("invoke echoes KEY", &[Tenant]),
    ("table list", &[]),
    ("table show items", &[]),
    ("tenant list", &[]),
    ("tenant show shop", &[]),
    ("get items KEY", &[Tenant]),
    ("get items KEY hex:7a9b33316dff1b5b324a", &[Tenant]),
    ("get items hex:1b5b324a", &[]),
    ("range items", &[Tenant]),
    ("transaction 'get items KEY'", &[Tenant]),
    ("shell", &[Tenant]),
    ("history --by seconds", &[]),
    ("stat --all", &[]),
    ("stat latency --all", &[]),
    ("doctor --live", &[]),
    ("cluster status", &[]),
    ("health", &[]),
];

/// Whether a terminal would act on a character, or show other text than is there.
fn is_harmful(c: char) -> bool {
    let is_control = c.is_control() && !matches!(c, '\n' | '\t');
    is_control || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a command writes to a terminal, its errors among it.
fn shown(server: &Server, caller: Caller, token: &str, line: &str) -> String {
    let program = binary().get_program().to_string_lossy().into_owned();
    let line = match line {
        "shell" => format!("printf 'get items KEY\\nrange items\\nget items hex:1b5b324a\\n' | {program} shell"),
        line => format!("{program} {line}"),
    };
    let mut command = Command::new("script");
    command.args(["-qec", &line.replace("KEY", &format!("hex:{}", hex(key().as_bytes()))), "/dev/null"]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SANDSTORM_")) {
        command.env_remove(name);
    }
    command.env("SANDSTORM_SERVER", &server.control).env("HOME", "/nonexistent");
    match caller {
        Operator => command.env("SANDSTORM_STATE", server.state()).env("SANDSTORM_TENANT", "shop"),
        Tenant => command.env("SANDSTORM_TOKEN", token),
    };
    let output = command.stdin(std::process::Stdio::null()).output().expect("it runs");
    String::from_utf8(output.stdout).unwrap_or_else(|error| panic!("{line}: bytes that are no text: {error}"))
}

/// A key, a value, arguments.
fn key() -> String {
    format!("k{SEQUENCES}{HOSTILE}")
}

/// Fills a server with hostile texts. Returns the token of its tenant, a client of it, and the table.
fn fill(server: &Server) -> (String, Client, u64) {
    let made = server.json("tenant create shop --quota suspend_after_kills=0");
    let token = made["token"].as_str().expect("a token").to_owned();
    let table = server.json("table create items --tenant shop --ordered")["id"].as_u64().expect("an id");
    let id = u32::try_from(made["tenant"]["id"].as_u64().expect("an id")).expect("an id");
    let config = Config::new(server.data.parse().expect("an address"), id).deadline(PATIENT);
    let client = Client::connect(config.token(&token)).expect("a connection");
    let folder = server.folder.path().join("echoes");
    fs::create_dir_all(folder.join("src")).expect("a folder");
    let manifest = "name = \"echoes\"\nversion = \"1.0.0\"\nedition = \"2024\"\napi = 1\nkeep_arguments = 64\n";
    fs::write(folder.join("extension.toml"), manifest).expect("room");
    fs::write(folder.join("src/lib.rs"), ECHOES).expect("room");
    server.json(&format!("ext push {} --tenant shop", folder.display()));
    let module = server.folder.path().join("x.wasm");
    fs::write(&module, key()).expect("room");
    assert!(!server.output(&format!("ext push --name x --tenant shop --wasm {}", module.display())).status.success());
    server.json("slow --threshold-us 1");
    for key in [key().as_bytes(), NO_TEXT] {
        client.put(table, key, key, &PutOptions::default()).expect("it is stored");
        for first in [b'i', b'e', b'p'] {
            let ended = client.invoke("echoes", &[&[first], key].concat());
            assert_eq!(ended.is_ok(), first == b'i', "{ended:?}");
        }
    }
    (token, client, table)
}

#[test]
fn no_command_has_a_terminal_act_on_what_tenants_have_chosen() {
    if !has_program("script", "bsdutils") {
        return;
    }
    let server = Server::start_as(&["--no-pin", "--workers", "1"]);
    let (token, client, table) = fill(&server);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Stop(&over);
        // While keys are counted, and slow requests are looked for, there are some.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                client.get(table, key().as_bytes()).expect("an answer");
                client.get(table, NO_TEXT).expect("an answer");
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let mut wrong = Vec::new();
        for (line, has_to_show) in COMMANDS {
            let id = || server.json("slow --limit 1")["requests"][0]["id"].to_string();
            let line = if line.contains("ID") { line.replace("ID", &id()) } else { (*line).to_owned() };
            for caller in [Operator, Tenant] {
                // A terminal has both at the end of a line, and a progress line begins and ends with the others.
                let said = shown(&server, caller, &token, &line).replace("\r\n", "\n").replace("\r\u{1b}[K", "");
                let harmful: Vec<char> = said.chars().filter(|c| is_harmful(*c)).collect();
                let is_forged = said.lines().any(|line| line.trim_start().starts_with("forged"));
                let is_shown = ["\\u{1b}", "\\x1b", "hex:6b1b5d", "\\u001b"].iter().any(|part| said.contains(part));
                if !harmful.is_empty() || is_forged || has_to_show.contains(&caller) && !is_shown {
                    wrong.push(format!("{line} by {caller:?}: {harmful:?}, {is_forged}, {is_shown}: {said:?}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}
