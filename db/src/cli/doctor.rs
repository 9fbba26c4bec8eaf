//! `sandstorm doctor`: whether this machine is ready for a device past the kernel, and what to do where it is not.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::output::{Failure, Out};

/// Look at what DPDK needs of this machine.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Start DPDK with these arguments, too, and ask its devices what they can do
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    eal: Option<String>,
    /// The root of the file system to look at
    #[arg(long, value_name = "FOLDER", default_value = "/", hide = true)]
    root: PathBuf,
}

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// As it should be.
    Good,
    /// It works without, or only so.
    Mind,
    /// A device will not run so.
    Bad,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    what: String,
    state: State,
    found: String,
    /// What to do; empty where there is nothing.
    advice: String,
}

/// A vendor whose devices stay with their kernel driver: Mellanox.
const STAYS_WITH_KERNEL: &str = "0x15b3";
/// Bytes of hugepages that a server takes with a few workers.
const ENOUGH_HUGE_KB: u64 = 256 << 10;
/// The most of a file of `/sys` that is looked at, characters.
const WORD: usize = 200;

pub(super) fn doctor(args: &DoctorArgs, out: &Out) -> Result<(), Failure> {
    let mut findings = vec![built()];
    findings.extend([hugepages(&args.root), iommu(&args.root), locked_memory()]);
    findings.extend(devices(&args.root));
    if let Some(eal) = &args.eal {
        findings.extend(asked(eal)?);
    }
    out.show(&findings, |findings| findings.iter().map(Finding::text).collect())
}

impl Finding {
    fn new(what: impl Into<String>, state: State, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { what: what.into(), state, found: found.into(), advice: advice.into() }
    }

    fn text(&self) -> String {
        let Finding { what, state, found, advice } = self;
        let mark = match state {
            State::Good => "good",
            State::Mind => "mind",
            State::Bad => "BAD ",
        };
        let advice = if advice.is_empty() { String::new() } else { format!("\n      -> {advice}") };
        format!("{mark}  {what}: {found}{advice}\n")
    }
}

fn built() -> Finding {
    #[cfg(feature = "dpdk")]
    let finding =
        Finding::new("this sandstorm", State::Good, format!("built with {}", sandstorm_net::dpdk::version()), "");
    #[cfg(not(feature = "dpdk"))]
    let finding = {
        let advice = sandstorm_db::config::WITHOUT_DPDK;
        Finding::new("this sandstorm", State::Bad, "built without DPDK", advice)
    };
    finding
}

/// One word of a file of `/sys`.
fn word(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().chars().take(WORD).collect())
}

