//! Promise: existing tools for Redis work unchanged, and call extensions. Tools that are not installed are skipped with
//! a line of output.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{data_plane_with, eventually, load, root};
use sandstorm_catalog::QuotaChanges;
use sandstorm_extension::BudgetOverride;
use sandstorm_instance::DataPlane;
use sandstorm_metrics::text::flat;

const TOKEN: &str = "the_token_of_the_shop";

/// A server with a port that acts for tenant `shop`, and one where a client must authenticate.
fn server(workers: usize) -> (DataPlane, SocketAddr, SocketAddr) {
    let plane = data_plane_with(&format!(
        "workers = {workers}\npin = false\n[[redis]]\naddress = '127.0.0.1:0'\ntenant = 'shop'\ntable = 'items'\n\
         [[redis]]\naddress = '127.0.0.1:0'\n\
         [[tenants]]\nname = 'shop'\ntoken = '{TOKEN}'\nhome_worker = {}\n\
         tables = [{{ name = 'items' }}, {{ name = 'other' }}]\n",
        workers - 1
    ));
    let (port, open) = (plane.listening()[0], plane.listening()[1]);
    (plane, port, open)
}

/// Runs a tool; `None`, with a line of output, if it is not installed.
fn tool(name: &str, port: SocketAddr, args: &[&str], input: &str) -> Option<Output> {
    let mut command = Command::new(name);
    command.args(["-p", &port.port().to_string()]).args(args);
    run(command, name, input)
}

fn run(mut command: Command, name: &str, input: &str) -> Option<Output> {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: no {name}");
        return None;
    };
    // A tool that ends early prints the reason.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    Some(child.wait_with_output().expect("the tool ends"))
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn redis_cli_talks_to_it() {
    let (plane, port, open) = server(2);
    load(&plane, "shop", "total", 1);
    let input = "SET apple 3\nGET apple\nHELLO 3\nFCALL total 1 apple items\nSELECT 2\nDBSIZE\nNOSUCH x\n";
    let Some(output) = tool("redis-cli", port, &[], input) else { return };
    let text_of = text(&output);
    let lines: Vec<_> = text_of.lines().collect();
    assert_eq!(&lines[..2], ["OK", "3"], "{text_of}");
    assert!(text_of.contains("\n3\nOK\n0\nERR unknown command 'NOSUCH', with args beginning with: 'x' "), "{text_of}");
    let output =
        tool("redis-cli", open, &["--user", "shop", "--pass", TOKEN, "--no-auth-warning"], "GET apple\nACL WHOAMI\n");
    assert_eq!(output.map(|output| text(&output)).as_deref(), Some("3\nshop\n"));
    let output = tool("redis-cli", port, &["--scan"], "");
    assert_eq!(output.map(|output| text(&output)).as_deref(), Some("apple\n"));
    let output = tool("redis-cli", port, &["INFO", "keyspace"], "");
    assert!(output.is_some_and(|output| text(&output).contains("db1:keys=1,")));
    for (how, expected) in [("--bigkeys", "Biggest string found"), ("--memkeys", "Biggest string found")] {
        let text = tool("redis-cli", port, &[how], "").map(|output| text(&output)).expect("it was there");
        assert!(text.contains(expected) && !text.contains("ERR"), "{how}: {text}");
    }
    let output = tool("redis-cli", port, &[], "CLIENT LIST\nCOMMAND COUNT\nMEMORY DOCTOR\nSLOWLOG GET\nOBJECT HELP\n");
    assert!(output.is_some_and(|output| !text(&output).contains("ERR")));
}

#[test]
fn redis_benchmark_finds_no_error() {
    let (_plane, port, open) = server(2);
    let common = ["-n", "3000", "-c", "20", "-r", "100", "-q", "-t", "ping,set,get,incr,mset"];
    for more in [&["-P", "1"][..], &["-P", "32", "-d", "200"], &["-P", "8", "-3"]] {
        let Some(output) = tool("redis-benchmark", port, &[&common[..], more].concat(), "") else { return };
        let text = text(&output);
        assert!(output.status.success() && text.contains("GET:") && !text.contains("rror"), "{text}");
    }
    let args = [&common[..], &["--user", "shop", "-a", TOKEN]].concat();
    let text = tool("redis-benchmark", open, &args, "").map(|output| text(&output)).expect("it was there");
    assert!(text.contains("MSET (10 keys):") && !text.contains("rror"), "{text}");
}

