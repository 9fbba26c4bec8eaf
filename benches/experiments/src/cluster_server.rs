//! Servers of a cluster as processes of their own, with an etcd, on this machine: what the experiments of several
//! servers share.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sandstorm_client::Config;
use sandstorm_client::control::{ClusterStatus, Control};
use sandstorm_terminal::output::CliError;

use super::peer_server::{free_address, is_installed};
use super::report::ExperimentFindings;

/// The program of the etcd.
const ETCD: &str = "etcd";
/// Longest wait for anything between the measurements.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Longest time for an answer to a load's request: a busy machine is slow, not broken.
const DEADLINE: Duration = Duration::from_secs(20);
/// The id of the servers' only tenant, which needs no token.
const TENANT_ID: u32 = 1;
/// The file with the tenant and its tables in an experiment's folder.
const TENANTS_FILE: &str = "tenants.toml";

/// A process; killed when dropped.
pub(super) struct ClusterProcess(Child);

impl Drop for ClusterProcess {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _status = self.0.wait();
    }
}

impl ClusterProcess {
    /// Starts a program that says nothing here.
    pub(super) fn start(command: &mut Command) -> Result<ClusterProcess, CliError> {
        Ok(ClusterProcess(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }
}

/// Waits until something is so.
pub(super) fn await_that(what: &str, mut is_so: impl FnMut() -> Result<bool, CliError>) -> Result<(), CliError> {
    let until = Instant::now() + PATIENCE;
    // What is not there yet may answer with errors.
    while !matches!(is_so(), Ok(true)) {
        if Instant::now() > until {
            return Err(CliError::new(format!("{what} after {PATIENCE:?}")));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}

/// Whether there is an etcd; notes that the experiment is left out if there is none.
pub(super) fn has_etcd(findings: &mut ExperimentFindings) -> bool {
    let is_there = is_installed(ETCD).is_ok();
    if !is_there {
        findings.notes.push("skipped: no `etcd` here (Debian's package etcd-server)".to_owned());
    }
    is_there
}

/// The folder of an experiment's servers, and their etcd. Whatever runs there ends when it is dropped.
pub(super) struct ClusterFolder {
    _etcd: ClusterProcess,
    etcd: SocketAddr,
    folder: tempfile::TempDir,
}

impl ClusterFolder {
    /// Starts an etcd. `tables`: the tables of the servers' only tenant, `bench`, as the configuration file has them.
    pub(super) fn start(tables: &str) -> Result<ClusterFolder, CliError> {
        let folder = tempfile::tempdir()?;
        let tenants = format!("[[tenants]]\nname = 'bench'\nid = {TENANT_ID}\nopen = true\ntables = [{tables}]\n");
        std::fs::write(folder.path().join(TENANTS_FILE), tenants)?;
        let (etcd, address) = start_etcd(folder.path())?;
        Ok(ClusterFolder { _etcd: etcd, etcd: address, folder })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A server that is started later: the options of `sandstorm serve` besides its ports and files. `founders`: as
    /// many servers divide the slots once they live; `None`: it belongs to no cluster.
    pub(super) fn server(&self, founders: Option<usize>, options: &str) -> Result<SpawnedServer, CliError> {
        let (redis, control, data) = (free_address()?, free_address()?.to_string(), free_address()?);
        let state = self.path().join(format!("server-{}", data.port()));
        let mut line = format!(
            "serve --no-builder --workers 1 --data {data} --control {control} --redis {redis}=bench/t --config {} \
             --state {}",
            self.path().join(TENANTS_FILE).display(),
            state.display()
        );
        if let Some(founders) = founders {
            line.push_str(&format!(" --cluster etcd://{}/bench --cluster-servers {founders}", self.etcd));
        }
        let arguments = line.split(' ').chain(options.split_whitespace()).map(str::to_owned).collect();
        let (id, process) = (String::new(), None);
        Ok(SpawnedServer { arguments, state, data, redis, control, is_member: founders.is_some(), id, process })
    }

    /// Starts servers that divide the slots evenly, and waits until they have.
    pub(super) fn start_servers(&self, count: usize, options: &str) -> Result<Vec<SpawnedServer>, CliError> {
        let mut servers = Vec::new();
        for _ in 0..count {
            let mut server = self.server(Some(count), options)?;
            server.start()?;
            servers.push(server);
        }
        for server in &servers {
            await_that("the servers do not divide the slots", || {
                let status = server.status()?;
                Ok(status.unowned.is_empty() && status.servers.iter().filter(|one| one.lives).count() == count)
            })?;
        }
        Ok(servers)
    }
}

fn start_etcd(folder: &Path) -> Result<(ClusterProcess, SocketAddr), CliError> {
    let (clients, peers) = (free_address()?, format!("http://{}", free_address()?));
    let url = format!("http://{clients}");
    let mut command = Command::new(ETCD);
    command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &format!("default={peers}"), "--data-dir"]).arg(folder.join("etcd"));
    let process = ClusterProcess::start(&mut command)?;
    await_that("etcd does not serve", || Ok(TcpStream::connect(clients).is_ok()))?;
    Ok((process, clients))
}

/// A server that is started, and perhaps again.
pub(super) struct SpawnedServer {
    arguments: Vec<String>,
    state: PathBuf,
    pub(super) data: SocketAddr,
    pub(super) redis: SocketAddr,
    control: String,
    is_member: bool,
    /// Its id in the cluster, once it was started.
    pub(super) id: String,
    pub(super) process: Option<ClusterProcess>,
}

impl SpawnedServer {
    /// Starts it, and waits until it answers.
    pub(super) fn start(&mut self) -> Result<(), CliError> {
        let mut command = Command::new(std::env::current_exe()?);
        self.process = Some(ClusterProcess::start(command.args(&self.arguments))?);
        await_that("a server does not serve", || {
            if !self.is_member {
                return Ok(self.control().stat().is_ok());
            }
            self.id = self.status()?.server;
            Ok(!self.id.is_empty())
        })
    }

    pub(super) fn control(&self) -> Control {
        let token = std::fs::read_to_string(self.state.join("operator-token")).unwrap_or_default();
        Control::new(&self.control, Some(token.trim()))
    }

    pub(super) fn status(&self) -> Result<ClusterStatus, CliError> {
        Ok(self.control().cluster()?)
    }

    /// What a client of its tenant begins with.
    pub(super) fn client(&self) -> Config {
        Config::new(self.data, TENANT_ID).deadline(DEADLINE)
    }

    /// Microseconds that its worker was busy so far.
    pub(super) fn busy_us(&self) -> Result<f64, CliError> {
        let stats = self.control().stat()?;
        let busy_us = stats.counters.get("busy_us").copied();
        busy_us.map(|us| us as f64).ok_or_else(|| CliError::new("the server does not tell how busy it was".to_owned()))
    }
}
