//! The load generator: sends what a mix of tenants would, at a set rate or as fast as answers come. It reports
//! throughput and latency per class of operation. [`fill`] loads the records that it asks for; [`run`] runs.
//!
//! At a set rate (an open loop) latency counts from the moment at which a request was meant to be sent, not from when
//! it could be. So a server that stalls is charged for all the requests that would have come in the meantime. A request
//! that gets no answer counts with the time that it waited. In a cluster a request goes to the server that has its key;
//! while that slot is between servers it is asked again, and its latency goes on, until its deadline.
//!
//! ```no_run
//! use sandstorm_client::Config;
//! use sandstorm_client::load::{Data, Options, Pace, TenantLoad, fill, run};
//!
//! # fn main() -> Result<(), sandstorm_client::Error> {
//! let config = Config::new(([127, 0, 0, 1], 7400).into(), 1).token("secret");
//! let load = TenantLoad::new("alice", config, Data::new(1, 1_000_000), "ycsb-b".parse().expect("a mix"));
//! fill(&load.config, &load.data, &mut |_done, _total| {})?;
//! let options = Options::new(vec![load.pace(Pace::per_second(100_000.0))]);
//! let report = run(&options, &mut |second| println!("{second}"))?;
//! println!("{report}");
//! # Ok(())
//! # }
//! ```

mod audit;
mod class;
mod compute;
mod connection;
mod dataset;
mod engine;
mod filler;
mod graph;
mod idle;
mod inserts;
pub mod keys;
mod load_request;
mod multi_get;
mod named_workload;
pub mod peer;
mod pools;
mod record_source;
mod report;
mod request;
mod request_generator;
mod routes;
mod rows;
#[cfg(test)]
mod tests;
mod time_line;
mod zipf_table;

pub use audit::{BalanceAudit, audit};
pub use class::{Class, Mix};
pub use dataset::Data;
pub use engine::{LoadProgress, run};
pub use filler::{FillSummary, fill};
pub use graph::{Graph, MAX_EDGES};
pub use keys::Skew;
pub use named_workload::Plan;
pub use pools::MemcachedPool;
pub use report::{ClassReport, Report, TenantReport};
pub use time_line::{LoadPeriod, TimeLine};

use crate::Config;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The pace at which requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// `depth` messages are under way at all times on each connection: the next goes when one is answered.
    Closed {
        /// Messages under way.
        depth: usize,
    },
    /// This number of operations a second over all connections, whether answers come or not.
    Open {
        /// Operations a second.
        per_s: f64,
        /// The spread of requests over time.
        arrivals: Arrivals,
    },
}

impl Pace {
    /// This number of operations a second, arriving at random (Poisson).
    pub fn per_second(per_s: f64) -> Pace {
        Pace::Open { per_s, arrivals: Arrivals::Poisson }
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pace::Closed { depth } => write!(f, "{depth} under way"),
            Pace::Open { per_s, arrivals: Arrivals::Poisson } => write!(f, "{per_s}/s at random"),
            Pace::Open { per_s, arrivals: Arrivals::Fixed } => write!(f, "{per_s}/s evenly"),
            Pace::Open { per_s, arrivals: Arrivals::Pareto } => write!(f, "{per_s}/s in bursts"),
        }
    }
}

/// The spread over time of requests at a set rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// At random, with exponentially distributed gaps: as many independent users do.
    Poisson,
    /// With equal gaps.
    Fixed,
    /// Gaps of a generalised Pareto distribution, as fitted to Facebook's pool ETC (Atikoglu et al., SIGMETRICS'12).
    /// More of them are short than at random, and a few are long.
    Pareto,
}

/// Shape of the distribution of ETC's gaps; the scale follows from the rate.
const ETC_GAP_SHAPE: f64 = 0.154_971;

