//! The drivers, each with a server and an echo at the other end.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandstorm_client::load::{Data, fill};
use sandstorm_client::raw::Connection;
use sandstorm_client::{Config, Sealing};
use sandstorm_control::config::{DriverName, NetOverrides, NetSettings};
use sandstorm_net::driver::{AnyDriver, Drivers, UdpDriver, UdpOptions};
use sandstorm_net::stack::ClientInterface;

use super::super::stage;
use super::child::{self, Process, Server};
use super::lab::{Inside, Lab};
use super::memif::Memifs;
use crate::cli::output::Failure;

/// How long an answer may take: a machine that does much else is slow, not broken.
const DEADLINE: Duration = Duration::from_secs(20);

/// Questions that have to be answered within that time, one by one, before anything is measured.
const TRIES: u64 = 500;

/// A driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Kernel sockets, a datagram a call.
    Single,
    /// Kernel sockets that segment and coalesce.
    Offload,
    /// Packet sockets at both ends of a pair of interfaces.
    Packet,
    /// AF_XDP through DPDK, and packet sockets at the other end.
    Xdp,
    /// Shared memory, through DPDK.
    Memif,
    /// The same where this side's packets are read and written where they lie.
    MemifZeroCopy,
}

impl Kind {
    pub(super) const ALL: [Kind; 6] =
        [Kind::Single, Kind::Offload, Kind::Packet, Kind::Xdp, Kind::Memif, Kind::MemifZeroCopy];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Single => "kernel UDP, one datagram a call",
            Kind::Offload => "kernel UDP with GSO and GRO",
            Kind::Packet => "af_packet over veth",
            Kind::Xdp => "af_xdp over veth",
            Kind::Memif => "memif",
            Kind::MemifZeroCopy => "memif, zero-copy",
        }
    }

    /// The one of this name, or those that have it in theirs.
    pub(super) fn named(text: &str) -> Result<Vec<Kind>, Failure> {
        let has = |is: fn(&str, &str) -> bool| Kind::ALL.into_iter().filter(|kind| is(kind.name(), text)).collect();
        let (one, some): (Vec<Kind>, Vec<Kind>) =
            (has(|name, text| name == text), has(|name, text| name.contains(text)));
        if some.is_empty() {
            let names = Kind::ALL.map(Kind::name).join("; ");
            return Err(Failure::new(format!("no driver has {text:?} in its name")).hint(format!("there are: {names}")));
        }
        Ok(if one.is_empty() { some } else { one })
    }

    pub(super) fn is_memif(self) -> bool {
        matches!(self, Kind::Memif | Kind::MemifZeroCopy)
    }

    /// Whether every machine has it.
    pub(super) fn is_everywhere(self) -> bool {
        matches!(self, Kind::Single | Kind::Offload)
    }
}

/// Kernel sockets that are opened so.
#[derive(Debug)]
struct Sockets(UdpOptions);

impl Drivers for Sockets {
    fn open(&self) -> Result<AnyDriver, String> {
        let bound = UdpDriver::bind(([127, 0, 0, 1], 0).into(), self.0);
        bound.map(AnyDriver::from).map_err(|error| error.to_string())
    }
}

/// A driver with what is at its other end.
pub(super) struct Backend {
    pub(super) kind: Kind,
    pub(super) server: Server,
    /// None where there can be one connection alone.
    pub(super) echo: Option<Process>,
    /// To the server, and to the echo.
    pub(super) ways: [Arc<dyn Drivers>; 2],
    /// Where sockets of the shared memory are, and its pages.
    pub(super) _kept: Option<Box<dyn Any>>,
}

/// A server's address, and its client's, of a pair.
pub(super) fn addresses(pair: usize) -> [String; 2] {
    [1, 2].map(|host| format!("10.98.{pair}.{host}/24"))
}

pub(super) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

impl Backend {
    /// Starts a server and an echo, fills the server's table, and has both sleep.
    pub(super) fn start(
        kind: Kind,
        lab: &Result<Arc<Lab>, String>,
        memifs: &mut Option<Memifs>,
        data: &[Data],
    ) -> Result<Backend, Failure> {
        // Processes run where the thread may that starts them.
        stage::return_to_all()?;
        let backend = match kind {
            Kind::Single | Kind::Offload => Backend::sockets(kind),
            Kind::Packet | Kind::Xdp => match lab {
                Ok(lab) => Backend::pairs(kind, lab),
                Err(why) => Err(Failure::new(why.clone())),
            },
            Kind::Memif | Kind::MemifZeroCopy => {
                if memifs.is_none() {
                    *memifs = Some(Memifs::start()?);
                }
                memifs.as_mut().map_or_else(|| Err(Failure::new("none was started")), |memifs| memifs.take(kind))
            }
        }?;
        stage::stay_off_first(1);
        backend.fill(data)?;
        Ok(backend)
    }

