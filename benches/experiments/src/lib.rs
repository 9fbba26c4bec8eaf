//! `sandstorm bench`: experiments, one command each. The server runs on one core and the load generator on another, the
//! rounds are interleaved, and ratios come with their spread. The findings are printed, and with `--out` also written
//! as a page and as JSON.
#![deny(unsafe_code)]

mod backends;
mod backing;
mod bench_server;
mod cluster_puts;
mod cluster_server;
mod density;
pub mod device_args;
mod distinct_library;
mod durable;
mod echo;
mod failover;
mod interference;
mod isolation;
mod load;
pub mod local_server;
mod locality;
mod measure;
mod migration;
mod neighbours;
mod observation;
mod peer_server;
mod peers;
mod placement;
mod pools;
mod ranks;
mod recovery;
mod report;
mod scripts;
mod single_server;
mod sizes;
mod spill;
mod sysroot_cache;
mod table;
mod tao;
mod tenant_commits;
mod tenant_tools;
mod tenants;
mod thread_times;
mod tiers;
mod transfers;
mod triggers;
mod turns;

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};

use self::report::machine::MachineDescription;
use self::report::{BenchReport, ExperimentFindings};
use sandstorm_terminal::output::{CliError, OutputPrinter};

/// Records in a table by default.
const RECORDS: u64 = 1_000_000;
/// The name that stands for all experiments.
const ALL: &str = "all";

/// An experiment: one command, one section of the report.
struct Experiment {
    name: &'static str,
    /// The text for `--help`.
    help: &'static str,
    /// Whether it is part of a run without names.
    canonical: bool,
    /// Peers that must be installed.
    peers: &'static [&'static str],
    run: fn(&BenchArgs) -> Result<ExperimentFindings, CliError>,
}

const BOTH_PEERS: &[&str] = &[peer_server::MEMCACHED, peer_server::REDIS];

