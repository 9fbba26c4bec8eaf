//! Promise: tokens are replaced without downtime. A client that never stops sees no error during its token's grace
//! period, and is refused when it ends. No file, log or answer shows a token needlessly. Real servers on free ports.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common;
use sandstorm_accounts::TokenHash;
use sandstorm_client::PutOptions;
use sandstorm_client::blocking::Client;
use sandstorm_control::config::{CliOverrides, ServerSettings};
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{OpKind, Operation, RpcStatus};

fn try_connect(plane: &DataPlane, tenant: u32, token: &str) -> Result<Client, sandstorm_client::Error> {
    Client::connect(common::network::config(plane, tenant).token(token.to_owned()).deadline(common::PATIENT))
}

fn connect(plane: &DataPlane, tenant: u32, token: &str) -> Client {
    try_connect(plane, tenant, token).expect("a client")
}

#[test]
fn a_client_that_never_stops_sees_no_error_through_a_rotation_with_grace() {
    let plane = common::data_plane(1);
    let (tenant, first) = common::tenant(&plane, "shop", false);
    let (stop, puts) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let client = connect(&plane, tenant, &first);
            while !stop.load(Ordering::Relaxed) {
                client.put(1, b"k", b"v", &PutOptions::default()).expect("no error while the grace lasts");
                puts.fetch_add(1, Ordering::Relaxed);
            }
            client
        });
        let progress = |more: u64| {
            let wanted = puts.load(Ordering::Relaxed) + more;
            while puts.load(Ordering::Relaxed) < wanted && !busy.is_finished() {
                std::thread::yield_now();
            }
        };
        let _stopped = common::Stop(&stop);
        progress(50);
        let second = plane.directory.rotate_with_grace("shop", Duration::from_secs(3600)).expect("rotated");
        progress(50);
        connect(&plane, tenant, &second)
            .put(1, b"k", b"new", &PutOptions::default())
            .expect("the new token works at once");
        connect(&plane, tenant, &first)
            .put(1, b"k", b"old", &PutOptions::default())
            .expect("the old one works still, also anew");
        progress(50);
        stop.store(true, Ordering::Relaxed);
        let client = busy.join().expect("it saw no error");

        plane.directory.revoke_old_token("shop").expect("revoked");
        client.put(1, b"k", b"v", &PutOptions::default()).expect_err("the grace has ended, and with it the session");
        assert!(try_connect(&plane, tenant, &first).is_err(), "and the token");
        connect(&plane, tenant, &second).get(1, b"k").expect("the new one works on");
    });
}

#[test]
fn hellos_and_sessions_of_an_old_token_end_with_its_grace() {
    let plane = common::data_plane(1);
    let (tenant, first) = common::tenant(&plane, "shop", false);
    let hello = |token: &str, wire: &mut common::Wire| {
        let mut operation = Operation::new(OpKind::Hello);
        let token = token.to_owned();
        operation.value = token.as_bytes();
        wire.one(operation).status
    };
    let get = |wire: &mut common::Wire| {
        let mut operation = Operation::new(OpKind::Get);
        (operation.table, operation.key) = (1, b"k");
        wire.one(operation).status
    };
    let mut before = common::Wire::new(&plane, 0, tenant);
    assert_eq!(hello(&first, &mut before), RpcStatus::Ok);
    let second = plane.directory.rotate_with_grace("shop", Duration::from_secs(3600)).expect("rotated");
    let (mut within, mut new) = (common::Wire::new(&plane, 0, tenant), common::Wire::new(&plane, 0, tenant));
    assert_eq!((hello(&first, &mut within), hello(&second, &mut new)), (RpcStatus::Ok, RpcStatus::Ok));
    assert_eq!([&mut before, &mut within, &mut new].map(get), [RpcStatus::NotFound; 3]);
    plane.directory.revoke_old_token("shop").expect("revoked");
    let ended = [RpcStatus::Unauthenticated, RpcStatus::Unauthenticated, RpcStatus::NotFound];
    assert_eq!([&mut before, &mut within, &mut new].map(get), ended);
    assert_eq!(hello(&first, &mut before), RpcStatus::Unauthenticated);
}

fn sandstorm(arguments: &[&str], input: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandstorm-under-test"));
    let mut process = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    process.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("written");
    let output = process.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_configuration_may_hold_what_is_kept_of_a_token_instead_of_the_token() {
    let token = "a-token-of-my-own-choosing";
    let kept = sandstorm(&["token", "hash"], &format!("{token}\n"));
    assert!(!kept.contains(token) && kept.trim().starts_with("sandstorm-token-"), "{kept}");
    let made = sandstorm(&["token", "new", "--json"], "");
    let made: serde_json::Value = serde_json::from_str(&made).expect("JSON");
    let (new, hash) = (made["token"].as_str().expect("a token"), made["token_hash"].as_str().expect("its hash"));
    assert!(TokenHash::from_text(hash).expect("a hash").matches(new.as_bytes()));

    let plane = common::data_plane_with(&format!(
        "workers = 1\npin = false\n[[tenants]]\nname = 'shop'\ntoken_hash = '{}'\ntables = [{{ name = 't' }}]",
        kept.trim()
    ));
    let id = plane.directory.snapshot().by_name("shop").expect("configured").tenant.id;
    connect(&plane, id, token).put(1, b"k", b"v", &PutOptions::default()).expect("the token works");
    assert!(try_connect(&plane, id, new).is_err(), "another does not");

    let parse = |text: &str| {
        ServerSettings::parse(text, "c.toml", &CliOverrides::default()).map(|config| format!("{config:?}"))
    };
    let both = format!("[[tenants]]\nname = 'a'\ntoken = '{token}'\ntoken_hash = '{}'", kept.trim());
    assert!(parse(&both).expect_err("both").to_string().contains("leave token out"));
    let cut = "[[tenants]]\nname = 'a'\ntoken_hash = 'sandstorm-token-1:00'";
    assert!(parse(cut).expect_err("cut").to_string().contains("sandstorm token hash"));
    let shown = parse(&format!("[[tenants]]\nname = 'a'\ntoken = '{token}'")).expect("a configuration");
    assert!(!shown.contains(token), "what gets into logs: {shown}");

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("c.toml");
    let warned = |text: &str, mode: u32| {
        std::fs::write(&file, text).expect("written");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).expect("its mode");
        ServerSettings::load(Some(&file), &CliOverrides::default()).expect("a configuration").warnings
    };
    let plain = format!("[[tenants]]\nname = 'a'\ntoken = '{token}'");
    let warnings = warned(&plain, 0o644);
    assert!(warnings.len() == 1 && warnings[0].contains("c.toml has mode 644"), "{warnings:?}");
    assert!(warnings[0].contains("token_hash") && warnings[0].contains("chmod 600") && !warnings[0].contains(token));
    assert!(warned(&plain, 0o600).is_empty());
    assert!(warned(&format!("[[tenants]]\nname = 'a'\ntoken_hash = '{}'", kept.trim()), 0o644).is_empty());
}