fn number(path: &Path) -> u64 {
    word(path).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn hugepages(root: &Path) -> Finding {
    let (mut free_kb, mut parts) = (0, Vec::new());
    for node in names(&root.join("sys/devices/system/node")).iter().filter(|name| name.starts_with("node")) {
        let folder = root.join("sys/devices/system/node").join(node).join("hugepages");
        for size in names(&folder) {
            let kb: u64 = size.trim_start_matches("hugepages-").trim_end_matches("kB").parse().unwrap_or(0);
            let (all, free) =
                (number(&folder.join(&size).join("nr_hugepages")), number(&folder.join(&size).join("free_hugepages")));
            free_kb += free * kb;
            if all > 0 {
                parts.push(format!("{node}: {free} of {all} pages of {} MiB free", kb >> 10));
            }
        }
    }
    let advice = "echo 512 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages (the device's node); without any, \
                  `--no-huge` in --eal serves memif, but no real device";
    match free_kb {
        0 => Finding::new(
            "hugepages",
            State::Bad,
            if parts.is_empty() { "none".to_owned() } else { parts.join(", ") },
            advice,
        ),
        _ if free_kb < ENOUGH_HUGE_KB => Finding::new("hugepages", State::Mind, parts.join(", "), advice),
        _ => Finding::new("hugepages", State::Good, parts.join(", "), ""),
    }
}

fn iommu(root: &Path) -> Finding {
    let units = names(&root.join("sys/class/iommu"));
    if !units.is_empty() {
        return Finding::new("IOMMU", State::Good, units.join(", "), "");
    }
    let unsafe_mode = word(&root.join("sys/module/vfio/parameters/enable_unsafe_noiommu_mode"));
    if unsafe_mode.is_some_and(|mode| mode == "Y" || mode == "1") {
        let found = "none, and vfio is told to do without: a device may write to all of memory";
        return Finding::new("IOMMU", State::Mind, found, "switch it on: intel_iommu=on iommu=pt, or amd_iommu=on");
    }
    let advice = "switch it on in the firmware and on the kernel's command line (intel_iommu=on iommu=pt, or amd_iommu=on); where there is \
                  none: modprobe vfio enable_unsafe_noiommu_mode=1. Mellanox devices need none";
    Finding::new("IOMMU", State::Bad, "none", advice)
}

fn locked_memory() -> Finding {
    use rustix::process::{Resource, geteuid, getrlimit};
    let limit = getrlimit(Resource::Memlock).current;
    match limit {
        None => Finding::new("locked memory", State::Good, "unlimited", ""),
        Some(_) if geteuid().is_root() => Finding::new("locked memory", State::Good, "root: unlimited", ""),
        Some(bytes) => {
            let advice = "ulimit -l unlimited, for a device on vfio";
            Finding::new("locked memory", State::Mind, format!("at most {} KiB", bytes >> 10), advice)
        }
    }
}

/// Every network device on PCI.
fn devices(root: &Path) -> Vec<Finding> {
    let bus = root.join("sys/bus/pci/devices");
    let of_network = |name: &String| word(&bus.join(name).join("class")).is_some_and(|class| class.starts_with("0x02"));
    let found: Vec<Finding> = names(&bus).into_iter().filter(of_network).map(|name| device(&bus, &name)).collect();
    if found.is_empty() {
        let advice = "memif (shared memory) needs none: net/README.md";
        return vec![Finding::new("network devices", State::Mind, "none on PCI", advice)];
    }
    found
}

fn device(bus: &Path, name: &str) -> Finding {
    let folder = bus.join(name);
    let vendor = word(&folder.join("vendor")).unwrap_or_default();
    let id = word(&folder.join("device")).unwrap_or_default();
    let driver = fs::read_link(folder.join("driver")).ok();
    let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    // virtio's are a step further down.
    let buses = names(&folder).into_iter().filter(|name| name.starts_with("virtio")).map(|name| folder.join(name));
    let nets: Vec<PathBuf> = buses.chain([folder.clone()]).map(|device| device.join("net")).collect();
    let interfaces: Vec<String> = nets.iter().flat_map(|net| names(net)).collect();
    let node = word(&folder.join("numa_node")).and_then(|text| text.parse::<i32>().ok()).filter(|node| *node >= 0);
    let on = node.map_or_else(String::new, |node| format!(", memory node {node}: run workers there"));
    let what = format!("device {name} ({vendor}:{id})");
    let is_up = |path: PathBuf| word(&path.join("operstate")).is_some_and(|state| state == "up");
    let up = |interface: &String| nets.iter().any(|net| is_up(net.join(interface)));
    let bind = format!("dpdk-devbind.py -b vfio-pci {name}");
    match driver.as_deref() {
        Some(bound @ ("vfio-pci" | "igb_uio" | "uio_pci_generic")) => {
            Finding::new(what, State::Good, format!("bound to {bound}{on}"), "")
        }
        Some(bound) if vendor == STAYS_WITH_KERNEL => {
            Finding::new(what, State::Good, format!("stays with {bound} ({}){on}", interfaces.join(", ")), "")
        }
        Some(bound) if interfaces.iter().any(up) => {
            let found = format!("the kernel uses it: {} on {bound}{on}", interfaces.join(", "));
            let advice = format!("leave it if this machine is reached over it; else take it down, then {bind}");
            Finding::new(what, State::Mind, found, advice)
        }
        Some(bound) => Finding::new(what, State::Bad, format!("bound to {bound}{on}"), bind),
        None => Finding::new(what, State::Bad, format!("bound to nothing{on}"), bind),
    }
}

/// What DPDK's own devices say.
#[cfg(feature = "dpdk")]
fn asked(eal: &str) -> Result<Vec<Finding>, Failure> {
    use sandstorm_net::dpdk::{Eal, Port, PortOptions, UdpRule};

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
        let (port, _queues) = match Port::open(&eal, &info.name, &PortOptions::new(info.max_queues.clamp(1, 2))) {
            Ok(opened) => opened,
            Err(error) => {
                findings.push(Finding::new(what, State::Bad, told, error.to_string()));
                continue;
            }
        };
        let rule = UdpRule::any(false, 7400, 0);
        let (state, steering) = match port.validate(&rule) {
            Ok(()) => (State::Good, "takes rules: packets come to their worker".to_owned()),
            Err(why) if info.spreads => {
                (State::Mind, format!("spreads (RSS), takes no rules: workers hand over ({why})"))
            }
            Err(why) => (State::Mind, format!("takes no rules: workers hand over ({why})")),
        };
        findings.push(Finding::new(what, state, format!("{told}; {steering}"), ""));
    }
    Ok(findings)
}

