//! A network of its own: a namespace with pairs of virtual interfaces in it, of which the kernel's stack knows no
//! address. The processes at both ends of a pair have it; nothing of this machine's own network is touched.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sandstorm_net::driver::{AnyDriver, DriverFactory};

use sandstorm_terminal::output::CliError;

/// Where `ip netns` keeps its namespaces.
const FOLDER: &str = "/run/netns";

/// A namespace; gone with this value.
#[derive(Debug)]
pub(super) struct NetworkNamespace {
    name: String,
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        let _its_interfaces_go_with_it = ip(&format!("netns del {}", self.name));
    }
}

fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split_whitespace()).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("ip: {error} (Debian: apt-get install iproute2)"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("`ip {words}` says: {}", said.trim())) }
}

impl NetworkNamespace {
    /// Makes a namespace.
    ///
    /// # Errors
    /// Why there is none, in words: network namespaces take root.
    pub(super) fn new() -> Result<NetworkNamespace, String> {
        let lab = NetworkNamespace { name: format!("sandstorm-bench-{}", std::process::id()) };
        ip(&format!("netns add {}", lab.name))?;
        ip(&format!("-n {} link set lo up", lab.name))?;
        // The kernel would talk there in its own name.
        lab.within(|| std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"))
            .map_err(|error| error.message)?
            .map_err(|error| format!("cannot switch IPv6 of the kernel's off: {error}"))?;
        Ok(lab)
    }

    /// Connects two new interfaces.
    pub(super) fn pair(&self, one: &str, other: &str) -> Result<(), String> {
        ip(&format!("-n {} link add {one} type veth peer name {other}", self.name))?;
        [one, other].iter().try_for_each(|name| ip(&format!("-n {} link set {name} up", self.name)))
    }

    /// The words in front of a command that is to run there.
    pub(super) fn words(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.name]
    }

    /// Does something there, on a thread of its own.
    pub(super) fn within<T: Send>(&self, what: impl FnOnce() -> T + Send) -> Result<T, CliError> {
        let enter = || -> std::io::Result<()> {
            let file = File::open(Path::new(FOLDER).join(&self.name))?;
            Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
        };
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| enter().map(|()| what()));
            let done = thread.join().map_err(|_| CliError::new("a thread in a network namespace panicked"))?;
            done.map_err(|error| CliError::new(format!("cannot enter network namespace {}: {error}", self.name)))
        })
    }
}

/// Drivers that are opened in a namespace.
#[derive(Debug)]
pub(super) struct NamespacedDrivers<D> {
    pub(super) lab: Arc<NetworkNamespace>,
    pub(super) drivers: D,
}

impl<D: DriverFactory> DriverFactory for NamespacedDrivers<D> {
    fn open(&self) -> Result<AnyDriver, String> {
        self.lab.within(|| self.drivers.open()).map_err(|error| error.message)?
    }
}
