//! Promise: what is measured of every request can be counted as a part of what a plain get takes. This tells the
//! instructions of whole turns of a worker that answer gets, under valgrind: received from the driver, sorted, parsed,
//! admitted, looked up, answered, handed to the driver, and counted. What the kernel does is not among them, and
//! neither are system calls: the driver is a queue.
//!
//! `scripts/count-observation` builds this program with and without what is always measured (`--cfg unobserved`), and
//! tells the difference. Run by itself, it fails where a get is not run and answered in its turn.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use sandstorm_catalog::{Directory, NewTable, NewTenant};
use sandstorm_metrics::ServerMetrics;
use sandstorm_net::driver::{AnyDriver, Burst, DatagramDriver, DriverCounters, DriverWaiter, DriverWaker, Outbox};
use sandstorm_net::limits::ClientLimits;
use sandstorm_net::r2p2::{ClientEndpoint, PeerAddr};
use sandstorm_net::rpc::{MessageHeader, OpKind, Operation, encode_message};
use sandstorm_runtime::Watchdog;
use sandstorm_server::workers::SteppedWorker;
use sandstorm_store::{Epochs, WriteOptions};

/// Tells the child how many turns to count.
const TIMES: &str = "SANDSTORM_TURNS";
/// Tells the child what turns these are.
const KIND: &str = "SANDSTORM_TURN_KIND";
/// Turns between the two counts whose difference is taken: many times the sixteen of which one is measured longer.
const ROUNDS: u64 = 1_600;
/// Turns before any is counted: buffers, histograms and flows are there then.
const WARM_UP: u64 = 64;
/// Records of the table.
const RECORDS: u8 = 64;

/// The gets of a turn.
struct TurnKind {
    name: &'static str,
    /// Messages of the kernel's, each of another client.
    messages: u16,
    /// Gets in each, which the kernel has coalesced.
    gets: u16,
}

/// What is counted.
const TURNS: [TurnKind; 3] = [
    // No more: under valgrind the time of a turn is over after one batch.
    TurnKind { name: "a get, one of 32 that a client has under way", messages: 1, gets: 32 },
    TurnKind { name: "a get, one of those of 32 clients, one each", messages: 32, gets: 1 },
    TurnKind { name: "a get, alone in its turn", messages: 1, gets: 1 },
];

/// A get as it arrives from the network.
fn get(tenant: u32, number: u16) -> Vec<u8> {
    let sequence = u64::from(number) + 1;
    let header = MessageHeader { flags: 0, operations: 1, tenant, session: 77, sequence, acked: 0 };
    let (mut message, mut outbox) = (Vec::new(), Outbox::default());
    encode_message(&header, &[Operation::get(1, &[number as u8 % RECORDS; 30])], &mut message);
    let mut client = ClientEndpoint::new(peer(1), ClientLimits::default());
    client.request(0, &message, &mut outbox).expect("room for a request");
    outbox.iter().map(|datagram| datagram.to_vec()).next().expect("one datagram")
}

fn peer(port: u16) -> PeerAddr {
    ([127, 0, 0, 1], port).into()
}

/// A socket of a test, in which the next turn's messages always lie.
struct GetQueue {
    /// Datagrams of one message, behind each other, and the bytes of each.
    message: (Vec<u8>, usize),
    messages: u16,
    /// When the host received them.
    unix_ns: u64,
    answered: Arc<AtomicU64>,
    is_taken: bool,
}

impl DatagramDriver for GetQueue {
    fn local(&self) -> PeerAddr {
        peer(1)
    }

    fn burst(&self) -> Burst {
        Burst::default()
    }

    fn receive(&mut self, burst: &mut Burst) -> usize {
        burst.clear();
        // The worker asks once more where a burst was full.
        self.is_taken = !self.is_taken;
        if !self.is_taken {
            return 0;
        }
        let (bytes, segment) = &self.message;
        for number in 0..self.messages {
            if !cfg!(unobserved) {
                burst.note_arrival(self.unix_ns + u64::from(number));
            }
            burst.push_segments(peer(9_000 + number), bytes, *segment);
        }
        if burst.has_drained() {
            self.is_taken = false;
        }
        burst.len()
    }

    fn transmit(&mut self, outbox: &mut Outbox) -> usize {
        let count = outbox.len();
        self.answered.fetch_add(count as u64, Relaxed);
        outbox.clear();
        count
    }

    fn waiter(&self) -> DriverWaiter {
        DriverWaiter::new(None).expect("a waiter")
    }

    fn waker(&self) -> DriverWaker {
        self.waiter().waker()
    }

    fn counters(&self) -> DriverCounters {
        DriverCounters::default()
    }
}