/// All experiments, in the order in which they run.
const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "invoke",
        help: "A plain get against a call of an extension that does one get",
        canonical: true,
        peers: &[],
        run: single_server::invoke,
    },
    Experiment {
        name: "chain",
        help: "One call of a chain of 8 against eight gets, one after another",
        canonical: true,
        peers: &[],
        run: single_server::chain,
    },
    Experiment {
        name: "sealed",
        help: "Gets in a sealed session against plain ones, at depth 1 and at the depth given",
        canonical: true,
        peers: &[],
        run: single_server::sealed,
    },
    Experiment {
        name: "runaway",
        help: "A tenant's latency while another's code runs away once in so many calls",
        canonical: true,
        peers: &[],
        run: single_server::runaway,
    },
    Experiment {
        name: "peers",
        help: "This server beside memcached and Redis, by their protocols and its own",
        canonical: true,
        peers: BOTH_PEERS,
        run: peers::peers,
    },
    Experiment {
        name: "scripts",
        help: "Calls of extensions beside Redis' scripts (EVALSHA) and functions (FCALL)",
        canonical: true,
        peers: &[peer_server::REDIS],
        run: scripts::scripts,
    },
    Experiment {
        name: "tiers",
        help: "The same calls native and sandboxed, and Redis' scripts beside them",
        canonical: true,
        peers: &[peer_server::REDIS],
        run: tiers::tiers,
    },
    Experiment {
        name: "density",
        help: "Calls of 1 to 1,024 tenants, each with code of its own: throughput, the worker's and the watchdog's \
         time",
        canonical: true,
        peers: &[],
        run: density::density,
    },
    Experiment {
        name: "depth",
        help: "Chains of 1 to 32 records: called, by gets of the client, by Redis' scripts and functions",
        canonical: true,
        peers: &[peer_server::REDIS],
        run: scripts::depth,
    },
    Experiment {
        name: "aggregate",
        help: "Sums of 1 to 64 records: called, by gets of the client, by Redis' scripts and functions",
        canonical: true,
        peers: &[peer_server::REDIS],
        run: scripts::aggregate,
    },
    Experiment {
        name: "load",
        help: "Plain gets and calls over the load that is offered: throughput, median, tail",
        canonical: true,
        peers: &[],
        run: load::load,
    },
    Experiment {
        name: "echo",
        help: "Plain gets beside a bare echo of datagrams through the same driver",
        canonical: true,
        peers: &[],
        run: echo::echo,
    },
    Experiment {
        name: "backends",
        help: "An echo, gets and calls over every driver: kernel sockets, packet sockets, AF_XDP, memif; by the size \
         of the value",
        canonical: false,
        peers: &[],
        run: backends::backends,
    },
    Experiment {
        name: "zero-copy",
        help: "The server's time for a get and a put by the size of the value, left where it lies and copied, over \
         rings of pointers (DPDK)",
        canonical: false,
        peers: &[],
        run: backends::zero_copy,
    },
    Experiment {
        name: "growth",
        help: "Gets while the table doubles, and while it does not",
        canonical: true,
        peers: &[],
        run: sizes::growth,
    },
    Experiment {
        name: "misbehave",
        help: "A tenant's latency beside 1 to 1,000 endless calls in a million",
        canonical: false,
        peers: &[],
        run: interference::misbehave,
    },
    Experiment {
        name: "long",
        help: "Short calls beside long ones that yield more or less often",
        canonical: false,
        peers: &[],
        run: interference::long,
    },
    Experiment {
        name: "tenants",
        help: "The same load from 1 to 1,024 tenants",
        canonical: false,
        peers: &[],
        run: tenants::tenants,
    },
    Experiment {
        name: "skew",
        help: "Tenants of very different rates on two workers, with and without stealing",
        canonical: false,
        peers: &[],
        run: tenants::skew,
    },
    Experiment {
        name: "isolation",
        help: "Calls against a process for each tenant: from measured parts, and run",
        canonical: false,
        peers: &[],
        run: isolation::isolation,
    },
    Experiment {
        name: "table",
        help: "Single gets and puts of the table by itself: distributions at low and high occupancy",
        canonical: false,
        peers: &[],
        run: table::table,
    },
    Experiment {
        name: "sizes",
        help: "Gets of values of 16 B to 64 KiB, beside memcached and Redis",
        canonical: false,
        peers: BOTH_PEERS,
        run: sizes::sizes,
    },
    Experiment {
        name: "crossover",
        help: "Calls against clients that do the work by gets, over what there is to compute",
        canonical: false,
        peers: &[],
        run: placement::crossover,
    },
    Experiment {
        name: "extensions",
        help: "Calls of the example extensions against a client that does the same by gets",
        canonical: false,
        peers: &[],
        run: placement::extensions,
    },
    Experiment {
        name: "interleave",
        help: "Chains of calls that wait for their records by turns, and with --no-interleave",
        canonical: false,
        peers: &[],
        run: placement::interleave,
    },
    Experiment {
        name: "tao",
        help: "A social graph asked by clients, by calls, and combined: throughput at the same p99",
        canonical: false,
        peers: &[],
        run: tao::tao,
    },
    Experiment {
        name: "ycsb-t",
        help: "Transfers between accounts in transactions, over how much they get in each other's way",
        canonical: false,
        peers: &[],
        run: transfers::ycsb_t,
    },
    Experiment {
        name: "pools",
        help: "Facebook's five pools, gets alone and their whole mixes, beside memcached and Redis",
        canonical: false,
        peers: BOTH_PEERS,
        run: pools::pools,
    },
    Experiment {
        name: "durable",
        help: "Puts to tables of each durability, beside a bare write to the disk and Redis with its log; gets of \
         such tables",
        canonical: false,
        peers: &[peer_server::REDIS],
        run: durable::durable,
    },
    Experiment {
        name: "recovery",
        help: "Starts over a million records on the disk, beside Redis with RDB and AOF",
        canonical: false,
        peers: &[peer_server::REDIS],
        run: recovery::recovery,
    },
    Experiment {
        name: "triggers",
        help: "What a trigger costs the writers of its table, how many changes it handles, how long after a write it \
         is called",
        canonical: false,
        peers: &[],
        run: triggers::triggers,
    },
    Experiment {
        name: "ranks",
        help: "Ranks, positions and counts of a leaderboard by calls, and what an ordered table costs beside another",
        canonical: false,
        peers: &[],
        run: ranks::ranks,
    },
    Experiment {
        name: "spill",
        help: "A table with four times more data than memory, beside memcached's extstore",
        canonical: false,
        peers: &[peer_server::MEMCACHED],
        run: spill::spill,
    },
    Experiment {
        name: "backing",
        help: "A table in front of objects that take their time: puts by policy, gets over the working set, flushes",
        canonical: false,
        peers: &[],
        run: backing::backing,
    },
    Experiment {
        name: "observation",
        help: "The cost of looking: pages that are open, a profile; the server's own p99 beside the client's",
        canonical: false,
        peers: &[],
        run: observation::observation,
    },
    Experiment {
        name: "tenant-tools",
        help: "Tenants' tools: log lines, a shared extension, types, clients' transactions, rollbacks",
        canonical: false,
        peers: &[],
        run: tenant_tools::tenant_tools,
    },
    Experiment {
        name: "failover",
        help: "From the kill of a cluster's server to the first write that its successor acknowledges; needs an etcd",
        canonical: false,
        peers: &[],
        run: failover::failover,
    },
    Experiment {
        name: "migration",
        help: "Half of a table's slots move to another server, under load: rate, pause of writes, tail of gets, time \
         line; Redis Cluster beside it, if it is installed; needs an etcd",
        canonical: false,
        peers: &[],
        run: migration::migration,
    },
    Experiment {
        name: "cluster-puts",
        help: "A put with copies on two servers' disks beside one on one disk; one server with --cluster beside one \
         without; needs an etcd",
        canonical: false,
        peers: &[],
        run: cluster_puts::cluster_puts,
    },
    Experiment {
        name: "locality",
        help: "Multigets of 7 keys by the number of servers that have them, 1 to 7: rate, latency, the servers' time; \
         needs an etcd",
        canonical: false,
        peers: &[],
        run: locality::locality,
    },
    Experiment {
        name: "neighbours",
        help: "A tenant's latency while another does its worst: calls that never end, floods, junk, pushes",
        canonical: false,
        peers: &[],
        run: neighbours::neighbours,
    },
];

