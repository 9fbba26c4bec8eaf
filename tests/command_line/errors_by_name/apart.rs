//! Ends of calls that take a crowd of calls, or a server that stops. No time decides them: where a call ends
//! otherwise because the moment was missed, it is made again.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use super::super::generated::shapes_server;
use super::{END, http_call};
use crate::common::process::Server;
use crate::common::{PATIENT, eventually};
use sandstorm_client::{Client, OpenOptions};

/// A server with the extension of [`END`], its port for HTTP and that for Redis clients, and the tenant's token.
struct Bench {
    server: Server,
    http: String,
    unix: String,
    token: String,
}

impl Bench {
    fn new(folder: &Path) -> Bench {
        let (server, environment) = shapes_server(folder);
        let given = |name: &str| environment.iter().find(|(one, _)| *one == name).expect("it is given").1.clone();
        let (http, unix) = (given("HTTP").replace("http://", ""), given("UNIX").replace("unix:", ""));
        let token = given("TOKEN");
        Bench { server, http, unix, token }
    }

    /// Makes a table whose backing takes what it is asked and does not answer.
    fn add_table_that_hangs(&self, folder: &Path) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
        let file = folder.join("s3");
        std::fs::write(&file, "access:secret").expect("a file");
        let backing = format!("s3://bucket/p?endpoint=http://127.0.0.1:{port}");
        for line in [
            format!("secret set s3 --from {} --tenant shop", file.display()),
            format!("table create hangs --tenant shop --backing {backing} --backing-secret s3"),
        ] {
            let output = self.server.output(&line);
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        }
        let quotas = ["concurrent_invocations=4000", "invocation_memory_bytes=8589934592"];
        quotas.iter().for_each(|quota| drop(self.server.json(&format!("tenant set shop --quota {quota}"))));
    }

    fn http_call(&self, word: &str) -> Value {
        http_call(&self.http, &self.token, (END, word))
    }

    async fn client(&self, deadline: Duration) -> Client {
        let control = self.server.control.trim_start_matches("http://");
        let options = OpenOptions { deadline, ..OpenOptions::new(control, "shop", &self.token) };
        Client::open_with(options).await.expect("a client")
    }
}

/// The code of a call's error; `ok` if it is none.
async fn code_of(client: &Client, word: &str) -> String {
    match client.call::<_, Value>(END, word).await {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.code().to_owned(),
    }
}

/// A connection of a Redis client, which may end.
struct RespCaller(BufReader<UnixStream>);

impl RespCaller {
    fn new(path: &str) -> RespCaller {
        RespCaller(BufReader::new(UnixStream::connect(path).expect("a connection")))
    }

    /// The first line of the answer to a call; empty: the connection has ended.
    fn call(&mut self, word: &str) -> String {
        let (word, mut line) = (json!(word).to_string(), String::new());
        let command =
            format!("*4\r\n$5\r\nFCALL\r\n${}\r\n{END}\r\n$1\r\n0\r\n${}\r\n{word}\r\n", END.len(), word.len());
        let asked = self.0.get_mut().write_all(command.as_bytes()).and_then(|()| self.0.read_line(&mut line));
        if asked.is_ok() { line.trim_end().to_owned() } else { String::new() }
    }
}

/// Calls over HTTP with further headers; the status line and the body.
fn http_call_with(bench: &Bench, function: &str, body: &[u8], headers: &str) -> (String, String) {
    let mut stream = TcpStream::connect(&bench.http).expect("a connection");
    let head = format!(
        "POST /v1/call/shop/{function} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {}\r\n{headers}\
         connection: close\r\ncontent-length: {}\r\n\r\n",
        bench.token,
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).expect("it is taken");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.lines().next().expect("a line").to_owned(), body.to_owned())
}

/// Calls over HTTP go on when their callers have waited long enough, so one caller has as many under way as there may
/// be. They wait for a backing, and compute nothing.
#[test]
fn a_tenant_has_its_share_of_the_calls_over_http() {
    /// More than may be under way, many times.
    const CALLS: u32 = 5_000;
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::new(folder.path());
    bench.add_table_that_hangs(folder.path());
    let mut ends = (0..CALLS).map(|number| {
        let word = json!(format!("hangs {number}")).to_string();
        let (_, body) = http_call_with(&bench, END, word.as_bytes(), "sandstorm-timeout-ms: 1\r\n");
        serde_json::from_str::<Value>(&body).expect("an error")
    });
    let busy = ends.find(|end| end["code"] == "busy").unwrap_or_else(|| panic!("{CALLS} calls are under way"));
    assert!(busy["message"].as_str().is_some_and(|text| !text.is_empty()), "{busy}");
}

