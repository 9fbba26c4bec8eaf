//! `sandstorm serve` and `sandstorm health`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use sandstorm_catalog::Directory;
use sandstorm_control::admin::{ControlPlane, RestoredExtensions};
use sandstorm_control::config::{
    CliOverrides, ClusterOverrides, DriverName, EtcdAccess, LogFailurePolicy, NatsAccess, NetOverrides, ServerSettings,
    TlsOverrides, parse_listen, parse_socket_mode, prepare_state_dir,
};
use sandstorm_dialects::Protocol;
use sandstorm_instance::DataPlane;
use sandstorm_net::CodePolicy;
use sandstorm_server::workers::{ListenerConfig, PortAddress};
use sandstorm_terminal::EscapedLogWriter;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::device_args::DeviceArgs;
use super::output::{CliError, OutputPrinter, fields};
use super::session::CliSession;

/// What it takes to reach the etcd of a cluster.
#[derive(Clone, Debug, Args)]
struct EtcdOptions {
    /// The authority that has signed the etcd's certificate (PEM), for etcds://HOST:2379/NAME [default: public ones]
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// This server's certificate for the etcd (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_key")]
    etcd_certificate: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_certificate")]
    etcd_key: Option<PathBuf>,
    /// The user of the etcd
    #[arg(long, value_name = "NAME")]
    etcd_user: Option<String>,
    /// The file with that user's password
    #[arg(long, value_name = "FILE")]
    etcd_password_file: Option<PathBuf>,
}

impl From<EtcdOptions> for EtcdAccess {
    fn from(options: EtcdOptions) -> EtcdAccess {
        EtcdAccess {
            ca: options.etcd_ca,
            certificate: options.etcd_certificate,
            key: options.etcd_key,
            user: options.etcd_user,
            password_file: options.etcd_password_file,
        }
    }
}

/// What it takes to reach the NATS servers that have the copies of logs.
#[derive(Clone, Debug, Args)]
struct NatsOptions {
    /// The authority that has signed the NATS servers' certificates (PEM), for natss://HOST:4222/NAME
    #[arg(long, value_name = "FILE")]
    nats_ca: Option<PathBuf>,
    /// The user of the NATS servers
    #[arg(long, value_name = "NAME")]
    nats_user: Option<String>,
    /// The file with that user's password
    #[arg(long, value_name = "FILE")]
    nats_password_file: Option<PathBuf>,
    /// The monitoring port of a NATS server; once for each of them
    #[arg(long, value_name = "http://HOST:8222")]
    nats_monitor: Vec<String>,
}

impl From<NatsOptions> for NatsAccess {
    fn from(options: NatsOptions) -> NatsAccess {
        NatsAccess {
            ca: options.nats_ca,
            user: options.nats_user,
            password_file: options.nats_password_file,
            monitors: options.nats_monitor,
        }
    }
}

