//! What DPDK's own ports say of themselves.

use super::Finding;
#[cfg(feature = "dpdk")]
use super::State;
use crate::cli::output::Failure;
#[cfg(feature = "dpdk")]
use sandstorm_net::dpdk::{Eal, Port, PortOptions, UdpRule};

/// What to know of some of DPDK's drivers for interfaces of the kernel's.
#[cfg(feature = "dpdk")]
fn of_driver(name: &str) -> &'static str {
    match name {
        "net_tap" => {
            "without isolate the kernel's end has the device's own Ethernet address: once the server runs, ip link set dev dtap0 address \
             02:00:00:00:00:01"
        }
        "net_af_xdp" => "a veth at its other end has to fill checksums in by itself: ethtool -K NAME tx off",
        _ => "",
    }
}

/// What DPDK's own devices say.
#[cfg(feature = "dpdk")]
pub(super) fn asked(eal: &str) -> Result<Vec<Finding>, Failure> {
    let refuse = |error: &dyn std::fmt::Display| Failure::new(error.to_string()).code("config");
    let arguments: Vec<&str> = eal.split_whitespace().collect();
    let eal = Eal::start(&arguments).map_err(|error| refuse(&error))?;
    let ports = eal.ports().map_err(|error| refuse(&error))?;
    if ports.is_empty() {
        let advice = "bind a device to vfio-pci and name it with -a, or add --vdev";
        return Ok(vec![Finding::new("DPDK", State::Bad, "it has no port", advice)]);
    }
    let mut findings = Vec::new();
    for info in ports {
        let what = format!("DPDK port {}", info.name);
        let checks = match (info.checks, info.fills) {
            ((true, true), (true, true)) => "does checksums",
            ((false, false), (false, false)) => "does no checksums",
            _ => "does some checksums",
        };
        let node = info.node.map_or_else(String::new, |node| format!(", memory node {node}"));
        let told = format!(
            "{}, {}, packets of {} bytes (up to {}), {} queues{node}, {checks}",
            info.driver,
            info.mac,
            info.mtu,
            info.max_mtu.max(info.mtu),
            info.max_queues
        );
        if info.is_shared_memory() {
            // That would take a running server's only peer, with perhaps another number of queues than it needs.
            let told = format!("{told}; shared memory with another process: not opened");
            findings.push(Finding::new(what, State::Good, told, ""));
            continue;
        }
        let (port, _queues) = match Port::open(&eal, &info.name, &PortOptions::new(info.max_queues.clamp(1, 2))) {
            Ok(opened) => opened,
            Err(error) => {
                findings.push(Finding::new(what, State::Bad, told, error.to_string()));
                continue;
            }
        };
        let (state, steering) = steering(&port);
        findings.push(Finding::new(what, state, format!("{told}; {steering}"), of_driver(&info.driver)));
    }
    Ok(findings)
}

/// Who brings packets to their workers there.
#[cfg(feature = "dpdk")]
fn steering(port: &Port) -> (State, String) {
    // Some find a rule right that they then cannot make.
    match port.create(UdpRule::any(false, 7400, 0)) {
        Ok(_until_here) => {
            let rest = if port.info().isolates { "; can leave the rest to the kernel (isolate)" } else { "" };
            (State::Good, format!("takes rules: packets come to their worker{rest}"))
        }
        Err(why) if port.info().spreads => {
            (State::Mind, format!("spreads (RSS), takes no rules: workers hand over ({why})"))
        }
        Err(why) => (State::Mind, format!("takes no rules: workers hand over ({why})")),
    }
}

/// There is no DPDK to ask.
#[cfg(not(feature = "dpdk"))]
pub(super) fn asked(_eal: &str) -> Result<Vec<Finding>, Failure> {
    Err(Failure::new(sandstorm_control::config::WITHOUT_DPDK).code("config"))
}
