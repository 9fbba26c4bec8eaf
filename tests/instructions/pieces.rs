//! The pieces whose instructions are counted, each composed as in the worker.

use std::collections::VecDeque;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use sandstorm_builder as builder;
use sandstorm_builder::{
    CompileJob, CompileLimits, CompilerLauncher, PushedSource, SourceFile, Toolchain, ToolchainConfig,
};
use sandstorm_catalog::{Directory, NewTable, NewTenant, TenantView};
use sandstorm_extension::{Budget, BudgetOverride, ExtensionLibrary, LoadedExtension};
use sandstorm_metrics::histogram::RequestClass;
use sandstorm_net::driver::Outbox;
use sandstorm_net::limits::{ClientLimits, ReplyCacheLimits, ServerLimits};
use sandstorm_net::r2p2::{ClientEndpoint, PeerAddr, ServerEndpoint};
use sandstorm_net::reply_cache::{ReplyCache, RequestAdmission};
use sandstorm_net::rpc::{MessageHeader, OpKind, Operation, RpcStatus, encode_message, encode_operation};
use sandstorm_runtime::{Engine, InvocationHandle, PollOutcome, Watchdog};
use sandstorm_store::{Epochs, Participant, WriteOptions};

/// The piece that has many tenants.
const MANY_TENANTS: &str =
    "sandboxed call that does nothing, of one of 2,000 tenants: half have their memories cleared";

/// The pieces' names, in the order of [`Pieces::run`].
pub(super) const PIECES: &[&str] = &[
    "request of one get: received and parsed",
    "request of 32 gets: received and parsed",
    "table: one get of a batch of 32",
    "answer of 100 bytes: written and sent",
    "at most once: admitted and remembered",
    "call that does nothing, alone: begun, polled, finished",
    "call of one get, alone: begun, polled, finished",
    "call of one get, one of 32 that take turns",
    "call of a chain of 8, one of 32 that take turns",
    "call that gets 32 at once, one of 32 that take turns",
    "latency: counted for requests of one tenant that were answered together",
    "call of one get by types, alone: begun, polled, finished",
    "the same with its bytes read by hand",
    "sandboxed call that does nothing, alone: begun, polled, finished",
    MANY_TENANTS,
    "sandboxed call of one get, one of 16 that take turns",
    "sandboxed call of a chain of 8, one of 16 that take turns",
    "sandboxed call that gets 32 at once, one of 16 that take turns",
    "sandboxed call of one get by types, alone: begun, polled, finished",
    "sandboxed, the same with its bytes read by hand",
];

/// Whether a piece runs sandboxed code.
pub(super) fn is_sandboxed(piece: usize) -> bool {
    PIECES[piece].starts_with("sandboxed")
}

/// `args`: how many gets one after another (u8), how many at once (u8).
const SOURCE: &str = r#"#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

/// Gets as often, and as many, as it is told.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let [gets, many] = args else { return Ok(()) };
    let mut last = None;
    for key in 0..*gets {
        last = db.get(TableId(1), &[key; 30]).await?;
    }
    if let Some(record) = last {
        db.reply(record.value())?;
    }
    if *many > 0 {
        let keys: Vec<[u8; 30]> = (0..*many).map(|key| [key; 30]).collect();
        let found = db.get_many(TableId(1), &keys).await?;
        let bytes: usize = found.iter().flatten().map(|record| record.value().len()).sum();
        db.reply(&(bytes as u64).to_le_bytes())?;
    }
    Ok(())
}
"#;

/// Calls that take turns, as many as on a worker; and the distance of the call that is prefetched ahead of its poll.
const TURNS: usize = 32;
/// The same of calls that are counted step by step.
const STEPPED_TURNS: usize = 16;
const AHEAD: usize = 10;
/// Records, of 30 + 100 bytes.
const RECORDS: u8 = 64;
/// Tenants beside the first, for [`MANY_TENANTS`]: more than a worker keeps memories for.
const OTHERS: usize = 2_000;
const FROM: ([u8; 4], u16) = ([127, 0, 0, 1], 9000);

/// The same call with types and with its bytes read by hand.
const TYPED: &str = include_str!("../../benches/typed_lookup.rs");
const BY_HAND: &str = include_str!("../../benches/untyped_lookup.rs");

