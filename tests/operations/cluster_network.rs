//! Promise (docs/cluster.md): of a server that is cut off, in whatever way, or stopped, no client is shown what is no
//! longer true, before another one takes its place and after; and it is a member again once the network is back. While
//! etcd is away all servers go on with what they own, and no place is taken. Slots move over a network that is slow and
//! loses packets. No server's clock matters to another one.
//!
//! Real servers in network namespaces. Clients ask all the while, and what they saw of each key is checked against one
//! copy of it. It takes root; without it each test says so and ends.

mod clients;
mod lab;
mod links;
mod memcached;
mod parted_etcd;
mod schedule;

use std::fs;
use std::net::UdpSocket;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sandstorm_client::PutOptions;

use self::clients::{ClientRound, Reads, is_there, put};
use self::lab::NetworkLab;
use self::links::{ADDRESSES, ClusterLinks, ETCD, NODES, SlowLink};
use super::cluster::status;
use super::cluster_copies::SERVERS;
use super::cluster_failover::COPIED_TABLE;
use super::cluster_servers::fails;
use super::http::has_program;
use crate::common::eventually;
use crate::common::namespaces::within;
use crate::common::process::Server;

/// The server whose place others take.
const OWNER: usize = 0;
/// The clients that read from one server alone.
const READERS: [usize; SERVERS] = [SERVERS, SERVERS + 1, SERVERS + 2];
/// The clients that ask one server for everything, by memcached's protocol.
const FORWARDED: [usize; SERVERS] = [2 * SERVERS, 2 * SERVERS + 1, 2 * SERVERS + 2];
/// Answers to each client, among which some are wrong if two servers serve the same keys: there are 24.
const FEW_ANSWERS: usize = 40;
/// A network far away that loses packets, and on which they overtake each other.
const FAR_AWAY: SlowLink =
    SlowLink { delay_ms: 20, jitter_ms: 10, loss_percent: 1, reorder_percent: 5, duplicate_percent: 1 };

/// A socket of each node.
fn sockets(links: &ClusterLinks) -> [UdpSocket; NODES] {
    std::array::from_fn(|number| {
        let socket = within(links.node(number), || UdpSocket::bind((ADDRESSES[number], 9)).unwrap());
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        socket
    })
}

/// Sends packets of a text until one comes; returns what came first.
fn send(sockets: &[UdpSocket; NODES], from: usize, to: usize, text: &str) -> String {
    let (mut buffer, mut came) = ([0; 100], None);
    let is_there = || {
        let _lost = sockets[from].send_to(text.as_bytes(), (ADDRESSES[to], 9));
        came = sockets[to].recv(&mut buffer).ok();
        came.is_some()
    };
    assert!(eventually(is_there), "{text} from {from} to {to}");
    String::from_utf8_lossy(&buffer[..came.unwrap()]).into_owned()
}

/// Takes what a socket has got.
fn drain(socket: &UdpSocket) -> usize {
    std::iter::from_fn(|| socket.recv(&mut [0; 100]).ok()).count()
}

#[test]
fn a_way_that_is_cut_loses_packets_of_its_direction_alone() {
    let Some(mut links) = ClusterLinks::new() else { return };
    let sockets = sockets(&links);
    for _tool in 0..2 {
        assert_eq!(send(&sockets, 0, 1, "before"), "before");
        sockets.iter().for_each(|socket| _ = drain(socket));
        links.cut(&[(0, 1)]);
        for _ in 0..10 {
            sockets[0].send_to(b"lost", (ADDRESSES[1], 9)).expect("the sender is told nothing");
        }
        assert_eq!(send(&sockets, 1, 0, "back"), "back");
        assert_eq!(send(&sockets, 0, 2, "elsewhere"), "elsewhere");
        links.mend();
        assert_eq!(send(&sockets, 0, 1, "behind"), "behind");
        links.cut_off(ETCD, &[0, 1]);
        sockets[ETCD].send_to(b"lost", (ADDRESSES[1], 9)).unwrap();
        sockets[0].send_to(b"lost", (ADDRESSES[ETCD], 9)).unwrap();
        assert_eq!(send(&sockets, 2, ETCD, "other"), "other");
        links.mend();
        sockets.iter().for_each(|socket| _ = drain(socket));
        links.without_nft();
    }
}