/// There is no DPDK to ask.
#[cfg(not(feature = "dpdk"))]
fn asked(_eal: &str) -> Result<Vec<Finding>, Failure> {
    Err(Failure::new(sandstorm_db::config::WITHOUT_DPDK).code("config"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file system with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn a_bare_machine_is_told_what_to_do_and_a_ready_one_nothing() {
        let bare = root(&[]);
        for finding in [hugepages(bare.path()), iommu(bare.path()), devices(bare.path()).remove(0)] {
            assert!(finding.state != State::Good && !finding.advice.is_empty(), "{finding:?}");
        }
        let pages = "sys/devices/system/node/node1/hugepages/hugepages-2048kB";
        let (all, free) = (format!("{pages}/nr_hugepages"), format!("{pages}/free_hugepages"));
        let device = "sys/bus/pci/devices/0000:3b:00.0";
        let [class, vendor, id, node] =
            ["class", "vendor", "device", "numa_node"].map(|file| format!("{device}/{file}"));
        let ready = root(&[
            (&all, "512\n"),
            (&free, "500\n"),
            ("sys/class/iommu/dmar0/type", ""),
            (&class, "0x020000\n"),
            (&vendor, "0x8086\n"),
            (&id, "0x1592\n"),
            (&node, "1\n"),
        ]);
        std::os::unix::fs::symlink("/sys/bus/pci/drivers/vfio-pci", ready.path().join(device).join("driver")).unwrap();
        assert_eq!(hugepages(ready.path()).text(), "good  hugepages: node1: 500 of 512 pages of 2 MiB free\n");
        assert_eq!(iommu(ready.path()).state, State::Good);
        let found = devices(ready.path()).remove(0);
        assert!(
            found.state == State::Good && found.found == "bound to vfio-pci, memory node 1: run workers there",
            "{found:?}"
        );
    }

    #[test]
    fn a_device_is_taken_from_the_kernel_only_where_it_has_to_be() {
        for (vendor, driver, operstate, state, says) in [
            ("0x8086", "ice", "down", State::Bad, "dpdk-devbind.py -b vfio-pci 0000:01:00.0"),
            ("0x8086", "ice", "up", State::Mind, "leave it if this machine is reached over it"),
            ("0x15b3", "mlx5_core", "up", State::Good, ""),
            ("0x1af4", "virtio-pci", "up", State::Mind, "leave it if this machine is reached over it"),
        ] {
            let device = "sys/bus/pci/devices/0000:01:00.0";
            let state_of = if driver == "virtio-pci" { "virtio0/net/eth0/operstate" } else { "net/eth0/operstate" };
            let [class, maker, up] = ["class", "vendor", state_of].map(|file| format!("{device}/{file}"));
            let folder = root(&[(&class, "0x020000"), (&maker, vendor), (&up, operstate)]);
            std::os::unix::fs::symlink(format!("/drivers/{driver}"), folder.path().join(device).join("driver"))
                .unwrap();
            let found = device_of(folder.path());
            assert!(found.state == state && found.advice.contains(says), "{vendor} {driver}: {found:?}");
        }
    }

    fn device_of(root: &Path) -> Finding {
        devices(root).remove(0)
    }
}
