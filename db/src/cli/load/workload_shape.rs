//! The shape of a load's requests beyond the mix: numbers for which a workload has its own defaults.

use std::time::Duration;

use clap::Args;
use sandstorm_client::load::{Data, Graph, MAX_EDGES, MemcachedPool};
use sandstorm_client::tao::Placement;

/// The shape of the requests and records.
#[derive(Debug, Args)]
pub(super) struct WorkloadShape {
    /// Sizes of keys and values as in this pool [default: the mix's, else all alike]
    #[arg(long, value_name = "POOL", conflicts_with_all = ["key_bytes", "value_bytes"])]
    pub(super) sizes: Option<MemcachedPool>,
    /// Bytes of a key
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u16).range(2..))]
    pub(super) key_bytes: u16,
    /// Bytes of a value
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    value_bytes: u32,
    /// Records that a chain or a chain by gets follows
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    chain_depth: u32,
    /// Records that a list names; lists are filled with this length
    #[arg(long, default_value_t = 30, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    list_len: u32,
    /// Lists, at least [default: as many as records, at most 10,000, if the mix uses lists]
    #[arg(long, default_value_t = 0, value_name = "N")]
    lists: u64,
    /// Rounds of arithmetic of an aggregate on each record
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(..=10_000_000))]
    rounds: u32,
    /// Gets of a long call
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    long_gets: u32,
    /// Gets between two yields of a long call; 0: it does not yield
    #[arg(long, default_value_t = 8, value_name = "N")]
    yield_every: u32,
    /// Records of a scan, at most
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    scan_most: u32,
    /// Users with passwords, at least [default: as many as records, at most 1,000, if the mix uses them]
    #[arg(long, default_value_t = 0, value_name = "N")]
    users: u64,
    /// Rounds of hashing of a password; users are filled with these
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    auth_rounds: u32,
    /// Clients that do an extension's work by gets compute on cores of their own, for so many microseconds for each
    /// answer [default: the generator computes]
    #[arg(long, value_name = "US", value_parser = super::not_negative)]
    client_us: Option<f64>,
    /// Where queries of a graph are run; changes are calls in any case
    #[arg(long, default_value = "combined", value_name = "client|invocation|combined")]
    placement: Placement,
    /// Bytes of an object's field
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    object_bytes: u32,
    /// Bytes of an edge's data
    #[arg(long, default_value_t = 24, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    edge_bytes: u32,
    /// Part of the objects that have no edges, 0 to 1
    #[arg(long, default_value_t = 0.45, value_name = "SHARE", value_parser = share)]
    no_edges: f64,
    /// Exponent of the power law of the others' numbers of edges, above 1
    #[arg(long, default_value_t = 2.474, value_name = "EXPONENT", value_parser = above_one)]
    edge_exponent: f64,
    /// Edges of an object, at most
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_EDGES)))]
    most_edges: u32,
    /// Edges of a query, at most: they must fit one answer, so 1,000 and 1 MiB of them
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// The graph is as it was filled: check all that is replied, while the mix changes nothing
    #[arg(long)]
    exact: bool,
}

fn share(text: &str) -> Result<f64, String> {
    super::number(text, "a part, 0 to 1", |number| (0.0..=1.0).contains(&number))
}

fn above_one(text: &str) -> Result<f64, String> {
    super::number(text, "a number above 1", |number| number > 1.0)
}

impl WorkloadShape {
    /// Gives the records this shape; `lists`: the id of the table of a graph's lists.
    pub(super) fn give(&self, data: &mut Data, lists: Option<u64>) {
        (data.key_len, data.value_len) = (usize::from(self.key_bytes), self.value_bytes as usize);
        (data.depth, data.list_len, data.rounds) = (self.chain_depth, self.list_len, self.rounds);
        (data.long_gets, data.long_yield_every) = (self.long_gets, self.yield_every);
        (data.scan_most, data.auth_rounds) = (self.scan_most, self.auth_rounds);
        if data.lists > 0 {
            data.lists = data.lists.max(self.lists);
        }
        if data.users > 0 {
            data.users = data.users.max(self.users);
        }
        if let Some(graph) = &mut data.graph {
            *graph = self.graph(lists.unwrap_or(graph.lists));
        }
    }

    /// A graph of this shape.
    pub(super) fn graph(&self, lists: u64) -> Graph {
        Graph {
            lists,
            placement: self.placement,
            object_bytes: self.object_bytes as usize,
            edge_bytes: self.edge_bytes as usize,
            empty: self.no_edges,
            exponent: self.edge_exponent,
            max_edges: self.most_edges,
            limit: self.limit,
            exact: self.exact,
        }
    }

    /// Time that clients on cores of their own take over an answer.
    pub(super) fn client_takes(&self) -> Option<Duration> {
        self.client_us.map(|us| Duration::from_secs_f64(us / 1e6))
    }
}