/// The extensions' names and sources: each has a native library and a sandboxed image.
const SOURCES: [(&str, &str); 3] = [("pieces", SOURCE), ("typed", TYPED), ("by-hand", BY_HAND)];

fn source(name: &str, text: &str) -> PushedSource {
    let manifest = format!("name = \"{name}\"\nversion = \"1.0.0\"\nedition = \"2024\"\napi = 1\n");
    let files = vec![SourceFile { path: "src/lib.rs".into(), text: text.into() }];
    PushedSource::new(&manifest, files).expect("a source")
}

/// Writes the libraries of [`SOURCES`].
pub(super) fn write_libraries(folder: &Path) {
    let state = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/extension-tests");
    let toolchain = Toolchain::prepare(&ToolchainConfig { state, ..Default::default() }).expect("a toolchain");
    let job = CompileJob { launcher: CompilerLauncher::Unsandboxed, limits: CompileLimits::default() };
    for (name, text) in SOURCES {
        let source = source(name, text);
        let native = builder::compile(&toolchain, &source, &job).expect("a library");
        let sandboxed = builder::build_sandboxed(&toolchain, &source, &job).expect("an image").elf;
        for (tier, bytes) in [("native", native), ("sandboxed", sandboxed)] {
            std::fs::write(folder.join(format!("{name}.{tier}")), bytes).expect("room for a library");
        }
    }
}

/// Loads one of them.
fn loaded(folder: &Path, name: &str, is_sandboxed: bool) -> Arc<LoadedExtension> {
    let read = |tier| std::fs::read(folder.join(format!("{name}.{tier}"))).expect("a library");
    let fingerprint = builder::api_fingerprint();
    let library = match is_sandboxed {
        true => ExtensionLibrary::load_sandboxed(&read("sandboxed"), fingerprint),
        false => ExtensionLibrary::load(&read("native"), fingerprint),
    };
    Arc::new(LoadedExtension::new(name, 1, library.expect("it loads"), BudgetOverride::default()))
}

/// The arguments of a typed call, which the code that reads bytes by hand takes, too.
fn lookup_args() -> Vec<u8> {
    let schema = builder::schema_of(&source("typed", TYPED)).expect("types").expect("a typed function");
    let (fingerprint, key) = (schema.functions[0].fingerprint.to_le_bytes(), [1; 30]);
    [&fingerprint[..], &1_u64.to_le_bytes(), &(key.len() as u32).to_le_bytes(), &key].concat()
}

/// The state that all pieces need.
pub(super) struct Pieces {
    endpoint: ServerEndpoint,
    once: ReplyCache,
    outbox: Outbox,
    one: Vec<u8>,
    many: Vec<u8>,
    sequence: u64,
    engine: Engine,
    participant: Participant,
    view: Arc<TenantView>,
    others: Vec<Arc<TenantView>>,
    /// The state of a small generator.
    random: u64,
    extension: Arc<LoadedExtension>,
    typed: Arc<LoadedExtension>,
    by_hand: Arc<LoadedExtension>,
    lookup_args: Vec<u8>,
    running: VecDeque<InvocationHandle>,
}

/// A request of so many gets, as it arrives from the network.
fn request(gets: u8) -> Vec<u8> {
    let header = MessageHeader { flags: 0, operations: u16::from(gets), tenant: 1, session: 77, sequence: 1, acked: 0 };
    let keys: Vec<[u8; 30]> = (0..gets).map(|key| [key; 30]).collect();
    let operations: Vec<Operation<'_>> = keys.iter().map(|key| Operation::get(1, key)).collect();
    let (mut message, mut outbox) = (Vec::new(), Outbox::default());
    encode_message(&header, &operations, &mut message);
    let limits = ClientLimits { max_datagram: 8_000, ..ClientLimits::default() };
    ClientEndpoint::new(PeerAddr::from(FROM), limits).request(0, &message, &mut outbox).expect("room for a request");
    outbox.iter().map(|datagram| datagram.to_vec()).next().expect("one datagram")
}

