//! The network of the tests: kernel sockets, or shared memory through DPDK. With `SANDSTORM_TEST_DRIVER=memif`
//! (`memif6`: over IPv6) in a build with the feature `dpdk`, the same tests run on this project's own stack, the
//! server's and the clients'. Each data plane has a device of its own, and its clients the one at its other end.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use sandstorm_client::Config;
use sandstorm_control::config::CliOverrides;
use sandstorm_instance::DataPlane;
use sandstorm_net::limits::{MAX_DATAGRAM_CEILING, MAX_DATAGRAM_V6};

/// The variable that names the driver.
pub(crate) const DRIVER: &str = "SANDSTORM_TEST_DRIVER";

/// Returns whether datagrams go over shared memory.
pub fn is_memif() -> bool {
    let named = std::env::var(DRIVER).unwrap_or_default();
    let memif = ["memif", "memif6"].contains(&named.as_str());
    assert!(memif || named.is_empty(), "{DRIVER} is memif, memif6, or not set");
    assert!(!memif || cfg!(feature = "dpdk"), "{DRIVER}={named} needs --features dpdk");
    memif
}

/// Returns whether they do so over IPv6.
pub fn is_ipv6() -> bool {
    is_memif() && std::env::var(DRIVER).is_ok_and(|name| name == "memif6")
}

/// Bytes of the largest datagram that leaves in one piece.
pub fn most() -> usize {
    // Packets of 1500 bytes, over IPv6 as well.
    if is_memif() { MAX_DATAGRAM_V6 } else { MAX_DATAGRAM_CEILING }
}

/// Returns whether a datagram of so many bytes is one packet there; if not, prints that the test does not apply.
pub fn carries(bytes: usize) -> bool {
    let carries = bytes <= most();
    if !carries {
        println!("skipped: a datagram of {bytes} bytes is more than a packet over memif");
    }
    carries
}

/// Starts a data plane; `change` sets its options on loopback.
pub fn start(overrides: CliOverrides, start: impl FnOnce(&CliOverrides) -> DataPlane) -> DataPlane {
    #[cfg(feature = "dpdk")]
    if is_memif() {
        return memif::start(overrides, start);
    }
    assert!(!is_memif());
    start(&overrides)
}

/// The client library's configuration for a data plane.
pub fn config(plane: &DataPlane, tenant: u32) -> Config {
    let config = Config::new(plane.address(), tenant);
    #[cfg(feature = "dpdk")]
    if let Some(device) = memif::client(plane) {
        return config.drivers(device);
    }
    config
}

/// A client's end that sends and receives single datagrams.
pub enum Socket {
    Kernel(UdpSocket),
    #[cfg(feature = "dpdk")]
    Memif(Box<memif::Socket>),
}

impl From<UdpSocket> for Socket {
    fn from(socket: UdpSocket) -> Socket {
        Socket::Kernel(socket)
    }
}

impl Socket {
    /// Opens one that is connected to a worker's port.
    pub fn to(plane: &DataPlane, worker: u16) -> Socket {
        let mut address = plane.address();
        address.set_port(address.port() + worker);
        #[cfg(feature = "dpdk")]
        if let Some(device) = memif::client(plane) {
            return Socket::Memif(Box::new(memif::Socket::to(&device, address, false)));
        }
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(address).expect("an address");
        Socket::Kernel(socket)
    }

    /// Opens one for all of the workers' ports, by [`Socket::send_to`].
    pub fn to_all(plane: &DataPlane) -> Socket {
        #[cfg(feature = "dpdk")]
        if let Some(device) = memif::client(plane) {
            return Socket::Memif(Box::new(memif::Socket::to(&device, plane.address(), true)));
        }
        let local = if plane.address().is_ipv6() { "[::1]:0" } else { "127.0.0.1:0" };
        Socket::Kernel(UdpSocket::bind(local).expect("a socket"))
    }

