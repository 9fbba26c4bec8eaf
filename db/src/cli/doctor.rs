//! `sandstorm doctor`: checks what this machine lacks, and gives advice. It checks for a rustc, also as a service, and
//! for the needs of a driver beside the kernel's network stack.

mod dpdk_ports;
pub(super) mod live;
mod systemd_unit;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use sandstorm_net::stack::{FramePort, PacketOptions, PacketPort};
use serde::Serialize;

use super::output::{CliError, OutputPrinter};

/// Check what a server needs of this machine.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Ask the running server what is wrong with it now, instead of checking this machine
    #[arg(long, conflicts_with_all = ["eal", "interface", "unit"])]
    pub(super) live: bool,
    /// Also start DPDK with these arguments, and print what its devices can do
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    eal: Option<String>,
    /// Check this network interface for `--driver packet`, instead of what DPDK needs
    #[arg(long, value_name = "NAME", conflicts_with = "eal")]
    interface: Option<String>,
    /// Check this systemd unit, instead of what DPDK needs: its user, its files, and a rustc that the user can run
    #[arg(long, value_name = "FILE", conflicts_with_all = ["eal", "interface"])]
    unit: Option<PathBuf>,
    /// The root of the file system to check
    #[arg(long, value_name = "FOLDER", default_value = "/", hide = true)]
    root: PathBuf,
}

/// The state of a checked item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum CheckStatus {
    /// It is in order.
    Good,
    /// It works without this, or only in a limited way.
    Mind,
    /// A device will not work in this state.
    Bad,
}

/// One checked item.
#[derive(Debug, Serialize)]
struct DoctorFinding {
    what: String,
    state: CheckStatus,
    found: String,
    /// Advice; empty where none is needed.
    advice: String,
}

/// A vendor whose devices keep their kernel driver: Mellanox.
const STAYS_WITH_KERNEL: &str = "0x15b3";
/// The kernel drivers that its devices keep: of ConnectX-4 and later, and of ConnectX-3.
const KERNEL_BOUND_DRIVERS: [&str; 2] = ["mlx5_core", "mlx4_core"];
/// Kernel drivers that pass a device through to a process.
const PASS_THROUGH: [&str; 3] = ["vfio-pci", "igb_uio", "uio_pci_generic"];
/// Those of them that need no IOMMU.
const UIO: [&str; 2] = ["igb_uio", "uio_pci_generic"];
/// KiB of hugepages that a server with a few workers uses.
const ENOUGH_HUGE_KB: u64 = 256 << 10;
/// Most characters that are read of a file of `/sys`.
const MAX_WORD_CHARS: usize = 200;

pub(super) fn doctor(args: &DoctorArgs, out: &OutputPrinter) -> Result<(), CliError> {
    if let Some(name) = &args.interface {
        let findings =
            vec![check_packet_socket(name), check_kernel_ipv6(&args.root, name), check_forwarding(&args.root, name)];
        return out.show(&findings, |findings| findings.iter().map(DoctorFinding::text).collect());
    }
    if let Some(unit) = &args.unit {
        let findings = systemd_unit::unit(unit, &args.root)?;
        return out.show(&findings, |findings| findings.iter().map(DoctorFinding::text).collect());
    }
    let mut findings = systemd_unit::compilers();
    findings.push(check_build());
    findings.extend(check_hugepages(&args.root));
    findings.extend([check_iommu(&args.root), check_locked_memory()]);
    findings.extend(devices(&args.root));
    if let Some(eal) = &args.eal {
        findings.extend(dpdk_ports::query_ports(eal)?);
    }
    out.show(&findings, |findings| findings.iter().map(DoctorFinding::text).collect())
}

