//! `sandstorm cluster dev`: a cluster of three servers and an etcd on this machine, to try one out.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use clap::Args;
use sandstorm_builder::{BuilderKey, prepare_folder};
use sandstorm_catalog::SECRET_KEY_FILE;
use sandstorm_client::control::Control;
use tokio::signal::unix::{SignalKind, signal};

use super::output::{CliError, OutputPrinter};

/// Servers.
const SERVERS: u16 = 3;
/// Time in which the etcd and each server are there: a builder begins within two minutes.
const PATIENCE: Duration = Duration::from_secs(150);
/// Time in which each of them ends when it is asked to; then it is killed.
const END_PATIENCE: Duration = Duration::from_secs(20);
/// Time between two looks at what is waited for.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The tenant and the table of all servers.
const TENANTS: &str = "[[tenants]]\nname = 'dev'\nid = 1\nopen = true\ntables = [{ name = 'items', id = 1 }]\n";

/// Start three servers and an etcd here, with an open tenant `dev` and its table `items`, until Ctrl-C.
#[derive(Debug, Args)]
pub(super) struct DevArgs {
    /// Folder of their files, which is kept [default: one that is removed at the end]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// The first of their ports on 127.0.0.1: etcd has two from here, server i control, data, Redis
    /// and memcached from here + 10 i
    #[arg(long, value_name = "PORT", default_value_t = 7500, value_parser = clap::value_parser!(u16).range(1024..=65_000))]
    port: u16,
    /// Have server 1 build extensions that are pushed to it; needs rustc. All servers call them
    #[arg(long)]
    builder: bool,
}

/// Processes that end with this one.
struct ChildProcesses(Vec<Child>);

impl Drop for ChildProcesses {
    fn drop(&mut self) {
        // The servers first, which take leave of the etcd.
        for child in self.0.iter_mut().rev() {
            let pid = rustix::process::Pid::from_child(child);
            let _ended_already = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let until = Instant::now() + END_PATIENCE;
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(LOOK_INTERVAL);
            }
            let _ended_already = child.kill();
            let _status = child.wait();
        }
    }
}

/// The user's request that all ends: Ctrl-C, a closed terminal, or a signal to end. From when it is made on these end
/// the program only where it looks.
struct EndRequest(Arc<AtomicBool>);

impl EndRequest {
    fn watch() -> Result<EndRequest, CliError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let entered = runtime.enter();
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let mut hangup = signal(SignalKind::hangup())?;
        drop(entered);
        let asked = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&asked);
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
            });
            noted.store(true, Ordering::Release);
        })?;
        Ok(EndRequest(asked))
    }

    fn is_asked(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Waits until something is so.
    fn wait_for(&self, why: &str, mut is_so: impl FnMut() -> Result<bool, CliError>) -> Result<(), CliError> {
        let until = Instant::now() + PATIENCE;
        while !is_so()? {
            if self.is_asked() {
                return Err(CliError::new("stopped before all were there".to_owned()));
            }
            if Instant::now() > until {
                return Err(
                    CliError::new(why.to_owned()).hint("another program may have the ports: choose others with --port")
                );
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        Ok(())
    }
}

pub(super) fn run(args: &DevArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let end = EndRequest::watch()?;
    let temporary = match &args.folder {
        Some(_) => None,
        None => Some(tempfile::tempdir().map_err(|error| CliError::new(error.to_string()))?),
    };
    let folder = args.folder.as_deref().or(temporary.as_ref().map(|folder| folder.path())).unwrap_or(Path::new("."));
    let config = folder.join("tenants.toml");
    prepare(folder, &config, args.builder)?;
    let mut children = ChildProcesses(Vec::new());
    start_etcd(folder, args.port, &mut children, &end)?;
    let mut lines = Vec::new();
    for number in 1..=SERVERS {
        if number > 1 {
            share_secret_key(folder, number)?;
        }
        let builds = args.builder && number == 1;
        lines.push(start_server(folder, &config, (args.port, number, builds), &mut children, &end)?);
    }
    await_founding(folder, args.port, &end)?;
    out.line(&lines.join("\n"))?;
    out.line(&format!(
        "try: redis-cli -c -p {redis} set apple 3; sandstorm --server 127.0.0.1:{control} --tenant dev get items apple\nCtrl-C stops them",
        redis = args.port + 12,
        control = args.port + 10
    ))?;
    while !end.is_asked() {
        std::thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}

/// Makes the servers' configuration. All trust the key of the first one's builder.
fn prepare(folder: &Path, config: &Path, builds: bool) -> Result<(), CliError> {
    let failed = |error: std::io::Error| CliError::new(format!("{}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    let mut text = TENANTS.to_owned();
    if builds {
        let builder = folder.join("server-1").join("builder");
        let key = prepare_folder(&builder).and_then(|()| BuilderKey::open(&builder));
        let key = key.map_err(|error| CliError::new(error.to_string()))?.public();
        text.push_str(&format!("[builder]\ntrusted_keys = ['{key}']\n"));
    }
    fs::write(config, text).map_err(failed)
}

/// Gives a server the first one's key for secrets, so that they open at all.
fn share_secret_key(folder: &Path, number: u16) -> Result<(), CliError> {
    let state = folder.join(format!("server-{number}"));
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&state);
    let key = folder.join("server-1").join(SECRET_KEY_FILE);
    made.and_then(|()| fs::copy(&key, state.join(SECRET_KEY_FILE)))
        .map_err(|error| CliError::new(format!("{}: {error}", key.display())))?;
    Ok(())
}

fn start_etcd(folder: &Path, port: u16, children: &mut ChildProcesses, end: &EndRequest) -> Result<(), CliError> {
    let (clients, peers) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{}", port + 1));
    let mut command = Command::new("etcd");
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &format!("default={peers}"), "--data-dir"]).arg(folder.join("etcd"));
    command.arg("--auto-compaction-retention=1h");
    // In a group of its own: Ctrl-C is for this process, which ends them in order.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let child = command.spawn().map_err(|error| {
        CliError::new(format!("cannot start etcd: {error}")).hint("install it: apt install etcd-server")
    })?;
    children.0.push(child);
    end.wait_for(&format!("etcd does not serve port {port}"), || {
        if children.0.iter_mut().any(|child| !matches!(child.try_wait(), Ok(None))) {
            return Err(CliError::new(format!("etcd has ended at once, instead of serving port {port}"))
                .hint("another program may have it: choose others with --port"));
        }
        Ok(TcpStream::connect(("127.0.0.1", port)).is_ok())
    })
}