impl Pieces {
    /// Sets up a piece with the libraries of [`write_libraries`].
    pub(super) fn new(piece: usize, folder: &Path) -> Pieces {
        let watchdog = Watchdog::spawn().expect("a watchdog");
        let epochs = Epochs::new();
        let directory = Directory::new(Arc::clone(&epochs));
        let participant = epochs.register();
        directory.create_tenant(NewTenant::named("pieces")).expect("a tenant");
        let table = directory.create_table("pieces", NewTable::named("records")).expect("a table");
        for key in 0..RECORDS {
            let key = [key; 30];
            table
                .table
                .put(&participant, table.table.hash(&key), &key, &[7; 100], &WriteOptions::default(), 0)
                .expect("room");
        }
        let many = if PIECES[piece] == MANY_TENANTS { OTHERS } else { 0 };
        let others: Vec<String> = (0..many).map(|number| format!("tenant-{number}")).collect();
        for name in &others {
            directory.create_tenant(NewTenant::named(name)).expect("a tenant");
        }
        let snapshot = directory.snapshot();
        let view_of = |name: &str| Arc::clone(snapshot.by_name(name).expect("the tenant"));
        let mut engine = Engine::new(&watchdog, 0).expect("an engine");
        engine.sees(1);
        let [extension, typed, by_hand] = SOURCES.map(|(name, _)| loaded(folder, name, is_sandboxed(piece)));
        let mut pieces = Pieces {
            endpoint: ServerEndpoint::new(ServerLimits::default()),
            once: ReplyCache::new(ReplyCacheLimits::default()),
            outbox: Outbox::default(),
            one: request(1),
            many: request(32),
            sequence: 0,
            engine,
            participant,
            view: view_of("pieces"),
            others: others.iter().map(|name| view_of(name)).collect(),
            random: 1,
            extension,
            typed,
            by_hand,
            lookup_args: lookup_args(),
            running: VecDeque::with_capacity(TURNS),
        };
        // Before anything is counted there is no room left for more of them.
        (0..2 * many).for_each(|_| pieces.call_of_another());
        pieces
    }

    /// Runs the piece of that number so often. Valgrind is told this function's name.
    #[inline(never)]
    pub(super) fn run(&mut self, piece: usize, times: u64) {
        let alone = |many: u64| many.div_ceil(TURNS as u64);
        match piece {
            0 => (0..times).for_each(|_| parse(&mut self.endpoint, &self.one, &mut self.outbox)),
            1 => (0..times).for_each(|_| parse(&mut self.endpoint, &self.many, &mut self.outbox)),
            2 => (0..alone(times)).for_each(|_| self.look_up()),
            3 => (0..times).for_each(|_| self.answer()),
            4 => (0..times).for_each(|_| self.remember()),
            5 => (0..times).for_each(|_| self.call_alone(&[0, 0])),
            6 => (0..times).for_each(|_| self.call_alone(&[1, 0])),
            7 => (0..alone(times)).for_each(|_| self.call_many(&[1, 0], TURNS)),
            8 => (0..alone(times)).for_each(|_| self.call_many(&[8, 0], TURNS)),
            9 => (0..alone(times)).for_each(|_| self.call_many(&[0, 32], TURNS)),
            10 => (1..=times).for_each(|time| self.count_latency(black_box(time))),
            11 | 18 => (0..times).for_each(|_| self.look_up_by(true)),
            12 | 19 => (0..times).for_each(|_| self.look_up_by(false)),
            13 => (0..times).for_each(|_| self.call_alone(&[0, 0])),
            14 => (0..times).for_each(|_| self.call_of_another()),
            15 => (0..times / STEPPED_TURNS as u64).for_each(|_| self.call_many(&[1, 0], STEPPED_TURNS)),
            16 => (0..times / STEPPED_TURNS as u64).for_each(|_| self.call_many(&[8, 0], STEPPED_TURNS)),
            17 => (0..times / STEPPED_TURNS as u64).for_each(|_| self.call_many(&[0, 32], STEPPED_TURNS)),
            _ => panic!("there is no piece {piece}"),
        }
    }