/// Answers are kept for repeats as long as there is room for them: one that has none leaves its name.
#[test]
fn a_repeat_whose_first_answer_had_no_room_is_told_that_it_ran() {
    /// Bytes of an answer, and more answers than a tenant alone has room for.
    const BYTES: usize = 1 << 20;
    const ANSWERS: usize = 80;
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::new(folder.path());
    bench.server.json("tenant set shop --quota total_us=3600000000");
    let call = |number: usize| {
        let headers = format!("idempotency-key: {number}\r\nsandstorm-timeout-ms: 60000\r\n");
        http_call_with(&bench, "shapes.long", BYTES.to_string().as_bytes(), &headers)
    };
    let mut unkept = (0..ANSWERS).filter_map(|number| {
        let (status, body) = call(number);
        assert!(status.contains(" 200 ") && body.len() == BYTES + 2, "{status} {}", body.len());
        let (status, again) = call(number);
        (again != body).then_some((number, status, again))
    });
    let (number, status, again) = unkept.next().unwrap_or_else(|| panic!("{ANSWERS} answers are kept"));
    let said: Value = serde_json::from_str(&again).expect("an error");
    assert_eq!((status.contains(" 500 "), &said["code"]), (true, &json!("not_kept")), "{status} {said}");
    assert!(said["hint"].as_str().is_some_and(|hint| hint.contains("read what it did")), "{said}");
    // Calls of the extension that have ended: a repeat that runs would be one more.
    let ran = || bench.server.json("ext show shapes --tenant shop")["stats"]["ok"].as_u64();
    let before = ran();
    assert!(before.is_some_and(|before| before > number as u64), "{before:?} of {number} calls ran");
    assert_eq!(call(number).1, again, "it says so each time, and does not run");
    let (status, first) = call(0);
    assert_eq!((status.contains(" 200 "), first.len()), (true, BYTES + 2), "what was kept before is there still");
    assert_eq!(ran(), before, "and was not made anew");
}

/// Calls that wait for a backing fill the worker of the tenant; each protocol has its word for that.
#[test]
fn a_worker_that_has_all_calls_that_it_can_hold_is_overloaded() {
    /// Of each of two clients; both are more than one tenant may have on a worker.
    const CALLS: u64 = 700;
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::new(folder.path());
    bench.add_table_that_hangs(folder.path());
    let (asked, is_seen, is_over) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                let clients = [bench.client(PATIENT).await, bench.client(PATIENT).await];
                // Once the backing counts as down its calls end at once, until it is asked again.
                while !is_over.load(Relaxed) {
                    let mut calls = JoinSet::new();
                    for client in &clients {
                        for _ in 0..CALLS {
                            let word = format!("hangs {}", asked.fetch_add(1, Relaxed));
                            let client = client.clone();
                            calls.spawn(async move { code_of(&client, &word).await });
                        }
                    }
                    let ends = calls.join_all().await;
                    is_seen.fetch_or(ends.iter().any(|end| end == "overloaded"), Relaxed);
                }
            });
        });
        let mut resp = RespCaller::new(&bench.unix);
        let over_http = eventually(|| bench.http_call("any")["code"] == "overloaded");
        let over_resp = eventually(|| resp.call("any").starts_with("-BUSY "));
        let of_rust = eventually(|| is_seen.load(Relaxed));
        is_over.store(true, Relaxed);
        assert_eq!((over_http, over_resp, of_rust), (true, true, true), "{} calls", asked.load(Relaxed));
    });
}

/// A call that is under way keeps a server that stops there for a while: meanwhile it answers callers. Over HTTP its
/// port takes no connections any more.
#[test]
fn who_calls_a_server_that_stops_is_told_so() {
    /// Servers that are stopped at most: a busy machine may miss a moment.
    const SERVERS: u32 = 10;
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (mut of_rust, mut over_resp) = (false, false);
    for _ in 0..SERVERS {
        let folder = tempfile::tempdir().unwrap();
        let bench = Bench::new(folder.path());
        bench.server.json("tenant set shop --quota total_us=3600000000 --quota concurrent_invocations=1");
        let client = runtime.block_on(bench.client(Duration::from_secs(5)));
        let mut resp = RespCaller::new(&bench.unix);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                let client = runtime.block_on(bench.client(PATIENT));
                // The call that looks whether this one has begun may be the one that runs.
                while runtime.block_on(code_of(&client, "waits")) == "over_quota" {}
            });
            let has_begun = || runtime.block_on(code_of(&client, "any")) == "over_quota";
            assert!(eventually(|| other.is_finished() || has_begun()) && !other.is_finished(), "the call that waits");
            bench.server.json("stop --no-wait");
            let ends = |end: &str| (end == "over_quota" || end == "failed").then_some(());
            let mut rust = "over_quota".to_owned();
            while ends(&rust).is_some() {
                rust = runtime.block_on(code_of(&client, "any"));
            }
            let mut line = resp.call("any");
            while line.starts_with("-OVERQUOTA ") || line.starts_with("-FAILED ") {
                line = resp.call("any");
            }
            of_rust |= rust == "shutting_down";
            over_resp |= line.starts_with("-LOADING ");
            println!("{rust}, {line}");
        });
        if of_rust && over_resp {
            return;
        }
    }
    panic!("{SERVERS} servers have stopped: of Rust {of_rust}, over RESP {over_resp}");
}
