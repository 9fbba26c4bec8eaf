//! Promise: an extension of another tenant, enabled from the catalogue, has the types of its owner's: over HTTP, from
//! the command line, for Redis clients, in generated clients and by the Rust client.

use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::typed::{http, run};
use super::typed_redis::RedisClient;
use crate::common::process::Server;
use sandstorm_client::Client;
use serde_json::{Value, json};

#[test]
fn a_shared_extension_is_typed_for_those_who_enable_it() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis");
    let port = format!("unix:{}=shop/accounts", socket.display());
    let server = Server::start_as(&["--no-pin", "--workers", "1", "--redis", &port]);
    server.json("tenant create vendor --code sandboxed");
    server.json("ext push ../ext/bank --tenant vendor");
    server.json("catalogue share bank --tenant vendor");
    let token = server.json("tenant create shop")["token"].as_str().unwrap().to_owned();
    server.json("table create accounts --tenant shop");
    server.json("catalogue enable vendor/bank --as ledger --tenant shop");
    let of_shop = |arguments: &[&str]| run(&server, &[arguments, &["--tenant", "shop"]].concat());

    // The command line, which asks for the types first.
    let (ok, shown, error) = of_shop(&["invoke", "ledger.deposit", r#"{"name": "ann", "balance": 10}"#]);
    assert!(ok && shown == "10\n", "{shown}{error}");
    let (ok, _, error) = of_shop(&["invoke", "ledger.transfer", r#"{"from": "ann"}"#]);
    assert!(!ok && error.contains("args.to: it is missing: String"), "{error}");
    let (_, shown, _) = of_shop(&["ext", "show", "ledger"]);
    assert!(shown.contains("fn transfer(Transfer) -> Balances"), "{shown}");

    // HTTP.
    let (status, body) = http(&server, &token, "ledger.deposit", "", br#"{"name": "ann", "balance": 2}"#);
    assert_eq!((status, body.as_str()), (200, "12"));
    let (status, body) = http(&server, &token, "ledger.deposit", "", br#"{"name": 1, "balance": 2}"#);
    assert!(status == 400 && body.contains("args.name: a number where String is expected"), "{status} {body}");
    let version = server.json("ext show ledger --tenant shop")["version"].as_u64().expect("a version");
    let named = format!("ledger.statement?version={version}");
    let (status, body) = http(&server, &token, &named, "", br#"["ann"]"#);
    let ann = json!([{"name": "ann", "balance": 12}]);
    assert_eq!((status, serde_json::from_str::<Value>(&body).unwrap()), (200, ann));
    assert_eq!(http(&server, &token, "ledger.audit", "", b"").0, 404);

    // A Redis client.
    let mut client = RedisClient::new(BufReader::new(UnixStream::connect(&socket).unwrap()));
    assert_eq!(client.send(&["FCALL", "ledger.deposit", "0", r#"{"name": "ann", "balance": 1}"#]), ":13");

    // Generated clients call it by the name that it has here; but for that they are those of its owner.
    let generate = |name: &str, tenant: &str, language: &str| {
        let (ok, text, error) = run(&server, &["ext", "generate", name, "--lang", language, "--tenant", tenant]);
        assert!(ok, "{name} {language}: {error}");
        text
    };
    for language in ["rust", "python", "typescript", "go"] {
        let (own, enabled) = (generate("bank", "vendor", language), generate("ledger", "shop", language));
        assert!(enabled.contains("\"ledger.transfer\""), "{language}");
        let renamed = enabled.replace("ledger", "bank").replace("Ledger", "Bank");
        assert_eq!(renamed, own, "{language}");
    }

    code_calls_what_is_shared(&server, folder.path());

    // The Rust client, which reads the types when it is opened.
    let address = server.control.trim_start_matches("http://").to_owned();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let client = Client::open(&address, "shop", &token).await.unwrap();
        let sum: u64 = client.call("ledger.deposit", &json!({"name": "ann", "balance": 1})).await.unwrap();
        assert_eq!(sum, 23);
    });
}

fn write_extension(folder: &Path, name: &str, text: &str) -> String {
    let folder = folder.join(name);
    std::fs::create_dir_all(folder.join("src")).unwrap();
    std::fs::write(folder.join("extension.toml"), format!("name = \"{name}\"\n")).unwrap();
    let text = format!("#![no_std]\n#![forbid(unsafe_code)]\nuse sandstorm_api::prelude::*;\n{text}");
    std::fs::write(folder.join("src/lib.rs"), text).unwrap();
    folder.display().to_string()
}

/// A typed function and a plain one, of the vendor's extensions, called by code of the shop's; on the shop's tables.
fn code_calls_what_is_shared(server: &Server, folder: &Path) {
    let echo = "pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {\n    db.reply(args)\n}\n";
    let echo = write_extension(folder, "echo", echo);
    server.json(&format!("ext push {echo} --tenant vendor"));
    server.json("catalogue share echo --tenant vendor");
    server.json("catalogue enable vendor/echo --as mirror --tenant shop");
    let caller = "pub struct Account {\n    pub name: String,\n    pub balance: u64,\n}\n\
                  typed!(struct Account { name, balance });\n\n\
                  pub async fn earn(db: Db<'_>, account: Account) -> Result<String, Error> {\n\
                  let sum: u64 = db.call_typed(\"ledger.deposit\", &account).await?;\n\
                  let shown = db.call(\"mirror\", sum.to_string().as_bytes()).await?;\n\
                  Ok(core::str::from_utf8(&shown)?.to_string())\n}\n\n\
                  pub async fn wrong(db: Db<'_>) -> Result<u8, Error> {\n\
                  db.call_typed(\"ledger.deposit\", &String::from(\"ann\")).await\n}\n";
    let caller = write_extension(folder, "caller", caller);
    server.json(&format!("ext push {caller} --tenant shop"));
    let of_shop = |arguments: &[&str]| run(server, &[arguments, &["--tenant", "shop"]].concat());
    let (ok, shown, error) = of_shop(&["invoke", "caller.earn", r#"{"name": "ann", "balance": 9}"#]);
    assert!(ok && shown == "\"22\"\n", "{shown}{error}");
    let (ok, _, error) = of_shop(&["invoke", "caller.wrong"]);
    let says = ["failed (invalid)", "ledger.deposit: the caller has other types", "sandstorm ext show ledger"];
    assert!(!ok && says.iter().all(|part| error.contains(part)), "{error}");
}
