//! Promise: an extension of another tenant, enabled from the catalogue, has the types of its owner's: over HTTP, from
//! the command line, for Redis clients, in generated clients and by the Rust client.

use std::io::BufReader;
use std::os::unix::net::UnixStream;

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

    // The Rust client, which reads the types when it is opened.
    let address = server.control.trim_start_matches("http://").to_owned();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let client = Client::open(&address, "shop", &token).await.unwrap();
        let sum: u64 = client.call("ledger.deposit", &json!({"name": "ann", "balance": 1})).await.unwrap();
        assert_eq!(sum, 14);
    });
}
