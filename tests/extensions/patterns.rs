//! Promise: ordinary Rust that the native tier refuses is pushed to a server as sandboxed code, and does what it says
//! when it is called: the files of `tests/patterns`, each with its calls in its first lines. Runs the real binary.

use std::fs;

use crate::common::PATIENT;
use crate::common::process::Server;
use crate::common::root;
use sandstorm_client::Config;
use sandstorm_client::blocking::Client;

/// The corpus must not shrink unnoticed.
const LEAST_PATTERNS: usize = 10;

/// An extension: its name, its text, its calls with their arguments and replies.
struct Pattern {
    name: String,
    text: String,
    calls: Vec<(String, String)>,
}

/// Reads the corpus: the lines `//@ call: ARGUMENTS -> REPLY` of each file are its calls.
fn patterns() -> Vec<Pattern> {
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("text");
        let calls = text.lines().filter_map(|line| line.strip_prefix("//@ call: ")).map(|call| {
            let (arguments, reply) = call.split_once(" -> ").unwrap_or_else(|| panic!("{}: {call}", path.display()));
            (arguments.to_owned(), reply.to_owned())
        });
        let calls: Vec<(String, String)> = calls.collect();
        let name = path.file_stem().expect("a name").to_string_lossy().replace('_', "-");
        assert!(calls.len() >= 2, "{name} is called twice at least, with other arguments");
        Pattern { name, text, calls }
    };
    fs::read_dir(root().join("tests/patterns")).expect("the folder").map(read).collect()
}

#[test]
fn ordinary_rust_is_pushed_as_sandboxed_code_and_does_what_it_says() {
    let patterns = patterns();
    assert!(patterns.len() >= LEAST_PATTERNS, "{} patterns: the corpus has shrunk", patterns.len());
    let server = Server::start_as(&["--no-pin", "--workers", "1"]);
    server.json("tenant create shop --code sandboxed --quota pushes_per_hour=1000");
    server.json("table create t");
    let tenant = server.json("tenant show shop")["id"].as_u64().expect("an id") as u32;
    let token = server.json("tenant token shop")["token"].as_str().expect("a token").to_owned();
    let config = Config::new(server.data.parse().expect("an address"), tenant).token(token).deadline(PATIENT);
    let client = Client::connect(config).expect("a server");
    for Pattern { name, text, calls } in patterns {
        let folder = server.folder.path().join(&name);
        fs::create_dir_all(folder.join("src")).expect("our folder");
        fs::write(folder.join("extension.toml"), format!("name = \"{name}\"\n")).expect("our folder");
        fs::write(folder.join("src/lib.rs"), text).expect("our folder");
        let pushed = server.json(&format!("ext push {}", folder.display()));
        assert_eq!(pushed["extension"]["tier"], "sandboxed", "{name}: {pushed}");
        for (arguments, expected) in calls {
            let reply = client.invoke(&name, arguments.as_bytes());
            let reply = reply.unwrap_or_else(|error| panic!("{name} {arguments:?}: {error}"));
            assert_eq!(String::from_utf8_lossy(&reply), expected, "{name} {arguments:?}");
        }
        server.json(&format!("ext unload {name}"));
    }
}
