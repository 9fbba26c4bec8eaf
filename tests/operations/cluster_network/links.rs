//! A network for a cluster: a namespace for each server and each member of etcd, each with one link to a bridge in a
//! further namespace, where the clients are. Ways between two of them are cut and mended one direction at a time,
//! without a word to the sender, and all links are made slow and lossy. What the machine does not have is replaced,
//! with a line.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::super::http::has_program;
use crate::common::namespaces::{Namespaces, run, run_in};
use crate::common::root;

/// The servers, and the members of etcd.
pub(super) const NODES: usize = 6;
/// The number of etcd's first member among the nodes; those before are servers.
pub(super) const ETCD: usize = 3;
/// The members that an etcd has where there are several.
pub(super) const ETCDS: [usize; 3] = [ETCD, ETCD + 1, ETCD + 2];

/// The address of each node.
pub(super) const ADDRESSES: [&str; NODES] =
    ["10.78.0.10", "10.78.0.11", "10.78.0.12", "10.78.0.13", "10.78.0.14", "10.78.0.15"];
/// The ports of each server.
pub(super) const DATA_PORT: u16 = 7400;
pub(super) const REDIS_PORT: u16 = 6379;
pub(super) const MEMCACHED_PORT: u16 = 11211;
pub(super) const CONTROL_PORT: u16 = 7399;
/// The address of the clients.
const CLIENTS: &str = "10.78.0.1";
/// An Ethernet address that no interface has.
const NOWHERE: &str = "02:00:00:00:00:01";

/// What becomes of a packet on its way from a node: as netem's options.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlowLink {
    pub(super) delay_ms: u32,
    pub(super) jitter_ms: u32,
    pub(super) loss_percent: u32,
    pub(super) reorder_percent: u32,
    pub(super) duplicate_percent: u32,
}

/// How ways are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CutTool {
    /// By rules of the bridge.
    Nft,
    /// The sender's table of neighbours misdirects the packets. It takes nothing of the kernel but the links.
    Neighbours,
}

/// How links are made slow.
enum SlowTool {
    Netem,
    /// `slow_links.py` carries all frames.
    Carrier {
        process: Child,
        settings: ChildStdin,
        says: BufReader<ChildStdout>,
    },
    None,
}

/// The network of a cluster; gone when dropped.
pub(super) struct ClusterLinks {
    namespaces: Namespaces<{ NODES + 1 }>,
    cuts: BTreeSet<(usize, usize)>,
    cut_tool: CutTool,
    slow_tool: SlowTool,
}

fn has(command: &str) -> bool {
    let words: Vec<&str> = command.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output();
    output.is_ok_and(|output| output.status.success())
}

/// The lines that give a node its interface, if its other end is in the hub's namespace.
fn lines_of_node(hub: &str, node: &str, number: usize) -> [String; 4] {
    [
        format!("ip -n {hub} link set port{number} master bridge0"),
        format!("ip -n {hub} link set port{number} up"),
        format!("ip -n {node} addr add {}/24 dev eth0", ADDRESSES[number]),
        format!("ip -n {node} link set eth0 up"),
    ]
}

fn lines_of_hub(hub: &str) -> [String; 3] {
    [
        format!("ip -n {hub} link add bridge0 type bridge"),
        format!("ip -n {hub} addr add {CLIENTS}/24 dev bridge0"),
        format!("ip -n {hub} link set bridge0 up"),
    ]
}

impl ClusterLinks {
    /// Makes the network. `None`, with a line, where the machine allows no namespaces.
    pub(super) fn new() -> Option<ClusterLinks> {
        ClusterLinks::with_links(|[hub, nodes @ ..]| {
            let veth = |(number, node): (usize, &String)| {
                format!("ip -n {node} link add eth0 type veth peer name port{number} netns {hub}")
            };
            let mut lines = lines_of_hub(hub).to_vec();
            lines.extend(nodes.iter().enumerate().map(veth));
            lines.extend(nodes.iter().enumerate().flat_map(|(number, node)| lines_of_node(hub, node, number)));
            lines
        })
    }

    fn with_links(lines: impl FnOnce(&[String; NODES + 1]) -> Vec<String>) -> Option<ClusterLinks> {
        let namespaces = Namespaces::new(lines)?;
        let (cut_tool, slow_tool) = (CutTool::Nft, SlowTool::None);
        let mut links = ClusterLinks { namespaces, cuts: BTreeSet::new(), cut_tool, slow_tool };
        let has_nft = has_program("nft", "nftables");
        if let Err(why) = if has_nft { links.write_rules() } else { Err("it is not installed".to_owned()) } {
            println!("no nft here (Debian's package nftables): ways are cut by the tables of neighbours: {why}");
            links.cut_tool = CutTool::Neighbours;
        }
        Some(links)
    }

    /// As [`ClusterLinks::new`], with links that [`ClusterLinks::slow`] makes slow. `None`, with a line, where nothing
    /// can.
    pub(super) fn new_slow(seed: u64) -> Option<ClusterLinks> {
        let mut links = ClusterLinks::new()?;
        if has(&format!("ip netns exec {} tc qdisc add dev lo root netem delay 1ms", links.hub())) {
            run_in(links.hub(), "tc qdisc del dev lo root").unwrap();
            links.slow_tool = SlowTool::Netem;
            return Some(links);
        }
        drop(links);
        println!("no netem here (the kernel's module sch_netem): a program carries the frames");
        let mut links = ClusterLinks::with_links(|[hub, ..]| lines_of_hub(hub).to_vec())?;
        links.slow_tool = match links.start_carrier(seed) {
            Ok(carrier) => carrier,
            Err(why) => {
                println!("skipped: nothing makes links slow here: {why}");
                return None;
            }
        };
        Some(links)
    }

