//! The servers that are provoked, and what they need: a builder that can be stopped, an etcd, a small disk.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::super::cluster::EtcdProcess;
use crate::common::disk::SmallDisk;
use crate::common::eventually;
use crate::common::ports::free_port;
use crate::common::process::{Server, state_in};

/// Which server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ServerRole {
    /// One whose tenants do what they should not.
    Busy,
    /// One that is a cluster of its own.
    Alone,
    /// One on a small disk, which is restarted and killed.
    Restarted,
}

/// Alerts that take an etcd.
const OF_CLUSTERS: [&str; 2] = ["SandstormCopiesMissing", "SandstormCopiesFewer"];
/// Alerts that take a disk of the test's own.
const OF_DISKS: [&str; 3] = ["SandstormLogDamaged", "SandstormLogFailed", "SandstormChangesRefused"];
/// The tenants of [`ServerRole::Busy`], open, with ids from 1, and their quotas.
const TENANTS: [(&str, &str); 9] = [
    ("floods", "requests_per_s = 50"),
    ("redis", ""),
    ("nearly", ""),
    ("killed", "slow_after_kills = 0, suspend_after_kills = 0"),
    ("suspended", ""),
    ("slowed", "slow_after_kills = 3, suspend_after_kills = 0"),
    ("full", ""),
    ("hot", ""),
    ("pushes", "waiting_pushes = 20"),
];
/// Bytes of the tenants' tables: the smallest that is soon full.
const TABLE_BYTES: u64 = 4 << 20;
/// The id of each tenant's table.
pub(super) const ITEMS: u64 = 1;
/// The id of the table of [`ServerRole::Alone`] with a value of many packets.
pub(super) const LARGE: u64 = 2;

/// The id of a tenant of [`ServerRole::Busy`].
pub(super) fn id_of(tenant: &str) -> u32 {
    TENANTS.iter().position(|(name, _)| *name == tenant).expect("a tenant") as u32 + 1
}

/// A builder in a process of its own; ended when dropped.
struct BuilderProcess {
    process: Child,
    said: Value,
    folder: TempDir,
}

impl BuilderProcess {
    fn start() -> BuilderProcess {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("builder.toml");
        // The kernel of the machine that runs the tests may offer no sandbox; the tests of the sandbox itself say so.
        fs::write(&config, "[builder]\nallow_unsandboxed = true\ncompilers = 1\n").expect("room");
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandstorm-under-test"));
        command.args(["builder", "serve", "--json", "--listen", "127.0.0.1:0"]).arg("--config").arg(config);
        command.arg("--state").arg(state_in(folder.path())).stdout(Stdio::piped()).env_remove("RUST_LOG");
        let mut process = command.spawn().expect("a builder");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        let said = serde_json::from_str(&line).expect("the builder says where it is");
        BuilderProcess { process, said, folder }
    }

    /// The lines of a server's configuration that name it.
    fn lines(&self) -> String {
        let text = |name: &str| self.said[name].as_str().unwrap_or_else(|| panic!("{name} in {}", self.said));
        let (url, file, key) = (text("url"), text("token_file"), text("public_key"));
        format!("[builder]\nremote = '{url}'\nremote_token_file = '{file}'\ntrusted_keys = ['{key}']\n")
    }
}

impl Drop for BuilderProcess {
    fn drop(&mut self) {
        for signal in [Signal::CONT, Signal::TERM] {
            let _ended_already = kill_process(Pid::from_child(&self.process), signal);
        }
        let _status = self.process.wait();
    }
}

/// A server that can be started again where it was.
pub(super) struct RestartedServer {
    pub(super) server: Option<Server>,
    options: Vec<String>,
    folder: Arc<TempDir>,
    pub(super) disk: Option<SmallDisk>,
}

impl RestartedServer {
    fn start(config: &Path) -> RestartedServer {
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        let disk = SmallDisk::mount(folder.path().join("state"), "size=160m,mode=700");
        // It needs no sysroots: its builder is elsewhere.
        fs::create_dir_all(folder.path().join("state/builder")).expect("a folder");
        let control = format!("127.0.0.1:{}", free_port());
        let config = config.display().to_string();
        let options =
            ["--control", &control, "--data", "127.0.0.1:0", "--workers", "1", "--no-pin", "--config", &config];
        let options = options.map(str::to_owned).to_vec();
        let mut started = RestartedServer { server: None, options, folder, disk };
        started.restart(None);
        started
    }

    /// Stops the server in order, and starts it again, with another option.
    pub(super) fn restart(&mut self, more: Option<&str>) {
        drop(self.server.take());
        let options: Vec<&str> = self.options.iter().map(String::as_str).chain(more).collect();
        self.server = Some(Server::start_in(None, Arc::clone(&self.folder), &options));
    }

