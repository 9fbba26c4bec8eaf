//! Parameters of a simulator run, and its results.

use super::{SeededRng, SimRun};
use crate::limits::{ReplyCacheLimits, ServerLimits};

/// The parameters of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimScenario {
    /// Seed of everything that is random.
    pub seed: u64,
    /// Datagrams lost, percent.
    pub loss: u64,
    /// Datagrams duplicated, percent.
    pub duplication: u64,
    /// Least time under way, microseconds.
    pub least_delay_us: u64,
    /// Further time under way, at most, microseconds: reorders.
    pub jitter_us: u64,
    /// Longest time that a request takes at the server, microseconds.
    pub service_us: u64,
    /// Clients.
    pub clients: usize,
    /// Requests of each client.
    pub requests: u64,
    /// Requests that a client has in flight, at most.
    pub in_flight: usize,
    /// Restarts of clients, in thousandths per request: same address, new session.
    pub restarts: u64,
    /// Longest message, bytes; most are far shorter.
    pub longest: u64,
    /// Life of a request, microseconds.
    pub timeout_us: u64,
    /// True if all go in sealed sessions.
    pub sealed: bool,
    /// Datagrams in which a bit is changed or that are cut, percent; for sealed sessions only. (UDP's checksum does not
    /// stop those that an attacker makes.)
    pub corruption: u64,
    /// Sealed sessions that the server forgets, clients that change their address, in thousandths per datagram.
    pub faults_permille: u64,
    /// Repeats of clients before which they change their address, in thousandths.
    pub moves_permille: u64,
    /// Restarts of the server, in thousandths per datagram: it forgets all but which requests have run.
    pub server_restarts: u64,
    /// Datagrams of which another copy comes much later, percent.
    pub late: u64,
    /// The largest extra delay, microseconds.
    pub max_late_us: u64,
    /// Forged hellos, each from an address of its own, that come before each datagram for the server.
    pub flood: u64,
    /// Limits of the server.
    pub server: ServerLimits,
    /// Limits of its window.
    pub once: ReplyCacheLimits,
}

impl SimScenario {
    /// A scenario of ordinary size whose faults are drawn from `seed`.
    pub fn drawn(seed: u64) -> SimScenario {
        let mut dice = SeededRng::new(seed ^ 0x5EED);
        let fault = |dice: &mut SeededRng, most: u64| if dice.percent(40) { 0 } else { dice.below(most + 1) };
        SimScenario {
            seed,
            loss: fault(&mut dice, 25),
            duplication: fault(&mut dice, 25),
            least_delay_us: dice.below(500),
            jitter_us: fault(&mut dice, 20_000),
            service_us: fault(&mut dice, 60_000),
            clients: 1 + dice.below(4) as usize,
            requests: 20 + dice.below(60),
            in_flight: 1 + dice.below(24) as usize,
            restarts: fault(&mut dice, 30),
            longest: [1000, 20_000, 400_000][dice.below(3) as usize],
            timeout_us: 60_000_000,
            sealed: false,
            corruption: 0,
            faults_permille: 0,
            moves_permille: 0,
            server_restarts: 0,
            late: 0,
            max_late_us: 3_000_000,
            flood: 0,
            server: ServerLimits::default(),
            once: ReplyCacheLimits::default(),
        }
    }

    /// Runs the scenario and checks every promise.
    ///
    /// # Errors
    /// The broken promise, the seed, and the last events, one line each.
    pub fn check(self) -> Result<SimReport, String> {
        match SimRun::new(self, false).play() {
            Ok(report) => Ok(report),
            Err(broken) => {
                let mut run = SimRun::new(self, true);
                let again = run.play().err().unwrap_or_else(|| "(not broken when run again)".into());
                let from = run.trace.len().saturating_sub(400);
                let lines = run.trace.get(from..).unwrap_or_default().join("\n");
                Err(format!("{lines}\nseed {}: {broken}\nagain: {again}\n{self:?}", self.seed))
            }
        }
    }
}

/// The results of a run that kept its promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimReport {
    /// Requests answered.
    pub answered: u64,
    /// Requests whose time was up.
    pub timed_out: u64,
    /// Requests answered as stale.
    pub stale: u64,
    /// Requests abandoned by a restart.
    pub abandoned: u64,
    /// Restarts of the server.
    pub server_restarts: u64,
    /// Datagrams that the network carried.
    pub datagrams: u64,
    /// Virtual time, microseconds.
    pub took_us: u64,
}
