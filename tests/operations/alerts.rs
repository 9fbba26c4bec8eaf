//! Promise: an alert is raised when what it is about happens to a server that lives, and not before. Three servers with
//! a builder and an etcd are read by a real Prometheus; first nothing is wrong with them, then nearly everything is.
//! Durations of the rules are shortened (`monitoring.rs`); the programs are Debian's `prometheus` and `etcd-server`.

mod live_findings;
mod provocations;
mod servers;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::Value;

use self::servers::{ProvokedServers, ServerRole, target};
use super::cluster_copies::count_up;
use super::cluster_failover::CopyingCluster;
use super::cluster_scrub::{first_file, flip_byte, needed_copy};
use super::http::has_program;
use super::monitoring::PrometheusProcess;
use crate::common::{Stop, eventually};
use sandstorm_metrics::alerts::ALERT_RULES;

use ServerRole::{Alone, Busy, Restarted};

/// What provokes an alert.
enum AlertProvocation {
    /// At the server of that place; the tenant that it names, others that it may name, and what is done.
    Live(ServerRole, &'static [&'static str], &'static str),
    /// What is done to servers of which a test of its own has some.
    Apart(&'static str),
    /// Why no test provokes it at a server that lives.
    Not(&'static str),
}

use AlertProvocation::{Apart, Live, Not};

/// Each rule, and what provokes it.
const PROVOCATIONS: &[(&str, AlertProvocation)] = &[
    ("SandstormDown", Live(Restarted, &[], "the server is killed")),
    ("SandstormRestarts", Live(Restarted, &[], "it is restarted three times")),
    ("SandstormWorkerSaturated", Live(Busy, &[], "calls compute until they are killed, one after the other")),
    ("SandstormRequestsSlow", Live(Busy, &[], "Redis' clients ask for 100,000 keys in a command")),
    ("SandstormPacketsDropped", Live(Busy, &[], "a tenant sends more datagrams than are served")),
    ("SandstormAnswersNotSent", Not("the kernel takes over loopback what is sent at once: no socket is full")),
    ("SandstormTenantThrottled", Live(Busy, &["floods"], "the same, nearly all beyond its requests_per_s")),
    // Calls of an extension that is slowed down are refused by a rate, too.
    ("SandstormTenantOverQuota", Live(Busy, &["floods", "slowed"], "the same")),
    (
        "SandstormTenantBesideNeighbours",
        Not("a p99 beside neighbours is compared with one from a quiet time, and how \
         much longer it is depends on the machine; db/control/src/admin/tests/neighbours.rs \
         provokes the ratio by times that it writes"),
    ),
    // One that floods uses all of its rate.
    ("SandstormQuotaNearlyUsed", Live(Busy, &["nearly", "floods"], "a tenant may have as many tables as it has")),
    ("SandstormExtensionKilled", Live(Busy, &["killed", "slowed"], "the calls that are killed")),
    ("SandstormExtensionSuspended", Live(Busy, &["suspended"], "`ext suspend`")),
    ("SandstormExtensionSlowed", Live(Busy, &["slowed"], "calls that panic, with slow_after_kills=3")),
    ("SandstormTableFull", Live(Busy, &["full"], "writes go on beyond the table's quota")),
    ("SandstormTableNearlyFull", Live(Busy, &["full"], "the same")),
    ("SandstormHotKey", Live(Busy, &["hot"], "half of the gets are of one key")),
    (
        "SandstormGarbageHeld",
        Not("calls that keep 32 MiB of replaced records from being freed are ended at once, \
         with the cause `crowded`: db/store/src/limits.rs"),
    ),
    ("SandstormOutOfMemory", Live(Restarted, &[], "the process may have no more memory (RLIMIT_AS)")),
    ("SandstormBuildQueueLong", Live(Busy, &[], "twelve pushes to a builder that is stopped (SIGSTOP)")),
    ("SandstormNoBuilder", Live(Restarted, &[], "it is started with --no-builder")),
    ("SandstormLogFailed", Live(Restarted, &[], "the log's file loses its room on a disk that is full")),
    ("SandstormLogDamaged", Live(Restarted, &[], "a byte of its log is changed, and its disk has no room for another")),
    ("SandstormCopiesMissing", Live(Alone, &[], "a table needs copies, and there is no other server")),
    ("SandstormCopiesFewer", Live(Alone, &[], "the same")),
    ("SandstormCopyDamaged", Apart("one of three servers has a copy of another's log, of which a byte is changed")),
    (
        "SandstormServerWithoutSuccessor",
        Apart("one of three servers with copies is killed, where failover is by command"),
    ),
    ("SandstormClusterUnreadable", Apart("the etcd of three servers is killed, and started again later")),
    ("SandstormChangesRefused", Live(Restarted, &[], "a tenant is created, and the disk is full")),
    ("SandstormWatchdogLate", Live(Busy, &[], "the process is stopped for 3 ms again and again (SIGSTOP)")),
    ("SandstormWrongTokens", Live(Alone, &[], "requests with a token that is none")),
    ("SandstormRetransmissions", Live(Alone, &[], "a client that acknowledges no packet of its answers")),
];

/// The alerts that were seen to fire, with the places of their servers and the tenants that they name.
pub(super) struct AlertWatch<'a> {
    servers: &'a ProvokedServers,
    prometheus: PrometheusProcess,
    fired: Mutex<BTreeSet<(String, ServerRole, String)>>,
    since: Instant,
}

impl AlertWatch<'_> {
    /// Looks which alerts fire now.
    fn look(&self) {
        let mut fired = self.fired.lock().expect("no other look has failed");
        for labels in self.prometheus.labels_of_firing() {
            let text = |name: &str| labels[name].as_str().unwrap_or_default().to_owned();
            let place = self.servers.place_of(&text("instance"));
            let alert = (text("alertname"), place, text("tenant"));
            if !fired.contains(&alert) {
                println!("{:>5.1} s: {alert:?}", self.since.elapsed().as_secs_f64());
                fired.insert(alert);
            }
        }
    }

