//! Promise: while a version is tried on a share of the calls, a key has one version, whichever client or protocol its
//! calls come from; and each of them calls a kept version by its number, with the types that this version has.

use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use super::python::{installed, python};
use super::typed::{http, run};
use super::typed_redis::RedisClient;
use crate::common::PATIENT;
use crate::common::process::Server;
use sandstorm_client::blocking::Client;
use sandstorm_client::{OpenOptions, Reply};

/// Pushes an extension of one function, or only stages it.
fn push(server: &Server, name: &str, function: &str, option: &str) {
    let folder = server.folder.path().join(name);
    std::fs::create_dir_all(folder.join("src")).unwrap();
    std::fs::write(folder.join("extension.toml"), format!("name = \"{name}\"\nversion = \"0.1.0\"\n")).unwrap();
    let text = format!("#![no_std]\n#![forbid(unsafe_code)]\nuse sandstorm_api::prelude::*;\n{function}\n");
    std::fs::write(folder.join("src/lib.rs"), text).unwrap();
    server.json(&format!("ext push {} {option}", folder.display()));
}

/// A server with a tenant that has Redis clients at a socket; its token, and a client.
fn shop() -> (Server, String, RedisClient) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis");
    let port = format!("unix:{}=shop/t", socket.display());
    let server = Server::start_as(&["--no-pin", "--workers", "1", "--redis", &port]);
    let token = server.json("tenant create shop")["token"].as_str().unwrap().to_owned();
    server.json("table create t");
    let redis = RedisClient::new(BufReader::new(UnixStream::connect(&socket).unwrap()));
    (server, token, redis)
}

fn rust(server: &Server, token: &str) -> Client {
    let address = server.control.trim_start_matches("http://");
    Client::open_with(OpenOptions { deadline: PATIENT, ..OpenOptions::new(address, "shop", token) }).unwrap()
}

/// Runs a program in Python with the client installed, `CLIENT` opened, and these words; its lines.
fn python_says(server: &Server, token: &str, program: &str) -> Option<Vec<String>> {
    let mut command = python()?;
    let site = installed(&server.folder.path().join("python"));
    let address = server.control.trim_start_matches("http://");
    let text = format!(
        "import sandstorm\nclient = sandstorm.Client({address:?}, 'shop', {token:?}, timeout=60)\n{program}\nclient.close()\n"
    );
    let output = said(command.args(["-c", &text]), &site);
    Some(output.lines().map(str::to_owned).collect())
}

