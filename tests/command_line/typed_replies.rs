//! Promise: a typed reply of any length arrives whole, in both tiers. Runs the real binary.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::common::process::Server;

const SOURCE: &str = "#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub struct ReplySize {
    pub text: u32,
    pub numbers: u32,
}

pub struct LongReply {
    pub before: u64,
    pub text: String,
    pub numbers: Vec<u32>,
    pub after: Option<bool>,
}

pub async fn make(_: Db<'_>, args: ReplySize) -> Result<LongReply, Error> {
    let (text, numbers) = (\"x\".repeat(args.text as usize), (0..args.numbers).collect());
    Ok(LongReply { before: 7, text, numbers, after: Some(true) })
}
";

#[test]
fn a_typed_reply_of_any_length_is_whole_in_both_tiers() {
    let server = Server::start_as(&["--no-pin", "--workers", "1"]);
    let folder = server.folder.path().join("long");
    std::fs::create_dir_all(folder.join("src")).unwrap();
    std::fs::write(folder.join("extension.toml"), "name = \"long\"\n").unwrap();
    std::fs::write(folder.join("src/lib.rs"), SOURCE).unwrap();
    server.json("tenant create shop");
    for code in ["native", "sandboxed"] {
        server.json(&format!("tenant set shop --code {code}"));
        server.json(&format!("ext push {}", folder.display()));
        // What is gathered before it is handed over has 64 bytes in a module, and 192 in native code.
        for text in [0, 1, 47, 51, 52, 53, 63, 64, 65, 179, 180, 181, 192, 193, 5_000] {
            for numbers in [0, 1, 60, 1_000] {
                let size = json!({"text": text, "numbers": numbers}).to_string();
                let invoked =
                    server.command().args(["invoke", "long.make", &size]).stdin(Stdio::null()).output().unwrap();
                let reply: Value = serde_json::from_slice(&invoked.stdout).unwrap_or_else(|_| panic!("{invoked:?}"));
                let numbers: Vec<u32> = (0..numbers).collect();
                let wanted = json!({"before": 7, "text": "x".repeat(text), "numbers": numbers, "after": true});
                assert!(reply == wanted, "{code}, {size}: {reply}");
            }
        }
    }
}
