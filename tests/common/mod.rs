//! Helpers for several tests: a data plane on free ports, a client that speaks packet by packet, and extensions
//! compiled from `ext/`.
#![allow(dead_code, unreachable_pub)]

pub mod alone;
pub mod certificates;
pub mod disk;
pub mod key_history;
pub mod namespaces;
pub mod network;
pub mod ports;
pub mod process;
pub mod transaction_graph;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use sandstorm_builder::{
    CompileJob, CompileLimits, CompilerLauncher, PushedSource, SourceFile, Toolchain, ToolchainConfig, api_fingerprint,
    build_sandboxed, compile,
};
use sandstorm_catalog::testing::{CODE_VARIABLE, code};
use sandstorm_catalog::{NewTable, NewTenant, QuotaChanges};
use sandstorm_control::config::{CliOverrides, ServerSettings};
use sandstorm_extension::{BudgetOverride, ExtensionLibrary, LoadedExtension};
use sandstorm_instance::DataPlane;
use sandstorm_metrics::ServerMetrics;
use sandstorm_metrics::text::flat;
use sandstorm_net::CodeTier;
use sandstorm_net::rpc::{KillCause, MessageHeader, OpKind, Operation, RpcStatus, encode_message};

/// R2P2's header of a request, or response, of one packet.
pub fn single_packet(kind: u8, request_id: u16) -> [u8; 8] {
    let id = request_id.to_be_bytes();
    [0xCC, 8, kind << 4, 0xC0, id[0], id[1], 0, 1]
}

/// A data plane with `workers` workers on free ports of loopback.
pub fn data_plane(workers: usize) -> DataPlane {
    data_plane_with(&format!("workers = {workers}\npin = false\n"))
}

/// A data plane configured by `text`, on free ports of loopback, or on [`network`]'s driver.
pub fn data_plane_with(text: &str) -> DataPlane {
    network::start(overrides(), |overrides| data_plane_as(text, overrides))
}

/// The same with a state directory, which keeps records of tables that are durable.
pub fn durable_data_plane_with(text: &str, state: &Path) -> DataPlane {
    let overrides = CliOverrides { state: Some(state.into()), ephemeral: Some(false), ..overrides() };
    network::start(overrides, |overrides| data_plane_as(text, overrides))
}

/// A data plane over shared memory (memif).
#[cfg(feature = "dpdk")]
pub fn data_plane_over_memif(text: &str) -> DataPlane {
    network::memif::start(overrides(), |overrides| data_plane_as(text, overrides))
}

fn data_plane_as(text: &str, overrides: &CliOverrides) -> DataPlane {
    let config = ServerSettings::parse(text, "the test's configuration", overrides).expect("a good configuration");
    DataPlane::start(&config).expect("a data plane starts")
}

fn overrides() -> CliOverrides {
    let state = std::env::temp_dir().join(format!("sandstorm-test-{}", std::process::id()));
    CliOverrides {
        data: Some(([127, 0, 0, 1], 0).into()),
        control: Some(([127, 0, 0, 1], 0).into()),
        state: Some(state),
        ephemeral: Some(true),
        code: Some(code()),
        ..CliOverrides::default()
    }
}

/// Creates a tenant with one table of id 1 whose extensions may be killed without limit. Returns the tenant's id and
/// token.
pub fn tenant(plane: &DataPlane, name: &str, open: bool) -> (u32, String) {
    let quotas = QuotaChanges { slow_after_kills: Some(0), suspend_after_kills: Some(0), ..QuotaChanges::default() };
    tenant_with(plane, name, open, quotas)
}

/// As [`tenant`], with these quotas.
pub fn tenant_with(plane: &DataPlane, name: &str, open: bool, quotas: QuotaChanges) -> (u32, String) {
    let new = NewTenant { open, quotas, ..NewTenant::named(name) };
    let (view, token) = plane.directory.create_tenant(new).expect("a tenant is created");
    plane.directory.create_table(name, NewTable { id: Some(1), ..NewTable::named("t") }).expect("a table is created");
    (view.tenant.id, token)
}

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_path_buf()
}