    pub(super) fn state(&self) -> std::path::PathBuf {
        self.folder.path().join("state")
    }
}

impl Drop for RestartedServer {
    fn drop(&mut self) {
        // Before its disk.
        drop(self.server.take());
    }
}

/// All of them.
pub(super) struct ProvokedServers {
    pub(super) busy: Server,
    pub(super) alone: Server,
    restarted: Option<RestartedServer>,
    has_disk: bool,
    etcd: Option<EtcdProcess>,
    builder: BuilderProcess,
}

fn start(folder: &Path, name: &str, config: &str, more: &[&str]) -> Server {
    let file = folder.join(name);
    fs::write(&file, config).expect("room");
    let file = file.display().to_string();
    Server::start_as(&[&["--workers", "1", "--no-pin", "--config", &file], more].concat())
}

/// A tenant of the configuration file, open, with tables of these names and further keys.
fn tenant(name: &str, id: usize, quotas: &str, tables: &str) -> String {
    format!("[[tenants]]\nname = '{name}'\nid = {id}\nopen = true\nquotas = {{ {quotas} }}\ntables = [{tables}]\n")
}

/// The address of a server that Prometheus reads, and a token for it.
pub(super) fn target(server: &Server) -> (String, String) {
    let made = server.json("token create prometheus");
    let token = made["token"].as_str().expect("a token").to_owned();
    (server.control.trim_start_matches("http://").to_owned(), token)
}

impl ProvokedServers {
    pub(super) fn start() -> ProvokedServers {
        let builder = BuilderProcess::start();
        let (folder, lines) = (builder.folder.path(), builder.lines());
        let table = format!("{{ name = 'items', id = {ITEMS}, quota_bytes = {TABLE_BYTES} }}");
        let tenants = (1..).zip(TENANTS).map(|(id, (name, quotas))| tenant(name, id, quotas, &table));
        let config = lines.clone() + &tenants.collect::<String>();
        let busy = start(folder, "busy.toml", &config, &["--redis", "127.0.0.1:0=redis/items"]);
        let etcd = EtcdProcess::start();
        let cluster = etcd.as_ref().map(EtcdProcess::cluster);
        if let Some(etcd) = &etcd {
            assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
        }
        let tables = format!("{{ name = 'items', id = {ITEMS} }}, {{ name = 'large', id = {LARGE} }}");
        let options: Vec<&str> = cluster.iter().flat_map(|cluster| ["--cluster", cluster.as_str()]).collect();
        let alone = start(folder, "alone.toml", &(lines.clone() + &tenant("shop", 1, "", &tables)), &options);
        let config = folder.join("restarted.toml");
        fs::write(&config, lines).expect("room");
        let restarted = RestartedServer::start(&config);
        let has_disk = restarted.disk.is_some();
        ProvokedServers { busy, alone, restarted: Some(restarted), has_disk, etcd, builder }
    }

    fn of(&self, place: ServerRole) -> Option<&Server> {
        match place {
            ServerRole::Busy => Some(&self.busy),
            ServerRole::Alone => Some(&self.alone),
            ServerRole::Restarted => self.restarted.as_ref().and_then(|restarted| restarted.server.as_ref()),
        }
    }

    /// The addresses that Prometheus reads, and tokens for it.
    pub(super) fn targets(&self) -> Vec<(String, String)> {
        let servers =
            [ServerRole::Busy, ServerRole::Alone, ServerRole::Restarted].into_iter().filter_map(|place| self.of(place));
        servers.map(target).collect()
    }

    /// The server that is restarted, which is then the caller's.
    pub(super) fn take_restarted(&mut self) -> RestartedServer {
        self.restarted.take().expect("it is taken once")
    }

    /// The place of the server with this address.
    pub(super) fn place_of(&self, address: &str) -> ServerRole {
        let is = |place: ServerRole| self.of(place).is_some_and(|server| server.control.ends_with(address));
        [ServerRole::Busy, ServerRole::Alone].into_iter().find(|place| is(*place)).unwrap_or(ServerRole::Restarted)
    }

    /// Whether there is what an alert takes.
    pub(super) fn has(&self, alert: &str) -> bool {
        (self.etcd.is_some() || !OF_CLUSTERS.contains(&alert)) && (self.has_disk || !OF_DISKS.contains(&alert))
    }

    /// Pushes `ext/bad` for the tenants whose calls end badly.
    pub(super) fn push_extensions(&self) {
        for tenant in ["killed", "slowed", "suspended"] {
            self.busy.json(&format!("ext push ../ext/bad --tenant {tenant}"));
        }
    }

    /// Stops the builder, so that pushes wait.
    pub(super) fn stop_builder(&self) {
        kill_process(Pid::from_child(&self.builder.process), Signal::STOP).expect("it runs");
    }
}