    /// As the standard library's.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Kernel(socket) => socket.set_read_timeout(timeout),
            #[cfg(feature = "dpdk")]
            Socket::Memif(socket) => {
                socket.set_read_timeout(timeout);
                Ok(())
            }
        }
    }

    /// As the standard library's, for good.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Socket::Kernel(socket) => socket.set_nonblocking(true),
            #[cfg(feature = "dpdk")]
            Socket::Memif(socket) => {
                socket.set_read_timeout(Some(Duration::ZERO));
                Ok(())
            }
        }
    }

    /// As the standard library's.
    pub fn send_to(&self, datagram: &[u8], address: SocketAddr) -> io::Result<usize> {
        match self {
            Socket::Kernel(socket) => socket.send_to(datagram, address),
            #[cfg(feature = "dpdk")]
            Socket::Memif(socket) => socket.send_to(datagram, address),
        }
    }

    /// As the standard library's.
    pub fn send(&self, datagram: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Kernel(socket) => socket.send(datagram),
            #[cfg(feature = "dpdk")]
            Socket::Memif(socket) => socket.send(datagram),
        }
    }

    /// As the standard library's.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Kernel(socket) => socket.recv(buffer),
            #[cfg(feature = "dpdk")]
            Socket::Memif(socket) => socket.recv(buffer),
        }
    }
}