/// One toolchain for all tests of a process, in a folder that later runs reuse.
pub fn toolchain() -> &'static Toolchain {
    static TOOLCHAIN: OnceLock<Toolchain> = OnceLock::new();
    TOOLCHAIN.get_or_init(|| {
        Toolchain::prepare(&ToolchainConfig { state: toolchain_folder(), ..ToolchainConfig::default() })
            .expect("a toolchain")
    })
}

fn toolchain_folder() -> PathBuf {
    std::env::temp_dir().join("sandstorm-test-builder")
}

/// The library of the extension in `ext/name`: compiled once, loaded anew at each call.
pub fn library(name: &str) -> Arc<ExtensionLibrary> {
    static COMPILED: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().expect("no test has panicked here");
    let elf = compiled
        .entry(name.to_owned())
        .or_insert_with(|| compiled_source(&PushedSource::read(&root().join("ext").join(name)).expect("a source")));
    load_library(elf)
}

/// Loads a library as one of the tier of [`code`].
fn load_library(elf: &[u8]) -> Arc<ExtensionLibrary> {
    let loaded = match tier() {
        CodeTier::Native => ExtensionLibrary::load(elf, api_fingerprint()),
        CodeTier::Sandboxed => ExtensionLibrary::load_sandboxed(elf, api_fingerprint()),
    };
    loaded.expect("a library")
}

/// The library of an extension whose whole source is `text`.
pub fn library_of(name: &str, text: &str) -> Arc<ExtensionLibrary> {
    library_with(name, "", text)
}

/// As [`library_of`], with these further lines of its manifest.
pub fn library_with(name: &str, further: &str, text: &str) -> Arc<ExtensionLibrary> {
    let manifest = format!("name = \"{name}\"\nversion = \"1.0.0\"\nedition = \"2024\"\napi = 1\n{further}");
    let file = SourceFile { path: "src/lib.rs".into(), text: text.into() };
    let elf = compiled_source(&PushedSource::new(&manifest, vec![file]).expect("a source"));
    load_library(&elf)
}

/// The library of a source in the tier of [`code`]. Other test programs of this build take it from the toolchain's
/// folder.
fn compiled_source(source: &PushedSource) -> Vec<u8> {
    let path = compiled_path(source);
    if let Ok(elf) = std::fs::read(&path) {
        return elf;
    }
    let job = CompileJob { launcher: CompilerLauncher::Unsandboxed, limits: CompileLimits::default() };
    let built = match tier() {
        CodeTier::Native => compile(toolchain(), source, &job),
        CodeTier::Sandboxed => build_sandboxed(toolchain(), source, &job).map(|built| built.elf),
    };
    let elf = built.unwrap_or_else(|error| panic!("{}: {error}", source.manifest.name));
    let folder = path.parent().expect("a folder");
    std::fs::create_dir_all(folder).expect("a folder for libraries");
    // Complete once it has its name: another program may look for it now.
    let mut file = tempfile::NamedTempFile::new_in(folder).expect("a file");
    std::io::Write::write_all(&mut file, &elf).expect("room for a library");
    file.persist(path).expect("its name");
    elf
}

/// Where the library of a source is kept: by the source, the tier, and the build of everything that compiles it, which
/// is linked into the program under test.
fn compiled_path(source: &PushedSource) -> PathBuf {
    let program = std::fs::metadata(env!("CARGO_BIN_EXE_sandstorm-under-test")).expect("the program under test");
    let linked = program.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let build = format!("libraries-{}-{}", linked.expect("a time after 1970").as_nanos(), program.len());
    let digest: String = source.digest().iter().map(|byte| format!("{byte:02x}")).collect();
    toolchain_folder().join(build).join(format!("{digest}-{}", tier().name()))
}

/// The tier of the extensions that [`library`] and [`library_of`] compile.
pub fn tier() -> CodeTier {
    code().tier().expect("the suites call extensions")
}

/// A version that has not run yet, of such a library.
pub fn loaded(name: &str, version: u64, library: Arc<ExtensionLibrary>, budget: BudgetOverride) -> LoadedExtension {
    LoadedExtension::new(name, version, library, budget).in_tier(tier())
}

/// Loads `ext/name` for a tenant.
pub fn load(plane: &DataPlane, tenant: &str, name: &str, version: u64) {
    load_with(plane, tenant, name, version, BudgetOverride::default());
}