fn said(command: &mut Command, site: &Path) -> String {
    let output = command.env("PYTHONPATH", site).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_key_has_one_version_whichever_client_its_calls_come_from() {
    let (server, token, mut redis) = shop();
    for (number, option) in [(1, ""), (2, "--stage")] {
        let plain = "pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let _ = args; db.reply(b\"N\") }";
        push(&server, "plain", &plain.replace('N', &number.to_string()), option);
        let typed = "pub async fn which(db: Db<'_>, args: u64) -> Result<u64, Error> { let _ = (db, args); Ok(N) }";
        push(&server, "typed", &typed.replace('N', &number.to_string()), option);
    }
    server.json("ext deploy plain@2 --percent 50");
    server.json("ext deploy typed@2 --percent 50");
    let (client, keys) = (rust(&server, &token), (0..16).map(|number| format!("user-{number}")));
    let keys: Vec<String> = keys.collect();
    let mut versions = Vec::new();
    for key in &keys {
        let header = format!("sandstorm-key: {key}\r\n");
        let (status, first) = http(&server, &token, "plain", &header, b"");
        assert_eq!(status, 200, "{first}");
        let mut seen = vec![http(&server, &token, "typed", &header, b"0").1];
        seen.push(redis.send(&["FCALL", "plain", "1", key]).trim_matches('"').to_owned());
        seen.push(redis.send(&["FCALL", "typed", "1", key, "0"]).trim_start_matches(':').to_owned());
        let near = client.calls_near(key.as_bytes());
        let text = |reply: &[u8]| String::from_utf8_lossy(reply).into_owned();
        seen.push(text(&near.invoke("plain", b"").unwrap()));
        seen.push(text(&near.query("plain", b"").unwrap()));
        seen.push(text(&near.invoke_measured("plain", 0, b"").unwrap().result.unwrap()));
        seen.push(near.call::<_, u64>("typed", &0_u64).unwrap().to_string());
        let batched = near.send(near.batch().invoke("plain", b"")).unwrap();
        let [Ok(Reply::Invoked(batched))] = &batched[..] else { panic!("{batched:?}") };
        seen.push(text(batched));
        let (ok, shown, error) = run(&server, &["invoke", "plain", "--key", key, "--raw"]);
        assert!(ok, "{error}");
        seen.push(shown);
        assert!(seen.iter().all(|one| *one == first), "{key}: {first} over HTTP, then {seen:?}");
        versions.push(first);
    }
    assert!(versions.contains(&"1".to_owned()) && versions.contains(&"2".to_owned()), "a share: {versions:?}");
    let program = format!(
        "for key in {keys:?}:\n    near = client.near(key)\n    \
         print(near.invoke('plain').decode(), near.measure('plain').reply.decode(), near.call('typed', 0))"
    );
    if let Some(lines) = python_says(&server, &token, &program) {
        let wanted: Vec<String> = versions.iter().map(|one| format!("{one} {one} {one}")).collect();
        assert_eq!(lines, wanted, "in Python, and so through the C interface");
    }
}

#[test]
fn a_kept_version_is_called_by_its_number_with_its_own_types() {
    let (server, token, mut redis) = shop();
    push(&server, "plain", "pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(b\"one\") }", "");
    push(&server, "plain", "pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(b\"two\") }", "");
    push(&server, "words", "pub async fn say(_: Db<'_>, args: u64) -> Result<u64, Error> { Ok(args + 1) }", "");
    push(&server, "words", "pub async fn say(_: Db<'_>, args: String) -> Result<String, Error> { Ok(args) }", "");
    // The command line.
    for (arguments, wanted) in [
        (vec!["invoke", "words.say@1", "7"], "8\n"),
        (vec!["invoke", "words.say", "--version", "1", "7"], "8\n"),
        (vec!["invoke", "words@1", "7"], "8\n"),
        (vec!["invoke", "words.say", "\"seven\""], "\"seven\"\n"),
        (vec!["invoke", "plain@1", "--raw"], "one"),
    ] {
        let (ok, shown, error) = run(&server, &arguments);
        assert_eq!((ok, shown.as_str()), (true, wanted), "{arguments:?}: {error}");
    }
    let (_, _, error) = run(&server, &["invoke", "words.say@1", "\"seven\""]);
    assert!(error.contains("args: a text where u64 is expected"), "{error}");
    let (_, _, error) = run(&server, &["invoke", "words.say@1", "--version", "2", "7"]);
    assert!(error.contains("words.say@1 names version 1, and --version 2"), "{error}");
    let (_, _, error) = run(&server, &["invoke", "words.say@9", "7"]);
    assert!(error.contains("no extension \"words\" in version 9") && error.contains("ext versions"), "{error}");
    // HTTP and Redis' protocol.
    assert_eq!(http(&server, &token, "words.say?version=1", "", b"7"), (200, "8".to_owned()));
    assert_eq!(redis.send(&["FCALL", "words.say@1", "0", "7"]), ":8");
    assert_eq!(redis.send(&["FCALL", "words@1", "0", "7"]), ":8");
    assert_eq!(redis.send(&["FCALL", "words.say@2", "0", "\"seven\""]), "\"seven\"");
    assert_eq!(redis.send(&["FCALL", "plain@1", "0"]), "\"one\"");
    assert!(redis.send(&["FCALL", "words.say@1", "0", "\"seven\""]).starts_with("-INVALID args: a text where u64"));
    let refused = redis.send(&["FCALL", "words.say@9", "0", "7"]);
    assert!(refused.starts_with("-ERR Version not found: 9 is not kept"), "{refused}");
    let refused = redis.send(&["FCALL", "words@new", "0", "7"]);
    assert_eq!(refused, "-ERR Function not found", "what is no number belongs to the name");
    // Rust.
    let client = rust(&server, &token);
    assert_eq!(client.call::<_, u64>("words.say@1", &7).unwrap(), 8);
    assert_eq!(client.call_version::<_, u64>("words.say", 1, &7).unwrap(), 8);
    assert_eq!(client.call_version::<_, u64>("words.say@1", 0, &7).unwrap(), 8);
    assert_eq!(client.call_version::<_, String>("words.say", 2, "seven").unwrap(), "seven");
    assert_eq!(client.call::<_, String>("words", "seven").unwrap(), "seven");
    let wrong = client.call_version::<_, u64>("words.say", 1, "seven").unwrap_err();
    assert_eq!(wrong.to_string(), "args: a text where u64 is expected");
    let unknown = client.call_version::<_, u64>("words.say", 9, &7).unwrap_err();
    assert_eq!(unknown.code(), "unknown_extension");
    assert!(unknown.to_string().contains("there are: 1, 2."), "{unknown}");
    // Python.
    let program = "print(client.call('words.say', 7, version=1), client.call('words', 'seven'))\n\
                   print(client.call('words@1', 7))\ntry:\n    client.call('words.say', 7, version=9)\n\
                   except sandstorm.UnknownExtension:\n    print('none')";
    if let Some(lines) = python_says(&server, &token, program) {
        assert_eq!(lines, ["8 seven", "8", "none"]);
    }
}
