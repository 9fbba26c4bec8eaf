//! Promise: a server's acknowledged state of its tenants survives a kill and a restart: ids, tokens, quotas, tables,
//! grants, suspensions, extensions and their loaded versions. Records of tables without durability do not survive, and
//! requests to the server before do not run. Kills the real binary with SIGKILL, between changes and during them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::disk::SmallDisk;
use sandstorm_catalog::testing::code;
use sandstorm_client::blocking::Client;
use sandstorm_client::control::{
    Control, ControlError, DurabilityLevel, ExtensionSource, ExtensionSourceFile, GrantSpec, TableAccess, TableSpec,
    TenantPatch, TenantSpec, Trust,
};
use sandstorm_client::limits::CONTROL_TIMEOUT;
use sandstorm_client::{Config, PutOptions};
use sandstorm_net::r2p2::header::{R2p2Kind, SINGLE_HEADER_LEN, single_header};
use sandstorm_net::rpc::{
    HELLO_BIND_SESSION, MessageHeader, Operation, RpcStatus, STALE_PREVIOUS_START, encode_message,
};
use serde_json::Value;

/// A server process; killed when dropped.
struct Server {
    process: Child,
    data: String,
    control: Control,
    /// A client of the control port without a token.
    stranger: Control,
}

pub(super) fn command(folder: &Path, config: &str, options: &[&str]) -> Command {
    let file = folder.join("server.toml");
    // The kernel of the machine that runs the tests may offer no sandbox; the tests of the sandbox itself say so.
    fs::write(&file, format!("[builder]\nallow_unsandboxed = true\ncompilers = 1\n{config}")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandstorm-under-test"));
    command.args([
        "serve",
        "--json",
        "--no-pin",
        "--workers",
        "1",
        "--data",
        "127.0.0.1:0",
        "--control",
        "127.0.0.1:0",
        "--code",
        code().name(),
    ]);
    command.args(options).arg("--config").arg(file).arg("--state").arg(crate::common::process::state_in(folder));
    command.env_remove("RUST_LOG").stdout(Stdio::piped());
    command
}

pub(super) fn state(folder: &Path) -> PathBuf {
    folder.join("state")
}

impl Server {
    fn start(folder: &Path, config: &str, options: &[&str]) -> Server {
        let mut process = command(folder, config, options).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let answer_text: Value = serde_json::from_str(&line).expect("the server says where it is");
        let token = fs::read_to_string(state(folder).join("operator-token")).unwrap();
        let trust = answer_text["fingerprint"].as_str().map(|pinned| Trust::pin(pinned).unwrap()).unwrap_or_default();
        let url = answer_text["control_url"].as_str().unwrap().to_owned();
        let control = Control::with_trust(&url, Some(token.trim()), CONTROL_TIMEOUT, &trust);
        let stranger = Control::with_trust(&url, None, CONTROL_TIMEOUT, &trust);
        Server { process, stranger, data: answer_text["data"].as_str().unwrap().to_owned(), control }
    }

    /// Kills it with SIGKILL, and starts a new one.
    fn again(self, folder: &Path, config: &str, options: &[&str]) -> Server {
        drop(self);
        Server::start(folder, config, options)
    }

    /// A client with that token, if the server accepts it.
    fn client(&self, tenant: u32, token: &str) -> Result<Client, sandstorm_client::Error> {
        Client::connect(Config::new(self.data.parse().unwrap(), tenant).token(token.to_owned()))
    }

    fn create(&self, name: &str) -> (u32, String) {
        let new = TenantSpec { name: name.into(), ..TenantSpec::default() };
        let created = self.control.create_tenant(&new).unwrap();
        (created.tenant.id, created.token)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
    }
}

fn echo(greeting: &str) -> ExtensionSource {
    let text = format!(
        "#![no_std]\nuse sandstorm_api::prelude::*;\n\
         pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {{\n    db.reply(b\"{greeting}\")\n}}\n"
    );
    ExtensionSource {
        manifest: "name = \"echo\"".into(),
        files: vec![ExtensionSourceFile { path: "src/lib.rs".into(), text }],
    }
}

/// A table in memory only.
fn table(name: &str) -> TableSpec {
    let durability = Some(DurabilityLevel::None);
    TableSpec { name: name.into(), quota_bytes: Some(1 << 20), durability, ..TableSpec::default() }
}

const NONE: &[&str] = &["--no-builder"];

#[test]
fn what_was_acknowledged_is_there_after_a_kill_between_any_two_changes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::start(folder, "", NONE);
    let (shop, first) = server.create("shop");
    let server = server.again(folder, "", NONE);
    server.control.create_table("shop", &table("carts")).unwrap();
    let server = server.again(folder, "", NONE);
    let id = server.control.table("shop", "carts").unwrap().id;
    let client = server.client(shop, &first).expect("the token is the same");
    client.put(id, b"k", b"v", &PutOptions::default()).unwrap();
    drop(client);
    let server = server.again(folder, "", NONE);
    assert!(server.client(shop, &first).unwrap().get(id, b"k").unwrap().is_none(), "records are not kept");

    let (reports, _) = server.create("reports");
    let grant = GrantSpec { table: "carts".into(), to: "reports".into(), access: TableAccess::Read };
    server.control.grant("shop", &grant).unwrap();
    let server = server.again(folder, "", NONE);
    let received = server.control.grants("reports").unwrap().received;
    assert_eq!(received.iter().map(|grant| grant.name.as_str()).collect::<Vec<_>>(), ["shop/carts"]);
    let granted = received[0].id;

    let quotas = [("total_us".to_owned(), 5_000)].into();
    server.control.change_tenant("shop", &TenantPatch { quotas, ..TenantPatch::default() }).unwrap();
    let second = server.control.rotate_with_grace("shop", Some(Duration::from_secs(3600))).unwrap().token;
    let server = server.again(folder, "", NONE);
    assert_eq!(server.control.tenant("shop").unwrap().quotas["total_us"], 5_000);
    for token in [&first, &second] {
        server.client(shop, token).expect("the old token works on within its grace").get(id, b"k").unwrap();
    }
    assert_eq!(server.control.grants("reports").unwrap().received[0].id, granted);
    server.control.revoke_old_token("shop").unwrap();
    let server = server.again(folder, "", NONE);
    assert!(server.client(shop, &first).is_err(), "a token that was revoked stays so");
    server.client(shop, &second).expect("and the new one works");

    server.control.drop_table("shop", "carts").unwrap();
    server.control.delete_tenant("reports").unwrap();
    let server = server.again(folder, "", NONE);
    let names: Vec<_> = server.control.tenants().unwrap().into_iter().map(|tenant| tenant.name).collect();
    assert_eq!(names, ["shop"]);
    assert!(server.control.grants("shop").unwrap().given.is_empty());
    assert!(server.control.create_table("shop", &table("next")).unwrap().id > id, "ids do not come twice");
    assert!(server.create("late").0 > reports);
}