/// As [`load`], with budgets of its own.
pub fn load_with(plane: &DataPlane, tenant: &str, name: &str, version: u64, budget: BudgetOverride) {
    let extension = loaded(name, version, library(name), budget);
    plane.directory.put_extension(tenant, Arc::new(extension)).expect("an extension is loaded");
}

/// An operation's answer that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub op: OpKind,
    pub status: RpcStatus,
    pub number: u64,
    pub flags: u8,
    pub user_flags: u32,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

impl Answer {
    /// The value as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.value).into_owned()
    }
}

/// A client that speaks packet by packet, so that a test can send what no client library would.
pub struct Wire {
    pub socket: network::Socket,
    pub tenant: u32,
    pub session: u64,
    pub sequence: u64,
    metrics: Arc<ServerMetrics>,
}

impl Wire {
    /// A client of a worker's port.
    pub fn new(plane: &DataPlane, worker: u16, tenant: u32) -> Wire {
        let socket = network::Socket::to(plane, worker);
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        Wire { socket, tenant, session: rand::random(), sequence: 0, metrics: Arc::clone(&plane.metrics) }
    }

    /// The next message's header.
    pub fn header(&mut self, operations: usize) -> MessageHeader {
        self.sequence += 1;
        MessageHeader {
            flags: 0,
            operations: operations as u16,
            tenant: self.tenant,
            session: self.session,
            sequence: self.sequence,
            acked: self.sequence - 1,
        }
    }

    /// Sends a message's bytes as one packet.
    pub fn send(&self, request_id: u16, message: &[u8]) {
        let datagram = [&single_packet(0, request_id)[..], message].concat();
        self.socket.send(&datagram).expect("sent");
    }

    /// The next response of one packet: request id, header, answers.
    pub fn receive(&self) -> (u16, MessageHeader, Vec<Answer>) {
        let mut buffer = vec![0; 65_536];
        let len = self.receive_into(&mut buffer);
        assert_eq!((buffer[0], buffer[2] >> 4, buffer[3]), (0xCC, 1, 0xC0), "a response of one packet");
        let (header, operations) = MessageHeader::decode(&buffer[8..len]).expect("a well-formed response");
        let answers = operations
            .map(|operation| operation.expect("a well-formed answer"))
            .map(|o| Answer {
                op: o.op,
                status: o.status,
                number: o.number,
                flags: o.flags,
                user_flags: o.user_flags,
                key: o.key.to_vec(),
                value: o.value.to_vec(),
            })
            .collect();
        (u16::from_be_bytes([buffer[4], buffer[5]]), header, answers)
    }

    /// Receives a datagram. On a machine that stalled for longer than the socket's timeout the wait ends before the
    /// server continues. So there is a second wait, after which the server counts as silent.
    fn receive_into(&self, buffer: &mut [u8]) -> usize {
        let again = self.socket.recv(buffer).or_else(|error| {
            println!("no answer came in time ({error}); waiting once more");
            self.socket.recv(buffer)
        });
        again.unwrap_or_else(|error| panic!("no answer comes ({error}); the server's counters: {}", self.counters()))
    }

    /// The counters of each worker.
    fn counters(&self) -> String {
        let counted = |worker| {
            let counted: Vec<String> = flat(&self.metrics.read_worker(worker))
                .filter(|(_, count)| *count > 0)
                .map(|(name, count)| format!("{name} {count}"))
                .collect();
            format!("\nworker {worker}: {}", counted.join(", "))
        };
        (0..self.metrics.workers()).map(counted).collect()
    }

