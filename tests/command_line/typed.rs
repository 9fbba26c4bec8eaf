//! Promise: typed functions take and give the same from the command line, over HTTP and by the Rust client, and what is
//! not of their types is refused with its place before anything runs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use crate::common::process::Server;
use sandstorm_client::{Client, ClientOpenError, Error, TypedCallError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A server with `ext/bank`, and its tenant's token.
pub(crate) fn bank() -> (Server, String) {
    let server = Server::start_as(&["--no-pin", "--workers", "1"]);
    let token = server.json("tenant create shop")["token"].as_str().unwrap().to_owned();
    server.json("table create accounts");
    let pushed = server.json("ext push ../ext/bank");
    assert_eq!(pushed["extension"]["schema"]["functions"][1]["name"], "deposit", "{pushed}");
    (server, token)
}

pub(super) fn run(server: &Server, arguments: &[&str]) -> (bool, String, String) {
    let output = server.command().args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

pub(super) fn http(server: &Server, token: &str, name: &str, headers: &str, body: &[u8]) -> (u16, String) {
    let host = server.control.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).unwrap();
    let head = format!(
        "POST /v1/call/shop/{name} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let text = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap(), body.to_owned())
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Account {
    name: String,
    balance: u64,
}

#[test]
fn a_typed_function_is_the_same_from_everywhere() {
    let (server, token) = bank();
    // The command line.
    let (ok, shown, error) = run(&server, &["invoke", "bank.deposit", r#"{"name": "ann", "balance": 10}"#]);
    assert!(ok && shown == "10\n", "{shown}{error}");
    let order = r#"{"from": "ann", "to": "bob", "amount": 4, "purpose": "Loan"}"#;
    let (ok, shown, error) = run(&server, &["invoke", "bank.transfer", order, "--cost", "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap_or_else(|_| panic!("{ok} {shown}{error}"));
    let balances =
        json!({"from": {"name": "ann", "balance": 6}, "to": {"name": "bob", "balance": 4}, "purpose": "Loan"});
    assert_eq!((&shown["reply"], &shown["cost"]["commit_tries"]), (&balances, &json!(1)));
    for (arguments, text) in [
        (["invoke", "bank.transfer", r#"{"from": "ann"}"#], "args.to: it is missing: String"),
        (["invoke", "bank.transfer", r#"{"from": "ann", "to": "bob", "amount": -1}"#], "args.amount: -1 is no u64"),
        (["invoke", "bank.audit", "{}"], "there are: transfer, deposit, statement, order"),
        (["invoke", "bank", "{}"], "name one of transfer, deposit, statement, order"),
        (
            ["invoke", "bank.order", r#"{"Robbery": 1}"#],
            "args: \"Robbery\" is no Order; one of: Nothing, Deposit, Swap, Move",
        ),
        (
            ["invoke", "bank.order", r#""Swap""#],
            "args.Swap: it has something in it: write {\"Swap\": [String, String]}",
        ),
        (["invoke", "bank.transfer", "ann"], "the arguments are no JSON"),
    ] {
        let (ok, _, error) = run(&server, &arguments);
        assert!(!ok && error.contains(text), "{arguments:?}: {error}");
    }
    let (_, shown, _) = run(&server, &["ext", "show", "bank"]);
    for line in [
        "fn transfer(Transfer) -> Balances",
        "enum Purpose { Gift, Loan, Wage }",
        "struct Account { name: String, balance: u64 }",
        "fn order(Order) -> Outcome",
        "enum Order { Nothing, Deposit(Account), Swap(String, String), Move { from: String, to: String, amount: u64, purpose: Option<Purpose> } }",
        "wall",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }

    // HTTP.
    let (status, body) = http(&server, &token, "bank.statement", "", br#"["ann", "bob"]"#);
    let accounts = json!([{"name": "ann", "balance": 6}, {"name": "bob", "balance": 4}]);
    assert_eq!((status, serde_json::from_str::<Value>(&body).unwrap()), (200, accounts));
    swaps_over_http(&server, &token);
    let (status, body) = http(&server, &token, "bank.statement", "", br#"["ann", 1]"#);
    assert!(status == 400 && body.contains("args[1]: a number where String is expected"), "{status} {body}");
    let (status, body) = http(&server, &token, "bank.deposit", "content-type: application/octet-stream\r\n", b"bytes");
    assert!(status == 400 && body.contains("types of another version"), "{status} {body}");
    assert_eq!(http(&server, &token, "bank.audit", "", b"").0, 404);

    // The Rust client.
    let address = server.control.trim_start_matches("http://").to_owned();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(client(&address, &token));

    // Another version has other types: a client with the old ones is refused, and knows why.
    let folder = tempfile::tempdir().unwrap();
    let mine = folder.path().join("bank");
    std::fs::create_dir_all(mine.join("src")).unwrap();
    std::fs::copy("../ext/bank/extension.toml", mine.join("extension.toml")).unwrap();
    let text = std::fs::read_to_string("../ext/bank/src/lib.rs").unwrap();
    let changed = text
        .replace("pub amount: u64,", "pub amount: u64,\n    pub memo: Option<String>,")
        .replace("amount, purpose })", "amount, purpose, memo: None })");
    std::fs::write(mine.join("src/lib.rs"), changed).unwrap();
    server.json(&format!("ext push {}", mine.display()));
    let memo = r#"{"from": "ann", "to": "bob", "amount": 1, "memo": "tea"}"#;
    assert!(run(&server, &["invoke", "bank.transfer", memo]).0);
}

/// Exchanges two balances by an enum with a payload, and exchanges them back.
fn swaps_over_http(server: &Server, token: &str) {
    let swap = || http(server, token, "bank.order", "", br#"{"Swap": ["ann", "bob"]}"#);
    let (status, body) = swap();
    let swapped = json!({"Swapped": [{"name": "ann", "balance": 4}, {"name": "bob", "balance": 6}]});
    assert_eq!((status, serde_json::from_str::<Value>(&body).unwrap()), (200, swapped));
    assert_eq!(swap().0, 200);
}

async fn client(address: &str, token: &str) {
    let client = Client::open(address, "shop", token).await.unwrap();
    let accounts = client.table("accounts").await.unwrap();
    assert_eq!(client.get(accounts, b"ann").await.unwrap().unwrap().value, &6u64.to_le_bytes()[..]);
    let deposit = Account { name: "cat".into(), balance: 3 };
    assert_eq!(client.call::<_, u64>("bank.deposit", &deposit).await.unwrap(), 3);
    let costs = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&costs);
    let measured = client.on_cost(move |cost| told.lock().unwrap().push(cost));
    let all: Vec<Account> = measured.call("bank.statement", &["cat", "dog"]).await.unwrap();
    let cost = std::mem::take(&mut *costs.lock().unwrap());
    assert!(cost.len() == 1 && cost[0].reads == 1 && cost[0].cpu_ns > 0, "{cost:?}");
    assert_eq!(all, [deposit, Account { name: "dog".into(), balance: 0 }]);
    let wrong = client.call::<_, u64>("bank.deposit", &json!({"name": 1, "balance": 3})).await.unwrap_err();
    assert_eq!(wrong.to_string(), "args.name: a number where String is expected");
    let poor = json!({"from": "dog", "to": "cat", "amount": 1});
    let refused = client.call::<_, Value>("bank.transfer", &poor).await.unwrap_err();
    assert!(matches!(refused, TypedCallError::Request(Error::Failed { code: 100, .. })), "{refused}");
    // A call that failed has a cost, and one that was not sent has none.
    measured.call::<_, Value>("bank.transfer", &poor).await.unwrap_err();
    measured.call::<_, Value>("bank.transfer", &json!({})).await.unwrap_err();
    assert_eq!(costs.lock().unwrap().len(), 1);

    // What is missing is named.
    let missing = client.table("acounts").await.unwrap_err().to_string();
    assert!(missing.contains("no table \"acounts\"; it has: accounts"), "{missing}");
    let missing = client.call::<_, Value>("bnak.deposit", &()).await.unwrap_err().to_string();
    assert!(missing.contains("no extension \"bnak\"; it has: bank"), "{missing}");
    for (server, tenant, token, text) in [
        ("127.0.0.1:1", "shop", token, "no answer from"),
        (address, "shop", "wrong", "not authenticated"),
        (address, "shpo", token, "not authenticated"),
    ] {
        let error = Client::open(server, tenant, token).await.unwrap_err();
        let code = if text == "not authenticated" { "unauthenticated" } else { "control" };
        assert_eq!(error.code(), code, "{error}");
        assert!(matches!(error, ClientOpenError::Control { .. }) && error.to_string().contains(text), "{error}");
    }
}
