//! A network namespace of its own, with pairs of virtual interfaces. The kernel's stack has no address on them. The
//! processes at both ends of a pair use it; this machine's own network stays as it is.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sandstorm_net::driver::{AnyDriver, DriverFactory};

use sandstorm_terminal::output::CliError;

/// Folder in which `ip netns` keeps its namespaces.
const FOLDER: &str = "/run/netns";

/// A network namespace; removed when dropped.
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
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("`ip {words}` says: {}", stderr.trim())) }
}

impl NetworkNamespace {
    /// Makes a namespace.
    ///
    /// # Errors
    /// The reason in words: network namespaces take root.
    pub(super) fn new() -> Result<NetworkNamespace, String> {
        let lab = NetworkNamespace { name: format!("sandstorm-bench-{}", std::process::id()) };
        ip(&format!("netns add {}", lab.name))?;
        ip(&format!("-n {} link set lo up", lab.name))?;
        // Otherwise the kernel would send packets of its own there.
        lab.within(|| std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"))
            .map_err(|error| error.message)?
            .map_err(|error| format!("cannot switch IPv6 of the kernel's off: {error}"))?;
        Ok(lab)
    }

    /// Connects two new interfaces in the namespace.
    pub(super) fn pair(&self, one: &str, other: &str) -> Result<(), String> {
        ip(&format!("-n {} link add {one} type veth peer name {other}", self.name))?;
        [one, other].iter().try_for_each(|name| ip(&format!("-n {} link set {name} up", self.name)))
    }

    /// The words before a command that runs in the namespace.
    pub(super) fn words(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.name]
    }

    /// Runs a function in the namespace, on a thread of its own.
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

/// Drivers that are opened in the namespace.
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