/// The load of one tenant.
#[derive(Clone, Debug)]
pub struct TenantLoad {
    /// Its name in the report.
    pub name: String,
    /// The server's address and the tenant's credentials.
    pub config: Config,
    /// Its records.
    pub data: Data,
    /// Its operations.
    pub mix: Mix,
    /// One operation in this number is a call of `bad` instead; 0: none.
    pub bad_every: u64,
    /// The distribution of the records that it asks for.
    pub skew: Skew,
    /// The pace at which it asks.
    pub pace: Pace,
    /// Connections, each with its own socket and session; default 1.
    pub connections: usize,
    /// Operations in one message, at most; default 1.
    pub batch: usize,
    /// Time that clients compute over each answer that they got in place of an extension's reply, on cores of their
    /// own. That time is waited for and not computed here. `None`: the thread that sends does the computation.
    pub client_takes: Option<Duration>,
    /// Slots of a cluster whose records alone are asked for; default: all. Records of other slots are drawn and passed
    /// over, so there should be at least one in a thousand.
    pub slots: Option<RangeInclusive<u16>>,
    /// Gathers what is found over time; default: nothing does.
    pub time_line: Option<Arc<TimeLine>>,
}

impl TenantLoad {
    /// One message under way at a time, on one connection, Zipf 0.99; with the chains and lists that the mix needs.
    pub fn new(name: &str, config: Config, data: Data, mix: Mix) -> TenantLoad {
        let data = data.for_mix(&mix);
        let (skew, pace) = (Skew::default(), Pace::Closed { depth: 1 });
        let name = name.to_owned();
        let (bad_every, connections, batch, client_takes, slots, time_line) = (0, 1, 1, None, None, None);
        TenantLoad {
            name,
            config,
            data,
            mix,
            bad_every,
            skew,
            pace,
            connections,
            batch,
            client_takes,
            slots,
            time_line,
        }
    }

    /// Asks for records of these slots of a cluster alone.
    #[must_use]
    pub fn in_slots(mut self, slots: RangeInclusive<u16>) -> TenantLoad {
        self.slots = Some(slots);
        self
    }

    /// Gathers over time what is found.
    #[must_use]
    pub fn time_line(mut self, line: &Arc<TimeLine>) -> TenantLoad {
        self.time_line = Some(Arc::clone(line));
        self
    }

    /// Sets the pace.
    #[must_use]
    pub fn pace(mut self, pace: Pace) -> TenantLoad {
        self.pace = pace;
        self
    }

    /// Sets the distribution of requests over records.
    #[must_use]
    pub fn skew(mut self, skew: Skew) -> TenantLoad {
        self.skew = skew;
        self
    }

    /// Sets the number of operations in a message.
    #[must_use]
    pub fn batch(mut self, batch: usize) -> TenantLoad {
        self.batch = batch;
        self
    }

    /// Sets the time that clients, on cores of their own, take over each answer.
    #[must_use]
    pub fn client_takes(mut self, time: Duration) -> TenantLoad {
        self.client_takes = Some(time);
        self
    }

    /// Sets the number of operations of which one is a bad call.
    #[must_use]
    pub fn bad_every(mut self, bad_every: u64) -> TenantLoad {
        self.bad_every = bad_every;
        self
    }
}

/// A run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The tenants, all at the same time.
    pub tenants: Vec<TenantLoad>,
    /// Threads that send; the connections are dealt out to them. Each polls, and so takes a core. Default 1.
    pub threads: usize,
    /// True if threads sleep until an answer comes or a request is due, and so take as little of a core as possible:
    /// for servers that need all cores. Latencies include the kernel's wake-ups then. Default: false.
    pub doze: bool,
    /// Time before anything counts; default 1 s.
    pub warm_up: Duration,
    /// Time that counts; default 10 s.
    pub duration: Duration,
    /// One reply in this number is checked; 0: none. Default 64.
    pub verify_every: u64,
    /// Seed of all that is drawn; default 1.
    pub seed: u64,
    /// The skew between tenants in a closed loop: the next request is of the tenant of rank `r` with a probability in
    /// proportion to `r` to the power of minus this. As many messages are under way in all as without it. Default
    /// `None`: each tenant for itself.
    pub tenant_skew: Option<f64>,
    /// Set it to end the run early; the results until then are reported.
    pub stop: Arc<AtomicBool>,
}

impl Options {
    /// A run of 10 s after 1 s of warm-up, on one thread.
    pub fn new(tenants: Vec<TenantLoad>) -> Options {
        Options {
            tenants,
            threads: 1,
            doze: false,
            warm_up: Duration::from_secs(1),
            duration: Duration::from_secs(10),
            verify_every: 64,
            seed: 1,
            tenant_skew: None,
            stop: Arc::default(),
        }
    }
}