/// A worker, and what it has answered.
struct GetTurns {
    worker: SteppedWorker,
    metrics: Arc<ServerMetrics>,
    answered: Arc<AtomicU64>,
}

impl GetTurns {
    fn new(kind: &TurnKind) -> GetTurns {
        let (watchdog, epochs) = (Watchdog::spawn().expect("a watchdog"), Epochs::new());
        let directory = Directory::new(Arc::clone(&epochs));
        let tenant = NewTenant { open: true, ..NewTenant::named("own") };
        let tenant = directory.create_tenant(tenant).expect("a tenant").0.tenant.id;
        let entry = directory.create_table("own", NewTable::named("items")).expect("a table");
        let (table, participant) = (&entry.table, epochs.register());
        for key in 0..RECORDS {
            let key = [key; 30];
            table.put(&participant, table.hash(&key), &key, &[7; 100], &WriteOptions::default(), 0).expect("room");
        }
        drop(participant);
        let (metrics, answered) = (ServerMetrics::new(1), Arc::<AtomicU64>::default());
        let datagrams: Vec<Vec<u8>> = (0..kind.gets).map(|number| get(tenant, number)).collect();
        let segment = datagrams.first().map_or(0, Vec::len);
        let unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_nanos() as u64;
        let queue = GetQueue {
            message: (datagrams.concat(), segment),
            messages: kind.messages,
            unix_ns,
            answered: Arc::clone(&answered),
            is_taken: false,
        };
        let driver = AnyDriver::other(queue);
        let worker = SteppedWorker::new(driver, directory, (&epochs, &watchdog), &metrics).expect("a worker");
        GetTurns { worker, metrics, answered }
    }

    /// Runs so many turns. Valgrind is told this function's name.
    #[inline(never)]
    fn run(&mut self, times: u64) {
        for _ in 0..times {
            std::hint::black_box(self.worker.turn());
        }
    }

    /// Gets that were run, and answers that left.
    fn done(&self) -> (u64, u64) {
        let gets = self.metrics.worker(0).map_or(0, |counters| counters.requests[OpKind::Get as usize].get());
        (gets, self.answered.load(Relaxed))
    }
}

fn main() -> ExitCode {
    if let (Ok(kind), Ok(times)) = (std::env::var(KIND), std::env::var(TIMES)) {
        let kind = &TURNS[kind.parse::<usize>().expect("a number")];
        let times: u64 = times.parse().expect("a number");
        let mut turns = GetTurns::new(kind);
        warm_up(&mut turns);
        let before = turns.done();
        turns.run(times);
        let (gets, answers) = (turns.done().0 - before.0, turns.done().1 - before.1);
        let expected = times * u64::from(kind.messages) * u64::from(kind.gets);
        assert_eq!((gets, answers), (expected, expected), "each get is run and answered in its turn");
        return ExitCode::SUCCESS;
    }
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: there is no valgrind to count instructions with (Debian's package valgrind)");
        return ExitCode::SUCCESS;
    }
    let folder = std::env::temp_dir().join(format!("sandstorm-turns-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    for (number, kind) in TURNS.iter().enumerate() {
        let counts = std::thread::scope(|scope| {
            let folder = &folder;
            let counts = |times| scope.spawn(move || count(folder, number, times));
            [1, 1 + ROUNDS].map(counts).map(|counted| counted.join().expect("counted"))
        });
        let gets = ROUNDS * u64::from(kind.messages) * u64::from(kind.gets);
        let of_one = (counts[1].saturating_sub(counts[0])) as f64 / gets as f64;
        println!("{of_one:.1} instructions: {}", kind.name);
    }
    let _removed = std::fs::remove_dir_all(&folder);
    ExitCode::SUCCESS
}

/// Runs turns that are not counted.
#[inline(never)]
fn warm_up(turns: &mut GetTurns) {
    (0..WARM_UP).for_each(|_| _ = turns.worker.turn());
}

/// The instructions of so many turns.
fn count(folder: &std::path::Path, kind: usize, times: u64) -> u64 {
    let out = folder.join(format!("counts-{kind}-{times}"));
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--separate-threads=yes", "--toggle-collect=*GetTurns::run"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().expect("this program"))
        .env(KIND, kind.to_string())
        .env(TIMES, times.to_string())
        .output()
        .expect("valgrind runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    // Each thread has a file, from 01 on: the watchdog's work is not counted.
    let file = PathBuf::from(format!("{}-01", out.display()));
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let totals = text.lines().find_map(|line| line.strip_prefix("totals: ").or_else(|| line.strip_prefix("summary: ")));
    let totals = totals.and_then(|number| number.trim().parse().ok()).expect("valgrind says how many");
    assert!(totals > 0, "valgrind has not found the function that it is to look into");
    totals
}
