//! The order in which pushes are built, and the artifacts that are loaded.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use sandstorm_builder::ArtifactError;
use sandstorm_net::CodeTier;

/// A builder that reports the beginning of a build, and ends it with a refusal on request.
struct Slow {
    begun: Mutex<Sender<u32>>,
    end: Mutex<Receiver<()>>,
}

impl ArtifactBuilder for Slow {
    fn build(&self, request: &BuildRequest) -> Result<(Artifact, Vec<Diagnostic>), BuildError> {
        self.begun.lock().send(request.tenant).expect("the test listens");
        self.end.lock().recv().expect("the test goes on");
        Err(BuildError::Limit("this builder builds nothing".to_owned()))
    }

    fn check(&self, _: &BuildRequest) -> Result<(), BuildError> {
        Ok(())
    }

    fn key(&self) -> Option<PublicKey> {
        None
    }

    fn compiler(&self) -> Option<u64> {
        None
    }

    fn release(&self) -> String {
        "none".to_owned()
    }
}

/// Waits until the queue has `waiting` pushes.
fn until_waiting(server: &Server, waiting: usize) {
    let begun = std::time::Instant::now();
    while server.control.queue.load().1 != waiting {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", server.control.queue.load());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_flood_of_pushes_waits_for_one_of_another_tenant_and_is_told_its_quota() {
    let (begun, begins) = channel();
    let (end, ends) = channel();
    let server = Server::start(Ok(Arc::new(Slow { begun: Mutex::new(begun), end: Mutex::new(ends) })));
    let (flood, other) = (server.tenant("flood"), server.tenant("other"));
    let id = |name: &str| server.control.directory.snapshot().by_name(name).unwrap().tenant.id;
    let push = |token: &str, tenant: &str| {
        let (status, answer) =
            server.json("PUT", &format!("/v1/tenants/{tenant}/extensions/echo"), token, source("echo", "Ok(())"));
        (status, answer["code"].as_str().unwrap_or_default().to_owned(), answer["message"].to_string())
    };
    std::thread::scope(|scope| {
        let mut pushes = vec![scope.spawn(|| push(&flood, "flood"))];
        assert_eq!(begins.recv().unwrap(), id("flood"));
        for waiting in 1..=4 {
            pushes.push(scope.spawn(|| push(&flood, "flood")));
            until_waiting(&server, waiting);
        }
        for _ in 0..20 {
            let (status, code, message) = push(&flood, "flood");
            assert_eq!((status, code.as_str()), (409, "over_quota"), "{message}");
            assert!(message.contains("waiting_pushes = 4"), "{message}");
        }
        pushes.push(scope.spawn(|| push(&other, "other")));
        until_waiting(&server, 5);
        end.send(()).unwrap();
        assert_eq!(begins.recv().unwrap(), id("other"), "its push came last and is built next");
        for _ in 0..4 {
            end.send(()).unwrap();
            assert_eq!(begins.recv().unwrap(), id("flood"));
        }
        end.send(()).unwrap();
        for push in pushes {
            assert_eq!(push.join().unwrap().1, "limit");
        }
    });
}

#[test]
fn who_hangs_up_while_waiting_is_out_of_the_queue() {
    use std::io::Write;
    let (begun, begins) = channel();
    let (end, ends) = channel();
    let server = Server::start(Ok(Arc::new(Slow { begun: Mutex::new(begun), end: Mutex::new(ends) })));
    let token = server.tenant("a");
    let body = source("echo", "Ok(())").to_string();
    let request = format!(
        "PUT /v1/tenants/a/extensions/echo HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let connect = || {
        let mut stream = std::net::TcpStream::connect(server.admin.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let first = connect();
    begins.recv().unwrap();
    let second = connect();
    until_waiting(&server, 1);
    drop(second);
    until_waiting(&server, 0);
    end.send(()).unwrap();
    drop(first);
    assert!(begins.recv_timeout(Duration::from_millis(100)).is_err(), "nothing is built for who has gone");
}

fn signed(key: &BuilderKey, elf: &[u8], change: impl FnOnce(&mut ArtifactHeader)) -> Vec<u8> {
    let mut header = ArtifactHeader {
        tenant: 1,
        abi_version: sandstorm_api::abi::ABI_VERSION,
        version: 5,
        compiler: 7,
        api_fingerprint: api_fingerprint(),
        checker: checker_fingerprint(),
        source_digest: [9; 32],
        elf_digest: [0; 32],
        tier: testing::code().tier().expect("tests push code"),
        origin: CodeOrigin::Source,
        name: "echo".to_owned(),
        schema: None,
    };
    change(&mut header);
    Artifact::sign(key, header, elf.to_vec()).encode()
}

#[test]
fn an_artifact_is_loaded_once_and_only_if_everything_about_it_is_true() {
    let server = Server::start(Ok(test_builder()));
    let quotas = QuotaChanges { pushes_per_hour: Some(100_000), ..QuotaChanges::default() };
    let new = NewTenant { id: Some(1), quotas, ..NewTenant::named("a") };
    server.control.directory.create_tenant(new).unwrap();
    let path = "/v1/tenants/a/extensions/echo";
    let text = source("echo", "db.reply(args)");
    let files = serde_json::from_value(text["files"].clone()).unwrap();
    let built = PushedSource::new(text["manifest"].as_str().unwrap(), files).unwrap();
    let tier = testing::code().tier().expect("tests push code");
    let request =
        BuildRequest { tenant: 1, version: 1, source: built.into(), tier, denied: Vec::new(), check_only: false };
    let (made, _) = test_builder().build(&request).unwrap();
    let (key, elf) = (&test_builder().key, &made.elf);
    let upload = |bytes: &[u8]| {
        let (status, answer) = server.raw("PUT", &format!("{path}/artifact"), Some(&server.operator), bytes);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        (status, answer["code"].as_str().unwrap_or("ok").to_owned())
    };
    let refused = |bytes: &[u8], status: u16, code: &str| assert_eq!(upload(bytes), (status, code.to_owned()));
    let good = signed(key, elf, |_| {});
    refused(b"", 400, "artifact_malformed");
    refused(&good[..good.len() - 1], 400, "artifact_malformed");
    refused(&signed(&BuilderKey::from_seed([3; 32]), elf, |_| {}), 422, "artifact_foreign_key");
    refused(&signed(key, elf, |header| header.tenant = 2), 422, "artifact_other_tenant");
    refused(&signed(key, elf, |header| header.name = "other".to_owned()), 422, "artifact_other_name");
    let other_tier = if tier == CodeTier::Native { CodeTier::Sandboxed } else { CodeTier::Native };
    refused(&signed(key, elf, |header| header.tier = other_tier), 422, "artifact_other_tier");
    refused(&signed(key, elf, |header| header.compiler = 8), 422, "artifact_stale_compiler");
    refused(&signed(key, elf, |header| header.api_fingerprint ^= 1), 422, "artifact_stale_api");
    refused(&signed(key, elf, |header| header.abi_version += 1), 422, "artifact_stale_abi");
    for bit in 0..u64::BITS {
        refused(&signed(key, elf, |header| header.checker ^= 1 << bit), 422, "artifact_stale_rules");
    }
    // Every bit before the library, and some of those in it.
    let before = good.len() - elf.len();
    for at in (0..before).chain((before..good.len()).step_by(1 + elf.len() / 50)) {
        let mut flipped = good.clone();
        flipped[at] ^= 1 << (at % 8);
        let (status, code) = upload(&flipped);
        let expected = ["artifact_malformed", "artifact_foreign_key", "artifact_tampered"].contains(&code.as_str());
        assert!(status >= 400 && expected, "byte {at}: {status} {code}");
    }
    assert_eq!(server.operator("GET", path, Value::Null).0, 404, "nothing of all that was loaded");
    assert_eq!(upload(&good), (201, "ok".to_owned()));
    assert_eq!(server.operator("GET", path, Value::Null).1["version"], 5);
    refused(&good, 409, "artifact_replayed");
    refused(&signed(key, elf, |header| header.version = 4), 409, "artifact_downgraded");
    assert_eq!(server.operator("DELETE", path, Value::Null).0, 200);
    refused(&good, 409, "artifact_replayed");
    refused(&signed(key, elf, |header| header.version = 4), 409, "artifact_downgraded");
    let (status, pushed) = server.operator("PUT", path, source("echo", "db.reply(args)"));
    assert_eq!((status, &pushed["extension"]["version"]), (201, &json!(6)), "a push goes on above it: {pushed}");
}

#[test]
fn each_reason_has_a_word_and_a_hint_of_its_own() {
    let (found, expected) = (1, 2);
    let all = [
        ArtifactError::Malformed("cut"),
        ArtifactError::WrongKey,
        ArtifactError::Tampered,
        ArtifactError::WrongTenant { found, expected },
        ArtifactError::WrongName { found: "a".to_owned(), expected: "b".to_owned() },
        ArtifactError::WrongTier { found: CodeTier::Native, expected: CodeTier::Sandboxed },
        ArtifactError::WrongCompiler { found: 1, expected: 2 },
        ArtifactError::WrongAbi { found, expected },
        ArtifactError::WrongApi { found: 1, expected: 2 },
        ArtifactError::WrongRules { found: 1, expected: 2 },
        ArtifactError::Downgraded { found: 1, highest: 2 },
        ArtifactError::Replayed(2),
    ];
    let codes: std::collections::BTreeSet<_> = all.iter().map(ArtifactError::code).collect();
    assert_eq!(codes.len(), all.len());
    assert!(all.iter().all(|error| !error.hint().is_empty() && !error.to_string().contains('\n')));
}