#[test]
fn memtier_benchmark_finds_no_error() {
    let (_plane, port, _) = server(1);
    let args =
        ["-s", "127.0.0.1", "-P", "redis", "-n", "300", "-c", "5", "-t", "2", "--hide-histogram", "--pipeline", "8"];
    if let Some(output) = tool("memtier_benchmark", port, &args, "") {
        assert!(output.status.success() && text(&output).contains("Totals"), "{}", text(&output));
    }
}

/// A folder for other projects' programs, which persists.
fn folder_of(name: &str) -> PathBuf {
    let folder_of = root().join("target").join(name);
    std::fs::create_dir_all(&folder_of).expect("a folder");
    folder_of
}

/// A Python with redis-py; installed once, from the package index.
fn python() -> Option<PathBuf> {
    let python = folder_of("clients-python").join("bin/python");
    let has = |python: &Path| {
        Command::new(python).args(["-c", "import redis"]).output().is_ok_and(|output| output.status.success())
    };
    if !has(&python) {
        let here = folder_of("clients-python");
        let _made = Command::new("python3").arg("-m").arg("venv").arg(&here).output();
        let _had = Command::new(&python).args(["-m", "pip", "install", "--quiet", "redis"]).output();
    }
    has(&python).then_some(python).or_else(|| {
        eprintln!("skipped: no redis-py, and no package index to get it from");
        None
    })
}

#[test]
fn the_program_of_the_page_runs() {
    let Some(python) = python() else { return };
    let (plane, port, open) = server(2);
    load(&plane, "shop", "total", 1);
    let page = std::fs::read_to_string(root().join("docs/protocols.md")).expect("the page");
    let program = page.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a program");
    let program = program.replace("port=6379", &format!("port={}", port.port()));
    let mut command = Command::new(&python);
    command.args(["-c", &program]);
    let output = run(command, "python", "").expect("python was there");
    assert_eq!(text(&output), "[14, '5']\nin all: 22\n");
    let more = format!(
        "import redis\n\
         r = redis.Redis(port={}, username='shop', password='{TOKEN}', protocol=3, db=2)\n\
         with r.pipeline(transaction=True) as p:\n    p.watch('n')\n    p.multi()\n    p.incr('n')\n\
         \x20   p.incrbyfloat('f', 0.1)\n    print(p.execute())\n\
         r.mset({{str(n): n for n in range(300)}})\n\
         print(len(list(r.scan_iter(count=50))), r.ttl('n'), r.config_get('save'), r.client_getname())\n\
         print(r.set('n', 5, nx=True), r.getex('n', ex=100), r.ttl('n') > 90, r.info()['redis_mode'])\n",
        open.port()
    );
    let mut command = Command::new(&python);
    command.args(["-c", &more]);
    let output = run(command, "python", "").expect("python was there");
    assert_eq!(text(&output), "[1, 0.1]\n302 -1 {'save': ''} None\nNone b'1' True standalone\n");
}

/// A folder with node's client; installed once, from the package index.
fn node() -> Option<PathBuf> {
    static ONE_AFTER_THE_OTHER: Mutex<()> = Mutex::new(());
    let _installs = ONE_AFTER_THE_OTHER.lock();
    let here = folder_of("clients-node");
    let has = here.join("node_modules/redis/package.json");
    if !has.exists() {
        let _had = Command::new("npm").args(["install", "--silent", "redis"]).current_dir(&here).output();
    }
    has.exists().then_some(here).or_else(|| {
        eprintln!("skipped: no node, or no package `redis` for it");
        None
    })
}

/// With client-side caching it begins with CLIENT TRACKING, and retries for ever where that is refused.
#[test]
fn nodes_client_with_a_cache_of_its_own_goes_on_and_is_never_stale() {
    let Some(here) = node() else { return };
    let (_plane, port, _) = server(1);
    let program = format!(
        "const {{ createClient }} = require('redis');\n(async () => {{\n\
         const url = 'redis://127.0.0.1:{}';\n\
         const own = createClient({{ url, RESP: 3, clientSideCache: {{ ttl: 0, maxEntries: 100 }} }});\n\
         own.on('error', e => {{ console.log('error', e.message); process.exit(1); }});\nawait own.connect();\n\
         const other = createClient({{ url }});\nawait other.connect();\nlet stale = 0;\n\
         for (let n = 0; n < 100; n++) {{ await other.set('k', String(n)); \
         if (await own.get('k') !== String(n)) stale++; }}\n\
         console.log('stale', stale);\nawait own.quit();\nawait other.quit();\n}})();\n",
        port.port()
    );
    let mut command = Command::new("timeout");
    command.args(["120", "node", "-e"]).arg(program).current_dir(&here);
    let output = run(command, "timeout", "").expect("timeout was there");
    assert_eq!(text(&output), "stale 0\n");
}