/// Run a server.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of the first worker's data port; worker i serves the port after it by i [default: 127.0.0.1:7400]
    #[arg(long, value_name = "HOST:PORT")]
    data: Option<SocketAddr>,
    /// Address of the control port; TLS is needed unless it is on loopback [default: 127.0.0.1:7399]
    #[arg(long, value_name = "HOST:PORT")]
    control: Option<SocketAddr>,
    /// TLS on the control port, with a certificate that is made at the first start
    #[arg(long)]
    control_tls: bool,
    /// A name that this certificate is valid for, beside localhost and the address; may be repeated
    #[arg(long = "control-name", value_name = "NAME")]
    control_names: Vec<String>,
    /// TLS on the control port, with this certificate (PEM; read again on SIGHUP and when it changes)
    #[arg(long, value_name = "FILE", requires = "control_key", conflicts_with = "control_tls")]
    control_certificate: Option<PathBuf>,
    /// The certificate's key (PEM)
    #[arg(long, value_name = "FILE", requires = "control_certificate")]
    control_key: Option<PathBuf>,
    /// Allow a control port without TLS although other machines reach it: tokens cross the network in the clear
    #[arg(long)]
    allow_plain_control: bool,
    /// Let other machines use closed tenants' data without a sealed session: tokens and records cross the network in
    /// the clear
    #[arg(long)]
    allow_plaintext: bool,
    /// A port for memcached clients: HOST:PORT, tls:HOST:PORT or unix:/PATH; with =TENANT/TABLE they need no user and
    /// password. May be repeated
    #[arg(long, value_name = "ADDRESS[=TENANT[/TABLE]]", value_parser = memcached_port)]
    memcached: Vec<ListenerConfig>,
    /// A port for Redis clients, as those of --memcached; with =TENANT/TABLE they need no AUTH. May be repeated
    #[arg(long, value_name = "ADDRESS[=TENANT[/TABLE]]", value_parser = redis_port)]
    redis: Vec<ListenerConfig>,
    /// Mode of these ports' Unix sockets, octal: users with write permission may connect [default: 700]
    #[arg(long, value_name = "MODE", value_parser = parse_socket_mode)]
    socket_mode: Option<u32>,
    /// A certificate for these ports with tls:, made at the first start [default: they show the control port's]
    #[arg(long)]
    port_tls: bool,
    /// A name that this certificate is valid for, beside localhost; may be repeated
    #[arg(long = "port-name", value_name = "NAME")]
    port_names: Vec<String>,
    /// The certificate that these ports show (PEM; read again on SIGHUP and when it changes)
    #[arg(long, value_name = "FILE", requires = "port_key", conflicts_with = "port_tls")]
    port_certificate: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "port_certificate")]
    port_key: Option<PathBuf>,
    /// What moves datagrams: udp (kernel sockets); packet, an interface through packet sockets (docs/stack.md); or
    /// dpdk, a kernel-bypass device (docs/dpdk.md) [default: udp]
    #[arg(long, value_name = "NAME")]
    driver: Option<DriverName>,
    #[command(flatten)]
    device: DeviceArgs,
    /// With --driver dpdk: receive only the workers' datagrams from the device, and leave all others to the kernel,
    /// which has the same --address
    #[arg(long)]
    isolate: bool,
    /// Number of workers [default: all cores but one]
    #[arg(long)]
    workers: Option<usize>,
    /// Do not bind workers to cores
    #[arg(long)]
    no_pin: bool,
    /// Workers spin instead of sleeping when there is nothing to do: lowest latency, a whole core for each
    #[arg(long)]
    poll: bool,
    /// For measurements: idle workers take over no work from busy ones
    #[arg(long)]
    no_steal: bool,
    /// Tenants stay at their home workers whatever the load [default: homes that no operator named follow it]
    #[arg(long)]
    no_move_homes: bool,
    /// For measurements: invocations read at once instead of yielding while their records are prefetched
    #[arg(long)]
    no_interleave: bool,
    /// Microseconds from arrival to answer from which a request is kept as slow; 0: none is [default: 10000]
    #[arg(long, value_name = "MICROSECONDS")]
    slow_us: Option<u64>,
    /// Push metrics to this OTLP endpoint, over HTTP with JSON (http://HOST:4318/v1/metrics) [default: they are not]
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// For measurements: the kernel neither coalesces nor segments datagrams; with --driver packet or dpdk, checksums
    /// are computed here
    #[arg(long)]
    no_offload: bool,
    /// For measurements: large values are copied into their packets instead of being sent from where they are stored
    #[arg(long)]
    no_zero_copy: bool,
    /// Persist nothing: tenants, tables, records, tokens and extensions are lost when the server ends
    #[arg(long)]
    ephemeral: bool,
    /// Start although the log of the records is damaged: with what is sound of it. The damaged files are put aside
    #[arg(long, conflicts_with = "ephemeral")]
    salvage: bool,
    /// Allow open tenants (those without a token) although other machines reach the data ports: anyone there may use
    /// their data
    #[arg(long)]
    allow_open: bool,
    /// The code that new tenants may push: sandboxed, native (for authors that you trust) or none [default: sandboxed]
    #[arg(long, value_name = "TIER")]
    code: Option<CodePolicy>,
    /// Be one of a cluster, whose state is in an etcd
    #[arg(long, value_name = "etcd://HOST:2379/NAME", conflicts_with = "ephemeral")]
    cluster: Option<String>,
    /// Servers among which a new cluster's keys are divided, once all are there; the same for all of them [default: 1]
    #[arg(long, value_name = "NUMBER")]
    cluster_servers: Option<usize>,
    /// The address under which the cluster's others and its clients reach this server, for ports on 0.0.0.0
    #[arg(long, value_name = "ADDRESS")]
    cluster_host: Option<std::net::IpAddr>,
    /// Copies of this server's log on other servers, for tables of durability `copies` [default: 1]
    #[arg(long, value_name = "COUNT")]
    cluster_copies: Option<usize>,
    /// Whether this server takes the place of one that is gone by itself, with the copy of its log: automatic or
    /// by-command [default: automatic]
    #[arg(long, value_name = "MODE")]
    cluster_failover: Option<String>,
    /// The copy of this server's log in a stream of NATS JetStream, in place of other servers
    #[arg(long, value_name = "nats://HOST:4222/NAME", conflicts_with = "cluster_copies")]
    cluster_streams: Option<String>,
    #[command(flatten)]
    etcd: EtcdOptions,
    #[command(flatten)]
    nats: NatsOptions,
    /// Start without a builder, which needs rustc: no source can be pushed; what was pushed before is loaded
    #[arg(long)]
    no_builder: bool,
    /// The rustc that compiles extensions [default: the one on the PATH, else ~/.cargo/bin/rustc]
    #[arg(long, value_name = "FILE")]
    rustc: Option<PathBuf>,
}

