//! A cluster of three servers and an etcd of one or three members, each in a network namespace of its own. Servers
//! count their time from different beginnings where the machine allows it: no server's clock is compared with another
//! one's.

use std::process::Command;
use std::sync::{Arc, OnceLock};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::clients::{ClientRound, Reads};
use super::links::{ADDRESSES, CONTROL_PORT, ClusterLinks, DATA_PORT, ETCD, MEMCACHED_PORT, REDIS_PORT};
use crate::cluster::{EtcdPlace, EtcdProcess, status};
use crate::cluster_copies::{SERVERS, shown};
use crate::cluster_failover::{COPIED_TABLE, CopyingCluster, owns_nothing, write_tenant};
use crate::common::eventually;
use crate::common::namespaces::within;
use crate::common::process::{Server, serve};

/// How far the clocks since the machine's start of two servers are apart: two days and more.
const CLOCKS_APART_S: usize = 200_000;

/// The servers with their network. The last server is one that tests leave alone, and ask.
pub(super) struct NetworkLab {
    pub(super) cluster: CopyingCluster,
    pub(super) links: ClusterLinks,
    /// The members of etcd behind the first one.
    pub(super) more_etcds: Vec<EtcdProcess>,
    options: Vec<Vec<String>>,
    /// Further variables of servers' environments.
    variables: Vec<Vec<(String, String)>>,
    rounds: u64,
}

/// Whether a process may have a namespace of clocks; says so once if not.
fn has_clock_namespaces() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let output = Command::new("unshare").args(["--time", "--boottime", "1000", "true"]).output();
        let has = output.is_ok_and(|output| output.status.success());
        if !has {
            println!("left out: no namespaces of clocks here; all servers count their time from one beginning");
        }
        has
    })
}