#[cfg(feature = "dpdk")]
pub mod memif {
    use std::collections::{BTreeMap, VecDeque};
    use std::io;
    use std::net::{IpAddr, SocketAddr};
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};

    use sandstorm_control::config::{CliOverrides, DriverName, NetOverrides, NetSettings};
    use sandstorm_instance::DataPlane;
    use sandstorm_net::dpdk::ClientDevice;
    use sandstorm_net::driver::{AnyDriver, Burst, DatagramDriver, DriverFactory, DriverWaiter, Outbox};
    use sandstorm_net::limits::default_datagram;
    use sandstorm_net::r2p2::DatagramSink;

    /// Most data planes of one process: DPDK has 32 ports, as distributions build it.
    const PAIRS: usize = 16;

    /// The other ends, by the address of the data plane.
    static CLIENTS: Mutex<BTreeMap<IpAddr, Arc<ClientDevice>>> = Mutex::new(BTreeMap::new());

    /// DPDK's arguments: it starts once, with all devices that will ever exist.
    fn eal() -> String {
        let pid = std::process::id();
        let end = |pair: usize, at: usize, role: &str| {
            format!(" --vdev net_memif{},role={role},id=0,socket=sandstorm-test-{pid}-{pair}", 2 * pair + at)
        };
        let ends = (0..PAIRS).map(|pair| end(pair, 0, "server") + &end(pair, 1, "client"));
        format!("--no-huge --no-pci --no-shconf -m 2048{}", ends.collect::<String>())
    }

    /// The settings of one end of a pair.
    fn net(pair: usize, at: usize) -> NetOverrides {
        let host = at + 1;
        let v4 = (!super::is_ipv6()).then(|| format!("10.50.{pair}.{host}/24"));
        let address = v4.into_iter().chain([format!("fd50:{pair:x}::{host}/64")]).collect();
        let (eal, device) = (Some(eal()), Some(format!("net_memif{}", 2 * pair + at)));
        NetOverrides { driver: Some(DriverName::Dpdk), eal, device, address, ..NetOverrides::default() }
    }

    /// Starts one over shared memory, whatever the environment says.
    pub fn start(overrides: CliOverrides, start: impl FnOnce(&CliOverrides) -> DataPlane) -> DataPlane {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let pair = NEXT.fetch_add(1, SeqCst);
        assert!(pair < PAIRS, "more data planes than pairs of devices");
        let data = Some(([127, 0, 0, 1], 7400).into());
        let (allow_open, allow_plaintext) = (Some(true), Some(true));
        let plane = start(&CliOverrides { data, allow_open, allow_plaintext, net: net(pair, 0), ..overrides });
        let settings = NetSettings::of(&net(pair, 1)).expect("good addresses");
        let options = settings.device_options(0, plane.metrics.workers());
        let client = ClientDevice::open(&options, plane.address(), None).expect("the other end");
        find(&client, plane.address().ip());
        CLIENTS.lock().unwrap().insert(plane.address().ip(), Arc::new(client));
        plane
    }

    /// Sends until the data plane is known as a neighbour: packets that were sent before would wait, as far as there is
    /// room.
    fn find(client: &ClientDevice, server: IpAddr) {
        let mut driver = client.open().expect("a free connection");
        let (mut burst, mut outbox, begun) = (driver.burst(), Outbox::default(), Instant::now());
        // No socket is bound to that port.
        outbox.send((server, 9).into(), &[b"who is there?"]);
        let is_known = |(ip, _, answered_us): &(IpAddr, _, u64)| *ip == server && *answered_us > 0;
        while !client.interface().neighbours().iter().any(is_known) {
            assert!(begun.elapsed() < crate::common::EVENTUALLY, "{server} does not answer");
            driver.transmit(&mut outbox);
            driver.receive(&mut burst);
            std::thread::yield_now();
        }
    }

    /// The device at the other end, if the data plane uses shared memory.
    pub fn client(plane: &DataPlane) -> Option<Arc<ClientDevice>> {
        CLIENTS.lock().unwrap().get(&plane.address().ip()).cloned()
    }

    /// The counterpart of a connected socket of the standard library.
    pub struct Socket(Mutex<Inner>);

    struct Inner {
        driver: AnyDriver,
        waiter: DriverWaiter,
        burst: Burst,
        outbox: Outbox,
        server: SocketAddr,
        /// Whether it receives all workers' answers.
        all: bool,
        came: VecDeque<Vec<u8>>,
        timeout: Option<Duration>,
    }

    impl Socket {
        pub(super) fn to(device: &ClientDevice, server: SocketAddr, all: bool) -> Socket {
            let driver = device.open().expect("a free connection");
            let (waiter, burst, outbox) = (driver.waiter(), driver.burst(), Outbox::default());
            let (came, timeout) = (VecDeque::new(), None);
            Socket(Mutex::new(Inner { driver, waiter, burst, outbox, server, all, came, timeout }))
        }

        pub(super) fn set_read_timeout(&self, timeout: Option<Duration>) {
            self.0.lock().unwrap().timeout = timeout;
        }

        pub(super) fn send(&self, datagram: &[u8]) -> io::Result<usize> {
            let server = self.0.lock().unwrap().server;
            self.send_to(datagram, server)
        }

        pub(super) fn send_to(&self, datagram: &[u8], server: SocketAddr) -> io::Result<usize> {
            let mut inner = self.0.lock().unwrap();
            let inner = &mut *inner;
            let most = default_datagram(server.is_ipv6());
            assert!(datagram.len() <= most, "{} bytes are no packet here", datagram.len());
            assert_eq!(server.ip(), inner.server.ip(), "nobody else is at the other end");
            // While there is no room for the packets that were sent before.
            while !inner.outbox.is_empty() {
                inner.driver.transmit(&mut inner.outbox);
                if inner.timeout == Some(Duration::ZERO) && !inner.outbox.is_empty() {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
            }
            inner.outbox.send(server, &[datagram]);
            inner.driver.transmit(&mut inner.outbox);
            Ok(datagram.len())
        }

        pub(super) fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
            let mut inner = self.0.lock().unwrap();
            let inner = &mut *inner;
            let begun = Instant::now();
            loop {
                if let Some(datagram) = inner.came.pop_front() {
                    let len = datagram.len().min(buffer.len());
                    buffer[..len].copy_from_slice(&datagram[..len]);
                    return Ok(len);
                }
                inner.driver.transmit(&mut inner.outbox);
                if inner.driver.receive(&mut inner.burst) > 0 {
                    let ours = inner
                        .burst
                        .iter()
                        .filter(|(peer, _)| *peer == inner.server || inner.all && peer.ip() == inner.server.ip());
                    inner.came.extend(ours.map(|(_, datagram)| datagram.to_vec()));
                    continue;
                }
                if inner.timeout.is_some_and(|timeout| begun.elapsed() >= timeout) {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                inner.waiter.wait(Some(1000), false)?;
            }
        }
    }
}