#[test]
fn nodes_client_talks_to_it() {
    let Some(here) = node() else { return };
    let (plane, port, _) = server(1);
    load(&plane, "shop", "total", 1);
    let program = format!(
        "const {{ createClient }} = require('redis');\n(async () => {{\n\
         const r = createClient({{ url: 'redis://127.0.0.1:{}' }});\n\
         r.on('error', e => console.log('error', e));\nawait r.connect();\n\
         await r.set('a', '4', {{ EX: 100 }});\n\
         console.log(await r.get('a'), await r.incrBy('a', 2), await r.mGet(['a', 'b']));\n\
         console.log(await r.multi().set('b', '5').get('b').exec());\n\
         console.log(await r.sendCommand(['FCALL', 'total', '2', 'a', 'b', 'items']));\n\
         const keys = [];\nfor await (const k of r.scanIterator()) keys.push(k);\n\
         console.log(keys.flat().length);\nawait r.quit();\n}})();\n",
        port.port()
    );
    let mut command = Command::new("node");
    command.arg("-e").arg(program).current_dir(&here);
    let output = run(command, "node", "").expect("node was there");
    assert_eq!(text(&output), "4 6 [ '6', null ]\n[ 'OK', '5' ]\n11\n2\n");
}

/// Sends a command, and reads until the received bytes end with `end`.
fn exchange(stream: &mut TcpStream, sent: &str, end: &str) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
    stream.write_all(sent.as_bytes()).expect("sent");
    let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
    while !received.ends_with(end.as_bytes()) {
        match stream.read(&mut buffer).expect("an answer within a minute") {
            0 => break,
            bytes => received.extend_from_slice(&buffer[..bytes]),
        }
    }
    String::from_utf8_lossy(&received).into_owned()
}

/// Ends in the way that its first argument names.
const CALLED: &str = r#"
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;
use sandstorm_api::redis::Call;

/// Ends in the way that the first argument names.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let call = Call::parse(args).ok_or(Error::invalid("to be called by FCALL"))?;
    match call.args().next().unwrap_or_default() {
        b"loop" => {
            let mut turns = 0u64;
            loop {
                turns = core::hint::black_box(turns.wrapping_add(1));
            }
        }
        b"panic" => panic!("as asked"),
        b"error" => Err(Error::new("failed as asked")),
        b"yields" => {
            for _ in 0..10_000 {
                yield_now().await;
            }
            db.reply(b"yielded")
        }
        b"lines" => db.reply(b"a\r\n+OK\r\n\0"),
        _ => db.reply(b""),
    }
}
"#;

fn put_called(plane: &DataPlane) {
    let library = common::library_of("called", CALLED);
    let extension = common::loaded("called", 1, library, BudgetOverride::default());
    plane.directory.put_extension("shop", Arc::new(extension)).expect("loaded");
}