impl DoctorFinding {
    fn new(
        what: impl Into<String>,
        state: CheckStatus,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> DoctorFinding {
        DoctorFinding { what: what.into(), state, found: found.into(), advice: advice.into() }
    }

    fn text(&self) -> String {
        let DoctorFinding { what, state, found, advice } = self;
        let symbol = match state {
            CheckStatus::Good => "good",
            CheckStatus::Mind => "mind",
            CheckStatus::Bad => "BAD ",
        };
        let advice = if advice.is_empty() { String::new() } else { format!("\n      -> {advice}") };
        format!("{symbol}  {what}: {found}{advice}\n")
    }
}

fn check_build() -> DoctorFinding {
    #[cfg(feature = "dpdk")]
    let finding = DoctorFinding::new(
        "this sandstorm",
        CheckStatus::Good,
        format!("built with {}", sandstorm_net::dpdk::version()),
        "",
    );
    #[cfg(not(feature = "dpdk"))]
    let finding = {
        let advice = sandstorm_control::config::WITHOUT_DPDK;
        DoctorFinding::new("this sandstorm", CheckStatus::Bad, "built without DPDK", advice)
    };
    finding
}

/// Opens an interface as the server would.
fn check_packet_socket(name: &str) -> DoctorFinding {
    let what = format!("packet socket on {name}");
    match PacketPort::open(name, PacketOptions::default()) {
        Ok(port) if port.was_up() => {
            DoctorFinding::new(what, CheckStatus::Good, format!("{}, packets of {} bytes", port.mac(), port.mtu()), "")
        }
        Ok(_) => {
            DoctorFinding::new(what, CheckStatus::Bad, "the interface is down", format!("ip link set dev {name} up"))
        }
        Err(error) => DoctorFinding::new(what, CheckStatus::Bad, "cannot be opened", error.to_string()),
    }
}

/// Checks for the kernel's own IPv6 address, made of the same Ethernet address as the server's.
fn check_kernel_ipv6(root: &Path, name: &str) -> DoctorFinding {
    let what = "IPv6 of the kernel's there";
    if number(&root.join("proc/sys/net/ipv6/conf").join(name).join("disable_ipv6")) != 0 {
        return DoctorFinding::new(what, CheckStatus::Good, "off", "");
    }
    let advice = format!(
        "sysctl -w net.ipv6.conf.{name}.disable_ipv6=1, if the server is to have an address of IPv6: both have the same link-local one, \
         and both answer for it"
    );
    DoctorFinding::new(what, CheckStatus::Mind, "on", advice)
}

/// Checks whether the kernel forwards packets for other hosts: it sees the server's packets, too.
fn check_forwarding(root: &Path, name: &str) -> DoctorFinding {
    let is_on = |family: &str| number(&root.join(format!("proc/sys/net/{family}/conf/{name}/forwarding"))) != 0;
    let on: Vec<&str> = ["ipv4", "ipv6"].into_iter().filter(|family| is_on(family)).collect();
    if on.is_empty() {
        return DoctorFinding::new("forwarding by the kernel", CheckStatus::Good, "off", "");
    }
    let advice: Vec<String> = on.iter().map(|family| format!("net.{family}.conf.{name}.forwarding=0")).collect();
    let advice = format!("sysctl -w {}: the kernel would forward or reject packets for the server", advice.join(" "));
    DoctorFinding::new("forwarding by the kernel", CheckStatus::Bad, on.join(", "), advice)
}

/// Reads one word of a file of `/sys`.
fn word(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().chars().take(MAX_WORD_CHARS).collect())
}

