//! Promise: a Redis client calls typed functions with JSON, and gets replies in RESP's types and errors by name.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use crate::common::process::Server;

/// A connection to a server with `ext/bank`.
pub(super) struct RedisClient {
    stream: BufReader<UnixStream>,
}

impl RedisClient {
    pub(super) fn new(stream: BufReader<UnixStream>) -> RedisClient {
        RedisClient { stream }
    }

    /// One reply, as a line: strings in quotes, arrays in brackets, maps in braces.
    pub(super) fn send(&mut self, words: &[&str]) -> String {
        let mut command = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| command.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        self.stream.get_mut().write_all(command.as_bytes()).unwrap();
        self.reply()
    }

    fn reply(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        let (kind, rest) = line.trim_end().split_at(1);
        let count = || rest.parse::<usize>().unwrap();
        match kind {
            "$" if rest == "-1" => "null".to_owned(),
            "$" => {
                let mut text = vec![0; count() + 2];
                self.stream.read_exact(&mut text).unwrap();
                format!("{:?}", String::from_utf8_lossy(&text[..text.len() - 2]))
            }
            "*" | "~" => format!("[{}]", (0..count()).map(|_| self.reply()).collect::<Vec<_>>().join(", ")),
            "%" => {
                let mut pair = || format!("{}: {}", self.reply(), self.reply());
                format!("{{{}}}", (0..count()).map(|_| pair()).collect::<Vec<_>>().join(", "))
            }
            "_" => "null".to_owned(),
            _ => line.trim_end().to_owned(),
        }
    }
}

/// What a call cost is told if that is asked for, also of one that failed; one that has not run is answered its error
/// alone.
fn tells_costs(client: &mut RedisClient) {
    let deposit = &["FCALL_COST", "bank.deposit", "1", "ann", r#"{"name": "cost", "balance": 2}"#];
    let told = client.send(deposit);
    assert!(told.starts_with("[{\"cpu_ns\": :") && told.ends_with("\"commit_tries\": :1}, :2]"), "{told}");
    let told = client.send(&["FCALL_COST", "bank.transfer", "0", r#"{"from":"a","to":"b","amount":1}"#]);
    assert!(told.ends_with("\"commit_tries\": :0}, -FAILED (other) the account has not as much]"), "{told}");
    let refused = client.send(&["FCALL_COST", "bank.transfer", "0", r#"{"from": "ann"}"#]);
    assert_eq!(refused, "-INVALID args.to: it is missing: String");
}

#[test]
fn a_redis_client_calls_typed_functions() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis");
    let port = format!("unix:{}=shop/accounts", socket.display());
    let server = Server::start_as(&["--no-pin", "--workers", "1", "--redis", &port]);
    server.json("tenant create shop");
    server.json("table create accounts");
    server.json("ext push ../ext/bank");
    let mut client = RedisClient::new(BufReader::new(UnixStream::connect(&socket).unwrap()));
    let order = r#"{"from": "ann", "to": "bob", "amount": 4, "purpose": "Loan"}"#;

    // In RESP2: maps are lists of their fields.
    assert_eq!(client.send(&["FCALL", "bank.deposit", "0", r#"{"name": "ann", "balance": 10}"#]), ":10");
    let flat = r#"["from", ["name", "ann", "balance", :6], "to", ["name", "bob", "balance", :4], "purpose", "Loan"]"#;
    assert_eq!(client.send(&["FCALL", "bank.transfer", "1", "ann", order]), flat);

    // In RESP3: as they are. A key decides on the version alone.
    client.send(&["HELLO", "3"]);
    let map = r#"{"from": {"name": "bob", "balance": :3}, "to": {"name": "ann", "balance": :7}, "purpose": null}"#;
    assert_eq!(client.send(&["FCALL", "bank.transfer", "0", r#"{"from":"bob","to":"ann","amount":1}"#]), map);
    let list = r#"[{"name": "bob", "balance": :3}, {"name": "nobody", "balance": :0}]"#;
    assert_eq!(client.send(&["FCALL", "bank.statement", "0", r#"["bob", "nobody"]"#]), list);

    // Enums with something in them: a map of the variant and that.
    let mut order = |json: &str| client.send(&["FCALL", "bank.order", "0", json]);
    assert_eq!(order("\"Nothing\""), "\"Nothing\"");
    assert_eq!(order(r#"{"Deposit": {"name": "bob", "balance": 1}}"#), r#"{"Deposited": :4}"#);
    let swapped = r#"{"Swapped": [{"name": "ann", "balance": :4}, {"name": "bob", "balance": :7}]}"#;
    assert_eq!(order(r#"{"Swap": ["ann", "bob"]}"#), swapped);
    let moved = r#"{"Moved": {"balances": {"from": {"name": "bob", "balance": :6}, "to": {"name": "ann", "balance": :5}, "purpose": "Gift"}}}"#;
    assert_eq!(order(r#"{"Move": {"from": "bob", "to": "ann", "amount": 1, "purpose": "Gift"}}"#), moved);
    assert_eq!(order(r#"{"Move": {"from": "bob"}}"#), "-INVALID args.Move.to: it is missing: String");
    assert_eq!(order(r#"{"Swap": ["bob"]}"#), "-INVALID args.Swap: an array of 1 where an array of 2 is expected");

    // What is not of the types is refused, by name.
    let long = format!("\"{}\"", "x".repeat(40_000));
    for (words, expected) in [
        (&["bank.transfer", "0", r#"{"from": "ann"}"#][..], "-INVALID args.to: it is missing: String"),
        (&["bank.transfer", "0", "from ann"], "-INVALID the arguments are no JSON: "),
        (
            &["bank.transfer", "0", "1", "2"],
            "-INVALID transfer is a typed function: it takes one argument, JSON of Transfer",
        ),
        (&["bank.statement", "0", &long], "-TOOLARGE the JSON of a typed function has at most 32768 bytes"),
        (
            &["bank.nothing", "0"],
            "-ERR Function not found: bank: there is no function \"nothing\"; there are: transfer",
        ),
        (&["bank", "0"], "-ERR Function not found: bank: the extension has several functions"),
        (&["other.deposit", "0"], "-ERR Function not found"),
        (&["bank.transfer", "0", r#"{"from":"a","to":"a","amount":1}"#], "-FAILED (invalid) from and to are the same"),
        (&["bank.transfer", "0", r#"{"from":"a","to":"b","amount":1}"#], "-FAILED (other) the account has not as much"),
    ] {
        let answer = client.send(&[&["FCALL"], words].concat());
        assert!(answer.starts_with(expected), "{words:?}: {answer}");
    }

    tells_costs(&mut client);
    // A client that asks is told.
    let listed = client.send(&["FUNCTION", "LIST", "LIBRARYNAME", "ba*"]);
    for part in [
        r#""name": "bank.transfer", "description": "Moves an amount, as one transaction.", "flags": [], "args": "Transfer", "reply": "Balances""#,
        r#""name": "bank.statement", "#,
        r#""args": "Vec<String>", "reply": "Vec<Account>""#,
        r#""schema": "{\"functions\":["#,
    ] {
        assert!(listed.contains(part), "{part} is not in {listed}");
    }
    assert!(client.send(&["FUNCTION", "STATS"]).contains(r#""libraries_count": :1, "functions_count": :4"#));
}