/// Sends a message of one operation to a server, as one packet; returns its answer's status, number and user flags.
fn ask(
    socket: &UdpSocket,
    server: &Server,
    header: &MessageHeader,
    operation: &Operation<'_>,
) -> (RpcStatus, u64, u32) {
    let mut message = single_header(R2p2Kind::Request, 1).to_vec();
    encode_message(header, &[*operation], &mut message);
    let mut buffer = [0; 2000];
    socket.send_to(&message, &server.data).unwrap();
    let len = socket.recv(&mut buffer).expect("an answer");
    let (_, mut answers) = MessageHeader::decode(&buffer[SINGLE_HEADER_LEN..len]).unwrap();
    let answer = answers.next().unwrap().unwrap();
    (answer.status, answer.number, answer.user_flags)
}

#[test]
fn what_was_asked_of_a_server_does_not_run_on_the_one_that_takes_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::start(folder, "", NONE);
    let new = TenantSpec { name: "shop".into(), open: true, ..TenantSpec::default() };
    let tenant = server.control.create_tenant(&new).unwrap().tenant.id;
    let table = server.control.create_table("shop", &table("carts")).unwrap().id;
    let header = |session, sequence, acked| MessageHeader { flags: 0, operations: 1, tenant, session, sequence, acked };
    let hello = Operation { number: HELLO_BIND_SESSION, ..Operation::hello(b"") };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let ask =
        |server: &Server, header: &MessageHeader, operation: &Operation<'_>| ask(&socket, server, header, operation);
    let (increment, read) = (Operation::increment(table, b"n", 1), Operation::increment(table, b"n", 0));

    let (_, _, start) = ask(&server, &header(7, 1, 0), &hello);
    let first = u64::from(start) << 32;
    // Of a session that is bound to the server's start, and of one that is not.
    let bound: Vec<_> = (1..4).map(|number| header(7, first + number, first + number - 1)).collect();
    let unbound: Vec<_> = (1..4).map(|number| header(8, number, number - 1)).collect();
    for asked in [&bound, &unbound].into_iter().flatten() {
        assert_eq!(ask(&server, asked, &increment).0, RpcStatus::Ok);
    }
    let server = server.again(folder, "", NONE);
    // All of these packets arrive late once more, the hello too.
    let (status, _, again) = ask(&server, &header(7, 1, 0), &hello);
    assert!(status == RpcStatus::Ok && again != start);
    for asked in bound.iter().chain(&unbound[1..]) {
        let (status, number, _) = ask(&server, asked, &increment);
        assert_eq!((status, number), (RpcStatus::Stale, STALE_PREVIOUS_START), "{asked:?}");
    }
    // A new request is served, whether it is bound or not, and sees that none of them has run.
    let first = u64::from(again) << 32;
    assert_eq!(ask(&server, &header(9, first + 1, first), &read), (RpcStatus::Ok, 0, 0));
    assert_eq!(ask(&server, &header(10, 1, 0), &increment), (RpcStatus::Ok, 1, 0));
    assert_eq!(ask(&server, &header(10, 2, 1), &increment), (RpcStatus::Ok, 2, 0));
    let client = server.client(tenant, "").unwrap();
    assert_eq!(client.increment(table, b"n", 1), Ok(3));
}

