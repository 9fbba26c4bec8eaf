//! The server's configuration: a TOML file, overridden by the command line, then checked. An error is one line.
//!
//! ```toml
//! data = "127.0.0.1:7400"      # first worker's port; worker i serves the port after it by i
//! control = "127.0.0.1:7399"
//! workers = 3
//! code = "sandboxed"           # of every new tenant, where it does not say otherwise
//!
//! [quotas]                     # of every tenant, where it does not say otherwise
//! slice_us = 500
//!
//! [[tenants]]
//! name = "shop"
//! token = "at least twenty characters"
//! quotas = { memory_bytes = 1000000000 }
//! tables = [{ name = "carts", mode = "cache", quota_bytes = 100000000 }]
//! grants = [{ table = "carts", to = "reports", access = "read_write" }]
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use sandstorm_builder::BuilderConfig;
use sandstorm_catalog::limits::TENANTS;
use sandstorm_catalog::{
    DefaultDurability, Directory, DirectoryError, DirectoryOptions, GrantIssuer, QuotaChanges, Quotas, TableDurability,
};
use sandstorm_metrics::limits::MAX_WORKERS;
use sandstorm_net::CodePolicy;
use sandstorm_server::cpu_affinity;
use sandstorm_server::limits::{SLOW_MAX_US, SLOW_US};
use sandstorm_server::workers::ListenerConfig;
use sandstorm_store::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

mod builder;
mod cluster;
mod error;
mod exposure;
mod key_locations;
mod log_failure;
mod network;
mod otlp;
mod protocol_ports;
mod push_target;
#[cfg(test)]
mod reference;
mod restore;
mod state_dir;
mod tenants;
#[cfg(test)]
mod tests;
mod webhooks;

use builder::BuilderSection;
pub use builder::BuilderSettings;
pub use cluster::{ClusterOverrides, ClusterSettings};
pub use error::ConfigError;
pub(crate) use error::suggest;
use error::{at_most, describe_parse_error, in_range, seconds};
pub use exposure::{BUILDER_PORT, CONTROL_PORT, PROTOCOL_PORTS, PortTls, TlsOverrides, TlsPort};
use exposure::{TlsSection, check_control_exposure, check_service_exposure, is_public};
use key_locations::KeyLocations;
pub use log_failure::LogFailurePolicy;
use log_failure::LogSection;
use network::NetSection;
#[cfg(not(feature = "dpdk"))]
pub use network::WITHOUT_DPDK;
pub use network::{DriverName, NetOverrides, NetSettings};
use otlp::OtlpSection;
pub use otlp::OtlpSettings;
use protocol_ports::PortSection;
pub use protocol_ports::{parse_listen, parse_socket_mode};
pub(crate) use push_target::origin_of;
pub use sandstorm_cluster::{EtcdAccess, NatsAccess};
pub use state_dir::{
    CONTROL_FILE, ControlFile, OPERATOR_TOKEN_FILE, default_state_dir, operator_token, prepare_state_dir,
    read_operator_token, write_operator_token, write_private,
};
pub use tenants::{GrantSettings, TableModeSetting, TableSettings, TenantSettings};
use webhooks::WebhookSection;
pub use webhooks::WebhookSettings;