/// `serve` in a node's namespaces. Its process is the server's own.
fn serve_command(links: &ClusterLinks, at: usize, folder: &TempDir, options: &[String]) -> Command {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let plain = serve(Some(links.node(at)), folder.path(), &options);
    if !has_clock_namespaces() {
        return plain;
    }
    let words: Vec<_> = plain.get_args().collect();
    let (enter, program) = words.split_at(3);
    let apart = (CLOCKS_APART_S * at).to_string();
    let mut command = Command::new(plain.get_program());
    command.args(enter).args(["unshare", "--time", "--boottime", &apart, "--monotonic", &apart]).args(program);
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

fn options_of(at: usize, cluster: &str, config: &str) -> Vec<String> {
    let at = ADDRESSES[at];
    let [data, control] = [DATA_PORT, CONTROL_PORT].map(|port| format!("{at}:{port}"));
    let [redis, memcached] = [REDIS_PORT, MEMCACHED_PORT].map(|port| format!("{at}:{port}=shop/items"));
    // The network is the cluster's own. A sealed session would compare its client's clock with the server's.
    let open = ["--allow-plain-control", "--allow-plaintext", "--allow-open"];
    let ports = ["--data", &data, "--control", &control, "--redis", &redis, "--memcached", &memcached];
    let more = ["--workers", "1", "--no-pin", "--no-builder", "--config", config];
    let of_cluster = ["--cluster", cluster, "--cluster-servers", "3", "--cluster-failover", "automatic"];
    [&open[..], &ports, &more, &of_cluster].concat().into_iter().map(str::to_owned).collect()
}

impl NetworkLab {
    /// Starts one on fast links; `None`, with a line, where something is missing.
    pub(super) fn start() -> Option<NetworkLab> {
        NetworkLab::start_on(ClusterLinks::new()?, COPIED_TABLE, Vec::new())
    }

    /// Starts one with these tables, and further variables of the first server's environment.
    pub(super) fn start_on(links: ClusterLinks, tables: &str, of_first: Vec<(String, String)>) -> Option<NetworkLab> {
        NetworkLab::start_with(links, tables, of_first, &[ETCD])
    }

    /// The same, whose etcd has a member at each of these nodes.
    pub(super) fn start_with(
        links: ClusterLinks,
        tables: &str,
        of_first: Vec<(String, String)>,
        etcds: &[usize],
    ) -> Option<NetworkLab> {
        let mut variables = vec![of_first];
        variables.resize(SERVERS, Vec::new());
        let place =
            |node: &usize| EtcdPlace { namespace: Some(links.node(*node).to_owned()), address: ADDRESSES[*node] };
        let mut etcds = EtcdProcess::start_members(etcds.iter().map(place).collect(), ("http", Vec::new()))?;
        let endpoints: Vec<String> = etcds.iter().map(EtcdProcess::endpoint).collect();
        let answers = |endpoint: &String| eventually(|| std::net::TcpStream::connect(endpoint).is_ok());
        assert!(within(links.hub(), || endpoints.iter().all(answers)));
        let address = format!("etcd://{}/test", endpoints.join(","));
        let folder = tempfile::tempdir().unwrap();
        let config = write_tenant(&folder, tables).display().to_string();
        let options: Vec<Vec<String>> = (0..SERVERS).map(|at| options_of(at, &address, &config)).collect();
        let start = |at: usize| {
            let folder = Arc::new(tempfile::tempdir().unwrap());
            start_server(&links, at, folder, &options[at], &variables[at])
        };
        let servers = (0..SERVERS).map(start).collect();
        let first = etcds.remove(0);
        let cluster = CopyingCluster::of(servers, folder, first);
        Some(NetworkLab { cluster, links, more_etcds: etcds, options, variables, rounds: 0 })
    }

    /// Runs something while clients ask for many keys, has the cluster become whole again, and checks what the clients
    /// saw of each key.
    pub(super) fn under_load<T>(&mut self, what: impl FnOnce(&mut NetworkLab, &ClientRound) -> T) -> T {
        self.rounds += 1;
        let (number, hub) = (self.rounds, self.links.hub().to_owned());
        let round = ClientRound::new(number);
        let done = round.run(&hub, || {
            let done = what(self, &round);
            self.links.mend();
            self.cluster.await_whole();
            done
        });
        round.check(&hub, SERVERS - 1);
        done
    }

    /// Sends a server a signal.
    pub(super) fn signal(&self, at: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.cluster.servers[at].process), signal).unwrap();
    }

    /// Kills a server. [`NetworkLab::restart`] starts it again with its files.
    pub(super) fn kill(&mut self, at: usize) {
        let process = &mut self.cluster.servers[at].process;
        process.kill().unwrap();
        process.wait().unwrap();
    }

    pub(super) fn restart(&mut self, at: usize) {
        let folder = Arc::clone(&self.cluster.servers[at].folder);
        // Before another one has its address: it is told to end.
        drop(self.cluster.servers.remove(at));
        let started = start_server(&self.links, at, folder, &self.options[at], &self.variables[at]);
        self.cluster.servers.insert(at, started);
    }

    /// The id of a server.
    pub(super) fn id(&self, at: usize) -> &str {
        &self.cluster.ids[at]
    }

    /// The servers that have copies of a server's log, as the last one tells.
    pub(super) fn copies_of(&self, at: usize) -> Vec<usize> {
        let status = status(self.cluster.last());
        let generations = status["copies"]["generations"].as_array().cloned().unwrap_or_default();
        let own = generations.iter().find(|one| one["owner"] == self.id(at));
        let has = |other: &usize| {
            let id = self.id(*other);
            own.is_some_and(|one| one["servers"].as_array().is_some_and(|all| all.iter().any(|one| one == id)))
        };
        (0..SERVERS).filter(has).collect()
    }

    /// Whether a server owns slots, as the last one tells.
    pub(super) fn owns_slots(&self, at: usize) -> bool {
        let server = shown(self.cluster.last(), self.id(at));
        server["slots"].is_array() && !owns_nothing(&server)
    }

    /// A key that a server owns, as the last one tells.
    pub(super) fn key_of(&self, at: usize) -> Option<String> {
        let slots = shown(self.cluster.last(), self.id(at))["slots"].as_array().cloned()?;
        let is_its = |key: &String| {
            let slot = u64::from(sandstorm_net::slots::slot_of(key.as_bytes()));
            slots.iter().any(|range| range[0].as_u64() <= Some(slot) && Some(slot) <= range[1].as_u64())
        };
        (0..1_000).map(|number| format!("watched{}:{number}", self.rounds)).find(is_its)
    }

    /// Reads a server's keys by a connection to it alone, which stays whatever becomes of the server. `None`: it owns
    /// none any more.
    pub(super) fn watch(&self, at: usize) -> Option<Reads> {
        let key = self.key_of(at)?;
        Reads::begin(self.links.hub(), at, &key)
    }

    /// What hinders another server from taking the place of one, as that server tells.
    pub(super) fn obstacle(&self, at: usize) -> Option<String> {
        let told = |other: usize| {
            let status = status(&self.cluster.servers[other]);
            let suspected = status["copies"]["suspected"].as_array().cloned().unwrap_or_default();
            let own = suspected.into_iter().find(|one| one["server"] == self.id(at))?;
            own["obstacle"].as_str().map(str::to_owned)
        };
        (0..SERVERS).filter(|other| *other != at).find_map(told)
    }
}

fn start_server(
    links: &ClusterLinks,
    at: usize,
    folder: Arc<TempDir>,
    options: &[String],
    variables: &[(String, String)],
) -> Server {
    let mut command = serve_command(links, at, &folder, options);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    Server::started(command, Some(links.node(at)), folder)
}