#[test]
fn a_kill_in_the_midst_of_changes_loses_none_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut acknowledged = BTreeSet::new();
    let mut server = Server::start(folder, "", NONE);
    for round in 0..4 {
        let (control, done) = (server.control.clone(), AtomicUsize::new(0));
        let made = std::thread::scope(|scope| {
            let making = scope.spawn(|| {
                let mut made = Vec::new();
                for n in 0.. {
                    let name = format!("t{round}-{n}");
                    let new = TenantSpec { name: name.clone(), ..TenantSpec::default() };
                    match control.create_tenant(&new) {
                        Ok(_) => made.push(name),
                        Err(_) => break,
                    }
                    done.store(made.len(), Ordering::Relaxed);
                }
                made
            });
            while done.load(Ordering::Relaxed) < 5 + round {
                std::thread::yield_now();
            }
            drop(server);
            making.join().unwrap()
        });
        acknowledged.extend(made);
        server = Server::start(folder, "", NONE);
        let there: BTreeSet<_> = server.control.tenants().unwrap().into_iter().map(|tenant| tenant.name).collect();
        assert!(acknowledged.is_subset(&there), "{acknowledged:?} {there:?}");
        assert!(there.len() <= acknowledged.len() + 1, "and one more at most, which was under way");
        acknowledged = there;
    }
    // Another server does not touch this one's locked state.
    let output = command(folder, "", NONE).output().unwrap();
    let answer_text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && answer_text.contains("another server runs with this state directory"),
        "{answer_text}"
    );
    drop(server);
    let journal = state(folder).join("directory.journal");
    let mut bytes = fs::read(&journal).unwrap();
    bytes[100] ^= 1;
    fs::write(&journal, bytes).unwrap();
    let output = command(folder, "", NONE).output().unwrap();
    let answer_text = String::from_utf8_lossy(&output.stderr);
    let named = answer_text.contains("directory.journal cannot be used: line 2") && answer_text.contains("backup");
    assert!(!output.status.success() && named, "{answer_text}");
    let server = Server::start(folder, "", &["--no-builder", "--ephemeral"]);
    assert!(server.control.tenants().unwrap().is_empty(), "nothing is kept, and nothing looked at");
}

fn artifact_code(result: Result<sandstorm_client::control::PushOutcome, ControlError>) -> String {
    result.expect_err("refused").code().to_owned()
}

