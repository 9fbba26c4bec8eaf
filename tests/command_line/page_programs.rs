//! Promise: the programs in Python and the commands on the pages of tenants do what the pages say, against a real
//! server. `page_table.rs` has them all. Without Python its programs are left out.

use std::fs;
use std::path::Path;
use std::process::Command;

use sandstorm_builder::TEMPLATES;
use serde_json::Value;

use super::common::root;
use super::page_table::{PageSample, SAMPLES, SampleUse};
use super::python::{installed, python};
use super::readme::{Terminal, blocks, page, settled};

/// The samples of a page with what becomes of them, in the order of the page.
fn samples_of(name: &str) -> Vec<(&'static PageSample, String)> {
    let text = page(name);
    let row = |text: &str| {
        let rows = SAMPLES.iter().filter(|row| row.page == name && text.starts_with(row.head));
        rows.max_by_key(|row| row.head.len())
    };
    blocks(&text).into_iter().filter_map(|(_, text)| Some((row(&text)?, text))).collect()
}

/// The pages that have such samples.
fn pages(is_such: fn(SampleUse) -> bool) -> Vec<&'static str> {
    let mut pages: Vec<&str> = SAMPLES.iter().filter(|row| is_such(row.used)).map(|row| row.page).collect();
    pages.dedup();
    pages
}

/// A server with a tenant `shop`, its token, and the folder of the README's extension.
fn terminal() -> (Terminal, String) {
    let mut terminal = Terminal::open();
    terminal.run("sandstorm tenant create shop; sandstorm ext new sum");
    let readme = page("README.md");
    let (_, sum) = blocks(&readme).into_iter().find(|(language, _)| *language == "rust").expect("an extension");
    fs::write(terminal.here.join("sum/src/lib.rs"), sum).expect("a file");
    let shown: Value = serde_json::from_str(&terminal.run("sandstorm tenant token shop --json")).expect("JSON");
    let token = shown["token"].as_str().expect("a token").to_owned();
    (terminal, token)
}

/// Makes the extension of a template, with its tables.
fn push_template(terminal: &mut Terminal, name: &str) {
    let template = TEMPLATES.iter().find(|template| template.name == name).expect("a template");
    for table in template.tables {
        let ordered = if table.ordered { " --ordered" } else { "" };
        terminal.run(&format!("sandstorm table create {} --quota 64MiB --durability disk{ordered}", table.name));
    }
    terminal.run(&format!("sandstorm ext new {name} --template {name}; sandstorm ext push {name}"));
}

/// A text with each line as far to the right as the word that it stands for.
fn in_place(program: &str, sample: &str) -> String {
    let mut text = String::new();
    for line in program.lines() {
        match line.split_once("SAMPLE") {
            Some((indent, "")) => sample.lines().for_each(|line| text.push_str(&format!("{indent}{line}\n"))),
            _ => text.push_str(&format!("{line}\n")),
        }
    }
    text
}

/// What the extensions and tables of the pages' programs are.
fn prepare_for_python(terminal: &mut Terminal, site: &Path) {
    for (name, module) in [("queue", "queue_client"), ("chat", "chat"), ("features", "features")] {
        push_template(terminal, name);
        let written = terminal.run(&format!("sandstorm ext generate {name} --lang python"));
        fs::write(site.join(format!("{module}.py")), written).expect("a file");
    }
    for table in ["items", "accounts", "prices --ordered"] {
        terminal.run(&format!("sandstorm table create {table} --quota 64MiB --durability disk"));
    }
    let bank = root().join("ext/bank");
    terminal.run(&format!("sandstorm ext push sum; sandstorm ext push {}", bank.display()));
    terminal.run("sandstorm invoke bank.deposit '{\"name\": \"ann\", \"balance\": 10}'; sandstorm put prices a1 2");
}