#[test]
fn however_an_extension_ends_its_caller_is_told_and_stays_in_step() {
    let (plane, port, _) = server(2);
    let never = QuotaChanges { slow_after_kills: Some(0), suspend_after_kills: Some(0), ..QuotaChanges::default() };
    plane.directory.set_quotas("shop", &never).expect("set");
    put_called(&plane);
    let mut stream = TcpStream::connect(port).expect("a connection");
    for (how, expected) in [
        ("called 0", "$0\r\n\r\n"),
        ("called 0 lines", "$9\r\na\r\n+OK\r\n\0\r\n"),
        ("called 1 key yields", "$7\r\nyielded\r\n"),
        ("called 0 error", "-FAILED "),
        ("called 0 loop", "-KILLED (total_budget) it exceeded its CPU budget"),
        ("called 0 panic", "-KILLED (panic) "),
        ("called 0 yields", "$7\r\nyielded\r\n"),
        ("other 0", "-ERR Function not found\r\n"),
        ("called -1", "-ERR Number of keys can't be negative\r\n"),
    ] {
        let received = exchange(&mut stream, &format!("FCALL {how}\r\nECHO in-step\r\n"), "$7\r\nin-step\r\n");
        assert!(received.starts_with(expected) && received.ends_with("\r\n$7\r\nin-step\r\n"), "{how}: {received}");
        assert_eq!(received.matches("in-step").count(), 1);
    }
    let received = exchange(&mut stream, "CLIENT REPLY SKIP\r\nFCALL called 0\r\nPING\r\n", "+PONG\r\n");
    assert_eq!(received, "+PONG\r\n", "what was not to be answered is not");
    let received =
        exchange(&mut stream, "CLIENT REPLY OFF\r\nFCALL called 0 loop\r\nCLIENT REPLY ON\r\nPING\r\n", "+PONG\r\n");
    assert_eq!(received, "+OK\r\n+PONG\r\n");
    // Ended after 10 ms of CPU: at least two of them are in the slow log.
    let received = exchange(&mut stream, "SLOWLOG GET\r\nPING\r\n", "+PONG\r\n");
    assert!(received.contains("$5\r\nFCALL\r\n$6\r\ncalled\r\n$1\r\n0\r\n$4\r\nloop\r\n"), "{received}");
    plane.directory.remove_extension("shop", "called").expect("unloaded");
    let received = exchange(&mut stream, "FCALL called 0\r\nPING\r\n", "+PONG\r\n");
    assert_eq!(received, "-ERR Function not found\r\n+PONG\r\n");
}

#[test]
fn who_calls_what_is_killed_again_and_again_is_told_of_the_quota() {
    let (plane, port, _) = server(1);
    put_called(&plane);
    let mut stream = TcpStream::connect(port).expect("a connection");
    // One after another: kills are checked periodically, and many may have happened since.
    for (slow, suspend, told) in [(1, 0, "-OVERQUOTA "), (1, 1, "-SUSPENDED ")] {
        let soon = QuotaChanges {
            slow_after_kills: Some(slow),
            suspend_after_kills: Some(suspend),
            ..QuotaChanges::default()
        };
        plane.directory.set_quotas("shop", &soon).expect("set");
        let mut seen = BTreeSet::new();
        let is_told = eventually(|| {
            let received = exchange(&mut stream, "FCALL called 0 loop\r\nPING\r\n", "+PONG\r\n");
            let is_told = received.starts_with(told);
            seen.insert(received);
            is_told
        });
        assert!(is_told, "not told {told}: {seen:?}");
    }
}