fn number(path: &Path) -> u64 {
    word(path).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Hugepages of a NUMA node.
#[derive(Default)]
struct NodeHugePages {
    free_kb: u64,
    /// The hugepages of each size, in words.
    parts: Vec<String>,
}

/// The hugepages of each NUMA node.
fn pages(root: &Path) -> BTreeMap<u32, NodeHugePages> {
    let nodes = root.join("sys/devices/system/node");
    let mut all = BTreeMap::new();
    for name in names(&nodes) {
        let Some(node) = name.strip_prefix("node").and_then(|number| number.parse().ok()) else { continue };
        let folder = nodes.join(&name).join("hugepages");
        let pages: &mut NodeHugePages = all.entry(node).or_default();
        for size in names(&folder) {
            let kb: u64 = size.trim_start_matches("hugepages-").trim_end_matches("kB").parse().unwrap_or(0);
            let (all, free) =
                (number(&folder.join(&size).join("nr_hugepages")), number(&folder.join(&size).join("free_hugepages")));
            pages.free_kb += free * kb;
            if all > 0 {
                pages.parts.push(format!("{name}: {free} of {all} pages of {} MiB free", kb >> 10));
            }
        }
    }
    all
}

/// Checks for hugepages where they are needed: packets are in memory of their device's NUMA node only. Without a device
/// that DPDK could use, any node will do.
fn check_hugepages(root: &Path) -> Vec<DoctorFinding> {
    let pages = pages(root);
    let nodes: BTreeSet<Option<u32>> = match device_nodes(root) {
        nodes if nodes.is_empty() => [None].into(),
        nodes => nodes,
    };
    nodes.into_iter().map(|node| hugepages_on(&pages, node)).collect()
}

/// Checks the hugepages of one node, or of all.
fn hugepages_on(pages: &BTreeMap<u32, NodeHugePages>, node: Option<u32>) -> DoctorFinding {
    let of_node = || pages.iter().filter(|(number, _)| node.is_none_or(|node| node == **number));
    let free_kb: u64 = of_node().map(|(_, pages)| pages.free_kb).sum();
    let parts: Vec<&str> = of_node().flat_map(|(_, pages)| &pages.parts).map(String::as_str).collect();
    let found = if parts.is_empty() { "none".to_owned() } else { parts.join(", ") };
    let what =
        node.map_or_else(|| "hugepages".to_owned(), |node| format!("hugepages of a device's memory node {node}"));
    let state = match free_kb {
        0 => CheckStatus::Bad,
        _ if free_kb < ENOUGH_HUGE_KB => CheckStatus::Mind,
        _ => return DoctorFinding::new(what, CheckStatus::Good, found, ""),
    };
    let advice = format!(
        "echo 512 > /sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages{}; without any, `--no-huge` in --eal serves \
         memif, but no real device",
        node.unwrap_or(0),
        if node.is_some() { "" } else { " (the device's node)" }
    );
    DoctorFinding::new(what, state, found, advice)
}

fn check_iommu(root: &Path) -> DoctorFinding {
    let units = names(&root.join("sys/class/iommu"));
    if !units.is_empty() {
        return DoctorFinding::new("IOMMU", CheckStatus::Good, units.join(", "), "");
    }
    let without = if vfio_no_iommu_mode(root) == Some(true) {
        Some("vfio is configured to work without one")
    } else if pci_network_devices(root)
        .iter()
        .any(|(_, folder)| driver_of(folder).is_some_and(|driver| UIO.contains(&driver.as_str())))
    {
        Some("a device is bound to uio")
    } else {
        None
    };
    if let Some(without) = without {
        let found = format!("none, and {without}: a device may write to all of memory");
        return DoctorFinding::new(
            "IOMMU",
            CheckStatus::Mind,
            found,
            "switch it on: intel_iommu=on iommu=pt, or amd_iommu=on",
        );
    }
    let where_none = match vfio_no_iommu_mode(root) {
        Some(_) => "echo 1 > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode",
        None if root.join("sys/module/vfio").exists() => {
            "modprobe uio_pci_generic, and bind devices to that (this kernel's vfio cannot do without)"
        }
        None => {
            "modprobe vfio enable_unsafe_noiommu_mode=1, or, if the kernel's vfio has no such mode (Debian's has not), \
             modprobe uio_pci_generic, and bind devices to that"
        }
    };
    let advice = format!(
        "switch it on in the firmware and on the kernel's command line (intel_iommu=on iommu=pt, or amd_iommu=on); where there is \
         none: {where_none}. Mellanox devices need none"
    );
    DoctorFinding::new("IOMMU", CheckStatus::Bad, "none", advice)
}

/// Returns whether vfio is configured to work without an IOMMU. `None`: it is not loaded, or was built without that
/// mode.
fn vfio_no_iommu_mode(root: &Path) -> Option<bool> {
    let mode = word(&root.join("sys/module/vfio/parameters/enable_unsafe_noiommu_mode"))?;
    Some(mode == "Y" || mode == "1")
}

/// The kernel driver to which devices should be bound.
fn bindable_driver(root: &Path) -> &'static str {
    let can_vfio = !names(&root.join("sys/class/iommu")).is_empty()
        || vfio_no_iommu_mode(root).is_some()
        || !root.join("sys/module/vfio").exists();
    if can_vfio { "vfio-pci" } else { "uio_pci_generic" }
}

fn check_locked_memory() -> DoctorFinding {
    use rustix::process::{Resource, geteuid, getrlimit};
    let limit = getrlimit(Resource::Memlock).current;
    match limit {
        None => DoctorFinding::new("locked memory", CheckStatus::Good, "unlimited", ""),
        Some(_) if geteuid().is_root() => DoctorFinding::new("locked memory", CheckStatus::Good, "root: unlimited", ""),
        Some(bytes) => {
            let advice = "ulimit -l unlimited, for a device on vfio";
            DoctorFinding::new("locked memory", CheckStatus::Mind, format!("at most {} KiB", bytes >> 10), advice)
        }
    }
}