    /// Starts the program that carries frames, and gives each node one end of its link.
    fn start_carrier(&self, seed: u64) -> Result<SlowTool, String> {
        let script = root().join("tests/operations/cluster_network/slow_links.py");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.hub(), "python3"]).arg(script).args([NODES.to_string(), seed.to_string()]);
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let (settings, says) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let mut carrier = SlowTool::Carrier { process, settings, says };
        if carrier.line() != "ready" {
            return Err("it takes python3, and /dev/net/tun".to_owned());
        }
        let hub = self.hub();
        for number in 0..NODES {
            let node = self.node(number);
            run(&format!("ip -n {hub} link set near{number} netns {node}"))?;
            run(&format!("ip -n {node} link set near{number} name eth0"))?;
            lines_of_node(hub, node, number).iter().try_for_each(|line| run(line).map(drop))?;
        }
        Ok(carrier)
    }

    /// The namespace of the clients.
    pub(super) fn hub(&self) -> &str {
        &self.namespaces.names[0]
    }

    /// The namespace of a node.
    pub(super) fn node(&self, number: usize) -> &str {
        &self.namespaces.names[number + 1]
    }

    /// Cuts these ways, each from a node to another one, beside those that are cut already.
    pub(super) fn cut(&mut self, ways: &[(usize, usize)]) {
        self.cuts.extend(ways);
        self.write_rules().unwrap();
        for (from, to) in ways.iter().filter(|_| self.cut_tool == CutTool::Neighbours) {
            let to = ADDRESSES[*to];
            run(&format!("ip -n {} neigh replace {to} lladdr {NOWHERE} dev eth0 nud permanent", self.node(*from)))
                .unwrap();
        }
    }

    /// Cuts all ways between a node and these others, in both directions.
    pub(super) fn cut_off(&mut self, node: usize, from: &[usize]) {
        let ways: Vec<(usize, usize)> = from.iter().flat_map(|other| [(node, *other), (*other, node)]).collect();
        self.cut(&ways);
    }

    /// Mends all that is cut.
    pub(super) fn mend(&mut self) {
        let cuts = std::mem::take(&mut self.cuts);
        self.write_rules().unwrap();
        for (from, to) in cuts.into_iter().filter(|_| self.cut_tool == CutTool::Neighbours) {
            run(&format!("ip -n {} neigh del {} dev eth0", self.node(from), ADDRESSES[to])).unwrap();
        }
    }

    /// Whether nothing is cut.
    pub(super) fn is_whole(&self) -> bool {
        self.cuts.is_empty()
    }

    /// All cuts at once, by rules of the bridge.
    fn write_rules(&self) -> Result<(), String> {
        if self.cut_tool == CutTool::Neighbours {
            return Ok(());
        }
        let table = "table bridge cluster_cuts";
        let mut rules = format!("{table}\ndelete {table}\n{table} {{ chain ways {{\n");
        rules += "type filter hook forward priority 0; policy accept;\n";
        for (from, to) in &self.cuts {
            writeln!(rules, "ip saddr {} ip daddr {} drop", ADDRESSES[*from], ADDRESSES[*to]).unwrap();
        }
        rules += "}\n}\n";
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.hub(), "nft", "-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|error| error.to_string())?;
        // It may have ended before it has read them.
        let _unread = process.stdin.take().unwrap().write_all(rules.as_bytes());
        let output = process.wait_with_output().map_err(|error| error.to_string())?;
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    }

    /// Cuts ways by the tables of neighbours from now on, as where there is no nft.
    pub(super) fn without_nft(&mut self) {
        self.mend();
        self.cut_tool = CutTool::Neighbours;
    }

    /// Whether links can be made slow.
    pub(super) fn can_be_slow(&self) -> bool {
        !matches!(self.slow_tool, SlowTool::None)
    }

    /// Makes all links slow from their nodes on, or fast again.
    pub(super) fn slow(&mut self, how: Option<SlowLink>) {
        let fast = SlowLink { delay_ms: 0, jitter_ms: 0, loss_percent: 0, reorder_percent: 0, duplicate_percent: 0 };
        let is_slow = how.is_some();
        let SlowLink { delay_ms, jitter_ms, loss_percent, reorder_percent, duplicate_percent } = how.unwrap_or(fast);
        if let SlowTool::Carrier { settings, .. } = &mut self.slow_tool {
            let part = |percent: u32| f64::from(percent) / 100.0;
            let parts = [loss_percent, reorder_percent, duplicate_percent].map(part);
            writeln!(settings, "{delay_ms} {jitter_ms} {} {} {}", parts[0], parts[1], parts[2]).unwrap();
            assert_eq!(self.slow_tool.line(), "set");
            return;
        }
        assert!(self.can_be_slow() || !is_slow, "these links are as fast as they are");
        if !self.can_be_slow() {
            return;
        }
        let netem = format!(
            "netem delay {delay_ms}ms {jitter_ms}ms loss {loss_percent}% reorder {reorder_percent}% duplicate {duplicate_percent}%"
        );
        for number in 0..NODES {
            let done = match is_slow {
                true => run_in(self.node(number), &format!("tc qdisc replace dev eth0 root {netem}")),
                // Where it was not slow there is nothing to remove.
                false => run_in(self.node(number), "tc qdisc del dev eth0 root").or(Ok(String::new())),
            };
            done.unwrap();
        }
    }
}

impl SlowTool {
    fn line(&mut self) -> String {
        let SlowTool::Carrier { says, .. } = self else { return String::new() };
        let mut line = String::new();
        says.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for SlowTool {
    fn drop(&mut self) {
        if let SlowTool::Carrier { process, .. } = self {
            let _ended_already = process.kill();
            let _status = process.wait();
        }
    }
}