fn memcached_port(text: &str) -> Result<ListenerConfig, String> {
    parse_listen(Protocol::Memcached, text)
}

fn redis_port(text: &str) -> Result<ListenerConfig, String> {
    parse_listen(Protocol::Redis, text)
}

impl ServeArgs {
    /// The settings by which the command line overrides the file.
    pub(super) fn overrides(&self, state: Option<&Path>) -> CliOverrides {
        let net = self.device.overrides(self.driver, self.no_offload.then_some(false));
        CliOverrides {
            data: self.data,
            control: self.control,
            workers: self.workers,
            pin: self.no_pin.then_some(false),
            poll: self.poll.then_some(true),
            steal: self.no_steal.then_some(false),
            move_homes: self.no_move_homes.then_some(false),
            interleave: self.no_interleave.then_some(false),
            slow_us: self.slow_us,
            otlp: self.otlp.clone(),
            state: state.map(Path::to_path_buf),
            salvage: self.salvage,
            ephemeral: self.ephemeral.then_some(true),
            allow_open: self.allow_open.then_some(true),
            control_tls: TlsOverrides {
                certificate: self.control_certificate.clone(),
                key: self.control_key.clone(),
                self_signed: self.control_tls,
                names: self.control_names.clone(),
            },
            allow_plain_control: self.allow_plain_control.then_some(true),
            allow_plaintext: self.allow_plaintext.then_some(true),
            listen: self.memcached.iter().chain(&self.redis).map(|port| self.with_mode(port)).collect(),
            port_tls: TlsOverrides {
                certificate: self.port_certificate.clone(),
                key: self.port_key.clone(),
                self_signed: self.port_tls,
                names: self.port_names.clone(),
            },
            net: NetOverrides {
                zero_copy: self.no_zero_copy.then_some(false),
                isolate: self.isolate.then_some(true),
                ..net
            },
            code: self.code,
            cluster: ClusterOverrides {
                cluster: self.cluster.clone(),
                servers: self.cluster_servers,
                host: self.cluster_host,
                copies: self.cluster_copies,
                failover: self.cluster_failover.clone(),
                etcd: self.etcd.clone().into(),
                streams: self.cluster_streams.clone(),
                nats: self.nats.clone().into(),
            },
            rustc: self.rustc.clone(),
            builder: self.no_builder.then_some(false),
        }
    }

    /// A port, with the mode of Unix sockets if it is one.
    fn with_mode(&self, port: &ListenerConfig) -> ListenerConfig {
        let mut port = port.clone();
        if let (PortAddress::Unix { mode, .. }, Some(set)) = (&mut port.address, self.socket_mode) {
            *mode = set;
        }
        port
    }
}

