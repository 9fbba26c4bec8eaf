//! Checks of DPDK's own ports, by what DPDK reports.

#[cfg(feature = "dpdk")]
use super::CheckStatus;
use super::DoctorFinding;
use crate::cli::output::CliError;
#[cfg(feature = "dpdk")]
use sandstorm_net::dpdk::{DpdkPort, Eal, PortOptions, UdpRule};

/// Advice for some of DPDK's drivers of kernel interfaces.
#[cfg(feature = "dpdk")]
fn driver_advice(name: &str) -> &'static str {
    match name {
        "net_tap" => {
            "without isolate the kernel's end has the device's own Ethernet address: once the server runs, ip link set dev dtap0 address \
             02:00:00:00:00:01"
        }
        "net_af_xdp" => "a veth at its other end has to fill checksums in by itself: ethtool -K NAME tx off",
        _ => "",
    }
}

/// Checks the devices that DPDK reports.
#[cfg(feature = "dpdk")]
pub(super) fn query_ports(eal: &str) -> Result<Vec<DoctorFinding>, CliError> {
    let refuse = |error: &dyn std::fmt::Display| CliError::new(error.to_string()).code("config");
    let arguments: Vec<&str> = eal.split_whitespace().collect();
    let eal = Eal::start(&arguments).map_err(|error| refuse(&error))?;
    let ports = eal.ports().map_err(|error| refuse(&error))?;
    if ports.is_empty() {
        let advice = "bind a device to vfio-pci and name it with -a, or add --vdev";
        return Ok(vec![DoctorFinding::new("DPDK", CheckStatus::Bad, "it has no port", advice)]);
    }
    let mut findings = Vec::new();
    for info in ports {
        let what = format!("DPDK port {}", info.name);
        let checks = match (info.checks, info.tx_checksums) {
            ((true, true), (true, true)) => "does checksums",
            ((false, false), (false, false)) => "does no checksums",
            _ => "does some checksums",
        };
        let node = info.node.map_or_else(String::new, |node| format!(", memory node {node}"));
        let summary = format!(
            "{}, {}, packets of {} bytes (up to {}), {} queues{node}, {checks}",
            info.driver,
            info.mac,
            info.mtu,
            info.max_mtu.max(info.mtu),
            info.max_queues
        );
        if info.is_shared_memory() {
            // Opening it would take a running server's only peer, possibly with another number of queues than it needs.
            let summary = format!("{summary}; shared memory with another process: not opened");
            findings.push(DoctorFinding::new(what, CheckStatus::Good, summary, ""));
            continue;
        }
        let (port, _queues) = match DpdkPort::open(&eal, &info.name, &PortOptions::new(info.max_queues.clamp(1, 2))) {
            Ok(opened) => opened,
            Err(error) => {
                findings.push(DoctorFinding::new(what, CheckStatus::Bad, summary, error.to_string()));
                continue;
            }
        };
        let (state, steering) = steering(&port);
        findings.push(DoctorFinding::new(what, state, format!("{summary}; {steering}"), driver_advice(&info.driver)));
    }
    Ok(findings)
}

/// Checks whether the device or the software steers packets to their workers.
#[cfg(feature = "dpdk")]
fn steering(port: &DpdkPort) -> (CheckStatus, String) {
    // Some devices accept a rule in validation and then cannot create it.
    match port.create(UdpRule::any(false, 7400, 0)) {
        Ok(_until_here) => {
            let rest = if port.info().supports_isolation { "; can leave the rest to the kernel (isolate)" } else { "" };
            (CheckStatus::Good, format!("takes rules: packets come to their worker{rest}"))
        }
        Err(why) if port.info().supports_rss => {
            (CheckStatus::Mind, format!("spreads (RSS), takes no rules: workers hand over ({why})"))
        }
        Err(why) => (CheckStatus::Mind, format!("takes no rules: workers hand over ({why})")),
    }
}

/// This build has no DPDK.
#[cfg(not(feature = "dpdk"))]
pub(super) fn query_ports(_eal: &str) -> Result<Vec<DoctorFinding>, CliError> {
    Err(CliError::new(sandstorm_control::config::WITHOUT_DPDK).code("config"))
}
