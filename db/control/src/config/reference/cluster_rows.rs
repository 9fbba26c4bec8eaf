//! The keys of the cluster that a server is one of.

use super::{ReferenceRow, ReferenceSection, number, row};
use sandstorm_cluster::limits::COPIES_MOST;
use sandstorm_store::limits::CLUSTER_SERVERS;

pub(super) fn rows() -> Vec<ReferenceRow> {
    vec![
        row(
            "cluster",
            "`--cluster`",
            "none",
            "the [cluster](cluster.md) that the server is one of: `etcd://HOST:2379/NAME`, or `etcds://` over TLS",
        ),
        number(
            "cluster_servers",
            "`--cluster-servers`",
            "1",
            (1, CLUSTER_SERVERS as u64),
            "servers among which a new cluster's keys are divided, once all are there; the same for all of them",
        ),
        row(
            "cluster_host",
            "`--cluster-host`",
            "none",
            "the address under which the cluster's others and its clients reach this server, for ports on `0.0.0.0`",
        ),
        number(
            "cluster_copies",
            "`--cluster-copies`",
            "1",
            (1, COPIES_MOST as u64),
            "copies of this server's log on other servers, for tables of [durability `copies`](cluster.md#copies)",
        ),
        row(
            "cluster_streams",
            "`--cluster-streams`",
            "none",
            "where this server's log has its copy in place of other servers: streams of \
             [NATS JetStream](cluster.md#copies-in-nats-jetstream), `nats://HOST:4222/NAME`, or `natss://` over TLS; the \
             same for all servers of the cluster",
        ),
        row(
            "cluster_failover",
            "`--cluster-failover`",
            "automatic",
            "whether this server takes the place of one that is gone [by itself](cluster.md#failover): `automatic` or \
             `by-command`",
        ),
    ]
}

/// What it takes to reach the NATS servers.
pub(super) fn nats() -> ReferenceSection {
    let rows = vec![
        row(
            "ca",
            "`--nats-ca`",
            "none",
            "file with the authority that has signed the NATS servers' certificates (PEM), for `natss://`",
        ),
        row("user", "`--nats-user`", "none", "the user of the NATS servers"),
        row("password_file", "`--nats-password-file`", "none", "file with that user's password"),
        row(
            "monitors",
            "`--nats-monitor`",
            "none",
            "the monitoring ports of all NATS servers, `http://HOST:8222` each: they say whether each message is synced",
        ),
    ];
    let about = "What it takes to reach the servers of `cluster_streams`. The files are read at the start.";
    ReferenceSection { title: "[nats]", about, before: "[nats]\n", rows }
}

/// What it takes to reach the etcd.
pub(super) fn etcd() -> ReferenceSection {
    let rows = vec![
        row(
            "ca",
            "`--etcd-ca`",
            "the public authorities",
            "file with the authority that has signed the etcd's certificate (PEM), for `etcds://`",
        ),
        row("certificate", "`--etcd-certificate`", "none", "file with this server's certificate for the etcd (PEM)"),
        row("key", "`--etcd-key`", "none", "file with the key of that certificate (PEM)"),
        row("user", "`--etcd-user`", "none", "the user of the etcd, with rights on `/sandstorm/NAME/`"),
        row("password_file", "`--etcd-password-file`", "none", "file with that user's password"),
    ];
    let about = "What it takes to reach the etcd of a [cluster](cluster.md#trust). The files are read at the start.";
    ReferenceSection { title: "[etcd]", about, before: "[etcd]\n", rows }
}
