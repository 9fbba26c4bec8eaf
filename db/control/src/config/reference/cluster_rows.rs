//! The keys of the cluster that a server is one of.

use super::{ReferenceRow, number, row};
use sandstorm_store::limits::CLUSTER_SERVERS;

pub(super) fn rows() -> Vec<ReferenceRow> {
    vec![
        row(
            "cluster",
            "`--cluster`",
            "none",
            "the [cluster](cluster.md) that the server is one of: `etcd://HOST:2379/NAME`",
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
    ]
}