#[test]
fn extensions_their_suspensions_and_their_versions_survive() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::start(folder, "", &[]);
    let (shop, token) = server.create("shop");
    let kept = |version: u64| state(folder).join(format!("extensions/{shop}-{version}-echo.artifact"));
    server.control.push("shop", "echo", &echo("one")).unwrap();
    let old = fs::read(kept(1)).unwrap();
    server.control.push("shop", "echo", &echo("two")).unwrap();
    assert!(kept(1).exists(), "the last five versions are kept");

    let server = server.again(folder, "", &[]);
    let client = server.client(shop, &token).unwrap();
    assert_eq!(&*client.invoke("echo", b"").expect("it is loaded before the first call comes"), b"two");
    let shown = server.control.extension("shop", "echo").unwrap();
    assert_eq!(shown.version, 2);
    assert_eq!(artifact_code(server.control.push_artifact("shop", "echo", &old)), "artifact_downgraded");
    server.control.suspend("shop", "echo").unwrap();
    let server = server.again(folder, "", &[]);
    let own = Control::new(&server.control_address(folder), Some(&token));
    assert!(server.control.extension("shop", "echo").unwrap().suspended);
    assert!(server.client(shop, &token).unwrap().invoke("echo", b"").is_err(), "its calls are refused still");
    own.resume("shop", "echo").expect_err("the operator has suspended it, and only he lifts it");
    server.control.resume("shop", "echo").unwrap();

    let newest = fs::read(kept(2)).unwrap();
    server.control.unload("shop", "echo").unwrap();
    assert!(!kept(1).exists() && !kept(2).exists());
    let server = server.again(folder, "", &[]);
    assert!(server.control.extensions("shop").unwrap().is_empty(), "what was unloaded stays so");
    assert_eq!(artifact_code(server.control.push_artifact("shop", "echo", &newest)), "artifact_replayed");
    assert_eq!(server.control.push("shop", "echo", &echo("three")).unwrap().extension.version, 3);

    // An older artifact instead of the loaded one, and a damaged one: both are left out, and reported. Without the
    // source nothing can be built in their place.
    let good = fs::read(kept(3)).unwrap();
    drop(server);
    fs::remove_file(kept(3).with_extension("source")).unwrap();
    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    for (bytes, why) in [(newest, "downgrade"), (damaged, "tampered"), (good[..100].to_vec(), "malformed")] {
        fs::write(kept(3), bytes).unwrap();
        let server = Server::start(folder, "", &[]);
        assert!(server.control.extensions("shop").unwrap().is_empty(), "{why}");
        let notices = server.control.kills(Some("shop"), 10).unwrap();
        let told = notices.iter().any(|notice| notice.cause == "left out" && notice.text.contains(why));
        assert!(told || why == "downgrade" && notices.iter().any(|n| n.text.contains("replay")), "{why}: {notices:?}");
    }
    fs::write(kept(3), good).unwrap();
    let server = Server::start(folder, "", &[]);
    let client = server.client(shop, &token).unwrap();
    assert_eq!(&*client.invoke("echo", b"").expect("the good one is back"), b"three");
    fs::write(state(folder).join("extensions/stray"), "x").unwrap();
    server.control.delete_tenant("shop").unwrap();
    drop(server.again(folder, "", NONE));
    assert_eq!(fs::read_dir(state(folder).join("extensions")).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn a_server_without_its_builder_serves_what_its_builder_has_signed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::start(folder, "", &[]);
    let (shop, token) = server.create("shop");
    server.control.push("shop", "echo", &echo("one")).unwrap();
    let server = server.again(folder, "", NONE);
    let client = server.client(shop, &token).unwrap();
    assert_eq!(&*client.invoke("echo", b"").expect("it is loaded"), b"one");
    let refused = server.control.push("shop", "echo", &echo("two")).expect_err("nothing builds it");
    assert_eq!(refused.code(), "builder");
    assert!(refused.to_string().contains("--no-builder"), "{refused}");

    // A key that other users could have read is not trusted.
    drop((client, server));
    let key = state(folder).join("builder/builder.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let server = Server::start(folder, "", NONE);
    assert!(server.control.extensions("shop").unwrap().is_empty());
    // With the builder available again nothing was lost meanwhile.
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let server = server.again(folder, "", &[]);
    assert_eq!(&*server.client(shop, &token).unwrap().invoke("echo", b"").expect("it is loaded"), b"one");
    assert_eq!(server.control.push("shop", "echo", &echo("two")).unwrap().extension.version, 2);
}

impl Server {
    /// The control port's address according to the state directory.
    fn control_address(&self, folder: &Path) -> String {
        control_file(folder)
    }
}

fn control_file(folder: &Path) -> String {
    let file: Value = serde_json::from_slice(&fs::read(state(folder).join("control.json")).unwrap()).unwrap();
    file["address"].as_str().unwrap().to_owned()
}

#[test]
fn the_configuration_has_the_last_word_on_what_it_says_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let config = |tenant: &str| format!("[[tenants]]\nname = \"shop\"\nid = 9\n{tenant}\n");
    let first =
        "token = \"a-token-of-my-own-choosing\"\nquotas = { total_us = 7000 }\ntables = [{ name = \"t\", id = 4 }]";
    let server = Server::start(folder, &config(first), NONE);
    let rotated = server.control.rotate_token("shop").unwrap().token;
    let quotas = [("total_us".to_owned(), 5_000), ("tables".to_owned(), 3)].into();
    server.control.change_tenant("shop", &TenantPatch { quotas, ..TenantPatch::default() }).unwrap();
    server.control.create_table("shop", &table("more")).unwrap();

    let server = server.again(folder, &config(first), NONE);
    let quotas = server.control.tenant("shop").unwrap().quotas;
    assert_eq!((quotas["total_us"], quotas["tables"]), (7_000, 3), "the file's, and what it does not speak of");
    assert_eq!(server.control.tables("shop").unwrap().len(), 2);
    server.client(9, &rotated).expect("a token that was replaced stays replaced");
    assert!(server.client(9, "a-token-of-my-own-choosing").is_err());

    let second = first.replace("my-own", "somebody-s").replace("id = 4", "id = 4, mode = \"cache\"");
    let server = server.again(folder, &config(&second), NONE);
    server.client(9, "a-token-of-somebody-s-choosing").expect("another token in the file is set");
    assert!(server.client(9, &rotated).is_err());
    assert_eq!(format!("{:?}", server.control.table("shop", "t").unwrap().mode), "Cache");

    let server = server.again(folder, "", NONE);
    server.client(9, "a-token-of-somebody-s-choosing").expect("a tenant that left the file stays");
    drop(server);
    for (changed, expected) in [
        (config(&second).replace("id = 9", "id = 8"), "ids do not change"),
        (config(&second.replace("id = 4", "id = 5")), "has id 4 from an earlier start"),
    ] {
        let output = command(folder, &changed, NONE).output().unwrap();
        let answer_text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && answer_text.contains(expected), "{answer_text}");
    }
}

