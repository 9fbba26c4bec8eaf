//! A whole server in this process, on free ports of loopback and a state directory of its own: what `demo` and `bench`
//! run against, through the same control port and packets as any other.

use sandstorm_client::control::{Control, CreateTable, CreateTenant, Push, Pushed, SourceFile, TableMode};
use sandstorm_client::{Config as ClientConfig, control::ControlError};
use sandstorm_db::admin::{ControlPlane, Served};
use sandstorm_db::config::{Config, Overrides};
use sandstorm_db::limits::INVOCATIONS_PER_WORKER;
use sandstorm_db::server::DataPlane;
use sandstorm_db::workers::ListenAt;

use super::output::Failure;

/// An extension whose source is part of this program.
pub(super) struct Example {
    pub(super) name: &'static str,
    manifest: &'static str,
    source: &'static str,
}

macro_rules! examples {
    ($($constant:ident = $name:literal),* $(,)?) => {
        $(pub(super) const $constant: Example = Example {
            name: $name,
            manifest: include_str!(concat!("../../../ext/", $name, "/extension.toml")),
            source: include_str!(concat!("../../../ext/", $name, "/src/lib.rs")),
        };)*
    };
}
examples!(GET = "get", CHAIN = "chain", AGGREGATE = "aggregate", BAD = "bad", LONG = "long");

impl Example {
    fn push(&self) -> Push {
        let file = SourceFile { path: "src/lib.rs".into(), text: self.source.into() };
        Push { manifest: self.manifest.into(), files: vec![file] }
    }
}

/// The server; stops when dropped, and leaves nothing behind.
pub(super) struct LocalServer {
    // Dropped in this order: control, then workers, then the directory.
    plane: ControlPlane,
    data: DataPlane,
    control: Control,
    _state: tempfile::TempDir,
}

/// A tenant of it, with one table.
pub(super) struct LocalTenant {
    pub(super) id: u32,
    pub(super) token: String,
    pub(super) table: u64,
}

impl LocalServer {
    /// Starts one with so many workers. The compiler's sysroot is made anew: about a second.
    pub(super) fn start(workers: Option<usize>, poll: bool) -> Result<LocalServer, Failure> {
        LocalServer::start_listening(workers, poll, Vec::new())
    }

    /// The same, with ports for clients of memcached and Redis.
    pub(super) fn start_listening(
        workers: Option<usize>,
        poll: bool,
        listen: Vec<ListenAt>,
    ) -> Result<LocalServer, Failure> {
        let state = tempfile::Builder::new().prefix("sandstorm-").tempdir()?;
        let overrides = Overrides {
            data: Some(([127, 0, 0, 1], 0).into()),
            control: Some(([127, 0, 0, 1], 0).into()),
            workers,
            poll: Some(poll),
            listen,
            state: Some(state.path().join("state")),
            ..Overrides::default()
        };
        let failure = |error: &dyn std::fmt::Display| Failure::new(error.to_string());
        let config = Config::load(None, &overrides).map_err(|error| failure(&error))?;
        let data = DataPlane::start(&config).map_err(|error| failure(&error))?;
        let served = Served { directory: data.directory.clone(), metrics: data.metrics.clone(), data: data.address() };
        let plane = ControlPlane::start(&config, served, || {}).map_err(|error| failure(&error))?;
        let token = plane.operator_token().map_err(|error| failure(&error))?;
        let control = Control::new(&plane.address().to_string(), Some(&token));
        Ok(LocalServer { plane, data, control, _state: state })
    }

    /// What it is and where, in a line.
    pub(super) fn line(&self) -> String {
        let workers = self.data.metrics.workers();
        let plural = if workers == 1 { "" } else { "s" };
        let (data, control) = (self.data.address(), self.plane.address());
        format!("{workers} worker{plural} on udp {data}, control on http://{control}")
    }

    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    /// Where its first worker listens.
    pub(super) fn address(&self) -> std::net::SocketAddr {
        self.data.address()
    }

    /// Where its ports for clients of memcached and Redis are, in the order in which they were asked for.
    pub(super) fn listening(&self) -> &[std::net::SocketAddr] {
        self.data.listening()
    }

    /// Packets shed behind the sockets, and messages dropped before they came there.
    pub(super) fn counters(&self) -> (u64, u64) {
        let readings = self.data.metrics.read();
        let count = |name: &str| {
            let reading = readings.iter().find(|reading| reading.metric.name == name);
            reading.map_or(0, |reading| reading.values.iter().sum())
        };
        (count("packets_shed"), count("packets_dropped_early"))
    }

    /// Creates a tenant and its table.
    pub(super) fn tenant(&self, name: &str, table: &str, mode: TableMode) -> Result<LocalTenant, ControlError> {
        // As many calls at once, and as many kills, as the machine gives: a measurement should meet no quota.
        let quotas = [
            ("concurrent_invocations", INVOCATIONS_PER_WORKER as u64),
            ("slow_after_kills", 0),
            ("suspend_after_kills", 0),
        ];
        let quotas = quotas.map(|(name, value)| (name.to_owned(), value)).into();
        let created =
            self.control.create_tenant(&CreateTenant { name: name.into(), quotas, ..CreateTenant::default() })?;
        let table =
            self.control.create_table(name, &CreateTable { name: table.into(), mode, ..CreateTable::default() })?;
        Ok(LocalTenant { id: created.tenant.id, token: created.token, table: table.id })
    }

    /// Pushes an example for a tenant, from source through the builder.
    pub(super) fn push(&self, tenant: &str, example: &Example) -> Result<Pushed, ControlError> {
        self.control.push(tenant, example.name, &example.push())
    }

    /// How a client reaches the server as that tenant.
    pub(super) fn client(&self, tenant: &LocalTenant) -> ClientConfig {
        ClientConfig::new(self.data.address(), tenant.id).token(tenant.token.clone())
    }
}
