//! The client's configuration: the server's address, the tenant, and how to connect.

use crate::session::LoginCredentials;
use crate::{Error, limits};
use sandstorm_net::driver::DriverFactory;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// The server's address, the tenant, and how to connect.
#[derive(Clone)]
pub struct Config {
    /// The first worker's data port (the control API's `health` names it).
    pub address: SocketAddr,
    /// The tenant's id.
    pub tenant: u32,
    /// The tenant's token; empty for an open tenant.
    pub token: String,
    /// Time from a call to its answer, retries included; default 2 s.
    pub deadline: Duration,
    /// Messages without an answer at a time, per server port; more wait inside the client.
    pub window: usize,
    /// The server's port to which requests go; default: the home worker's.
    pub route: Route,
    /// Policy for sealed packets; default: [`Sealing::Auto`].
    pub sealing: Sealing,
    /// Source of drivers; default: kernel sockets. Over other drivers a client has a thread of its own.
    pub drivers: Option<Arc<dyn DriverFactory>>,
}

/// Policy for sealing a client's packets. Sealed packets are encrypted, and proof against being forged or repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sealing {
    /// Sealed, unless the server is on loopback or there is no token (an open tenant).
    #[default]
    Auto,
    /// Sealed in any case: for measurements, and where loopback is forwarded.
    Always,
    /// Never: the token and all records travel in the clear. Servers refuse it from other machines by default.
    Never,
}

impl std::str::FromStr for Sealing {
    type Err = String;

    fn from_str(text: &str) -> Result<Sealing, String> {
        match text {
            "auto" => Ok(Sealing::Auto),
            "always" => Ok(Sealing::Always),
            "never" => Ok(Sealing::Never),
            other => Err(format!("{other:?} is none of auto, always, never")),
        }
    }
}

/// The server's port to which requests go. Any port serves them; the home worker's is fastest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// The port of the tenant's home worker, as the server says it.
    #[default]
    Home,
    /// The port of this worker.
    Worker(u32),
}

impl Config {
    /// An open tenant at `address`, all else by default.
    pub fn new(address: SocketAddr, tenant: u32) -> Config {
        let (deadline, window) = (limits::REQUEST_DEADLINE, limits::WINDOW);
        let (token, route, sealing, drivers) = (String::new(), Route::Home, Sealing::Auto, None);
        Config { address, tenant, token, deadline, window, route, sealing, drivers }
    }

    /// Sets the tenant's token.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Config {
        self.token = token.into();
        self
    }

    /// Sets the deadline of each request.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Config {
        self.deadline = deadline;
        self
    }

    /// Sets the bound on unanswered messages, 1 to [`limits::WINDOW`].
    #[must_use]
    pub fn window(mut self, window: usize) -> Config {
        self.window = window.clamp(1, limits::WINDOW);
        self
    }

    /// Talking to another port than the home worker's.
    #[must_use]
    pub fn route(mut self, route: Route) -> Config {
        self.route = route;
        self
    }

    /// Sets whether packets are sealed.
    #[must_use]
    pub fn sealing(mut self, sealing: Sealing) -> Config {
        self.sealing = sealing;
        self
    }

    /// Over other drivers than kernel sockets.
    #[must_use]
    pub fn drivers(mut self, drivers: Arc<dyn DriverFactory>) -> Config {
        self.drivers = Some(drivers);
        self
    }

    /// Returns whether packets will be sealed.
    pub fn is_sealed(&self) -> bool {
        match self.sealing {
            Sealing::Auto => !self.token.is_empty() && !self.address.ip().to_canonical().is_loopback(),
            Sealing::Always => true,
            Sealing::Never => false,
        }
    }

    /// Credentials to log in with; `now_ms` is the time in milliseconds since 1970 at which the session's clock starts.
    pub(crate) fn login(&self, now_ms: u64) -> LoginCredentials {
        let sealed_clock_ms = self.is_sealed().then_some(now_ms);
        LoginCredentials { tenant: self.tenant, token: self.token.clone(), sealed_clock_ms }
    }

    /// Bytes of a message that fits one packet.
    pub(crate) fn packet_bytes(&self) -> usize {
        limits::MAX_PACKET_BYTES - if self.is_sealed() { sandstorm_net::seal::SEAL_OVERHEAD } else { 0 }
    }

    /// The port of `worker`, if there can be one.
    pub(crate) fn worker_address(&self, worker: u32) -> Result<SocketAddr, Error> {
        let port = u32::from(self.address.port()).checked_add(worker).and_then(|port| u16::try_from(port).ok());
        let port = port.ok_or_else(|| Error::Protocol { text: format!("worker {worker} has no port") })?;
        Ok(SocketAddr::new(self.address.ip(), port))
    }

    /// The local address to bind for talking to the server.
    pub(crate) fn local_address(&self) -> SocketAddr {
        let any = match self.address.ip() {
            ip if ip.is_loopback() => ip,
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        SocketAddr::new(any, 0)
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token stays out of logs.
        let Config { address, tenant, deadline, window, route, sealing, token: _, drivers } = self;
        let over = if drivers.is_some() { ", drivers of its own" } else { "" };
        write!(
            f,
            "Config {{ {address}, tenant {tenant}, {deadline:?}, window {window}, {route:?}, {sealing:?}{over} }}"
        )
    }
}
