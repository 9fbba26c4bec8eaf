//! Promise: `doctor --live` finds what happens to servers that live: what a rule reads is there, and is what it is
//! taken for. (That each rule finds what its numbers say, and nothing else: `db/control/src/admin/findings/tests.rs`.)

use std::sync::atomic::AtomicBool;

use sandstorm_client::PutOptions;
use serde_json::Value;

use super::provocations;
use super::servers::{ITEMS, ProvokedServers, ServerRole, id_of};
use crate::common::process::Server;
use crate::common::{Stop, eventually};

use ServerRole::{Alone, Busy};

/// Findings of servers to which much happens at once, with what their texts name.
const FOUND: [(ServerRole, &str, &str); 15] = [
    (Busy, "tenant_throttled", "floods"),
    (Busy, "tenant_over_quota", "floods"),
    (Busy, "packets_dropped", "in front of the sockets"),
    (Busy, "quota_nearly_used", "Tenant nearly uses 1 of 1"),
    (Busy, "table_nearly_full", "nearly/items"),
    (Busy, "table_full", "full/items"),
    (Busy, "extension_killed", "slowed/bad"),
    (Busy, "extension_suspended", "suspended/bad"),
    (Busy, "extension_slowed", "slowed/bad"),
    (Busy, "hot_key", "table items of tenant hot"),
    (Busy, "worker_saturated", "1 of 1 workers"),
    (Busy, "watchdog_late", "a millisecond late"),
    (Alone, "wrong_tokens", "unknown tokens"),
    (Alone, "retransmissions", "packets a second"),
    (Alone, "ends_soon", "The token passing ends in"),
];
/// Bytes of a value of the table that is nearly full.
const VALUE_BYTES: usize = 16 << 10;

/// Findings of now: code, and text.
fn found(server: &Server) -> Vec<(String, String)> {
    let text = |one: &Value, name: &str| one[name].as_str().expect("text").to_owned();
    let listed = server.json("doctor --live");
    listed.as_array().expect("a list").iter().map(|one| (text(one, "code"), text(one, "text"))).collect()
}

fn has(findings: &[(String, String)], code: &str, part: &str) -> bool {
    findings.iter().any(|(found, text)| found == code && text.contains(part))
}

pub(super) fn await_finding(server: &Server, code: &str, part: &str) {
    let mut findings = Vec::new();
    let is_found = eventually(|| {
        findings = found(server);
        has(&findings, code, part)
    });
    assert!(is_found, "{code} with {part:?}: {findings:#?}");
}

fn server_at(servers: &ProvokedServers, place: ServerRole) -> &Server {
    if place == Alone { &servers.alone } else { &servers.busy }
}

/// Fills a table to more than nine tenths of its quota, and not beyond it.
fn nearly_fill(server: &Server) {
    let client = provocations::client(server, id_of("nearly"));
    let part = || {
        let table = server.json("table show items --tenant nearly");
        let of = |name: &str| table[name].as_f64().unwrap_or_else(|| panic!("{name}: {table}"));
        of("bytes") / of("quota_bytes")
    };
    let mut number = 0_u64;
    while part() < 0.92 {
        number += 1;
        client.put(ITEMS, &number.to_le_bytes(), &[7; VALUE_BYTES], &PutOptions::default()).expect("there is room");
    }
}

#[test]
fn what_happens_to_servers_that_live_is_found() {
    let servers = ProvokedServers::start();
    let servers = &servers;
    servers.push_extensions();
    // What is late on a busy machine is so before, too.
    let quiet: Vec<_> =
        FOUND.iter().filter(|(_, code, _)| !["watchdog_late", "worker_saturated"].contains(code)).collect();
    for (place, code, part) in quiet {
        let findings = found(server_at(servers, *place));
        assert!(!has(&findings, code, part), "{code} before anything has happened: {findings:#?}");
    }
    servers.alone.json("token create passing --expires 7d");
    nearly_fill(&servers.busy);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Stop(&over);
        provocations::begin(scope, servers, &over);
        for (place, code, part) in FOUND {
            await_finding(server_at(servers, place), code, part);
        }
    });
}

#[test]
fn a_full_disk_no_memory_and_no_builder_are_found() {
    let ephemeral = Server::start_as(&["--no-builder", "--ephemeral"]);
    await_finding(&ephemeral, "ephemeral", "in memory alone");
    let mut servers = ProvokedServers::start();
    let mut restarted = servers.take_restarted();
    provocations::make_tables(restarted.server.as_ref().expect("it runs"));
    restarted.restart(Some("--no-builder"));
    let server = restarted.server.as_ref().expect("it runs");
    await_finding(server, "no_builder", "--no-builder");
    let healthy = found(server);
    for code in ["disk_nearly_full", "changes_refused", "log_failed", "out_of_memory"] {
        assert!(!has(&healthy, code, ""), "{code} before anything has happened: {healthy:#?}");
    }
    if provocations::fill_disk(&restarted, || ()) {
        for (code, part) in
            [("disk_nearly_full", "are free of 160 MiB"), ("changes_refused", "refused"), ("log_failed", "durability")]
        {
            await_finding(server, code, part);
        }
    }
    provocations::fill_memory(server);
    await_finding(server, "out_of_memory", "although no quota was reached");
}