/// Default address of the first worker's data port.
pub const DEFAULT_DATA: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7400));
/// Default address of the control port.
pub const DEFAULT_CONTROL: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7399));
/// Bytes of a configuration file, at most.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The checked settings of the server: every value is one that the server accepts.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Address of the first worker's data port; worker `i` serves the port after it by `i`. Port 0: any free ones.
    pub data: SocketAddr,
    /// Address of the control port. Port 0: any free one.
    pub control: SocketAddr,
    /// Number of workers.
    pub workers: usize,
    /// Whether each worker stays on a core of its own.
    pub pin: bool,
    /// Whether workers spin instead of sleeping when there is nothing to do.
    pub poll: bool,
    /// Whether idle workers take invocations and packets over from others.
    pub steal: bool,
    /// Whether tenants' home workers follow their load, except those that an operator named.
    pub move_homes: bool,
    /// Whether invocations that wait for a record take turns; off, they read at once, and wait for memory. For
    /// measuring.
    pub interleave: bool,
    /// Microseconds from arrival to answer from which a request is kept as slow; 0: none is.
    pub slow_us: u64,
    /// Directory of the operator's token, of the journal of the tenants, of the builder's key and its sysroot.
    pub state: PathBuf,
    /// Whether nothing that is created while the server runs survives it.
    pub ephemeral: bool,
    /// Whether a damaged log of the records is replaced by what is sound of it. Of the command line only: it is for one
    /// start.
    pub salvage: bool,
    /// Whether tenants may be open although the data ports are reachable from other machines.
    pub allow_open: bool,
    /// TLS of the control port.
    pub control_tls: PortTls,
    /// TLS of a builder's service, as the file has it: see [`ServerSettings::builder_service_tls`].
    builder_tls: TlsSection,
    /// Whether the control port may be reached from other machines in the clear.
    pub allow_plain_control: bool,
    /// Whether other machines may use closed tenants' data without a sealed session.
    pub allow_plaintext: bool,
    /// Whether the operator may read what tenants' code writes to the log.
    pub operator_reads_logs: bool,
    /// Ports for clients of memcached and Redis.
    pub listen: Vec<ListenerConfig>,
    /// TLS of those ports that have it. If it is off, they use the control port's.
    pub port_tls: PortTls,
    /// The network of the workers' datagrams.
    pub net: NetSettings,
    /// Limits of the server.
    pub limits: CapacityLimits,
    /// Durability of new tables for which none is given.
    pub durability: DefaultDurability,
    /// What it does once its log has failed.
    pub on_log_failure: LogFailurePolicy,
    /// Quotas of a tenant for which none are given.
    pub quotas: Quotas,
    /// The code that a new tenant may have if nothing else is said of it.
    pub code: CodePolicy,
    /// The builder.
    pub builder: BuilderSettings,
    /// Tenants that are there from the start.
    pub tenants: Vec<TenantSettings>,
    /// Where events are sent.
    pub webhooks: Vec<WebhookSettings>,
    /// Where metrics are pushed to.
    pub otlp: Option<OtlpSettings>,
    /// The cluster that it is one of.
    pub cluster: Option<ClusterSettings>,
    /// Settings that are allowed but not recommended: a line each, which says what to do.
    pub warnings: Vec<String>,
    /// The location of each key in the file, for errors that are found when the tenants are created.
    places: KeyLocations,
}

/// Limits that can be set downwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityLimits {
    /// Longest key in bytes.
    pub key_bytes: usize,
    /// Longest value in bytes.
    pub value_bytes: usize,
    /// Tenants.
    pub tenants: usize,
}

/// The options of the command line, which override the file.
#[derive(Clone, Debug, Default)]
pub struct CliOverrides {
    /// See [`ServerSettings::data`].
    pub data: Option<SocketAddr>,
    /// See [`ServerSettings::control`].
    pub control: Option<SocketAddr>,
    /// See [`ServerSettings::workers`].
    pub workers: Option<usize>,
    /// See [`ServerSettings::pin`].
    pub pin: Option<bool>,
    /// See [`ServerSettings::poll`].
    pub poll: Option<bool>,
    /// See [`ServerSettings::steal`].
    pub steal: Option<bool>,
    /// See [`ServerSettings::move_homes`].
    pub move_homes: Option<bool>,
    /// See [`ServerSettings::interleave`].
    pub interleave: Option<bool>,
    /// See [`ServerSettings::slow_us`].
    pub slow_us: Option<u64>,
    /// See [`ServerSettings::state`].
    pub state: Option<PathBuf>,
    /// See [`ServerSettings::ephemeral`].
    pub ephemeral: Option<bool>,
    /// See [`ServerSettings::salvage`].
    pub salvage: bool,
    /// See [`ServerSettings::allow_open`].
    pub allow_open: Option<bool>,
    /// See [`ServerSettings::control_tls`].
    pub control_tls: TlsOverrides,
    /// See [`ServerSettings::allow_plain_control`].
    pub allow_plain_control: Option<bool>,
    /// See [`ServerSettings::allow_plaintext`].
    pub allow_plaintext: Option<bool>,
    /// Ports beside the file's: see [`ServerSettings::listen`].
    pub listen: Vec<ListenerConfig>,
    /// See [`ServerSettings::port_tls`].
    pub port_tls: TlsOverrides,
    /// See [`ServerSettings::net`].
    pub net: NetOverrides,
    /// See [`ServerSettings::code`].
    pub code: Option<CodePolicy>,
    /// See [`OtlpSettings::url`].
    pub otlp: Option<String>,
    /// See [`ServerSettings::cluster`].
    pub cluster: ClusterOverrides,
    /// See [`BuilderSettings::rustc`].
    pub rustc: Option<PathBuf>,
    /// See [`BuilderSettings::enabled`].
    pub builder: Option<bool>,
}