    fn has_fired(&self, alert: &str, place: ServerRole, tenant: &str) -> bool {
        let fired = self.fired.lock().expect("no look has failed");
        fired.contains(&(alert.to_owned(), place, tenant.to_owned()))
    }

    /// Waits until an alert is raised.
    fn await_alert(&self, alert: &str) {
        let (_, provocation) = PROVOCATIONS.iter().find(|(name, _)| *name == alert).expect("a row");
        let Live(place, tenants, how) = provocation else { panic!("{alert} is not provoked") };
        if self.servers.has(alert) {
            let has_fired = || {
                self.look();
                self.has_fired(alert, *place, tenants.first().unwrap_or(&""))
            };
            assert!(eventually(has_fired), "{alert} is not raised at {place:?} though {how}: {:?}", self.fired);
        }
    }
}

#[test]
fn each_rule_has_a_row() {
    let rows: BTreeSet<&str> = PROVOCATIONS.iter().map(|(name, _)| *name).collect();
    let rules: BTreeSet<&str> = ALERT_RULES.iter().map(|rule| rule.name).collect();
    assert_eq!(rows, rules, "a rule has what provokes it, or why nothing does");
    assert_eq!(PROVOCATIONS.len(), ALERT_RULES.len());
    let all = || PROVOCATIONS.iter();
    let not: Vec<&str> = all().filter_map(|(_, row)| if let Not(why) = row { Some(*why) } else { None }).collect();
    let apart: Vec<&str> = all().filter_map(|(_, row)| if let Apart(how) = row { Some(*how) } else { None }).collect();
    assert!(not.len() <= 3 && apart.len() == 3, "{not:?}");
    assert!(not.iter().chain(&apart).all(|text| text.len() > 40));
}

#[test]
fn alerts_are_raised_when_what_they_are_about_happens_and_not_before() {
    if !has_program("prometheus", "prometheus") {
        return;
    }
    let mut servers = ProvokedServers::start();
    let (targets, restarted) = (servers.targets(), servers.take_restarted());
    let servers = &servers;
    let prometheus = PrometheusProcess::start(&targets);
    let watch = AlertWatch { servers, prometheus, fired: Mutex::default(), since: Instant::now() };
    servers.push_extensions();
    // As many readings as the longest of the short windows has, of each server.
    let read = "count(count_over_time(sandstorm_uptime_seconds[10m])>=12)";
    let is_read = || watch.prometheus.value(read) == Some(targets.len() as f64);
    let is_quiet = eventually(|| {
        watch.look();
        is_read()
    });
    let fired = watch.fired.lock().expect("no look has failed").clone();
    assert!(is_quiet && fired.is_empty(), "nothing is wrong yet: {fired:?}");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Stop(&over);
        provocations::begin(scope, servers, &over);
        provocations::of_restarts(restarted, &watch);
        for (alert, provocation) in PROVOCATIONS {
            if matches!(provocation, Live(..)) {
                watch.await_alert(alert);
            }
        }
    });
    // No tenant is named beside the one that is meant. What neighbours cost others is no mistake.
    let fired = watch.fired.lock().expect("no look has failed");
    let is_meant = |(alert, _, tenant): &&(String, ServerRole, String)| {
        let row = PROVOCATIONS.iter().find(|(name, _)| name == alert).expect("a row");
        matches!(row.1, Live(_, meant, _) if meant.contains(&&**tenant))
            || tenant.is_empty()
            || alert.ends_with("BesideNeighbours")
    };
    let innocent: Vec<_> = fired.iter().filter(|alert| !is_meant(alert)).collect();
    assert!(innocent.is_empty(), "{innocent:?}");
}