#[test]
fn a_slow_link_delays_loses_and_doubles() {
    let Some(mut links) = ClusterLinks::new_slow(1) else { return };
    let sockets = sockets(&links);
    assert_eq!(send(&sockets, 0, 1, "fast"), "fast");
    drain(&sockets[1]);
    // Alone, the least time that a packet takes says something: it may take longer.
    let still = SlowLink { delay_ms: 50, jitter_ms: 0, loss_percent: 0, reorder_percent: 0, duplicate_percent: 0 };
    links.slow(Some(still));
    let begun = Instant::now();
    assert_eq!(send(&sockets, 0, 1, "late"), "late");
    assert!(begun.elapsed() >= Duration::from_millis(45), "{:?}", begun.elapsed());
    drain(&sockets[1]);
    for (how, least, most) in [
        (SlowLink { loss_percent: 50, ..still }, 100, 300),
        (SlowLink { loss_percent: 0, duplicate_percent: 50, ..still }, 500, 700),
    ] {
        links.slow(Some(SlowLink { delay_ms: 1, ..how }));
        let mut came = 0;
        for number in 0..400 {
            sockets[0].send_to(b"one of many", (ADDRESSES[1], 9)).unwrap();
            // Before the socket has more than it may.
            came += if number % 50 == 49 { drain(&sockets[1]) } else { 0 };
        }
        let has_come = eventually(|| {
            came += drain(&sockets[1]);
            came >= least
        });
        assert!(has_come, "{came} of 400: {how:?}");
        assert!((least..=most).contains(&came), "{came} of 400: {how:?}");
    }
    links.slow(None);
    assert_eq!(send(&sockets, 0, 1, "again"), "again");
}

/// The owner reads a key to a client, and is cut off, or stopped. Another one takes its place, and changes the key.
/// None of that client's questions is answered with what was there before.
fn check_replaced(lab: &mut NetworkLab, name: &str, away: impl Fn(&mut NetworkLab), back: impl Fn(&mut NetworkLab)) {
    println!("the owner is {name}");
    lab.under_load(|lab, _| {
        let mut reads = watched(lab);
        away(lab);
        lab.cluster.await_replaced(lab.id(OWNER));
        reads.ask_after_a_change(lab.links.hub());
        back(lab);
        let said = reads.answers();
        assert!(!said.contains("old"), "{said}");
    });
}

/// A key of the owner, which may have lost its place just now: it gets its share again.
fn watched(lab: &NetworkLab) -> Reads {
    for _ in 0..100 {
        if let Some(reads) = lab.watch(OWNER) {
            return reads;
        }
        lab.cluster.await_whole();
    }
    panic!("the owner loses its place again and again")
}

#[test]
fn an_owner_that_is_cut_off_or_stopped_shows_nothing_old() {
    let Some(mut lab) = NetworkLab::start() else { return };
    let others = [1, 2, ETCD];
    let mend = |lab: &mut NetworkLab| lab.links.mend();
    let off = |lab: &mut NetworkLab| lab.links.cut_off(OWNER, &others);
    check_replaced(&mut lab, "cut off from all but its clients", off, mend);
    let out = |lab: &mut NetworkLab| lab.links.cut(&others.map(|other| (OWNER, other)));
    check_replaced(&mut lab, "heard of by none, and hears all", out, mend);
    let into = |lab: &mut NetworkLab| lab.links.cut(&others.map(|other| (other, OWNER)));
    check_replaced(&mut lab, "heard of by all, and hears none", into, mend);
    let stop = |lab: &mut NetworkLab| lab.signal(OWNER, Signal::STOP);
    check_replaced(&mut lab, "stopped", stop, |lab| lab.signal(OWNER, Signal::CONT));
    check_cut_from_copies(&mut lab);
    assert!((0..10).any(|_| has_gone_on_without_etcd(&mut lab)), "an owner that etcd alone does not reach goes on");
}

/// What the tests above would find: an owner that is cut off and whose records no lease binds, as docs/cluster.md says
/// of tables with another durability. An operator has had its place taken all the same.
#[test]
fn without_copies_an_owner_that_is_cut_off_shows_what_is_old_and_the_checker_finds_it() {
    let tables = "{ name = 'items', id = 1, durability = 'disk' }, { name = 'copied', id = 2, durability = 'copies' }";
    let Some(links) = ClusterLinks::new() else { return };
    let Some(mut lab) = NetworkLab::start_on(links, tables, Vec::new()) else { return };
    let round = AssertUnwindSafe(|| {
        lab.under_load(|lab, round| {
            let mut reads = watched(lab);
            lab.links.cut_off(OWNER, &[1, 2, ETCD]);
            lab.cluster.last().json(&format!("cluster fail-over {} --give-up-writes", lab.id(OWNER)));
            lab.cluster.await_replaced(lab.id(OWNER));
            reads.ask_after_a_change(lab.links.hub());
            let said = reads.answers();
            assert!(said.contains("old"), "{said}");
            // Both write, each to records of its own.
            (0..FEW_ANSWERS).for_each(|_| _ = round.await_answers(&[OWNER, 1, 2, READERS[OWNER]], || false));
        });
    });
    let found = catch_unwind(round).expect_err("the checker finds it, too");
    let found = found.downcast_ref::<String>().expect("a text");
    assert!(found.contains("before, the key had one of"), "{found}");
}