/// Checks everything that a server must still do when its disk accepts no writes.
fn serves_and_refuses_changes(server: &Server, shop: u32, token: &str) {
    let client = server.client(shop, token).expect("tokens work");
    assert_eq!(&*client.invoke("echo", b"").expect("extensions are loaded"), b"one");
    let table = server.control.table("shop", "t").expect("tables are there").id;
    client.put(table, b"k", b"v", &PutOptions::default()).expect("records are written");
    assert!(client.get(table, b"k").unwrap().is_some());
    for refused in [
        server.control.create_table("shop", &self::table("more")).expect_err("a table"),
        server.control.rotate_token("shop").expect_err("a token"),
        server.control.delete_tenant("shop").expect_err("a tenant"),
    ] {
        assert_eq!(refused.code(), "not_kept", "{refused}");
        assert!(refused.to_string().contains("directory.journal"), "{refused}");
    }
    let health = server.control.health().unwrap();
    assert!(health.changes.starts_with("refused since") && health.changes.contains("directory.journal"), "{health:?}");
    assert_eq!(server.stranger.health().unwrap().changes, "refused", "paths are for those with a token");
    server.client(shop, token).expect("a token that was not replaced works on");
}

#[test]
fn a_server_whose_disk_takes_nothing_starts_with_what_is_there_and_goes_on_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let Some(disk) = SmallDisk::mount(state(folder), "size=224m,mode=700") else { return };
    let server = Server::start(folder, "", &["--control-tls"]);
    let (shop, token) = server.create("shop");
    server.control.create_table("shop", &table("t")).unwrap();
    server.control.push("shop", "echo", &echo("one")).unwrap();
    drop(server);

    disk.fill();
    let journal = fs::read(state(folder).join("directory.journal")).unwrap();
    let server = Server::start(folder, "", &["--control-tls"]);
    serves_and_refuses_changes(&server, shop, &token);
    assert_eq!(fs::read(state(folder).join("directory.journal")).unwrap(), journal, "what was kept is as it was");
    // Killed repeatedly it comes back, read-only or full, with a log that cannot be written either.
    let server = server.again(folder, "", &["--control-tls"]);
    serves_and_refuses_changes(&server, shop, &token);
    drop(server);
    disk.remount("ro");
    let server = Server::start(folder, "", &["--control-tls"]);
    serves_and_refuses_changes(&server, shop, &token);
    drop(server);
    disk.remount("rw");
    let server = Server::start(folder, "", &["--control-tls"]);
    serves_and_refuses_changes(&server, shop, &token);

    disk.make_room();
    let since = Instant::now();
    while server.control.health().unwrap().changes != "kept" {
        assert!(since.elapsed() < crate::common::EVENTUALLY, "it tries again by itself");
        std::thread::sleep(Duration::from_millis(50));
    }
    server.control.create_table("shop", &table("more")).expect("changes are made again");
    assert_eq!(server.control.push("shop", "echo", &echo("two")).unwrap().extension.version, 2, "the builder as well");
    let server = server.again(folder, "", &["--control-tls"]);
    assert_eq!(server.control.tables("shop").unwrap().len(), 2);
}