#[test]
fn a_server_that_is_gone_without_a_successor_raises_an_alert_until_it_has_one() {
    const ALERT: &str = "SandstormServerWithoutSuccessor";
    if !has_program("prometheus", "prometheus") {
        return;
    }
    let Some(mut cluster) = CopyingCluster::start("by-command") else { return };
    let targets: Vec<(String, String)> = cluster.servers.iter().skip(1).map(target).collect();
    let prometheus = PrometheusProcess::start(&targets);
    let is_raised = || prometheus.labels_of_firing().iter().any(|labels| labels["alertname"] == ALERT);
    let is_read = || prometheus.value("count(sandstorm_servers_without_successor)") == Some(targets.len() as f64);
    assert!(eventually(|| is_read() && !is_raised()), "all servers live");
    let killed = cluster.ids[0].clone();
    cluster.kill_first();
    assert!(eventually(is_raised), "nothing takes its place: {:?}", prometheus.labels_of_firing());
    cluster.servers[0].json(&format!("cluster fail-over {killed}"));
    assert!(eventually(|| !is_raised()), "it has a successor: {:?}", prometheus.labels_of_firing());
}

#[test]
fn an_etcd_that_is_away_raises_an_alert_at_each_server_until_it_is_back() {
    const ALERT: &str = "SandstormClusterUnreadable";
    if !has_program("prometheus", "prometheus") {
        return;
    }
    let Some(mut cluster) = CopyingCluster::start("by-command") else { return };
    let targets: Vec<(String, String)> = cluster.servers.iter().map(target).collect();
    let prometheus = PrometheusProcess::start(&targets);
    let raised = || prometheus.labels_of_firing().iter().filter(|labels| labels["alertname"] == ALERT).count();
    let is_read = || prometheus.value("count(sandstorm_cluster_unreadable)") == Some(targets.len() as f64);
    assert!(eventually(|| is_read() && raised() == 0), "etcd answers all");
    cluster.etcd.stop();
    assert!(eventually(|| raised() == targets.len()), "{:?}", prometheus.labels_of_firing());
    for server in &cluster.servers {
        live_findings::await_finding(server, "cluster_unreadable", "It serves what it owns.");
    }
    cluster.etcd.restart();
    assert!(eventually(|| raised() == 0), "{:?}", prometheus.labels_of_firing());
}

#[test]
fn a_copy_that_a_disk_has_damaged_raises_an_alert() {
    const ALERT: &str = "SandstormCopyDamaged";
    if !has_program("prometheus", "prometheus") {
        return;
    }
    let Some(cluster) = CopyingCluster::start("by-command") else { return };
    let stop = Arc::new(AtomicBool::new(false));
    let writer = count_up(&cluster.servers[2], 0, &stop);
    let copy = || needed_copy(&cluster, &cluster.ids[0], None);
    let log_of = |(folder, holder): (PathBuf, usize)| Some((first_file(&folder, "log-")?, holder));
    let mut found = None;
    assert!(eventually(|| {
        found = copy().and_then(log_of);
        found.is_some()
    }));
    let (file, holder) = found.expect("a copy");
    let server = &cluster.servers[holder];
    // A whole pass over it: it has a frame to change, and that is read.
    server.json("log scrub --now");
    assert!(eventually(|| server.json("log scrub")["last"]["damage"] == 0));
    let prometheus = PrometheusProcess::start(&cluster.servers.iter().map(target).collect::<Vec<_>>());
    let raised = || -> Vec<Value> {
        prometheus.labels_of_firing().into_iter().filter(|labels| labels["alertname"] == ALERT).collect()
    };
    let is_read = || prometheus.value("count(sandstorm_copies_damaged)") == Some(cluster.servers.len() as f64);
    assert!(eventually(is_read) && raised().is_empty(), "nothing is damaged");
    flip_byte(&file);
    server.json("log scrub --now");
    assert!(eventually(|| !raised().is_empty()), "{}", server.json("log scrub"));
    let address = server.control.trim_start_matches("http://");
    assert!(raised().iter().all(|labels| labels["instance"] == address), "{:?}", raised());
    stop.store(true, Ordering::Release);
    drop(writer.join().expect("no panic"));
}
