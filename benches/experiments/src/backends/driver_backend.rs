//! The drivers, each with a server and an echo at the other end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandstorm_client::load::{Data, fill};
use sandstorm_client::raw::Connection;
use sandstorm_client::{Config, Sealing};
use sandstorm_control::config::{DriverName, NetOverrides, NetSettings};
use sandstorm_net::driver::{AnyDriver, DriverFactory, UdpDriver, UdpOptions};
use sandstorm_net::stack::ClientInterface;

use super::super::bench_server;
use super::backend_kind::{BackendKind, DriverBackend, addresses, words};
use super::child_process::{self, ChildProcess, ServerProcess};
use super::memif::MemifBackends;
use super::netns::{NamespacedDrivers, NetworkNamespace};
use sandstorm_terminal::output::CliError;

/// Longest time for an answer. A machine with other work is slow, not broken.
const DEADLINE: Duration = Duration::from_secs(20);

/// Requests that must be answered within that time, one by one, before the measurement.
const PROBE_COUNT: u64 = 500;

/// Kernel sockets with these options.
#[derive(Debug)]
struct SocketDrivers(UdpOptions);

impl DriverFactory for SocketDrivers {
    fn open(&self) -> Result<AnyDriver, String> {
        let bound = UdpDriver::bind(([127, 0, 0, 1], 0).into(), self.0);
        bound.map(AnyDriver::from).map_err(|error| error.to_string())
    }
}

impl DriverBackend {
    /// Starts a server and an echo, fills the server's table, and stops both processes.
    pub(super) fn start(
        kind: BackendKind,
        lab: &Result<Arc<NetworkNamespace>, String>,
        memifs: &mut Option<MemifBackends>,
        data: &[Data],
    ) -> Result<DriverBackend, CliError> {
        // Child processes inherit the affinity of the thread that starts them.
        bench_server::reset_affinity()?;
        let backend = match kind {
            BackendKind::Single | BackendKind::Offload => DriverBackend::sockets(kind),
            BackendKind::Packet | BackendKind::Xdp => match lab {
                Ok(lab) => DriverBackend::pairs(kind, lab),
                Err(why) => Err(CliError::new(why.clone())),
            },
            BackendKind::Memif | BackendKind::MemifZeroCopy => {
                if memifs.is_none() {
                    *memifs = Some(MemifBackends::start()?);
                }
                memifs.as_mut().map_or_else(|| Err(CliError::new("none was started")), |memifs| memifs.take(kind))
            }
        }?;
        bench_server::avoid_first_processors(1);
        backend.fill(data)?;
        Ok(backend)
    }

    /// Writes records, then stops all processes.
    fn fill(&self, data: &[Data]) -> Result<(), CliError> {
        let (_server, _echo) = (self.server.process.resume(), self.echo.as_ref().map(ChildProcess::resume));
        self.probe_path()?;
        for data in data {
            let data = Data { table: self.server.tenant.table, ..data.clone() };
            fill(&self.config()?, &data, &mut |_, _| {})?;
        }
        Ok(())
    }

    /// Sends a few requests: over a driver whose packets leave late, filling a table would take all day.
    fn probe_path(&self) -> Result<(), CliError> {
        let begun = Instant::now();
        let mut connection = Connection::connect(&self.config()?)?;
        for number in 0..PROBE_COUNT {
            let mut message = connection.message();
            message.ping(&[]);
            connection.send(number, message)?;
            while connection.in_flight() > 0 {
                connection.poll(|_, _| {});
                std::thread::yield_now();
                if begun.elapsed() > DEADLINE {
                    return Err(CliError::new(format!(
                        "{number} of {PROBE_COUNT} questions were answered within {DEADLINE:?}"
                    )));
                }
            }
        }
        Ok(())
    }

    fn sockets(kind: BackendKind) -> Result<DriverBackend, CliError> {
        let offload = kind == BackendKind::Offload;
        let flags = if offload { Vec::new() } else { words("--no-offload") };
        let settings = NetSettings { offload, ..NetSettings::default() };
        let transport: Arc<dyn DriverFactory> = Arc::new(SocketDrivers(settings.udp_options()));
        let server = ServerProcess::start(&[words("--data 127.0.0.1:0"), flags.clone()].concat(), None)?;
        let echo = child_process::start_echo(&flags, None)?;
        Ok(DriverBackend {
            kind,
            server,
            echo: Some(echo),
            transports: [Arc::clone(&transport), transport],
            _resources: None,
        })
    }

    fn pairs(kind: BackendKind, lab: &Arc<NetworkNamespace>) -> Result<DriverBackend, CliError> {
        let first = if kind == BackendKind::Xdp { 2 } else { 0 };
        let pairs = [first, first + 1];
        #[cfg(not(feature = "dpdk"))]
        if kind == BackendKind::Xdp {
            return Err(CliError::new(sandstorm_control::config::WITHOUT_DPDK));
        }
        for pair in pairs {
            lab.pair(&format!("served{pair}"), &format!("asking{pair}")).map_err(CliError::new)?;
        }
        let [at_server, at_echo] = pairs.map(|pair| {
            let [address, _] = addresses(pair);
            let driver = match kind {
                BackendKind::Xdp => vec![
                    "--driver".into(),
                    "dpdk".into(),
                    "--eal".into(),
                    format!("--no-huge --no-pci --no-shconf -m 128 --vdev net_af_xdp0,iface=served{pair}"),
                ],
                _ => words(&format!("--driver packet --device served{pair}")),
            };
            [driver, words(&format!("--address {address}"))].concat()
        });
        let server = ServerProcess::start(&at_server, Some(lab))?;
        let echo = child_process::start_echo(&at_echo, Some(lab))?;
        let transport = |pair: usize| -> Result<Arc<dyn DriverFactory>, CliError> {
            let [_, address] = addresses(pair);
            let (driver, device) = (Some(DriverName::Packet), Some(format!("asking{pair}")));
            // An XDP program sees frames before the kernel fills in the checksums that it left to the interface.
            let offload = (kind == BackendKind::Xdp).then_some(false);
            let over = NetOverrides { driver, device, address: vec![address], offload, ..NetOverrides::default() };
            let settings = NetSettings::of(&over).map_err(|error| CliError::new(error.to_string()))?;
            let opened = lab.within(|| ClientInterface::new(settings.interface_options(0, 1)))?;
            let drivers = opened.map_err(|error| CliError::new(error.to_string()))?;
            Ok(Arc::new(NamespacedDrivers { lab: Arc::clone(lab), drivers }))
        };
        Ok(DriverBackend {
            kind,
            server,
            echo: Some(echo),
            transports: [transport(pairs[0])?, transport(pairs[1])?],
            _resources: None,
        })
    }

    /// The client configuration: unencrypted, the same over every driver.
    pub(super) fn config(&self) -> Result<Config, CliError> {
        let config = Config::new(self.server.process.address()?, self.server.tenant.id);
        let config = config.token(self.server.tenant.token.clone()).deadline(DEADLINE).sealing(Sealing::Never);
        Ok(config.drivers(Arc::clone(&self.transports[0])))
    }

    pub(super) fn open_to_server(&self) -> Result<AnyDriver, CliError> {
        self.transports[0].open().map_err(CliError::new)
    }

    pub(super) fn open_to_echo(&self) -> Result<AnyDriver, CliError> {
        self.transports[1].open().map_err(CliError::new)
    }
}
