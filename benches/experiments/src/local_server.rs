//! A whole server in this process, on free ports of loopback, with a state directory of its own. `demo` and `bench` run
//! against it through the same control port and packets as any other server.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use super::sysroot_cache;
use sandstorm_catalog::Directory;
use sandstorm_client::control::{
    Control, ExtensionSource, ExtensionSourceFile, PushOutcome, TableMode, TableSpec, TenantSpec,
};
use sandstorm_client::{Config as ClientConfig, control::ControlError};
use sandstorm_control::admin::ControlPlane;
use sandstorm_control::config::{CliOverrides, ServerSettings};
use sandstorm_instance::DataPlane;
use sandstorm_net::CodePolicy;
use sandstorm_server::limits::INVOCATIONS_PER_WORKER;

use sandstorm_terminal::output::CliError;

/// An extension whose source is part of this program.
pub struct ExampleExtension {
    /// Its name, which is also its folder below `ext/`.
    pub name: &'static str,
    manifest: &'static str,
    /// Paths and texts.
    files: &'static [(&'static str, &'static str)],
}

macro_rules! source {
    ($name:literal, $file:literal) => {
        ($file, include_str!(concat!("../../../ext/", $name, "/", $file)))
    };
}

macro_rules! examples {
    ($($constant:ident = $name:literal $([$($more:literal),*])?),* $(,)?) => {
        $(#[doc = concat!("`ext/", $name, "`.")]
        pub const $constant: ExampleExtension = ExampleExtension {
            name: $name,
            manifest: include_str!(concat!("../../../ext/", $name, "/extension.toml")),
            files: &[source!($name, "src/lib.rs") $($(, source!($name, $more))*)?],
        };)*
        /// All of them.
        const EXAMPLES: &[&ExampleExtension] = &[$(&$constant),*];
    };
}
examples!(
    GET = "get",
    CHAIN = "chain",
    AGGREGATE = "aggregate",
    BAD = "bad",
    LONG = "long",
    RANGE = "range",
    CHECKSUM = "checksum",
    ANALYSIS = "analysis",
    AUTH = "auth",
    TOTAL = "total",
    TRANSFER = "transfer",
    TAO = "tao" [
        "src/args.rs",
        "src/edges.rs",
        "src/fields.rs",
        "src/keys.rs",
        "src/list_state.rs",
        "src/lists.rs",
        "src/objects.rs",
        "src/page.rs",
        "src/positions.rs",
        "src/schema.rs"
    ],
);

impl ExampleExtension {
    /// Returns the example with that name.
    pub fn named(name: &str) -> Option<&'static ExampleExtension> {
        EXAMPLES.iter().find(|example| example.name == name).copied()
    }

    /// Its source in the form of a push.
    pub fn push(&self) -> ExtensionSource {
        let file = |(path, text): &(&str, &str)| ExtensionSourceFile { path: (*path).into(), text: (*text).into() };
        ExtensionSource { manifest: self.manifest.into(), files: self.files.iter().map(file).collect() }
    }
}

/// The server; stops when dropped and removes its files.
pub struct LocalServer {
    // Dropped in this order: control, then workers, then the directory.
    plane: ControlPlane,
    data: DataPlane,
    control: Control,
    folder: LockedFolder,
}

/// The code of the server's tenants.
const LOCAL_CODE: CodePolicy = CodePolicy::Native;
/// Longest time for an answer. A machine with other work beside a demo or measurement is slow, not broken.
const DEADLINE: Duration = Duration::from_secs(20);
/// Prefix of the names of such servers' folders.
const FOLDER_PREFIX: &str = "sandstorm-local-";
/// The file in such a folder that its process locks for as long as it lives.
const LOCK_FILE: &str = "lock";

/// A folder for as long as this process lives. A killed process leaves its folder, and the next one removes it.
struct LockedFolder {
    folder: tempfile::TempDir,
    _lock: File,
}