pub(super) fn serve(args: &ServeArgs, state: Option<&Path>, out: &OutputPrinter) -> Result<(), CliError> {
    sandstorm_backing::set_table_opener(super::other_table::open);
    start_log();
    let refuse = |error: &dyn std::fmt::Display| CliError::new(error.to_string()).code("config");
    let config =
        ServerSettings::load(args.config.as_deref(), &args.overrides(state)).map_err(|error| refuse(&error))?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    prepare_state_dir(&config.state).map_err(|error| refuse(&error))?;
    let start = |error: &dyn std::fmt::Display| CliError::new(error.to_string()).code("start");
    let prepared = DataPlane::prepare(&config).map_err(|error| start(&error))?;
    // Before the workers: otherwise a client could be told that an extension does not exist.
    let extensions = RestoredExtensions::load(&config, &prepared.directory).map_err(|error| start(&error))?;
    let directory = Arc::clone(&prepared.directory);
    let mut data = prepared.start(&config).map_err(|error| start(&error))?;
    for port in data.ports_without_target() {
        tracing::warn!("{port}");
    }
    let stop = Arc::new(Notify::new());
    if config.on_log_failure == LogFailurePolicy::Exit {
        stop_when_the_log_fails(&directory, &stop);
    }
    let stop_request = stop.clone();
    let served = data.served();
    let control = ControlPlane::start_loaded(&config, extensions, served, move || stop_request.notify_one())
        .map_err(|error| start(&error))?;
    let fingerprint = control.identity().map(|identity| identity.fingerprint().to_string()).unwrap_or_default();
    data.join_cluster(&config, control.url(), fingerprint).map_err(|error| start(&error))?;
    let ready = || {
        if let Err(error) = announce(&config, &data, &control, out) {
            // For example a log on a full disk: no reason to end.
            tracing::warn!("standard output takes nothing: {}", error.message);
        }
    };
    config.beside_workers(|| wait_for_shutdown(&stop, &data, &control, ready))?;
    // Control first: no push is accepted while the workers finish the requests in flight.
    drop(control);
    data.finish();
    if config.on_log_failure == LogFailurePolicy::Exit
        && let Some(why) = log_failure(&directory)
    {
        return Err(CliError::new(format!("the log of the records has failed: {why}"))
            .code("log_failed")
            .hint("see to the disk, and start the server again: it reads what is there"));
    }
    if out.json { Ok(()) } else { out.line("stopped") }
}

/// Has the server stop in order once a write of its log has failed.
fn stop_when_the_log_fails(directory: &Arc<Directory>, stop: &Arc<Notify>) {
    // The directory has the log, and the log has this.
    let (known, stop) = (Arc::downgrade(directory), Arc::clone(stop));
    let look = move || {
        if known.upgrade().is_some_and(|directory| log_failure(&directory).is_some()) {
            stop.notify_one();
        }
    };
    let look = Arc::new(look);
    directory.on_log_progress(look.clone());
    // It may have failed since it was started.
    look();
}

fn log_failure(directory: &Directory) -> Option<String> {
    directory.change_log()?.failure().map(ToString::to_string)
}

/// The log filter where `RUST_LOG` is not set. Of rustls only errors are logged: it warns of every client that sends no
/// TLS, so any client could fill the log.
const DEFAULT_LOG: &str = "warn,rustls=error";

/// Sends log lines to standard error; `RUST_LOG` selects them.
pub(super) fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(DEFAULT_LOG));
    // It is set already only when a test has set it.
    let colors = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colors);
    // Many of them contain text that tenants chose.
    let log = log.with_writer(move || EscapedLogWriter::new(std::io::stderr(), colors));
    // A log that cannot be written, on a full disk, is no reason to end: the library would report it to the same
    // stream, and panic.
    let log = log.log_internal_errors(false);
    let _set = log.try_init();
}