/// The file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ConfigFile {
    data: Option<SocketAddr>,
    control: Option<SocketAddr>,
    workers: Option<usize>,
    pin: Option<bool>,
    poll: Option<bool>,
    steal: Option<bool>,
    move_homes: Option<bool>,
    interleave: Option<bool>,
    slow_us: Option<u64>,
    state: Option<PathBuf>,
    ephemeral: Option<bool>,
    allow_open: Option<bool>,
    code: Option<CodePolicy>,
    cluster: Option<String>,
    cluster_servers: Option<usize>,
    cluster_host: Option<IpAddr>,
    cluster_copies: Option<usize>,
    cluster_streams: Option<String>,
    cluster_failover: Option<String>,
    etcd: EtcdAccess,
    nats: NatsAccess,
    limits: LimitsSection,
    durability: DurabilitySection,
    log: LogSection,
    quotas: QuotaChanges,
    builder: BuilderSection,
    tenants: Vec<TenantSettings>,
    webhooks: Vec<WebhookSection>,
    otlp: OtlpSection,
    control_tls: TlsSection,
    builder_tls: TlsSection,
    port_tls: TlsSection,
    allow_plain_control: Option<bool>,
    allow_plaintext: Option<bool>,
    operator_reads_logs: bool,
    memcached: Vec<PortSection>,
    redis: Vec<PortSection>,
    net: NetSection,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LimitsSection {
    key_bytes: Option<usize>,
    value_bytes: Option<usize>,
    tenants: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DurabilitySection {
    store: Option<TableDurability>,
    cache: Option<TableDurability>,
}

impl DurabilitySection {
    fn settings(&self) -> DefaultDurability {
        let default = DefaultDurability::default();
        DefaultDurability { store: self.store.unwrap_or(default.store), cache: self.cache.unwrap_or(default.cache) }
    }
}

impl ServerSettings {
    /// Reads the file, if there is one to read, lays the command line over it and checks the whole.
    ///
    /// # Errors
    /// [`ConfigError`]: a file that cannot be read or is no TOML, an unknown key, a value out of its range.
    pub fn load(file: Option<&Path>, overrides: &CliOverrides) -> Result<ServerSettings, ConfigError> {
        let Some(path) = file else { return ServerSettings::parse("", "the command line", overrides) };
        let mut config = ServerSettings::parse(&read(path)?, &path.display().to_string(), overrides)?;
        config.warnings.extend(exposure::warn_readable_tokens(path, &config.tenants));
        Ok(config)
    }

    /// The same from the file's text; `origin` names it in errors.
    ///
    /// # Errors
    /// As [`ServerSettings::load`].
    pub fn parse(text: &str, origin: &str, overrides: &CliOverrides) -> Result<ServerSettings, ConfigError> {
        let file: ConfigFile = toml::from_str(text).map_err(|error| describe_parse_error(&error, text, origin))?;
        let places = KeyLocations::of(text, origin, overrides);
        let config = ServerSettings::build(file, overrides).map_err(|error| places.name(error))?;
        Ok(ServerSettings { places, ..config })
    }

    fn build(file: ConfigFile, over: &CliOverrides) -> Result<ServerSettings, ConfigError> {
        let workers = match over.workers.or(file.workers) {
            Some(workers) => in_range("workers", workers, 1, MAX_WORKERS)?,
            None => default_workers(),
        };
        let limits = CapacityLimits {
            key_bytes: at_most("limits.key_bytes", file.limits.key_bytes, MAX_KEY_BYTES)?,
            value_bytes: at_most("limits.value_bytes", file.limits.value_bytes, MAX_VALUE_BYTES)?,
            tenants: in_range("limits.tenants", file.limits.tenants.unwrap_or(TENANTS), 1, 1 << 20)?,
        };
        let quotas = file
            .quotas
            .apply(&Quotas::default())
            .map_err(|error| ConfigError::new(format!("quotas: {error}")).at(&error.keys("quotas")))?;
        let ports = protocol_ports::keys(&file.memcached, &file.redis);
        let control = over.control.or(file.control).unwrap_or(DEFAULT_CONTROL);
        let net = NetSettings::build(file.net, &over.net)?;
        let data = over.data.or(file.data).unwrap_or(DEFAULT_DATA);
        let (servers, host, copies) = (file.cluster_servers, file.cluster_host, file.cluster_copies);
        let (cluster, failover, etcd) = (file.cluster, file.cluster_failover, file.etcd);
        let (streams, nats) = (file.cluster_streams, file.nats);
        let cluster = ClusterOverrides { cluster, servers, host, copies, failover, etcd, streams, nats };
        let config = ServerSettings {
            data: net.data(data),
            net,
            control,
            control_tls: PortTls::build(&CONTROL_PORT, file.control_tls, &over.control_tls, control)?,
            builder_tls: file.builder_tls,
            allow_plain_control: over.allow_plain_control.or(file.allow_plain_control).unwrap_or(false),
            allow_plaintext: over.allow_plaintext.or(file.allow_plaintext).unwrap_or(false),
            operator_reads_logs: file.operator_reads_logs,
            listen: protocol_ports::build(file.memcached, file.redis, &over.listen)?,
            port_tls: file.port_tls.of_ports(&over.port_tls)?,
            workers,
            pin: over.pin.or(file.pin).unwrap_or(true),
            poll: over.poll.or(file.poll).unwrap_or(false),
            steal: over.steal.or(file.steal).unwrap_or(true),
            move_homes: over.move_homes.or(file.move_homes).unwrap_or(true),
            interleave: over.interleave.or(file.interleave).unwrap_or(true),
            slow_us: in_range("slow_us", over.slow_us.or(file.slow_us).unwrap_or(SLOW_US), 0, SLOW_MAX_US)?,
            state: over.state.clone().or(file.state).unwrap_or_else(default_state_dir),
            salvage: over.salvage,
            ephemeral: over.ephemeral.or(file.ephemeral).unwrap_or(false),
            allow_open: over.allow_open.or(file.allow_open).unwrap_or(false),
            limits,
            durability: file.durability.settings(),
            on_log_failure: file.log.on_failure,
            quotas,
            code: over.code.or(file.code).unwrap_or_default(),
            builder: file.builder.settings(over.rustc.clone(), over.builder)?,
            tenants: file.tenants,
            webhooks: webhooks::build(file.webhooks)?,
            otlp: otlp::build(file.otlp, over.otlp.clone())?,
            cluster: ClusterSettings::build(cluster, &over.cluster)?,
            warnings: Vec::new(),
            places: KeyLocations::default(),
        };
        config.check()?;
        for (number, port) in config.listen.iter().enumerate() {
            protocol_ports::check(&config, port).map_err(|error| error.at(ports.get(number).as_slice()))?;
        }
        Ok(config)
    }

    /// Whether other machines reach the data ports.
    pub fn data_is_public(&self) -> bool {
        is_public(self.data.ip())
    }

    /// Whether tenants of this server may be open.
    pub fn allows_open_tenants(&self) -> bool {
        self.allow_open || !self.data_is_public()
    }

    /// Starts threads that are not workers. If workers have processors of their own, these threads run on the others.
    pub fn beside_workers<T>(&self, start: impl FnOnce() -> T) -> T {
        if self.pin { cpu_affinity::run_off_worker_cpus(self.workers, start) } else { start() }
    }

    /// The options that hold for all tenants.
    pub fn directory_options(&self) -> DirectoryOptions {
        DirectoryOptions {
            workers: u32::try_from(self.workers).unwrap_or(1),
            max_tenants: self.limits.tenants,
            allow_open: self.allows_open_tenants(),
            quotas: self.quotas.clone(),
            code: self.code,
            max_key_len: self.limits.key_bytes,
            max_value_len: self.limits.value_bytes,
            can_keep_records: !self.ephemeral,
            operator_reads_logs: self.operator_reads_logs,
            durability: self.durability,
        }
    }

    /// The durability of new tables for which none is given: none if nothing is kept.
    pub fn default_durability(&self) -> DefaultDurability {
        if self.ephemeral { DefaultDurability::MEMORY_ONLY } else { self.durability }
    }

    /// The configuration that the builder is started with.
    pub fn builder_config(&self) -> BuilderConfig {
        BuilderConfig {
            state: self.state.join("builder"),
            rustc: self.builder.rustc.clone(),
            libraries: self.builder.libraries.clone(),
            allow_unsandboxed: self.builder.allow_unsandboxed,
            limits: self.builder.compile,
            compilers: self.builder.compilers,
            cores: if self.pin { cpu_affinity::worker_free_cpus(self.workers).to_vec() } else { Vec::new() },
            program: None,
            deny: self.builder.deny.clone(),
        }
    }

    /// TLS of a builder's service (`sandstorm builder serve`) at that address. The command line overrides the file.
    ///
    /// # Errors
    /// [`ConfigError`]: settings that contradict each other, or an address that other machines reach without TLS
    /// although `allow_plain` does not allow that.
    pub fn builder_service_tls(
        &self,
        listen: SocketAddr,
        over: &TlsOverrides,
        allow_plain: bool,
    ) -> Result<PortTls, ConfigError> {
        let tls = PortTls::build(&BUILDER_PORT, self.builder_tls.clone(), over, listen)
            .map_err(|error| self.places.name(error))?;
        check_service_exposure(listen, &tls, allow_plain)?;
        Ok(tls)
    }

    /// Creates the configured tenants and their tables if they do not exist, then their grants.
    ///
    /// # Errors
    /// A refusal of the directory, with the tenant's name.
    pub fn create_tenants(&self, directory: &Directory) -> Result<(), ConfigError> {
        let restored = directory.snapshot();
        for (number, tenant) in self.tenants.iter().enumerate() {
            let refused = |key: String, error: &DirectoryError| self.places.name(tenant.refused(error).at(&[key]));
            if restored.by_name(&tenant.name).is_none() {
                tenant.create(directory).map_err(|error| refused(tenant.key_of(number, &error), &error))?;
            }
            tenant.create_tables(directory).map_err(|(table, error)| {
                let key = if matches!(error, DirectoryError::TableIdTaken { .. }) { "id" } else { "name" };
                refused(format!("tenants.{number}.tables.{table}.{key}"), &error)
            })?;
        }
        for (number, tenant) in self.tenants.iter().enumerate() {
            for (grant, GrantSettings { table, to, access }) in tenant.grants.iter().enumerate() {
                let granted = directory.grant(&tenant.name, table, to, *access, GrantIssuer::Operator);
                granted.map_err(|error| {
                    self.places.name(tenant.refused(&error).at(&[format!("tenants.{number}.grants.{grant}")]))
                })?;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), ConfigError> {
        let last = usize::from(self.data.port()) + self.workers - 1;
        if last > usize::from(u16::MAX) {
            return Err(ConfigError::new(format!(
                "data port {} leaves no ports for {} workers; choose one up to {}",
                self.data.port(),
                self.workers,
                usize::from(u16::MAX) + 1 - self.workers
            ))
            .at(&["data", "workers"]));
        }
        let same_host = self.data.ip() == self.control.ip();
        let clash = (usize::from(self.data.port())..=last).contains(&usize::from(self.control.port()));
        if same_host && clash && self.control.port() != 0 {
            // UDP and TCP ports do not conflict, but the same number twice would mislead a person.
            return Err(ConfigError::new(format!(
                "control port {} is among the data ports {} to {last}; choose another",
                self.control.port(),
                self.data.port()
            ))
            .at(&["control", "data", "workers"]));
        }
        self.cluster.iter().try_for_each(|cluster| cluster.check(self.data, self.ephemeral))?;
        check_control_exposure(self.control, &self.control_tls, self.allow_plain_control)
            .map_err(|error| error.at(&["control"]))?;
        self.tenants.iter().enumerate().try_for_each(|(number, tenant)| tenant.check(number, &self.quotas))?;
        let is_refused = |(_, tenant): &(usize, &TenantSettings)| tenant.open && !self.allows_open_tenants();
        if let Some((number, open)) = self.tenants.iter().enumerate().find(is_refused) {
            return Err(ConfigError::new(format!(
                "tenant {:?} is open, but data address {} is reached from other machines: anyone there could read and \
                 change its records and run its extensions; give it a token, or say --allow-open if that is meant",
                open.name, self.data
            ))
            .at(&[format!("tenants.{number}.open")]));
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |error: &dyn std::fmt::Display| {
        ConfigError::new(format!("cannot read configuration {}: {error}", path.display()))
    };
    let length = std::fs::metadata(path).map_err(|error| unreadable(&error))?.len();
    if length > MAX_FILE_BYTES {
        return Err(unreadable(&format!("it has {length} bytes, more than {MAX_FILE_BYTES}")));
    }
    std::fs::read_to_string(path).map_err(|error| unreadable(&error))
}

/// All cores but one, which is left to the control threads and the builder; at least one.
fn default_workers() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    cores.saturating_sub(1).clamp(1, MAX_WORKERS)
}