impl LockedFolder {
    /// Makes a folder in `parent`, and removes those there whose processes are gone.
    fn new_in(parent: &Path) -> std::io::Result<LockedFolder> {
        let found = std::fs::read_dir(parent)?.flatten();
        let ours = |name: std::ffi::OsString| name.to_string_lossy().starts_with(FOLDER_PREFIX);
        found.filter(|entry| ours(entry.file_name())).for_each(|entry| remove_if_stale(&entry.path()));
        let folder = tempfile::Builder::new().prefix(FOLDER_PREFIX).tempdir_in(parent)?;
        // It gets its final name only once it is locked: other processes take an unlocked folder for a stale one.
        let unlocked = folder.path().join("unlocked");
        let lock = File::create_new(&unlocked)?;
        lock.lock()?;
        std::fs::rename(unlocked, folder.path().join(LOCK_FILE))?;
        Ok(LockedFolder { folder, _lock: lock })
    }
}

/// Removes such a folder if no process holds its lock. Folders of other users cannot be read, and stay.
fn remove_if_stale(folder: &Path) {
    let is_folder = std::fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir());
    let Some(lock) = is_folder.then(|| File::open(folder.join(LOCK_FILE)).ok()).flatten() else { return };
    if lock.try_lock().is_ok() {
        let _somebody_elses = std::fs::remove_dir_all(folder);
    }
}

/// A tenant of the server, with one table.
pub struct LocalTenant {
    /// Its number.
    pub id: u32,
    /// Its token.
    pub token: String,
    /// Its table's number.
    pub table: u64,
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        sysroot_cache::give(&self.folder.folder.path().join("state"));
    }
}

impl LocalServer {
    /// Starts a server with these changes to the defaults. The compiler's sysroots are made anew, which takes about two
    /// seconds, unless a [`sysroot_cache::SysrootCache`] is open and has them.
    pub fn start_as(change: impl FnOnce(&mut CliOverrides)) -> Result<LocalServer, CliError> {
        let folder = LockedFolder::new_in(&std::env::temp_dir())?;
        let state = folder.folder.path().join("state");
        sysroot_cache::take(&state);
        let mut overrides = CliOverrides {
            data: Some(([127, 0, 0, 1], 0).into()),
            control: Some(([127, 0, 0, 1], 0).into()),
            ephemeral: Some(true),
            code: Some(LOCAL_CODE),
            state: Some(state),
            ..CliOverrides::default()
        };
        change(&mut overrides);
        let failure = |error: &dyn std::fmt::Display| CliError::new(error.to_string());
        let config = ServerSettings::load(None, &overrides).map_err(|error| failure(&error))?;
        let data = DataPlane::start(&config).map_err(|error| failure(&error))?;
        let served = data.served();
        let plane = ControlPlane::start(&config, served, || {}).map_err(|error| failure(&error))?;
        let token = plane.operator_token().map_err(|error| failure(&error))?;
        let control = Control::new(&plane.address().to_string(), Some(&token));
        Ok(LocalServer { plane, data, control, folder })
    }

    /// Describes the server and its address in a line.
    pub fn line(&self) -> String {
        let workers = self.data.metrics.workers();
        let plural = if workers == 1 { "" } else { "s" };
        let (data, control) = (self.data.address(), self.plane.address());
        format!("{workers} worker{plural} on udp {data}, control on http://{control}")
    }

    /// A client of its control port, with the operator's token.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// The address of its control port.
    pub fn control_address(&self) -> std::net::SocketAddr {
        self.plane.address()
    }