#[test]
fn who_never_reads_is_closed_and_others_do_not_notice() {
    let (plane, port, _) = server(1);
    let mut stream = TcpStream::connect(port).expect("a connection");
    let value = "v".repeat(1 << 20);
    assert_eq!(
        exchange(&mut stream, &format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n{value}\r\n", value.len()), "\r\n"),
        "+OK\r\n"
    );
    let mut lazy = TcpStream::connect(port).expect("a connection");
    lazy.set_nonblocking(true).expect("a stream that does not wait");
    let closed = eventually(|| {
        // Sends requests without end, as long as the server reads them.
        let sent = lazy.write(&b"GET k\r\n".repeat(200));
        assert_eq!(exchange(&mut stream, "GET other\r\n", "\r\n"), "$-1\r\n");
        matches!(sent, Err(error) if error.kind() != std::io::ErrorKind::WouldBlock)
    });
    let refused = flat(&plane.metrics.read()).find(|(name, _)| name == "connections_refused.slow_reader");
    assert!(closed && refused.is_some_and(|(_, count)| count == 1), "closed: {closed}");
}

#[test]
fn junk_ends_its_connection_and_no_other() {
    let (_plane, port, _) = server(1);
    let mut good = TcpStream::connect(port).expect("a connection");
    for junk in [&b"*1\r\n$99999999999\r\n"[..], b"*-5\r\n*1\r\n+x\r\n", &[0xff; 70_000], b"SET \"a b\r\n"] {
        let mut bad = TcpStream::connect(port).expect("a connection");
        bad.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        bad.write_all(junk).expect("sent");
        let mut answer = Vec::new();
        // Closed with unread bytes of this client, the connection may be reset instead of ended.
        let _ended = bad.read_to_end(&mut answer);
        assert!(answer.starts_with(b"-ERR Protocol error: ") || answer.is_empty() && junk.len() > 65_536);
        good.write_all(b"PING\r\n").expect("sent");
        let mut pong = [0; 7];
        good.read_exact(&mut pong).expect("answered");
        assert_eq!(&pong, b"+PONG\r\n");
    }
}

#[test]
fn a_record_lives_as_long_as_it_was_given_and_never_less() {
    let (_plane, port, _) = server(1);
    let mut stream = TcpStream::connect(port).expect("a connection");
    stream.set_nodelay(true).expect("set");
    for round in 0..100 {
        let (line, ms) = if round % 2 == 0 { ("SET k 1 PX 20", 20) } else { ("PSETEX k 7 1", 7) };
        // It is stored after this, and gone before the test sees it. So this time is longer than its life, if its life
        // was long enough.
        let begun = Instant::now();
        assert_eq!(exchange(&mut stream, &format!("{line}\r\n"), "\r\n"), "+OK\r\n");
        while exchange(&mut stream, "EXISTS k\r\n", "\r\n") == ":1\r\n" {}
        let lived = begun.elapsed();
        assert!(lived >= Duration::from_millis(ms), "{line}: gone after {lived:?}");
    }
}

/// Across workers: another connection lists and ends a connection, although it sends nothing.
#[test]
fn a_connection_ends_another_of_its_tenant_wherever_that_is() {
    let (_plane, port, open) = server(2);
    let mut idle: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(port).expect("a connection")).collect();
    let ids: Vec<String> =
        idle.iter_mut().map(|one| exchange(one, "CLIENT ID\r\n", "\r\n").trim()[1..].to_owned()).collect();
    let mut stream = TcpStream::connect(open).expect("a connection");
    exchange(&mut stream, &format!("AUTH shop {TOKEN}\r\n"), "+OK\r\n");
    let listed = exchange(&mut stream, "CLIENT LIST\r\nPING\r\n", "+PONG\r\n");
    let local = idle[0].local_addr().expect("an address");
    assert!(ids.iter().all(|id| listed.contains(&format!("id={id} addr=127.0.0.1:"))), "{listed}");
    assert!(listed.contains(&format!("addr={local} laddr={port} ")), "{listed}");
    assert_eq!(exchange(&mut stream, &format!("CLIENT KILL {local}\r\n"), "\r\n"), "+OK\r\n");
    assert_eq!(idle[0].read(&mut [0; 8]).expect("an end within a minute"), 0);
    assert_eq!(exchange(&mut stream, &format!("CLIENT KILL ID {}\r\n", ids[1]), "\r\n"), ":1\r\n");
    assert_eq!(idle[1].read(&mut [0; 8]).expect("an end within a minute"), 0);
    assert_eq!(exchange(&mut stream, "CLIENT KILL TYPE normal\r\n", "\r\n"), ":6\r\n");
    for one in &mut idle[2..] {
        assert_eq!(one.read(&mut [0; 8]).expect("an end within a minute"), 0);
    }
    assert_eq!(exchange(&mut stream, "CLIENT LIST\r\nPING\r\n", "+PONG\r\n").matches("id=").count(), 1);
}

mod pages;