#[test]
fn the_programs_in_python_do_what_their_pages_say() {
    if python().is_none() {
        return;
    }
    let (mut terminal, token) = terminal();
    let site = installed(terminal.folder.path());
    prepare_for_python(&mut terminal, &site);
    let address = terminal.control.trim_start_matches("http://").to_owned();
    let head = "import asyncio\nimport os\nimport sandstorm\n\
                address, token = os.environ[\"ADDRESS\"], os.environ[\"TOKEN\"]\n";
    let mut ran = 0;
    for name in pages(|used| matches!(used, SampleUse::Python(_))) {
        for (row, sample) in samples_of(name) {
            let SampleUse::Python(program) = row.used else { continue };
            // The page's server is at the default ports, and under no load.
            let opened =
                sample.replace("\"127.0.0.1:7399\", \"shop\", token", "address, \"shop\", token, timeout=120.0");
            let path = terminal.here.join("sample.py");
            fs::write(&path, format!("{head}{}", in_place(program, &opened))).expect("a file");
            let mut python = python().expect("Python is there");
            python.arg(&path).env("PYTHONPATH", &site).env("ADDRESS", &address).env("TOKEN", &token);
            let output = python.output().expect("it runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name}: {}\n{said}", row.head);
            ran += 1;
        }
    }
    assert_eq!(ran, SAMPLES.iter().filter(|row| matches!(row.used, SampleUse::Python(_))).count());
}

/// The commands of a session, each with what the page shows of its output.
fn steps(text: &str) -> Vec<(String, Vec<String>)> {
    let has_prompts = text.lines().any(|line| line.starts_with("$ "));
    let mut steps: Vec<(String, Vec<String>)> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push((command.to_owned(), Vec::new())),
            (None, Some((_, shown))) if has_prompts => shown.push(line.to_owned()),
            // A text in quotes goes on.
            (None, Some((command, _))) if command.matches('\'').count() % 2 == 1 => {
                command.push_str(&format!("\n{line}"));
            }
            (None, _) => steps.push((line.to_owned(), Vec::new())),
        }
    }
    steps
}

#[test]
fn the_commands_of_tenants_pages_work() {
    for name in pages(|used| matches!(used, SampleUse::Shell(_))) {
        let (mut terminal, token) = terminal();
        let has_curl = Command::new("curl").arg("--version").output().is_ok_and(|output| output.status.success());
        for (row, text) in samples_of(name) {
            let SampleUse::Shell(before) = row.used else { continue };
            if text.starts_with("curl") && !has_curl {
                println!("left out: there is no curl");
                continue;
            }
            for line in before.lines() {
                terminal.run(&line.replace("ROOT", &root().display().to_string()));
            }
            for (command, shown) in steps(&text) {
                // Of the pages: the address of a server elsewhere, and a program that not every machine has.
                let real = command.replace("https://db.example:7399", &terminal.control);
                let real =
                    real.replace("$(uuidgen)", "1-of-the-page").replace("curl ", "curl --silent --show-error --fail ");
                let fails = shown.first().is_some_and(|line| line.starts_with("error: "));
                let line = if fails { format!("{real} 2>&1; test $? = 1") } else { real };
                let printed = terminal.run(&format!("TOKEN={token}; {line}"));
                if !shown.is_empty() {
                    let settle = |lines: &mut dyn Iterator<Item = &str>| lines.map(settled).collect::<Vec<_>>();
                    let expected = settle(&mut shown.iter().map(String::as_str));
                    assert_eq!(settle(&mut printed.lines()), expected, "{name}: $ {command}");
                }
            }
        }
    }
}

#[test]
fn the_extensions_of_tenants_pages_pass_the_check() {
    let (mut terminal, _) = terminal();
    for name in pages(|used| matches!(used, SampleUse::Extension)) {
        for (row, text) in samples_of(name) {
            if matches!(row.used, SampleUse::Extension) {
                terminal.run("rm -rf sample; sandstorm ext new sample");
                let prelude =
                    if text.contains("use sandstorm_api::prelude") { "" } else { "use sandstorm_api::prelude::*;\n" };
                let source = format!("#![no_std]\n#![forbid(unsafe_code)]\n{prelude}{text}");
                fs::write(terminal.here.join("sample/src/lib.rs"), source).expect("a file");
                terminal.run("sandstorm ext check sample");
            }
        }
    }
}