fn announce(
    config: &ServerSettings,
    data: &DataPlane,
    control: &ControlPlane,
    out: &OutputPrinter,
) -> Result<(), CliError> {
    let (first, workers) = (data.address(), config.workers);
    let last = usize::from(first.port()) + workers - 1;
    let token = control.token_file().display().to_string();
    let durability = config.default_durability();
    if out.json {
        let address = control.address().to_string();
        let tls = control.identity();
        return out.json(&json!({
            "data": first.to_string(), "workers": workers, "control": address, "operator_token_file": token,
            "control_url": control.url(), "fingerprint": tls.map(|tls| tls.fingerprint()),
            "certificate": tls.map(|tls| tls.file().display().to_string()),
            "memcached": ports_of(data, Protocol::Memcached), "redis": ports_of(data, Protocol::Redis),
            "ephemeral": config.ephemeral,
            "durability": { "store": durability.store.name(), "cache": durability.cache.name() },
        }));
    }
    let ports = if workers == 1 { first.to_string() } else { format!("{first} to {last}") };
    let plural = if workers == 1 { "" } else { "s" };
    let certificate = control.identity().map_or_else(String::new, |identity| {
        let by = if identity.made_here() { " (made here: clients pin it, or trust the file)" } else { "" };
        format!("\ncertificate: {}{by}\nfingerprint: {}", identity.file().display(), identity.fingerprint())
    });
    let others = [("memcached", Protocol::Memcached), ("redis", Protocol::Redis)].map(|(name, protocol)| {
        let ports = ports_of(data, protocol);
        if ports.is_empty() { String::new() } else { format!(", {name} on {}", ports.join(" and ")) }
    });
    let kept = if config.ephemeral {
        "nothing is kept: tenants, tables and records end with this server (--ephemeral)".to_owned()
    } else {
        let (store, cache) = (durability.store.name(), durability.cache.name());
        format!("durability of new tables: {store} in store mode, {cache} in cache mode")
    };
    out.line(&format!(
        "sandstorm {}: {workers} worker{plural} on udp {ports}, control on {}{}{certificate}\n{kept}\noperator token: {token}",
        env!("CARGO_PKG_VERSION"),
        control.url(),
        others.concat()
    ))
}

/// The addresses of the ports that speak a protocol.
fn ports_of(data: &DataPlane, protocol: Protocol) -> Vec<String> {
    let ports = data.ports().iter().filter(|port| port.service.protocol == protocol);
    ports.map(|port| port.address.to_string()).collect()
}

/// Waits until the operator or a signal tells the process to end. SIGHUP reloads the certificates. Calls `ready` once
/// signals are handled: a process that reads there that the server is up may end it at once.
fn wait_for_shutdown(
    stop: &Notify,
    data: &DataPlane,
    control: &ControlPlane,
    ready: impl FnOnce(),
) -> Result<(), CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        ready();
        loop {
            tokio::select! {
                () = stop.notified() => break,
                _ = interrupt.recv() => break,
                _ = terminate.recv() => break,
                _ = hangup.recv() => {
                    control.look_at_certificate();
                    data.look_at_certificate();
                }
            }
        }
        Ok(())
    })
}

pub(super) fn health(session: &CliSession, out: &OutputPrinter) -> Result<(), CliError> {
    out.show(&session.control().health()?, |health| {
        let mut all = vec![
            ("version", health.version.clone()),
            ("data", health.data_address.clone()),
            ("workers", health.workers.to_string()),
            ("uptime_s", health.uptime_s.to_string()),
            ("builder", health.builder.clone()),
            ("network", health.network.clone()),
            ("changes", health.changes.clone()),
        ];
        all.extend(health.warnings.iter().map(|warning| ("warning", warning.clone())));
        fields(&all)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unauthenticated_input_is_logged_only_on_request() {
        let logged = |filter: &str| {
            let filter = tracing_subscriber::EnvFilter::new(filter);
            let subscriber = tracing_subscriber::fmt().with_env_filter(filter).finish();
            tracing::subscriber::with_default(subscriber, || {
                let of_rustls = tracing::enabled!(target: "rustls::check", tracing::Level::WARN);
                (of_rustls, tracing::enabled!(target: "sandstorm_server", tracing::Level::WARN))
            })
        };
        assert_eq!(logged(DEFAULT_LOG), (false, true));
        assert_eq!(logged("warn"), (true, true));
    }
}