    /// Writes records, and lets nobody run any more.
    fn fill(&self, data: &[Data]) -> Result<(), Failure> {
        let (_server, _echo) = (self.server.process.awake(), self.echo.as_ref().map(Process::awake));
        self.try_way()?;
        for data in data {
            let data = Data { table: self.server.tenant.table, ..data.clone() };
            fill(&self.config()?, &data, &mut |_, _| {})?;
        }
        Ok(())
    }

    /// Asks a few times: a driver whose packets leave late, or now and then, would take all day to fill a table.
    fn try_way(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut connection = Connection::connect(&self.config()?)?;
        for number in 0..TRIES {
            let mut message = connection.message();
            message.ping(&[]);
            connection.send(number, message)?;
            while connection.in_flight() > 0 {
                connection.poll(|_, _| {});
                std::thread::yield_now();
                if begun.elapsed() > DEADLINE {
                    return Err(Failure::new(format!(
                        "{number} of {TRIES} questions were answered within {DEADLINE:?}"
                    )));
                }
            }
        }
        Ok(())
    }

    fn sockets(kind: Kind) -> Result<Backend, Failure> {
        let offload = kind == Kind::Offload;
        let flags = if offload { Vec::new() } else { words("--no-offload") };
        let settings = NetSettings { offload, ..NetSettings::default() };
        let way: Arc<dyn Drivers> = Arc::new(Sockets(settings.udp_options()));
        let server = Server::start(&[words("--data 127.0.0.1:0"), flags.clone()].concat(), None)?;
        let echo = child::echo(&flags, None)?;
        Ok(Backend { kind, server, echo: Some(echo), ways: [Arc::clone(&way), way], _kept: None })
    }

    fn pairs(kind: Kind, lab: &Arc<Lab>) -> Result<Backend, Failure> {
        let first = if kind == Kind::Xdp { 2 } else { 0 };
        let pairs = [first, first + 1];
        #[cfg(not(feature = "dpdk"))]
        if kind == Kind::Xdp {
            return Err(Failure::new(sandstorm_control::config::WITHOUT_DPDK));
        }
        for pair in pairs {
            lab.pair(&format!("served{pair}"), &format!("asking{pair}")).map_err(Failure::new)?;
        }
        let [at_server, at_echo] = pairs.map(|pair| {
            let [address, _] = addresses(pair);
            let driver = match kind {
                Kind::Xdp => vec![
                    "--driver".into(),
                    "dpdk".into(),
                    "--eal".into(),
                    format!("--no-huge --no-pci --no-shconf -m 128 --vdev net_af_xdp0,iface=served{pair}"),
                ],
                _ => words(&format!("--driver packet --device served{pair}")),
            };
            [driver, words(&format!("--address {address}"))].concat()
        });
        let server = Server::start(&at_server, Some(lab))?;
        let echo = child::echo(&at_echo, Some(lab))?;
        let way = |pair: usize| -> Result<Arc<dyn Drivers>, Failure> {
            let [_, address] = addresses(pair);
            let (driver, device) = (Some(DriverName::Packet), Some(format!("asking{pair}")));
            // A program of XDP's sees frames before the kernel has filled in what was left to it.
            let offload = (kind == Kind::Xdp).then_some(false);
            let over = NetOverrides { driver, device, address: vec![address], offload, ..NetOverrides::default() };
            let settings = NetSettings::of(&over).map_err(|error| Failure::new(error.to_string()))?;
            let opened = lab.within(|| ClientInterface::new(settings.interface_options(0, 1)))?;
            let drivers = opened.map_err(|error| Failure::new(error.to_string()))?;
            Ok(Arc::new(Inside { lab: Arc::clone(lab), drivers }))
        };
        Ok(Backend { kind, server, echo: Some(echo), ways: [way(pairs[0])?, way(pairs[1])?], _kept: None })
    }

    /// How clients reach the server: plain, over every driver alike.
    pub(super) fn config(&self) -> Result<Config, Failure> {
        let config = Config::new(self.server.process.address()?, self.server.tenant.id);
        let config = config.token(self.server.tenant.token.clone()).deadline(DEADLINE).sealing(Sealing::Never);
        Ok(config.drivers(Arc::clone(&self.ways[0])))
    }

    pub(super) fn open_to_server(&self) -> Result<AnyDriver, Failure> {
        self.ways[0].open().map_err(Failure::new)
    }

    pub(super) fn open_to_echo(&self) -> Result<AnyDriver, Failure> {
        self.ways[1].open().map_err(Failure::new)
    }
}
