//! Kinds of drivers, and a driver together with the processes at its other end.

use std::any::Any;
use std::sync::Arc;

use sandstorm_net::driver::DriverFactory;

use super::child_process::{ChildProcess, ServerProcess};
use sandstorm_terminal::output::CliError;

/// A driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackendKind {
    /// Kernel sockets, one datagram per call.
    Single,
    /// Kernel sockets that segment and coalesce.
    Offload,
    /// Packet sockets at both ends of a pair of interfaces.
    Packet,
    /// AF_XDP through DPDK, and packet sockets at the other end.
    Xdp,
    /// Shared memory, through DPDK.
    Memif,
    /// Shared memory whose packets this side reads and writes in place (the zero-copy mode).
    MemifZeroCopy,
}

impl BackendKind {
    pub(super) const ALL: [BackendKind; 6] = [
        BackendKind::Single,
        BackendKind::Offload,
        BackendKind::Packet,
        BackendKind::Xdp,
        BackendKind::Memif,
        BackendKind::MemifZeroCopy,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            BackendKind::Single => "kernel UDP, one datagram a call",
            BackendKind::Offload => "kernel UDP with GSO and GRO",
            BackendKind::Packet => "af_packet over veth",
            BackendKind::Xdp => "af_xdp over veth",
            BackendKind::Memif => "memif",
            BackendKind::MemifZeroCopy => "memif, zero-copy",
        }
    }

    /// Returns the kind with this name, or else the kinds whose names contain it.
    pub(super) fn named(text: &str) -> Result<Vec<BackendKind>, CliError> {
        let has =
            |is: fn(&str, &str) -> bool| BackendKind::ALL.into_iter().filter(|kind| is(kind.name(), text)).collect();
        let (one, some): (Vec<BackendKind>, Vec<BackendKind>) =
            (has(|name, text| name == text), has(|name, text| name.contains(text)));
        if some.is_empty() {
            let names = BackendKind::ALL.map(BackendKind::name).join("; ");
            return Err(
                CliError::new(format!("no driver has {text:?} in its name")).hint(format!("there are: {names}"))
            );
        }
        Ok(if one.is_empty() { some } else { one })
    }

    pub(super) fn is_memif(self) -> bool {
        matches!(self, BackendKind::Memif | BackendKind::MemifZeroCopy)
    }

    /// Returns whether every machine has this driver.
    pub(super) fn is_always_available(self) -> bool {
        matches!(self, BackendKind::Single | BackendKind::Offload)
    }
}

/// A driver together with the processes at its other end.
pub(super) struct DriverBackend {
    pub(super) kind: BackendKind,
    pub(super) server: ServerProcess,
    /// The echo process. `None` where only one connection is possible.
    pub(super) echo: Option<ChildProcess>,
    /// The drivers towards the server and towards the echo.
    pub(super) transports: [Arc<dyn DriverFactory>; 2],
    /// The folder of the shared memory's sockets, and its huge pages.
    pub(super) _resources: Option<Box<dyn Any>>,
}

/// Returns the addresses of a pair's server and client.
pub(super) fn addresses(pair: usize) -> [String; 2] {
    [1, 2].map(|host| format!("10.98.{pair}.{host}/24"))
}

pub(super) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