/// The folders of all PCI network devices, by their names.
fn pci_network_devices(root: &Path) -> Vec<(String, PathBuf)> {
    let bus = root.join("sys/bus/pci/devices");
    let of_network = |folder: &Path| word(&folder.join("class")).is_some_and(|class| class.starts_with("0x02"));
    let all = names(&bus).into_iter().map(|name| (bus.join(&name), name));
    all.filter(|(folder, _)| of_network(folder)).map(|(folder, name)| (name, folder)).collect()
}

/// Checks every PCI network device.
fn devices(root: &Path) -> Vec<DoctorFinding> {
    let found: Vec<DoctorFinding> =
        pci_network_devices(root).iter().map(|(name, folder)| device(name, folder, bindable_driver(root))).collect();
    if found.is_empty() {
        let advice = "memif (shared memory) needs none: net/README.md";
        return vec![DoctorFinding::new("network devices", CheckStatus::Mind, "none on PCI", advice)];
    }
    found
}

/// The kernel driver of a device.
fn driver_of(folder: &Path) -> Option<String> {
    let path = fs::read_link(folder.join("driver")).ok()?;
    Some(path.file_name()?.to_string_lossy().into_owned())
}

fn vendor_of(folder: &Path) -> String {
    word(&folder.join("vendor")).unwrap_or_default()
}

/// The NUMA node of a device; `None` where it belongs to none in particular.
fn node_of(folder: &Path) -> Option<u32> {
    word(&folder.join("numa_node"))?.parse().ok()
}

/// The NUMA nodes of the devices that DPDK can use as they are.
fn device_nodes(root: &Path) -> BTreeSet<Option<u32>> {
    let can_have = |folder: &Path| {
        let may: &[&str] = if vendor_of(folder) == STAYS_WITH_KERNEL { &KERNEL_BOUND_DRIVERS } else { &PASS_THROUGH };
        driver_of(folder).is_some_and(|driver| may.contains(&driver.as_str()))
    };
    pci_network_devices(root).iter().filter(|(_, folder)| can_have(folder)).map(|(_, folder)| node_of(folder)).collect()
}