/// Either a server that has a copy takes the place of its owner, which does not reach it, or the owner has found
/// another one before.
fn check_cut_from_copies(lab: &mut NetworkLab) {
    println!("the owner is cut off from its copies");
    lab.under_load(|lab, _| {
        let mut reads = watched(lab);
        let copies = lab.copies_of(OWNER);
        lab.links.cut_off(OWNER, &copies);
        let other = |lab: &NetworkLab| lab.copies_of(OWNER).iter().any(|at| !copies.contains(at));
        assert!(eventually(|| !lab.owns_slots(OWNER) || other(lab)), "{}", status(lab.cluster.last()));
        reads.ask_after_a_change(lab.links.hub());
        lab.links.mend();
        let said = reads.answers();
        assert!(!said.contains("old"), "{said}");
    });
}

/// Cut off from etcd alone the owner goes on. Returns whether it had its place all the while: on a machine that does
/// other work it may lose it to a server that does not hear it in time.
fn has_gone_on_without_etcd(lab: &mut NetworkLab) -> bool {
    println!("the owner is cut off from etcd");
    lab.under_load(|lab, round| {
        lab.links.cut_off(OWNER, &[ETCD]);
        let is_noticed = || status(&lab.cluster.servers[OWNER])["trouble"].is_string();
        assert!(eventually(|| is_noticed() || !lab.owns_slots(OWNER)));
        let Some(key) = lab.key_of(OWNER) else { return false };
        put(lab.links.hub(), &key, "1", &PutOptions::default());
        let is_read = round.await_answers(&READERS[..1], || !lab.owns_slots(OWNER));
        is_read && lab.owns_slots(OWNER)
    })
}

#[test]
fn while_etcd_is_cut_off_servers_go_on_and_no_place_is_taken() {
    let Some(mut lab) = NetworkLab::start() else { return };
    let cut = |lab: &mut NetworkLab| lab.links.cut_off(ETCD, &[0, 1, 2]);
    let has_waited = |lab: &mut NetworkLab, round: &ClientRound| has_waited_for_etcd(lab, round, cut);
    assert!((0..10).any(|_| lab.under_load(has_waited)), "nothing is taken while etcd is away");
}

/// Whether a server says that it cannot read the cluster's state, wherever it says what is wrong with it.
fn says_that_etcd_is_away(server: &Server) -> bool {
    let findings = server.json("doctor --live");
    let has_finding = findings.as_array().unwrap().iter().any(|one| one["code"] == "cluster_unreadable");
    has_finding && status(server)["trouble"].as_str().is_some_and(|why| why.contains("etcd"))
}

/// Cuts etcd off. Returns whether the owner had its place then.
fn has_waited_for_etcd(lab: &mut NetworkLab, round: &ClientRound, cut: impl Fn(&mut NetworkLab)) -> bool {
    cut(lab);
    assert!(eventually(|| lab.cluster.servers.iter().all(says_that_etcd_is_away)), "{}", status(lab.cluster.last()));
    // From here on the map stays as it is, whichever servers hear each other: this is no matter of time.
    if !lab.owns_slots(OWNER) {
        return false;
    }
    round.await_answers(&[0, 1, 2], || false);
    round.await_answers(&FORWARDED, || false);
    assert!(round.await_answers(&READERS[..1], || false), "the owner answers");
    let refused = fails(lab.cluster.last(), &format!("cluster move 0-16383 --to {}", lab.id(SERVERS - 1)));
    println!("a move while etcd is away: {}", refused.trim_end());
    lab.kill(OWNER);
    // They know that it is gone.
    assert!(eventually(|| lab.obstacle(OWNER).is_some()), "{}", status(lab.cluster.last()));
    println!("a place is not taken: {:?}", lab.obstacle(OWNER));
    assert!(lab.owns_slots(OWNER));
    lab.links.mend();
    lab.cluster.await_replaced(lab.id(OWNER));
    lab.restart(OWNER);
    true
}