#[test]
fn commands_of_a_million_keys_take_no_more_than_a_slice_of_a_neighbours_time_at_once() {
    const KEYS: usize = 1_000_000;
    let plane = data_plane_with(
        "workers = 1\npin = false\n[[redis]]\naddress = '127.0.0.1:0'\ntenant = 'shop'\n[[redis]]\n\
         address = '127.0.0.1:0'\n\
         tenant = 'bank'\n[[tenants]]\nname = 'shop'\nopen = true\ntables = [{ name = 'items' }]\n\
         [[tenants]]\nname = 'bank'\n\
         open = true\ntables = [{ name = 'items' }]\n",
    );
    let (hostile, neighbour) = (plane.listening()[0], plane.listening()[1]);
    let ends = std::sync::atomic::AtomicBool::new(false);
    let mut waits = std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let (mut stream, mut waits, mut answer) = (connect(neighbour), Vec::new(), [0; 5]);
            while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                let begun = std::time::Instant::now();
                stream.write_all(b"GET a\r\n").expect("sent");
                stream.read_exact(&mut answer).expect("an answer");
                assert_eq!(&answer, b"$-1\r\n");
                waits.push(begun.elapsed().as_micros());
            }
            waits
        });
        let mut stream = connect(hostile);
        for (name, expected, each) in [
            ("EXISTS", &b":0\r\n"[..], 0),
            ("DEL", b":0\r\n", 0),
            ("TOUCH", b":0\r\n", 0),
            ("MGET", b"*1000000\r\n", 5),
        ] {
            let mut sent = format!("*{}\r\n${}\r\n{name}\r\n", KEYS + 1, name.len()).into_bytes();
            (0..KEYS).for_each(|n| sent.extend(format!("$7\r\nk{:06}\r\n", n).bytes()));
            stream.write_all(&sent).expect("sent");
            let mut answer = vec![0; expected.len() + each * KEYS];
            stream.read_exact(&mut answer).expect("an answer");
            assert!(answer.starts_with(expected), "{name}");
        }
        ends.store(true, std::sync::atomic::Ordering::Relaxed);
        asks.join().expect("it was answered")
    });
    waits.sort_unstable();
    println!("a neighbour's p99: {} us of {} requests", waits[waits.len() * 99 / 100], waits.len());
    // The server's own count of the longest uninterrupted run, on which the machine's other load has no effect.
    let longest = flat(&plane.metrics.read()).find(|(name, _)| name == "connection_longest_piece");
    let longest = longest.map(|(_, work)| work).expect("a gauge");
    assert!((100..700).contains(&longest), "{longest} requests' work in one go");
}

#[test]
fn an_extension_is_given_as_many_keys_as_there_are() {
    const KEYS: usize = 1_500;
    let (plane, port, _) = server(1);
    load(&plane, "shop", "total", 1);
    let mut stream = connect(port);
    let names: String = (0..KEYS).map(|n| format!("$5\r\nk{n:04}\r\n")).collect();
    let pairs: String = (0..KEYS).map(|n| format!("$5\r\nk{n:04}\r\n$1\r\n1\r\n")).collect();
    let mset = format!("*{}\r\n$4\r\nMSET\r\n{pairs}", 2 * KEYS + 1);
    let fcall = format!("*{}\r\n$5\r\nFCALL\r\n$5\r\ntotal\r\n$4\r\n{KEYS}\r\n{names}$5\r\nitems\r\n", KEYS + 4);
    stream.write_all(format!("{mset}{fcall}PING\r\n").as_bytes()).expect("sent");
    let expected = format!("+OK\r\n$4\r\n{KEYS}\r\n+PONG\r\n");
    let mut answer = vec![0; expected.len()];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(String::from_utf8_lossy(&answer), expected);
}

fn connect(port: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(port).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("set");
    stream
}

/// A client with a number in its URL selects a database that was not made before. Several at once get the same one, the
/// next command of a pipeline is there, and what the tenant's quota does not allow is an error.
#[test]
fn databases_are_made_on_demand_within_the_quota_of_tables() {
    let (plane, port, _) = server(2);
    let few = QuotaChanges { tables: Some(3), ..QuotaChanges::default() };
    plane.directory.set_quotas("shop", &few).expect("set");
    let clients: Vec<_> = (0..4)
        .map(|client| {
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(port).expect("a connection");
                let sent = format!("SELECT 3\r\nSET k{client} v\r\nGET k{client}\r\nPING\r\n");
                assert_eq!(exchange(&mut stream, &sent, "+PONG\r\n"), "+OK\r\n+OK\r\n$1\r\nv\r\n+PONG\r\n");
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().expect("served"));
    let mut stream = TcpStream::connect(port).expect("a connection");
    let received =
        exchange(&mut stream, "DBSIZE\r\nSELECT 4\r\nDBSIZE\r\nSELECT db3\r\nDBSIZE\r\nPING\r\n", "+PONG\r\n");
    let start = ":0\r\n-ERR DB index is out of range: ";
    assert!(received.starts_with(start) && received.contains("tables"), "{received}");
    assert!(received.ends_with("\r\n:0\r\n+OK\r\n:4\r\n+PONG\r\n"), "{received}");
    let snapshot = plane.directory.snapshot();
    let view = snapshot.iter().find(|view| view.tenant.name == "shop").expect("the tenant");
    assert_eq!(view.table_by_name("db3").map(|table| table.id), Some(3));
}