    /// Sends a message of these operations and waits for the answers.
    pub fn ask(&mut self, operations: &[Operation<'_>]) -> Vec<Answer> {
        let header = self.header(operations.len());
        self.ask_as(&header, operations)
    }

    /// As [`Wire::ask`], under a header of the test's choice.
    pub fn ask_as(&mut self, header: &MessageHeader, operations: &[Operation<'_>]) -> Vec<Answer> {
        let mut message = Vec::new();
        encode_message(header, operations, &mut message);
        self.send(header.sequence as u16, &message);
        let (request_id, answered, answers) = self.receive();
        assert_eq!(request_id, header.sequence as u16);
        assert_eq!((answered.session, answered.sequence), (header.session, header.sequence));
        answers
    }

    /// One operation.
    pub fn one(&mut self, operation: Operation<'_>) -> Answer {
        let mut answers = self.ask(&[operation]);
        assert_eq!(answers.len(), 1);
        answers.remove(0)
    }
}

/// How often a long test does something: `count` times natively over the kernel's sockets; a fifth of it in the runs
/// over a driver or in the other tier of code, which show what these add.
pub fn rounds(count: u64) -> u64 {
    let is_variant = [network::DRIVER, CODE_VARIABLE].iter().any(|name| std::env::var_os(name).is_some());
    if is_variant { count / 5 } else { count }
}

/// The longest deadline of a client, for tests that are not about deadlines: the machine may be busy.
pub const PATIENT: Duration = sandstorm_client::limits::MAX_DEADLINE;

/// Sets a flag when it goes out of scope, which stops the threads that poll it. This holds after a panic, too:
/// otherwise a scope of threads would wait for ever.
pub struct Stop<'a>(pub &'a std::sync::atomic::AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

/// The client library's blocking client of an open tenant.
pub fn client(plane: &DataPlane, tenant: u32) -> sandstorm_client::blocking::Client {
    let config = network::config(plane, tenant).deadline(PATIENT);
    sandstorm_client::blocking::Client::connect(config).expect("a client")
}

/// As [`client`], with all requests sent to this worker, modulo `plane.metrics.workers()`. By default all of a tenant's
/// requests go to its home worker, where those of several clients hardly interleave.
pub fn client_at(plane: &DataPlane, tenant: u32, worker: usize) -> sandstorm_client::blocking::Client {
    let worker = sandstorm_client::Route::Worker((worker % plane.metrics.workers()) as u32);
    let config = network::config(plane, tenant).deadline(PATIENT).route(worker);
    sandstorm_client::blocking::Client::connect(config).expect("a client")
}

/// The modes of `ext/bad` that end in a kill, and its cause.
pub const BAD_KINDS: [(&str, KillCause); 14] = [
    ("loop", KillCause::TotalBudget),
    ("loop-scans", KillCause::TotalBudget),
    ("memcpy", KillCause::TotalBudget),
    ("slow-drop", KillCause::TotalBudget),
    ("yields", KillCause::TotalBudget),
    ("recursion", KillCause::StackOverflow),
    ("frame", KillCause::StackOverflow),
    ("allocation", KillCause::OutOfMemory),
    ("one-allocation", KillCause::OutOfMemory),
    ("panic", KillCause::Panic),
    ("division", KillCause::Panic),
    ("bounds", KillCause::Panic),
    ("unwrap", KillCause::Panic),
    ("overflow", KillCause::Panic),
];

/// Waits until nothing is charged to a tenant any more. The last answer may come a moment before its invocation is
/// cleaned up.
pub fn await_nothing_charged(plane: &DataPlane, tenant: u32) {
    let usage = || {
        let snapshot = plane.directory.snapshot();
        let usage = &snapshot.tenant(tenant).expect("the tenant is there").tenant.usage;
        let places: u64 = (0..plane.metrics.workers()).map(|worker| usage.worker(worker).invocations_live.get()).sum();
        (usage.running(), usage.invocation_memory_bytes(), places)
    };
    for _ in 0..12_000 {
        if usage() == (0, 0, 0) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("still charged: {:?} invocations, bytes of memory, places", usage());
}

/// Time for what takes a moment on a machine that does nothing else: a build of an extension beside other programs, at
/// the lowest priority, has taken over a minute.
pub const EVENTUALLY: Duration = Duration::from_secs(300);

/// Returns whether the condition comes true: other threads and processes take as long as the machine lets them.
pub fn eventually(mut it: impl FnMut() -> bool) -> bool {
    let asked = std::time::Instant::now();
    while !it() {
        if asked.elapsed() > EVENTUALLY {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Arguments of `ext/get`: table id, key.
pub fn get_args(key: &[u8]) -> Vec<u8> {
    [&1u64.to_le_bytes()[..], key].concat()
}