fn names() -> PossibleValuesParser {
    let all = PossibleValue::new(ALL).help("All of them");
    let named = EXPERIMENTS.iter().map(|one| {
        let more = if one.canonical { "" } else { " (only when named)" };
        PossibleValue::new(one.name).help(format!("{}{more}", one.help))
    });
    PossibleValuesParser::new(named.chain([all]))
}

/// Measure this machine: a server on one core, the load on another.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to measure; if left out, the canonical run
    #[arg(value_parser = names(), hide_possible_values = false)]
    experiments: Vec<String>,
    /// Records in the table [default: 1000000, less where many tables are filled]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    records: Option<u64>,
    /// Rounds of each kind, interleaved [default: 3 to 15, by experiment]
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of one measurement [default: 0.2 to 2, by experiment]
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Measure fewer points (`density`, as the canonical run does, `isolation`, `backing`), or each less often (`tao`)
    #[arg(long)]
    quick: bool,
    /// Of the neighbours' attacks, those alone that have this in their names
    #[arg(long, value_name = "TEXT")]
    attack: Option<String>,
    /// Of the drivers of `backends`, that alone that has this name, or those that have it in their names
    #[arg(long, value_name = "TEXT")]
    driver: Option<String>,
    /// Messages under way in the throughput measurements
    #[arg(long, default_value_t = 64)]
    depth: usize,
    /// The part of the greatest rate that the load of `migration` has [default: 0.5]
    #[arg(long, value_name = "PART", value_parser = share)]
    share: Option<f64>,
    /// Writes a second to the slots that move, in the second half of `migration` [default: 100000]
    #[arg(long, value_name = "PER_S", value_parser = rate)]
    writes: Option<f64>,
    /// Be the other process of `isolation`
    #[arg(long, hide = true)]
    partner: Option<isolation::SwitchPartner>,
    /// Be the echo of `backends`, over the driver of these options
    #[arg(long, hide = true, num_args = 0.., allow_hyphen_values = true)]
    echo: Option<Vec<String>>,
    /// A builder's state folder, whose sysroots the servers use instead of making their own
    #[arg(long, hide = true, value_name = "FOLDER")]
    sysroots: Option<PathBuf>,
    /// Write report.html and report.json into this folder
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// The longest measurement that is accepted, seconds.
const MAX_SECONDS: f64 = 3600.0;