#[test]
fn slots_move_over_a_network_that_is_slow_and_loses_packets() {
    let Some(links) = ClusterLinks::new_slow(2) else { return };
    let Some(mut lab) = NetworkLab::start_on(links, COPIED_TABLE, Vec::new()) else { return };
    let fill = "load --tenant shop --table items --records 2000 --value-bytes 500 --fill --seconds 0";
    lab.cluster.last().json(fill);
    for to in [1, OWNER] {
        lab.under_load(|lab, round| {
            lab.links.slow(Some(FAR_AWAY));
            assert!(round.await_answers(&[0, 1, 2], || false));
            let line = format!("cluster move 0-5999 --to {}", lab.id(to));
            // It may end without its end: a server that does not hear another one in time takes its place.
            let is_moved = || {
                let told = status(lab.cluster.last());
                let rests = told["moves"].as_array().is_none_or(Vec::is_empty);
                let all = (0..6_000).step_by(100).all(|slot| owner_of(&told, slot) == Some(lab.id(to).to_owned()));
                if rests && !all {
                    let _later = lab.cluster.last().output(&line);
                }
                rests && all
            };
            assert!(eventually(is_moved), "{}", status(lab.cluster.last()));
            lab.links.slow(None);
        });
    }
}

/// The server that owns a slot, as a status tells.
fn owner_of(status: &serde_json::Value, slot: u64) -> Option<String> {
    let has = |range: &serde_json::Value| range[0].as_u64() <= Some(slot) && Some(slot) <= range[1].as_u64();
    let servers = status["servers"].as_array()?;
    let owner = servers.iter().find(|server| server["slots"].as_array().is_some_and(|all| all.iter().any(has)))?;
    owner["id"].as_str().map(str::to_owned)
}

/// The library that shows a process another time of day (Debian's package libfaketime).
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_servers_clock_is_moved_by_an_hour_and_only_ends_of_life_follow_it() {
    if !has_program("faketime", "faketime") || !Path::new(FAKETIME).exists() {
        println!("skipped: no {FAKETIME} (Debian's package libfaketime)");
        return;
    }
    let Some(links) = ClusterLinks::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let clock = folder.path().join("clock");
    let set = |offset: &str| {
        let new = folder.path().join("new");
        fs::write(&new, format!("{offset}\n")).unwrap();
        fs::rename(&new, &clock).unwrap();
    };
    set("+0");
    let own = [
        ("LD_PRELOAD", FAKETIME),
        ("FAKETIME_TIMESTAMP_FILE", clock.to_str().unwrap()),
        ("FAKETIME_CACHE_DURATION", "1"),
        // What runs evenly goes on so, as where a machine's clock is set.
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("NO_FAKE_STAT", "1"),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let Some(mut lab) = NetworkLab::start_on(links, COPIED_TABLE, own) else { return };
    check_ends_of_life(&lab, set);
    lab.under_load(|_, round| {
        for offset in ["+0", "+3600", "-3600"] {
            set(offset);
            round.await_answers(&[0, 1, 2, READERS[0]], || false);
        }
    });
    set("+3600");
    let off = |lab: &mut NetworkLab| lab.links.cut_off(OWNER, &[1, 2, ETCD]);
    check_replaced(&mut lab, "an hour ahead, and cut off", off, |lab| lab.links.mend());
    let stop = |lab: &mut NetworkLab| lab.signal(OWNER, Signal::STOP);
    let back = |lab: &mut NetworkLab| {
        set("-3600");
        lab.signal(OWNER, Signal::CONT);
    };
    check_replaced(&mut lab, "stopped, and an hour behind when it wakes", stop, back);
    lab.under_load(|lab, _| {
        lab.signal(1, Signal::STOP);
        lab.cluster.await_replaced(lab.id(1));
        lab.signal(1, Signal::CONT);
    });
}

/// An hour ahead the owner has let go what ends within it, and nothing else.
fn check_ends_of_life(lab: &NetworkLab, set: impl Fn(&str)) {
    let hub = lab.links.hub();
    let has_followed = || {
        lab.cluster.await_whole();
        let Some(key) = lab.key_of(OWNER) else { return false };
        let keys = [HOUR / 2, HOUR * 3].map(|ttl| (format!("{{{key}}}:{}", ttl.as_secs()), ttl));
        set("+0");
        for (key, ttl) in &keys {
            put(hub, key, "1", &PutOptions { ttl: Some(*ttl), ..PutOptions::default() });
        }
        put(hub, &key, "1", &PutOptions::default());
        set("+3600");
        // It reads its clock anew a second later; another one may own the key by then.
        let is_gone = eventually(|| !is_there(hub, &keys[0].0) || !lab.owns_slots(OWNER));
        assert!(is_there(hub, &keys[1].0) && is_there(hub, &key));
        is_gone && lab.owns_slots(OWNER) && !is_there(hub, &keys[0].0)
    };
    assert!((0..10).any(|_| has_followed()));
    set("+0");
}

#[test]
fn a_random_schedule_of_cuts_stops_kills_and_moves_leaves_each_key_as_one_copy() {
    schedule::run();
}
