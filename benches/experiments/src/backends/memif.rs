//! Servers and echoes over shared memory, with and without its driver's zero-copy mode.
//!
//! This process has one DPDK, which starts once, with all devices that it will ever have. So all listening ends are
//! started before it. With `zero-copy=yes` the other side reads and writes this side's packets in place. That takes
//! huge pages here (and none there).

use std::path::Path;
use std::sync::Arc;

use sandstorm_control::config::{DriverName, NetOverrides, NetSettings};
use sandstorm_net::driver::DriverFactory;

use super::backend_kind::{BackendKind, DriverBackend, addresses, words};
use super::child_process::{self, ChildProcess, ServerProcess};
use super::hugepages::HugePages;
use sandstorm_terminal::output::CliError;

/// DPDK's memory on each side, megabytes; on this side for all connections.
const THERE_MB: usize = 128;
const HERE_MB: usize = 256;
/// The first pair of each kind, which is its server's; the echo's pair is the next. The zero-copy mode has one
/// connection alone: for a second one in the same process DPDK 22.11 passes on a memory file that can no longer be
/// mapped ("mmap failed: No such device").
const KINDS: [(BackendKind, usize); 2] = [(BackendKind::Memif, 4), (BackendKind::MemifZeroCopy, 6)];

/// All memif backends. Each kind can be taken once.
pub(super) struct MemifBackends {
    ends: Vec<(BackendKind, ServerProcess, Option<ChildProcess>)>,
    /// DPDK's arguments in this process.
    eal: String,
    /// The reason why there is no zero-copy mode.
    without: Option<String>,
    folder: Arc<tempfile::TempDir>,
    pages: Option<Arc<HugePages>>,
}

fn vdev(folder: &Path, name: usize, role: &str, pair: usize) -> String {
    let socket = folder.join(format!("socket{pair}"));
    format!("--vdev net_memif{name},role={role},id=0,socket={},socket-abstract=no", socket.display())
}

impl MemifBackends {
    /// Starts servers and echoes, of both kinds if huge pages can be reserved.
    pub(super) fn start() -> Result<MemifBackends, CliError> {
        let folder = Arc::new(tempfile::tempdir()?);
        let (pages, without) = match HugePages::reserve(HERE_MB) {
            Ok(pages) => (Some(Arc::new(pages)), None),
            Err(why) => (None, Some(why)),
        };
        let memory = if pages.is_some() { "--in-memory --single-file-segments" } else { "--no-huge --no-shconf" };
        let mut eal = format!("--no-pci {memory} -m {HERE_MB}");
        let mut ends = Vec::new();
        for (kind, pair) in KINDS.into_iter().filter(|(kind, _)| *kind == BackendKind::Memif || pages.is_some()) {
            let at = |pair: usize| {
                let [address, _] = addresses(pair);
                let eal =
                    format!("--no-huge --no-pci --no-shconf -m {THERE_MB} {}", vdev(folder.path(), 0, "server", pair));
                [words("--driver dpdk --eal"), vec![eal], words(&format!("--address {address}"))].concat()
            };
            let is_alone = kind == BackendKind::MemifZeroCopy;
            let echo = if is_alone { None } else { Some(child_process::start_echo(&at(pair + 1), None)?) };
            ends.push((kind, ServerProcess::start(&at(pair), None)?, echo));
            let mode = if is_alone { ",zero-copy=yes" } else { "" };
            for pair in pair..=pair + usize::from(!is_alone) {
                eal += &format!(" {}{mode}", vdev(folder.path(), pair, "client", pair));
            }
        }
        Ok(MemifBackends { ends, eal, without, folder, pages })
    }

    /// Takes the server and the echo of a kind.
    pub(super) fn take(&mut self, kind: BackendKind) -> Result<DriverBackend, CliError> {
        let Some(at) = self.ends.iter().position(|(other, ..)| *other == kind) else {
            return Err(CliError::new(self.without.clone().unwrap_or_else(|| "it is used already".into())));
        };
        let (_, server, echo) = self.ends.swap_remove(at);
        let first = KINDS.into_iter().find(|(other, _)| *other == kind).map_or(0, |(_, pair)| pair);
        let transport = |pair: usize, to: std::net::SocketAddr| -> Result<Arc<dyn DriverFactory>, CliError> {
            let [_, address] = addresses(pair);
            let (driver, device) = (Some(DriverName::Dpdk), Some(format!("net_memif{pair}")));
            let (eal, address) = (Some(self.eal.clone()), vec![address]);
            let over = NetOverrides { driver, device, eal, address, ..NetOverrides::default() };
            let settings = NetSettings::of(&over).map_err(|error| CliError::new(error.to_string()))?;
            let drivers = crate::device_args::drivers(&settings, to, 1, None)?;
            drivers.ok_or_else(|| CliError::new("memif is no kernel socket"))
        };
        let to_server = transport(first, server.process.address()?)?;
        let to_echo = match &echo {
            Some(echo) => transport(first + 1, echo.address()?)?,
            None => Arc::clone(&to_server),
        };
        let transports = [to_server, to_echo];
        let resources = (Arc::clone(&self.folder), self.pages.clone());
        Ok(DriverBackend { kind, server, echo, transports, _resources: Some(Box::new(resources)) })
    }
}