fn seconds(text: &str) -> Result<f64, String> {
    number_up_to(text, MAX_SECONDS)
}

/// The greatest rate that is accepted, operations a second: more than any generator reaches.
const MAX_RATE: f64 = 1e8;

fn rate(text: &str) -> Result<f64, String> {
    number_up_to(text, MAX_RATE)
}

fn share(text: &str) -> Result<f64, String> {
    number_up_to(text, 1.0)
}

fn number_up_to(text: &str, most: f64) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "it is no number".to_owned())?;
    (number > 0.0 && number <= most).then_some(number).ok_or_else(|| format!("choose more than 0 and at most {most}"))
}

impl BenchArgs {
    fn records(&self) -> u64 {
        self.records.unwrap_or(RECORDS)
    }

    fn rounds(&self, otherwise: usize) -> usize {
        self.rounds.unwrap_or(otherwise).max(1)
    }

    fn seconds(&self, otherwise: f64) -> f64 {
        self.seconds.unwrap_or(otherwise)
    }

    /// Whether no experiment was named.
    fn is_canonical(&self) -> bool {
        self.experiments.is_empty()
    }

    fn selected(&self) -> Vec<&'static Experiment> {
        let named = |name: &str| self.experiments.iter().any(|one| one == name);
        let is_selected = |one: &&Experiment| {
            if self.is_canonical() { one.canonical } else { named(ALL) || named(one.name) }
        };
        EXPERIMENTS.iter().filter(is_selected).collect()
    }
}

/// Runs the experiments that were asked for, prints the findings, and writes them where `--out` says.
pub fn bench(args: &BenchArgs, out: &OutputPrinter) -> Result<(), CliError> {
    if let Some(partner) = args.partner {
        return partner.serve();
    }
    if let Some(over) = &args.echo {
        return backends::answer(over);
    }
    let selected = args.selected();
    for peer in selected.iter().flat_map(|experiment| experiment.peers) {
        peer_server::is_installed(peer)?;
    }
    let cache = sysroot_cache::SysrootCache::open(args.sysroots.as_deref());
    let _sysroots = cache.map_err(|error| CliError::new(error.to_string()))?;
    let words = std::env::args().skip_while(|word| word != "bench").skip(1).collect();
    let mut report = BenchReport::new(MachineDescription::read(), words);
    if !out.json {
        out.line("the server's worker has the first core; generator, control plane and builder share the others")?;
    }
    for experiment in selected {
        let begun = Instant::now();
        let mut findings = (experiment.run)(args)?;
        findings.seconds = begun.elapsed().as_secs_f64();
        if !out.json {
            out.line(findings.text().trim_end_matches('\n'))?;
        }
        report.experiments.push(findings);
        // Written after each experiment: a long run that is interrupted keeps its findings so far.
        if let Some(folder) = &args.out {
            report.write(folder)?;
        }
    }
    if out.json {
        return out.json(&report);
    }
    match &args.out {
        Some(folder) => {
            let [page, data] = report.write(folder)?;
            out.line(&format!("\n{}\n{}", page.display(), data.display()))
        }
        None => Ok(()),
    }
}
