//! Promise (docs/cluster.md): an etcd whose members are parted is one etcd. Where most members are, everything goes on.
//! A server that reaches only the others serves what it owns as long as its copies let it, takes no place, changes
//! nothing, and says so. Where no part has most members, servers go on with what they own, and changes of owners wait.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use super::clients::ClientRound;
use super::lab::NetworkLab;
use super::links::{ADDRESSES, ClusterLinks, ETCD, ETCDS, NODES};
use super::{FORWARDED, OWNER, has_waited_for_etcd, says_that_etcd_is_away, watched};
use crate::cluster::{EtcdProcess, status};
use crate::cluster_copies::shown;
use crate::cluster_failover::{COPIED_TABLE, owns_nothing};
use crate::cluster_servers::fails;
use crate::common::eventually;
use crate::common::namespaces::within;

/// What a member of etcd says of itself. `None`: nothing.
fn member_status(lab: &NetworkLab, node: usize) -> Option<Value> {
    let members = || std::iter::once(&lab.cluster.etcd).chain(&lab.more_etcds);
    let port = members().nth(node - ETCD).map(EtcdProcess::port)?;
    within(lab.links.hub(), || {
        let mut stream = TcpStream::connect((ADDRESSES[node], port)).ok()?;
        let head = "POST /v3/maintenance/status HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(head.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (from, to) = (answer.find('{')?, answer.rfind('}')?);
        serde_json::from_str(&answer[from..=to]).ok()
    })
}

/// The node of etcd's leader.
fn leader(lab: &NetworkLab) -> usize {
    let leads = |node: &usize| {
        member_status(lab, *node)
            .is_some_and(|told| told["leader"].is_string() && told["leader"] == told["header"]["member_id"])
    };
    let mut found = None;
    assert!(eventually(|| {
        found = ETCDS.into_iter().find(leads);
        found.is_some()
    }));
    found.unwrap()
}

/// Without its leader etcd has two members that agree, and everything goes on: a place is taken, and a server starts.
fn check_leader_cut_off(lab: &mut NetworkLab) {
    println!("the leader of etcd is cut off from the other members");
    lab.under_load(|lab, round| {
        let leader = leader(lab);
        lab.links.cut_off(leader, &ETCDS.into_iter().filter(|node| *node != leader).collect::<Vec<_>>());
        lab.kill(OWNER);
        lab.cluster.await_replaced(lab.id(OWNER));
        lab.restart(OWNER);
        assert!(round.await_answers(&[0, 1, 2], || false));
        assert!(round.await_answers(&FORWARDED, || false));
        assert!(!lab.links.is_whole());
    });
}

/// A server on the side of one member, which leads, is replaced by those on the side of the other two.
fn check_minority(lab: &mut NetworkLab) {
    println!("a server and the leader of etcd are parted from all others");
    lab.under_load(|lab, _| {
        let mut reads = watched(lab);
        let minority = [OWNER, leader(lab)];
        let majority: Vec<usize> = (0..NODES).filter(|node| !minority.contains(node)).collect();
        minority.iter().for_each(|node| lab.links.cut_off(*node, &majority));
        lab.cluster.await_replaced(lab.id(OWNER));
        let (server, own) = (&lab.cluster.servers[OWNER], lab.id(OWNER));
        assert!(eventually(|| says_that_etcd_is_away(server)), "{}", status(server));
        for line in [
            format!("cluster move 0-16383 --to {own}"),
            format!("cluster fail-over {} --to {own}", lab.id(1)),
            "tenant create beside --open".to_owned(),
        ] {
            println!("{line}: {}", fails(server, &line).trim_end());
        }
        let events = String::from_utf8(server.output("events --json").stdout).unwrap();
        assert!(!events.contains("cluster.failover_begun"), "{events}");
        reads.ask_after_a_change(lab.links.hub());
        assert!(owns_nothing(&shown(lab.cluster.last(), own)), "{}", status(lab.cluster.last()));
        lab.links.mend();
        let said = reads.answers();
        assert!(!said.contains("old"), "{said}");
        assert!(eventually(|| !says_that_etcd_is_away(&lab.cluster.servers[OWNER])));
    });
}

/// No two members reach each other. Returns whether the owner had its place when they were parted.
fn has_waited_for_most(lab: &mut NetworkLab, round: &ClientRound) -> bool {
    println!("no two members of etcd reach each other");
    let part = |lab: &mut NetworkLab| {
        let [one, other, third] = ETCDS;
        lab.links.cut_off(one, &[other, third]);
        lab.links.cut_off(other, &[third]);
    };
    has_waited_for_etcd(lab, round, part)
}

#[test]
fn most_members_of_a_parted_etcd_go_on_and_without_them_nothing_changes() {
    let Some(links) = ClusterLinks::new() else { return };
    let Some(mut lab) = NetworkLab::start_with(links, COPIED_TABLE, Vec::new(), &ETCDS) else { return };
    check_leader_cut_off(&mut lab);
    check_minority(&mut lab);
    assert!((0..10).any(|_| lab.under_load(has_waited_for_most)), "nothing is taken without most members");
}