    /// Reads 32 records as the worker reads those of a burst.
    fn look_up(&mut self) {
        let entry = self.view.tables.get(&1).expect("the table");
        let guard = self.participant.guard();
        let keys: [[u8; 30]; TURNS] = std::array::from_fn(|key| [key as u8; 30]);
        let hashes = keys.map(|key| {
            let hash = entry.table.hash(&key);
            entry.table.prefetch_bucket(hash);
            hash
        });
        entry.table.prefetch_records(&guard, hashes.iter().copied());
        for (key, hash) in keys.iter().zip(hashes) {
            assert!(black_box(entry.table.get(&guard, hash, key, 0)).is_some());
        }
    }

    /// Writes and sends a response of one value.
    fn answer(&mut self) {
        let header = MessageHeader { flags: 0, operations: 1, tenant: 1, session: 77, sequence: 1, acked: 0 };
        let mut response = std::mem::take(&mut self.one);
        header.response(1).begin(&mut response);
        let answer = Operation { status: RpcStatus::Ok, number: 5, value: &[7; 100], ..Operation::new(OpKind::Get) };
        encode_operation(black_box(&answer), &mut response);
        self.endpoint.respond(0, PeerAddr::from(FROM), 1, &response, &mut self.outbox);
        self.outbox.clear();
        self.one = response;
    }

    /// Admits a request that must not run twice, and stores its answer; the answer before it has been acked.
    fn remember(&mut self) {
        self.sequence += 1;
        let (peer, sequence) = (PeerAddr::from(FROM), self.sequence);
        assert_eq!(self.once.admit(0, peer, 1, 77, sequence, sequence - 1), RequestAdmission::Execute);
        self.once.complete(peer, 1, 77, sequence, &[7; 164]);
    }

    /// Counts what the worker's ledger has of a turn that served one tenant.
    fn count_latency(&self, time: u64) {
        self.view.tenant.usage.latency(0).of(RequestClass::Get).record(0, 2_000 + time, 32);
    }

    /// A call without other calls in flight.
    fn call_alone(&mut self, args: &[u8]) {
        let invocation = self.engine.begin(&self.view, &self.extension, args, budget()).expect("it fits");
        self.complete(invocation);
    }

    /// The same of the extension that has types, or of that which reads its bytes by hand.
    fn look_up_by(&mut self, types: bool) {
        let extension = if types { &self.typed } else { &self.by_hand };
        let invocation = self.engine.begin(&self.view, extension, &self.lookup_args, budget()).expect("it fits");
        self.complete(invocation);
    }

    /// The same of any other tenant, without arguments.
    fn call_of_another(&mut self) {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let view = &self.others[(self.random >> 33) as usize % self.others.len()];
        let invocation = self.engine.begin(view, &self.extension, &[], budget()).expect("it fits");
        self.complete(invocation);
    }

    fn complete(&mut self, mut invocation: InvocationHandle) {
        assert_eq!(self.engine.poll(&self.participant, &mut invocation, 0, false), PollOutcome::Done);
        self.engine.finish(&self.participant, invocation);
    }

    /// Calls that take turns as on a worker.
    fn call_many(&mut self, args: &[u8], turns: usize) {
        for _ in 0..turns {
            let begun = self.engine.begin(&self.view, &self.extension, args, budget());
            let invocation = begun.expect("it fits");
            self.running.push_back(invocation);
        }
        while let Some(mut next) = self.running.pop_front() {
            let at = AHEAD.min(self.running.len() / 2);
            if let Some(ahead) = self.running.get_mut(at) {
                self.engine.prefetch_awaited(ahead, &next, false);
            }
            match self.engine.poll(&self.participant, &mut next, 0, true) {
                PollOutcome::Pending => self.running.push_back(next),
                end => {
                    assert_eq!(end, PollOutcome::Done);
                    self.engine.finish(&self.participant, next);
                }
            }
        }
    }
}

/// Everything is slow under valgrind, and step by step.
fn budget() -> Budget {
    Budget { slice_us: 60_000_000, total_us: 60_000_000, ..Budget::default() }
}

/// Receives a request and iterates over its operations, as admission and the plan do.
fn parse(endpoint: &mut ServerEndpoint, datagram: &[u8], outbox: &mut Outbox) {
    let request = endpoint.receive(0, PeerAddr::from(FROM), black_box(datagram), outbox).expect("a request");
    let (header, operations) = MessageHeader::decode(&request.message).expect("a message");
    black_box(header);
    for operation in operations {
        black_box(operation.expect("an operation"));
    }
}