/// Starts a server, and waits until it says where it is.
fn start_server(
    folder: &Path,
    config: &Path,
    (port, number, builds): (u16, u16, bool),
    children: &mut ChildProcesses,
    end: &EndRequest,
) -> Result<String, CliError> {
    let first = port + 10 * number;
    let program = std::env::current_exe().map_err(|error| CliError::new(error.to_string()))?;
    let at = |port: u16| format!("127.0.0.1:{port}");
    let state = folder.join(format!("server-{number}"));
    let mut command = Command::new(program);
    command.args(["serve", "--json", "--workers", "1", "--no-pin", "--cluster-servers"]);
    command.args([SERVERS.to_string(), "--cluster".to_owned(), format!("etcd://127.0.0.1:{port}/dev")]);
    command.args(["--control", &at(first), "--data", &at(first + 1)]);
    command.args(["--redis", &format!("{}=dev/items", at(first + 2))]);
    command.args(["--memcached", &format!("{}=dev/items", at(first + 3))]);
    command.arg("--config").arg(config).arg("--state").arg(&state);
    if !builds {
        command.arg("--no-builder");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let failed = |why: &str| CliError::new(format!("server {number} has not started: {why}"));
    let mut child = command.spawn().map_err(|error| failed(&error.to_string()))?;
    let said = child.stdout.take();
    children.0.push(child);
    // It says one line when it serves, or ends.
    let (tell, told) = channel();
    std::thread::Builder::new().name("server-line".to_owned()).spawn(move || {
        let mut line = String::new();
        let _ended = said.map(|said| BufReader::new(said).read_line(&mut line));
        let _nobody_waits = tell.send(line);
    })?;
    let mut line = None;
    end.wait_for(&format!("server {number} does not say that it serves"), || {
        line = told.try_recv().ok();
        Ok(line.is_some())
    })?;
    if line.is_none_or(|line| line.is_empty()) {
        return Err(failed("its reason is above").hint("ports that are taken: choose others with --port"));
    }
    let [control, data, redis, memcached] = [0, 1, 2, 3].map(|port| at(first + port));
    let text = format!("server {number}: control {control}, data {data}, redis {redis}, memcached {memcached}");
    Ok(format!("{text}, state {}", state.display()))
}

fn await_founding(folder: &Path, port: u16, end: &EndRequest) -> Result<(), CliError> {
    let token = fs::read_to_string(folder.join("server-1").join(sandstorm_control::config::OPERATOR_TOKEN_FILE));
    let token = token.map_err(|error| CliError::new(error.to_string()))?;
    let control = Control::new(&format!("127.0.0.1:{}", port + 10), Some(token.trim()));
    end.wait_for("the servers do not find each other", || Ok(control.cluster()?.epoch != 0))
}
