//! Promise: a tenant finds what is wrong with its code on a server that serves, with its own token and the commands
//! alone, in either tier: a wrong branch by the lines of its log, the line that an input ends by the caller's error and
//! by the list of kills, the loop that takes its time by a profile.

use std::fs;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};

use sandstorm_client::Config;
use sandstorm_client::blocking::Client;
use serde_json::Value;

use crate::common::process::{Server, binary};
use crate::common::{PATIENT, Stop, eventually};

const MANIFEST: &str = "name = \"orders\"\nversion = \"1.0.0\"\nedition = \"2024\"\napi = 1\nkeep_arguments = 16\n";
/// An extension with a wrong branch, a loop that takes long, and an input that ends it.
const ORDERS: &str = "#![no_std]
#![forbid(unsafe_code)]
use core::hint::black_box;
use sandstorm_api::prelude::*;

/// `price EACH COUNT`, `color NUMBER`, or `report`.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let mut words = core::str::from_utf8(args)?.split(' ');
    let what = words.next().unwrap_or_default();
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).ok_or(Error::invalid(\"a number\"));
    let answer = match what {
        \"price\" => price(number()?, number()?),
        \"color\" => color(number()?),
        _ => report(),
    };
    db.reply(answer.to_string().as_bytes())
}

/// From ten pieces on a tenth is taken off.
#[inline(never)]
fn price(each: u64, count: u64) -> u64 {
    let total = each * count;
    if count < 10 {
        info!(\"small order: {count} pieces at {each} are {total}\");
        return total;
    }
    let less = total / 10;
    info!(\"large order: {count} pieces at {each} are {total}, to pay is {less}\");
    less
}

#[inline(never)]
fn color(number: u64) -> u64 {
    let colors = [700, 550, 450];
    colors[black_box(number as usize)]
}

#[inline(never)]
fn report() -> u64 {
    let mut sum = 0u64;
    for day in 0..2_000_000u64 {
        sum = black_box(sum.wrapping_mul(31).wrapping_add(day));
    }
    sum
}
";
/// Samples that a profile has, at least, before its first row counts.
const ENOUGH: u64 = 50;

/// What a tenant has: its token, and where the server is.
struct TenantAccess<'a> {
    server: &'a Server,
    token: String,
}

impl TenantAccess<'_> {
    fn output(&self, words: &[&str]) -> Output {
        let mut command = binary();
        command.env("SANDSTORM_SERVER", &self.server.control).env("SANDSTORM_TOKEN", &self.token);
        // Nor may it find the operator's token in a state directory.
        command.env("HOME", "/nonexistent").env("XDG_STATE_HOME", "/nonexistent").args(words).output().expect("it runs")
    }

    /// What a command prints that must succeed.
    fn says(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }
}

/// The number of the line of the source that has this text.
fn line_of(text: &str) -> usize {
    ORDERS.lines().position(|line| line.contains(text)).expect("a line") + 1
}

/// Its log has the values by which the branch is seen to be wrong.
fn find_the_branch(tenant: &TenantAccess<'_>) {
    assert_eq!(tenant.says(&["invoke", "orders", "price 5 3"]), "15\n");
    assert_eq!(tenant.says(&["invoke", "orders", "price 5 12"]), "6\n", "54 would be right");
    let mut said = String::new();
    let is_logged = eventually(|| {
        said = tenant.says(&["ext", "logs", "orders"]);
        said.lines().count() >= 2
    });
    let lines: Vec<&str> = said.lines().collect();
    assert!(is_logged && lines.len() == 2, "{said}");
    assert!(
        lines[0].contains("info   orders@1 #") && lines[0].ends_with("small order: 3 pieces at 5 are 15"),
        "{said}"
    );
    assert!(lines[1].ends_with("large order: 12 pieces at 5 are 60, to pay is 6"), "{said}");
    // By the number of the call there is the one line.
    let number = lines[1].split_once('#').and_then(|(_, rest)| rest.split(' ').next()).expect("a number");
    assert_eq!(tenant.says(&["ext", "logs", "--call", number]), format!("{}\n", lines[1]));
}

/// The caller is told the line that its input ended, and so is the tenant later, with the input.
fn find_the_input(tenant: &TenantAccess<'_>) {
    let place = format!("src/lib.rs:{}", line_of("colors[black_box"));
    assert_eq!(tenant.says(&["invoke", "orders", "color 1"]), "550\n");
    let killed = tenant.output(&["invoke", "orders", "color 7"]);
    let told = String::from_utf8_lossy(&killed.stderr);
    assert!(!killed.status.success() && told.contains("index out of bounds"), "{told}");
    assert!(told.contains("color") && told.contains(&place) && told.contains("sandstorm kills"), "{told}");
    let mut said = String::new();
    let is_kept = eventually(|| {
        said = tenant.says(&["kills", "--places"]);
        said.contains("arguments:")
    });
    assert!(is_kept && said.contains("orders v1") && said.contains("panic"), "{said}");
    let places: Vec<&str> = said.lines().filter(|line| line.starts_with("    ")).collect();
    assert!(places.iter().any(|line| line.contains("color") && line.ends_with(&place)), "{said}");
    assert!(places.contains(&"    arguments: color 7"), "{said}");
}

/// The profile's first row is in the loop.
fn find_the_loop(tenant: &TenantAccess<'_>, id: u32) {
    let over = AtomicBool::new(false);
    let loop_lines = line_of("for day in")..=line_of("sum = black_box(sum.wrapping_mul");
    std::thread::scope(|scope| {
        let _ends = Stop(&over);
        scope.spawn(|| {
            let config = Config::new(tenant.server.data.parse().expect("an address"), id);
            let client = Client::connect(config.token(&tenant.token).deadline(PATIENT)).expect("a connection");
            while !over.load(Ordering::Relaxed) {
                client.invoke("orders", b"report").expect("an answer");
            }
        });
        let mut said = String::new();
        let is_found = eventually(|| {
            said = tenant.says(&["ext", "profile", "orders", "--seconds", "2"]);
            let samples: u64 = said.split(' ').next().and_then(|number| number.parse().ok()).expect("a number");
            samples >= ENOUGH
        });
        let first = said.lines().nth(2).unwrap_or_default();
        let line = first.rsplit_once("src/lib.rs:").and_then(|(_, line)| line.trim_end_matches(')').parse().ok());
        assert!(is_found && first.contains("report"), "{said}");
        assert!(line.is_some_and(|line: usize| loop_lines.contains(&line)), "{loop_lines:?}: {said}");
    });
}

#[test]
fn a_tenant_finds_its_wrong_branch_its_deadly_input_and_its_slow_loop() {
    let server = Server::start_as(&["--no-pin", "--workers", "1"]);
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("src")).expect("a folder");
    fs::write(folder.path().join("extension.toml"), MANIFEST).expect("room");
    fs::write(folder.path().join("src/lib.rs"), ORDERS).expect("room");
    for tier in ["native", "sandboxed"] {
        let made: Value = server.json(&format!("tenant create shop-{tier} --code {tier} --quota total_us=3000000"));
        let token = made["token"].as_str().expect("a token").to_owned();
        let id = u32::try_from(made["tenant"]["id"].as_u64().expect("an id")).expect("an id");
        let tenant = TenantAccess { server: &server, token };
        tenant.says(&["ext", "push", &folder.path().display().to_string()]);
        find_the_branch(&tenant);
        find_the_input(&tenant);
        find_the_loop(&tenant, id);
    }
}