fn device(name: &str, folder: &Path, bind_to: &str) -> DoctorFinding {
    let vendor = vendor_of(folder);
    let id = word(&folder.join("device")).unwrap_or_default();
    // Interfaces of virtio devices are one level further down.
    let buses = names(folder).into_iter().filter(|name| name.starts_with("virtio")).map(|name| folder.join(name));
    let nets: Vec<PathBuf> = buses.chain([folder.to_owned()]).map(|device| device.join("net")).collect();
    let interfaces: Vec<String> = nets.iter().flat_map(|net| names(net)).collect();
    let on = node_of(folder).map_or_else(String::new, |node| format!(", memory node {node}: run workers there"));
    let is_up = |path: PathBuf| word(&path.join("operstate")).is_some_and(|state| state == "up");
    let up = interfaces.iter().any(|interface| nets.iter().any(|net| is_up(net.join(interface))));
    let driver = driver_of(folder);
    let bound = driver.as_deref().unwrap_or("nothing");
    let finding = |state, found: String, advice: String| {
        DoctorFinding::new(format!("device {name} ({vendor}:{id})"), state, format!("{found}{on}"), advice)
    };
    if vendor == STAYS_WITH_KERNEL {
        let binding = format!("stays with {bound} ({})", interfaces.join(", "));
        // A virtual function is the server's alone, whether or not the kernel has it up.
        return match (KERNEL_BOUND_DRIVERS.contains(&bound), up && !folder.join("physfn").exists()) {
            (true, false) => finding(CheckStatus::Good, binding, String::new()),
            (true, true) => {
                let advice = format!(
                    "every packet on it would go to the server: share it (isolate = true in [net], with the kernel's address), or give the \
                     server a virtual function (echo 1 > /sys/bus/pci/devices/{name}/sriov_numvfs) and name that one with -a"
                );
                finding(CheckStatus::Mind, format!("{binding}, and the kernel uses it"), advice)
            }
            (false, _) => {
                let advice = format!(
                    "dpdk-devbind.py -b mlx5_core {name} (a ConnectX-3: mlx4_core): DPDK has it through that driver"
                );
                finding(CheckStatus::Bad, format!("bound to {bound}"), advice)
            }
        };
    }
    let bind = format!("dpdk-devbind.py -b {bind_to} {name}");
    if PASS_THROUGH.contains(&bound) {
        finding(CheckStatus::Good, format!("bound to {bound}"), String::new())
    } else if up {
        let advice = format!("leave it if this machine is reached over it; else take it down, then {bind}");
        finding(CheckStatus::Mind, format!("the kernel uses it: {} on {bound}", interfaces.join(", ")), advice)
    } else {
        finding(CheckStatus::Bad, format!("bound to {bound}"), bind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a file system root with these files.
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
        for finding in
            [check_hugepages(bare.path()).remove(0), check_iommu(bare.path()), devices(bare.path()).remove(0)]
        {
            assert!(finding.state != CheckStatus::Good && !finding.advice.is_empty(), "{finding:?}");
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
        let [huge] = &check_hugepages(ready.path())[..] else { panic!("one device, one node") };
        assert_eq!(huge.text(), "good  hugepages of a device's memory node 1: node1: 500 of 512 pages of 2 MiB free\n");
        assert_eq!(check_iommu(ready.path()).state, CheckStatus::Good);
        let found = devices(ready.path()).remove(0);
        assert!(
            found.state == CheckStatus::Good && found.found == "bound to vfio-pci, memory node 1: run workers there",
            "{found:?}"
        );
    }

    #[test]
    fn a_machine_without_an_iommu_is_told_what_its_kernel_can_do() {
        let device = "sys/bus/pci/devices/0000:01:00.0";
        let [class, maker] = ["class", "vendor"].map(|file| format!("{device}/{file}"));
        let mode = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
        let of_device = [(class.as_str(), "0x020000"), (maker.as_str(), "0x8086")];
        for (vfio, driver, state, advice, bind_to) in [
            (None, "ice", CheckStatus::Bad, "modprobe vfio enable_unsafe_noiommu_mode=1, or", "vfio-pci"),
            (Some((mode, "N")), "ice", CheckStatus::Bad, "echo 1 > /sys/module/vfio/parameters", "vfio-pci"),
            (Some((mode, "Y")), "ice", CheckStatus::Mind, "switch it on", "vfio-pci"),
            // Debian's kernel: vfio is loaded, and lacks this mode.
            (
                Some(("sys/module/vfio/refcnt", "0")),
                "ice",
                CheckStatus::Bad,
                "modprobe uio_pci_generic",
                "uio_pci_generic",
            ),
            (Some(("sys/module/vfio/refcnt", "0")), "uio_pci_generic", CheckStatus::Mind, "switch it on", ""),
        ] {
            let folder = root(&of_device.into_iter().chain(vfio).collect::<Vec<_>>());
            std::os::unix::fs::symlink(format!("/drivers/{driver}"), folder.path().join(device).join("driver"))
                .unwrap();
            let (found, device) = (check_iommu(folder.path()), device_of(folder.path()));
            assert!(found.state == state && found.advice.contains(advice), "{vfio:?} {driver}: {found:?}");
            let bind = format!("dpdk-devbind.py -b {bind_to} 0000:01:00.0");
            assert!(bind_to.is_empty() && device.state == CheckStatus::Good || device.advice == bind, "{device:?}");
        }
    }

    #[test]
    fn an_interface_that_the_kernel_uses_as_well_is_told_of() {
        let quiet = root(&[
            ("proc/sys/net/ipv6/conf/eth1/disable_ipv6", "1\n"),
            ("proc/sys/net/ipv4/conf/eth1/forwarding", "0\n"),
        ]);
        assert_eq!(check_kernel_ipv6(quiet.path(), "eth1").state, CheckStatus::Good);
        assert_eq!(check_forwarding(quiet.path(), "eth1").state, CheckStatus::Good);
        let busy = root(&[
            ("proc/sys/net/ipv6/conf/eth1/disable_ipv6", "0\n"),
            ("proc/sys/net/ipv4/conf/eth1/forwarding", "1\n"),
        ]);
        assert!(check_kernel_ipv6(busy.path(), "eth1").advice.contains("net.ipv6.conf.eth1.disable_ipv6=1"));
        let found = check_forwarding(busy.path(), "eth1");
        assert!(
            found.state == CheckStatus::Bad && found.advice.contains("net.ipv4.conf.eth1.forwarding=0"),
            "{found:?}"
        );
        let missing = check_packet_socket("no such interface");
        assert!(missing.state == CheckStatus::Bad && !missing.advice.is_empty(), "{missing:?}");
    }

    #[test]
    fn a_device_is_taken_from_the_kernel_only_where_it_has_to_be() {
        let leave = "leave it if this machine is reached over it";
        for (vendor, driver, operstate, state, advice_part) in [
            ("0x8086", "ice", "down", CheckStatus::Bad, "dpdk-devbind.py -b vfio-pci 0000:01:00.0"),
            ("0x8086", "", "down", CheckStatus::Bad, "dpdk-devbind.py -b vfio-pci 0000:01:00.0"),
            ("0x8086", "ice", "up", CheckStatus::Mind, leave),
            ("0x8086", "vfio-pci", "down", CheckStatus::Good, ""),
            ("0x15b3", "mlx5_core", "down", CheckStatus::Good, ""),
            ("0x15b3", "mlx5_core", "up", CheckStatus::Mind, "isolate = true in [net]"),
            ("0x15b3", "vfio-pci", "down", CheckStatus::Bad, "dpdk-devbind.py -b mlx5_core 0000:01:00.0"),
            ("0x15b3", "", "down", CheckStatus::Bad, "dpdk-devbind.py -b mlx5_core 0000:01:00.0"),
            ("0x1af4", "virtio-pci", "up", CheckStatus::Mind, leave),
        ] {
            let device = "sys/bus/pci/devices/0000:01:00.0";
            let state_of = if driver == "virtio-pci" { "virtio0/net/eth0/operstate" } else { "net/eth0/operstate" };
            let [class, maker, up] = ["class", "vendor", state_of].map(|file| format!("{device}/{file}"));
            let folder = root(&[(&class, "0x020000"), (&maker, vendor), (&up, operstate)]);
            if !driver.is_empty() {
                std::os::unix::fs::symlink(format!("/drivers/{driver}"), folder.path().join(device).join("driver"))
                    .unwrap();
            }
            let found = device_of(folder.path());
            let right =
                if advice_part.is_empty() { found.advice.is_empty() } else { found.advice.contains(advice_part) };
            assert!(found.state == state && right, "{vendor} {driver}: {found:?}");
        }
    }

    #[test]
    fn a_virtual_function_of_a_device_that_stays_with_the_kernel_is_the_servers() {
        let device = "sys/bus/pci/devices/0000:01:00.2";
        let [class, maker, up, whole] =
            ["class", "vendor", "net/eth1/operstate", "physfn/vendor"].map(|file| format!("{device}/{file}"));
        let folder = root(&[(&class, "0x020000"), (&maker, "0x15b3"), (&up, "up"), (&whole, "0x15b3")]);
        std::os::unix::fs::symlink("/drivers/mlx5_core", folder.path().join(device).join("driver")).unwrap();
        let found = device_of(folder.path());
        assert!(found.state == CheckStatus::Good && found.advice.is_empty(), "{found:?}");
    }

    #[test]
    fn hugepages_count_on_the_memory_node_of_a_device_that_needs_them() {
        let pages = |node: u32| format!("sys/devices/system/node/node{node}/hugepages/hugepages-2048kB");
        let (all, free) = (format!("{}/nr_hugepages", pages(0)), format!("{}/free_hugepages", pages(0)));
        let device = "sys/bus/pci/devices/0000:81:00.0";
        let [class, vendor, node] = ["class", "vendor", "numa_node"].map(|file| format!("{device}/{file}"));
        for (of_device, driver, state) in [
            ("0", "vfio-pci", CheckStatus::Good),
            ("1", "vfio-pci", CheckStatus::Bad),
            ("-1", "vfio-pci", CheckStatus::Good),
            // The kernel's own: the server's packets do not use it.
            ("1", "ice", CheckStatus::Good),
        ] {
            let of_kernel = [(class.as_str(), "0x020000"), (&vendor, "0x8086"), (&node, of_device)];
            let folder = root(&[&[(all.as_str(), "512"), (&free, "512")], &of_kernel[..]].concat());
            std::os::unix::fs::symlink(format!("/drivers/{driver}"), folder.path().join(device).join("driver"))
                .unwrap();
            let [found] = &check_hugepages(folder.path())[..] else { panic!("one node") };
            assert_eq!(found.state, state, "{of_device} {driver}: {found:?}");
            assert_eq!(found.advice.contains("node1/hugepages"), state == CheckStatus::Bad, "{found:?}");
        }
    }

    fn device_of(root: &Path) -> DoctorFinding {
        devices(root).remove(0)
    }
}