#[test]
fn a_server_whose_output_and_log_take_nothing_serves_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    drop(Server::start(folder, "", NONE));
    fs::remove_file(state(folder).join("control.json")).unwrap();
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = command(folder, "", NONE);
    // Its log about the machine, and about each change.
    command.env("RUST_LOG", "trace").stdout(full()).stderr(full());
    let mut process = command.spawn().unwrap();
    let since = Instant::now();
    while !state(folder).join("control.json").exists() {
        assert!(process.try_wait().unwrap().is_none() && since.elapsed() < crate::common::EVENTUALLY, "it starts");
        std::thread::sleep(Duration::from_millis(10));
    }
    let token = fs::read_to_string(state(folder).join("operator-token")).unwrap();
    let control = Control::new(&control_file(folder), Some(token.trim()));
    let stranger = Control::new(&control_file(folder), None);
    let server = Server { process, stranger, data: control.health().unwrap().data_address, control };
    server.create("shop");
    assert_eq!(server.control.tenants().unwrap().len(), 1);
}

#[test]
fn bytes_that_are_cut_off_the_journal_are_kept_and_the_log_says_both_that_may_be_the_case() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::start(folder, "", NONE);
    (0..3).for_each(|n| drop(server.create(&format!("t{n}"))));
    drop(server);
    let journal = state(folder).join("directory.journal");
    let whole = fs::read(&journal).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    let cut_files = || -> Vec<PathBuf> {
        let entries = fs::read_dir(state(folder)).unwrap().map(|entry| entry.unwrap().path());
        let mut cut: Vec<PathBuf> =
            entries.filter(|path| path.to_string_lossy().contains("directory.journal.cut-")).collect();
        cut.sort();
        cut
    };
    fs::write(&journal, &whole[..last + 100]).unwrap();
    let log = folder.join("log");
    let mut command = command(folder, "", NONE);
    let mut process = command.stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let _ended = process.kill().and_then(|()| process.wait());
    let answer_text = fs::read_to_string(&log).unwrap();
    let [kept] = &cut_files()[..] else { panic!("one file: {:?}", cut_files()) };
    assert_eq!(fs::read(kept).unwrap(), &whole[last..last + 100]);
    assert_eq!(fs::metadata(kept).unwrap().permissions().mode() & 0o777, 0o600);
    for part in ["100 bytes", "was not acknowledged", "cut or damaged", "is valid again", &kept.display().to_string()] {
        assert!(answer_text.contains(part), "{part:?}: {answer_text}");
    }

    // A line that is not an unfinished one is damage: nothing is cut, and nothing is served.
    let whole = fs::read(&journal).unwrap();
    for tail in [&b"00000000000000000000000000000000 00000040 {\"line\":77,"[..], b"half a word", &whole[50..90]] {
        fs::write(&journal, [&whole, tail].concat()).unwrap();
        let output = self::command(folder, "", NONE).output().unwrap();
        let answer_text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && answer_text.contains("cannot be used"), "{answer_text}");
        assert_eq!(fs::read(&journal).unwrap(), [&whole, tail].concat(), "it is as it was");
    }
    // They do not grow without bound.
    for n in 0..10 {
        let bytes = fs::read(&journal).unwrap();
        let bytes = if n == 0 { &whole } else { &bytes };
        fs::write(&journal, [bytes, &vec![0; n + 1][..]].concat()).unwrap();
        drop(Server::start(folder, "", NONE));
    }
    let sizes: Vec<u64> = cut_files().iter().map(|path| fs::metadata(path).unwrap().len()).collect();
    assert_eq!(sizes, [3, 4, 5, 6, 7, 8, 9, 10]);
}