    /// The operator's token.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn operator_token(&self) -> Result<String, CliError> {
        self.plane.operator_token().map_err(|error| CliError::new(error.to_string()))
    }

    /// Its directory, for what the control port does not do: to load libraries that no builder has signed.
    pub fn directory(&self) -> std::sync::Arc<Directory> {
        self.data.served().directory
    }

    /// The address of its first worker.
    pub fn address(&self) -> std::net::SocketAddr {
        self.data.address()
    }

    /// The addresses of its ports for memcached and Redis clients, in the order of the configuration.
    pub fn listening(&self) -> &[std::net::SocketAddr] {
        self.data.listening()
    }

    /// Packets shed behind the sockets, and messages that were dropped before that.
    pub fn counters(&self) -> (u64, u64) {
        (self.count("packets_shed"), self.count("packets_dropped_early"))
    }

    /// Microseconds that its workers were busy, all together.
    pub fn busy_us(&self) -> u64 {
        self.count("busy_us")
    }

    /// Messages that its workers have received.
    #[cfg(feature = "dpdk")]
    pub fn messages(&self) -> u64 {
        self.count("messages")
    }

    /// Runs a load that measures for so long after a warm-up of a quarter of that. Returns also the part of a second
    /// that its workers were busy in the middle of it.
    pub fn busy_while<T>(
        &self,
        seconds: f64,
        load: impl FnOnce() -> Result<T, CliError>,
    ) -> Result<(T, f64), CliError> {
        let (begin, end) = (Duration::from_secs_f64(seconds * 0.4), Duration::from_secs_f64(seconds * 0.7));
        let watch = || {
            std::thread::sleep(begin);
            let (at, before) = (Instant::now(), self.busy_us());
            std::thread::sleep(end);
            (self.busy_us() - before) as f64 / at.elapsed().as_micros() as f64
        };
        std::thread::scope(|scope| {
            let watch = scope.spawn(watch);
            let done = load()?;
            Ok((done, watch.join().unwrap_or(f64::NAN)))
        })
    }

    /// A metric's sum over all workers and labels.
    fn count(&self, name: &str) -> u64 {
        let readings = self.data.metrics.read();
        let reading = readings.iter().find(|reading| reading.metric.name == name);
        reading.map_or(0, |reading| reading.values.iter().sum())
    }

    /// Creates a tenant and its table.
    pub fn tenant(&self, name: &str, table: &str, mode: TableMode) -> Result<LocalTenant, ControlError> {
        self.tenant_with_code(name, table, mode, None)
    }

    /// As [`LocalServer::tenant`], with a policy of its own for its code.
    pub fn tenant_with_code(
        &self,
        name: &str,
        table: &str,
        mode: TableMode,
        code: Option<CodePolicy>,
    ) -> Result<LocalTenant, ControlError> {
        // As many concurrent calls, and as many kills, as the machine allows: a measurement must not meet a quota.
        let quotas = [
            ("concurrent_invocations", INVOCATIONS_PER_WORKER as u64),
            ("slow_after_kills", 0),
            ("suspend_after_kills", 0),
        ];
        let quotas = quotas.map(|(name, value)| (name.to_owned(), value)).into();
        let spec = TenantSpec { name: name.into(), quotas, code, ..TenantSpec::default() };
        let created = self.control.create_tenant(&spec)?;
        let table = self.control.create_table(name, &TableSpec { name: table.into(), mode, ..TableSpec::default() })?;
        Ok(LocalTenant { id: created.tenant.id, token: created.token, table: table.id })
    }

    /// Pushes an example for a tenant, from source through the builder.
    pub fn push(&self, tenant: &str, example: &ExampleExtension) -> Result<PushOutcome, ControlError> {
        self.control.push(tenant, example.name, &example.push())
    }

    /// The client configuration of that tenant.
    pub fn client(&self, tenant: &LocalTenant) -> ClientConfig {
        ClientConfig::new(self.data.address(), tenant.id).token(tenant.token.clone()).deadline(DEADLINE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_has_left_is_removed_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        for (name, lock) in [("sandstorm-local-left", true), ("sandstorm-local-new", false), ("sandstorm-other", true)]
        {
            std::fs::create_dir(at(name)).unwrap();
            if lock {
                std::fs::write(at(name).join(LOCK_FILE), "").unwrap();
            }
        }
        std::os::unix::fs::symlink(at("sandstorm-other"), at("sandstorm-local-link")).unwrap();
        let lives = LockedFolder::new_in(parent.path()).unwrap();
        assert!(!at("sandstorm-local-left").exists(), "nobody holds its lock");
        let next = LockedFolder::new_in(parent.path()).unwrap();
        for remaining in ["sandstorm-local-new", "sandstorm-other/lock", "sandstorm-local-link"] {
            assert!(at(remaining).exists(), "{remaining}");
        }
        assert!(lives.folder.path().exists() && next.folder.path().exists());
        let path = lives.folder.path().to_owned();
        drop(lives);
        assert!(!path.exists());
    }
}
