//! Rules about the log of records, and the copies of it on other servers.

use super::listing::finding;
use super::reading::LiveReading;
use crate::admin::finding::FindingSeverity::Bad;
use crate::admin::finding::ServerFinding;

/// Damage of what is on the disk.
pub(super) fn damage(reading: &LiveReading) -> Vec<ServerFinding> {
    let mut found = Vec::new();
    if reading.gauge("log_damaged") > 0 {
        found.push(finding(
            "log_damaged",
            Bad,
            "The disk has damaged the server's log.",
            "A start would refuse what is there, until a checkpoint has taken its place.".to_owned(),
            "Do not restart the server: `sandstorm log scrub` shows when it is over. Then replace the disk.",
        ));
    }
    let copies = reading.gauge("copies_damaged");
    if copies > 0 {
        let text = format!("{copies} copies of other servers' logs are damaged here. Their owners make others.");
        found.push(finding(
            "copy_damaged",
            Bad,
            "The disk has damaged copies of other servers' logs.",
            text,
            "`sandstorm cluster status` names file and byte: look at the disk, and replace it.",
        ));
    }
    found
}

/// The other servers of the cluster.
pub(super) fn cluster(reading: &LiveReading) -> Vec<ServerFinding> {
    let mut found = Vec::new();
    if reading.gauge("copies_stalled") > 0 {
        found.push(finding(
            "copies_missing",
            Bad,
            "No copy of the server's log confirms what is written.",
            "Tables of durability `copies` take no writes, and what they were sent last is not shown.".to_owned(),
            "`sandstorm cluster status` says what is wrong with its copies: start a server that can have one, or the \
             NATS servers that have its stream.",
        ));
    }
    if reading.gauge("cluster_unreadable") > 0 {
        found.push(finding(
            "cluster_unreadable",
            Bad,
            "The server cannot read the state of its cluster.",
            "It serves what it owns. Changes of owners, tenants and tables wait, and it takes no other server's place."
                .to_owned(),
            "`sandstorm cluster status` has the reason: see to etcd, and to the network between the two.",
        ));
    }
    let gone = reading.gauge("servers_without_successor");
    if gone > 0 {
        let text = format!(
            "{gone} servers are gone, and this one does not take their places, or the one that was to take them is \
             gone too."
        );
        found.push(finding(
            "server_without_successor",
            Bad,
            "A server of the cluster is gone, and nothing takes its place.",
            text,
            "`sandstorm cluster status` says why: start that server again, or `sandstorm cluster fail-over`.",
        ));
    }
    found
}
