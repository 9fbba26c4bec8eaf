//! The processes at the other end: servers and echoes. They are stopped while others are measured, so that no waiting
//! process takes time of a measured core.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use sandstorm_client::control::{Control, TableSpec, TenantSpec};
use sandstorm_server::limits::INVOCATIONS_PER_WORKER;
use serde_json::Value;

use super::netns::NetworkNamespace;
use crate::local_server::{GET, LocalTenant};
use crate::sysroot_cache;
use sandstorm_terminal::output::CliError;

/// A child process of this program; ended when dropped.
pub(super) struct ChildProcess {
    child: Child,
    /// The first line that it printed.
    reported: Value,
    /// Its standard error.
    stderr: File,
    lab: Option<Arc<NetworkNamespace>>,
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // It may have ended by itself; nothing of it is needed any more.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Lets a stopped process run until this value is dropped.
pub(super) struct ResumedProcess<'p>(&'p ChildProcess);

impl Drop for ResumedProcess<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::STOP);
    }
}

impl ChildProcess {
    /// Starts this program with these arguments, in a namespace if one is given, and waits until it prints its address.
    fn start(words: &[String], lab: Option<&Arc<NetworkNamespace>>) -> Result<ChildProcess, CliError> {
        // The child ends with this process, however this one ends, stopped or not.
        let mut line: Vec<String> = ["setpriv", "--pdeathsig", "KILL"].map(str::to_owned).into();
        line.extend(lab.iter().flat_map(|lab| lab.words()).map(str::to_owned));
        line.push(std::env::current_exe()?.display().to_string());
        let mut command = Command::new(&line[0]);
        let stderr = tempfile::tempfile()?;
        command.args(&line[1..]).args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr.try_clone()?);
        let child = command.spawn();
        let child = child.map_err(|error| CliError::new(format!("cannot start a process under setpriv: {error}")))?;
        let mut process = ChildProcess { child, reported: Value::Null, stderr, lab: lab.cloned() };
        let mut first = String::new();
        if let Some(out) = process.child.stdout.take() {
            BufReader::new(out).read_line(&mut first)?;
        }
        if first.is_empty() {
            return Err(process.why());
        }
        process.reported =
            serde_json::from_str(&first).map_err(|_| CliError::new(format!("a process says {first:?}")))?;
        Ok(process)
    }

    /// Returns the error of a process that ended at once.
    fn why(&mut self) -> CliError {
        let mut reported = String::new();
        let read = self.stderr.rewind().and_then(|()| self.stderr.read_to_string(&mut reported));
        let lines: Vec<&str> = reported.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let has_text = read.is_ok() && !lines.is_empty();
        CliError::new(if has_text { lines.join("; ") } else { "a process ends at once".to_owned() })
    }

    fn signal(&self, signal: Signal) {
        // It may have ended; the next use of it shows that.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ended = kill_process(pid, signal);
        }
    }

    /// Lets the process run as long as the result lives.
    pub(super) fn resume(&self) -> ResumedProcess<'_> {
        self.signal(Signal::CONT);
        ResumedProcess(self)
    }

    /// The address to which datagrams for it are sent.
    pub(super) fn address(&self) -> Result<SocketAddr, CliError> {
        let address = self.reported["data"].as_str().and_then(|text| text.parse().ok());
        address.ok_or_else(|| CliError::new("a process does not say where it is"))
    }
}

/// Starts an echo of one thread in a process of its own.
pub(super) fn start_echo(options: &[String], lab: Option<&Arc<NetworkNamespace>>) -> Result<ChildProcess, CliError> {
    let words: Vec<String> = ["bench", "--echo"].map(str::to_owned).into_iter().chain(options.to_vec()).collect();
    ChildProcess::start(&words, lab)
}

/// A server with one tenant that may call `get`.
pub(super) struct ServerProcess {
    pub(super) process: ChildProcess,
    pub(super) tenant: LocalTenant,
    token: String,
    _folder: tempfile::TempDir,
}

impl ServerProcess {
    /// Starts a server with these options and a core of its own for its worker.
    pub(super) fn start(options: &[String], lab: Option<&Arc<NetworkNamespace>>) -> Result<ServerProcess, CliError> {
        let folder = tempfile::tempdir()?;
        let state = folder.path().join("state");
        sysroot_cache::take(&state);
        let plain = "serve --json --control 127.0.0.1:0 --workers 1 --ephemeral --allow-plaintext --state";
        let words = plain.split(' ').map(str::to_owned).chain([state.display().to_string()]);
        let process = ChildProcess::start(&words.chain(options.to_vec()).collect::<Vec<_>>(), lab)?;
        sysroot_cache::give(&state);
        let file = PathBuf::from(process.reported["operator_token_file"].as_str().unwrap_or_default());
        let token = std::fs::read_to_string(&file)?.trim().to_owned();
        let tenant = LocalTenant { id: 0, token: String::new(), table: 0 };
        let mut server = ServerProcess { process, tenant, token, _folder: folder };
        server.tenant = server.control(|control| {
            let quotas = [("concurrent_invocations".to_owned(), INVOCATIONS_PER_WORKER as u64)].into();
            let create = TenantSpec { name: "bench".into(), quotas, ..TenantSpec::default() };
            let created = control.create_tenant(&create)?;
            let table = control.create_table("bench", &TableSpec { name: "t".into(), ..TableSpec::default() })?;
            control.push("bench", GET.name, &GET.push())?;
            Ok(LocalTenant { id: created.tenant.id, token: created.token, table: table.id })
        })?;
        Ok(server)
    }

    /// Asks its control port, which is in the server's namespace.
    fn control<T: Send>(&self, call: impl FnOnce(&Control) -> Result<T, CliError> + Send) -> Result<T, CliError> {
        let address = self.process.reported["control"].as_str().unwrap_or_default();
        let call = || call(&Control::new(address, Some(&self.token)));
        match &self.process.lab {
            Some(lab) => lab.within(call)?,
            None => call(),
        }
    }

    /// Returns the microseconds that its worker was busy, and the records that it read. Call this while it is stopped.
    pub(super) fn busy(&self) -> Result<(u64, u64), CliError> {
        let _awake = self.process.resume();
        let counters = self.control(|control| Ok(control.stat()?.counters))?;
        let of = |name: &str| counters.get(name).copied().unwrap_or(0);
        Ok((of("busy_us"), of("records_read")))
    }
}
