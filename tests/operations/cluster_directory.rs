//! Promise (docs/cluster.md): what is changed at one server of a cluster (tenants, tables, grants, quotas, extensions)
//! holds at all of them, and a server that joins has it. Of changes at the same moment none is lost. While etcd is away
//! changes are refused, and records are served.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use sandstorm_builder::{BuilderKey, prepare_folder};
use serde_json::Value;
use tempfile::TempDir;

use super::cluster::EtcdProcess;
use crate::common::eventually;
use crate::common::process::{Server, serve, state_in};

/// The options of a server; only one of them builds.
fn start(etcd: &EtcdProcess, folder: &Arc<TempDir>, config: &Path, builds: bool) -> Server {
    let (cluster, config) = (etcd.cluster(), config.display().to_string());
    let mut options = vec!["--data", "127.0.0.1:0", "--workers", "1", "--config", &config];
    options.extend(["--cluster", &cluster, "--cluster-servers", "3"]);
    if !builds {
        options.push("--no-builder");
    }
    Server::start_in(None, Arc::clone(folder), &options)
}

fn failure(server: &Server, line: &str) -> String {
    let output = server.output(line);
    assert!(!output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

fn names(list: &Value) -> Vec<String> {
    let name = |one: &Value| one["name"].as_str().unwrap_or_default().to_owned();
    let mut names: Vec<String> = list.as_array().unwrap().iter().map(name).collect();
    names.sort();
    names
}

/// The version of `get` that a server calls.
fn version(server: &Server) -> u64 {
    let list = server.json("ext list --tenant shop");
    let found = list.as_array().unwrap().iter().find(|one| one["name"] == "get");
    found.map_or(0, |one| one["version"].as_u64().unwrap())
}

fn all_call(servers: &[Server], wanted: u64) {
    let is_so = || servers.iter().all(|server| version(server) == wanted);
    let found: Vec<u64> = servers.iter().map(version).collect();
    assert!(eventually(is_so), "version {wanted} of `get` is wanted: {found:?}");
}

#[test]
fn what_is_changed_at_one_server_holds_at_all() {
    let Some(mut etcd) = EtcdProcess::start() else { return };
    assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
    let folders: Vec<Arc<TempDir>> = (0..4).map(|_| Arc::new(tempfile::tempdir().unwrap())).collect();
    let config = folders[0].path().join("sandstorm.toml");
    let builder = state_in(folders[0].path()).join("builder");
    prepare_folder(&builder).unwrap();
    let key = BuilderKey::open(&builder).unwrap().public();
    fs::write(&config, format!("[builder]\ntrusted_keys = ['{key}']\n")).unwrap();
    let mut servers: Vec<Server> = (0..3).map(|at| start(&etcd, &folders[at], &config, at == 0)).collect();
    assert!(eventually(|| servers.iter().all(|server| server.json("cluster status")["epoch"] == 1)));

    check_tenants_and_grants(&servers);
    check_revocations(&servers);
    check_extensions(&servers);
    check_changes_at_the_same_moment(&servers);
    check_without_etcd(&mut etcd, &servers);

    // A server that joins has all, and one that comes back, too.
    servers.push(start(&etcd, &folders[3], &config, false));
    let tables = names(&servers[0].json("table list --tenant shop"));
    assert_eq!(names(&servers[3].json("table list --tenant shop")), tables);
    // An artifact that etcd did not give in time is asked for again.
    assert!(eventually(|| version(&servers[3]) == 2));
    let stopped = servers.remove(1);
    drop(stopped);
    servers[0].json("table drop late --tenant shop");
    servers[0].json("tenant create later");
    let back = start(&etcd, &folders[1], &config, false);
    assert!(names(&back.json("tenant list")).contains(&"later".to_owned()));
    assert!(!names(&back.json("table list --tenant shop")).contains(&"late".to_owned()));
    assert!(eventually(|| version(&back) == 2));
    let told = back.output("get items key:1 --tenant shop");
    assert_eq!(String::from_utf8_lossy(&told.stdout).trim_end(), "1", "records outlive it");
    check_strangers(&etcd);
}

fn check_tenants_and_grants(servers: &[Server]) {
    servers[0].json("tenant create shop --open --quota tables=40");
    // At once at another server, which does not know it yet.
    servers[1].json("table create items --tenant shop");
    for number in 0..8 {
        servers[number % 3].json(&format!("tenant create t-{number} --open"));
        servers[(number + 1) % 3].json(&format!("tenant show t-{number}"));
        servers[(number + 2) % 3].json(&format!("tenant delete t-{number}"));
    }
    servers[2].json("tenant create guest --open");
    servers[1].json("grant add items --to guest --tenant shop");
    let tables = |server: &Server| names(&server.json("table list --tenant guest")).join(" ");
    assert!(eventually(|| servers.iter().all(|server| tables(server).contains("shop/items"))));
    servers[0].json("grant revoke items --to guest --tenant shop");
    assert!(eventually(|| servers.iter().all(|server| !tables(server).contains("shop/items"))));
    servers[2].json("tenant set shop --quota requests_per_s=5000");
    let quota = |server: &Server| server.json("tenant show shop")["quotas"]["requests_per_s"].clone();
    assert!(eventually(|| servers.iter().all(|server| quota(server) == 5000)), "{}", quota(&servers[0]));
    servers[1].json("tenant set shop --quota requests_per_s=0");
    for number in 0..9 {
        servers[number % 3].json(&format!("put items key:{number} {number} --tenant shop"));
    }
    assert!(failure(&servers[2], "tenant create shop").contains("shop"), "the name is taken everywhere");
}

/// What takes rights away is answered once it holds everywhere, and an error names the server where it may not.
fn check_revocations(servers: &[Server]) {
    let token = |told: Value| told["token"].as_str().unwrap().to_owned();
    let mut current = token(servers[0].json("tenant create old"));
    for number in 0..9 {
        let (by, at) = (&servers[number % 3], &servers[(number + 1) % 3]);
        let before = std::mem::replace(&mut current, token(by.json("tenant rotate old --grace 1h")));
        let reads = |server: &Server| {
            let mut command = server.command();
            command.args(["table", "list", "--tenant", "old", "--token", &before]).output().unwrap().status.success()
        };
        assert!(reads(at), "round {number}: the old token holds for an hour");
        by.json("tenant rotate old --revoke-old");
        assert!(!reads(at) && !reads(&servers[(number + 2) % 3]), "round {number}: it is void everywhere");
    }
    servers[0].json("tenant rotate old --grace 1h");
    let process = rustix::process::Pid::from_child(&servers[2].process);
    rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
    let refused = failure(&servers[0], "tenant rotate old --revoke-old");
    // What has more to say says it beside that. A quota takes no right away, and waits for none.
    let closed = servers[1].json("tenant set old --code none");
    let quota = servers[1].json("tenant set old --quota requests_per_s=7");
    let rotated = servers[1].json("tenant token old");
    rustix::process::kill_process(process, rustix::process::Signal::CONT).unwrap();
    assert!(refused.contains("it is done") && refused.contains("has not taken it over"), "{refused}");
    assert!(closed["tenant"]["not_everywhere"].is_string() && quota["not_everywhere"].is_null(), "{closed} {quota}");
    assert!(rotated["not_everywhere"].as_str().is_some_and(|why| why.contains("is done")), "{rotated}");
    let reads = |server: &Server| {
        let mut command = server.command();
        command.args(["table", "list", "--tenant", "old", "--token", rotated["token"].as_str().unwrap()]);
        command.output().unwrap().status.success()
    };
    assert!(eventually(|| servers.iter().all(reads)), "the new token holds at all servers in the end");
    let quota = |server: &Server| server.json("tenant show old")["quotas"]["requests_per_s"].clone();
    assert!(eventually(|| servers.iter().all(|server| quota(server) == 7)));
    servers[0].json("tenant delete old");
}

fn check_extensions(servers: &[Server]) {
    let push = format!("ext push {} --tenant shop", crate::common::root().join("ext/get").display());
    servers[0].json(&push);
    all_call(servers, 1);
    for number in 0..9 {
        let line = format!("invoke get table:items key:{number} --tenant shop --near items/key:{number}");
        let told = servers[number % 3].output(&line);
        let error = String::from_utf8_lossy(&told.stderr);
        assert_eq!(String::from_utf8_lossy(&told.stdout).trim_end(), number.to_string(), "{error}");
    }
    assert_eq!(servers[0].json(&push)["version"], 2);
    all_call(servers, 2);
    servers[2].json("ext rollback get 1 --tenant shop");
    all_call(servers, 1);
    servers[1].json("ext rollback get 2 --tenant shop");
    all_call(servers, 2);
}

fn check_changes_at_the_same_moment(servers: &[Server]) {
    std::thread::scope(|scope| {
        for (at, server) in servers.iter().enumerate() {
            scope.spawn(move || {
                for number in 0..5 {
                    server.json(&format!("table create t-{at}-{number} --tenant shop --quota 1048576"));
                }
            });
        }
    });
    let tables = |server: &Server| names(&server.json("table list --tenant shop"));
    assert!(eventually(|| servers.iter().all(|server| tables(server).len() == 16)), "{:?}", tables(&servers[0]));
    let ids = |server: &Server| {
        let list = server.json("table list --tenant shop");
        let mut ids: Vec<(u64, String)> = list
            .as_array()
            .unwrap()
            .iter()
            .map(|table| (table["id"].as_u64().unwrap(), table["name"].as_str().unwrap().to_owned()))
            .collect();
        ids.sort();
        ids
    };
    assert!(servers.iter().all(|server| ids(server) == ids(&servers[0])), "each table has one id");
}

fn check_without_etcd(etcd: &mut EtcdProcess, servers: &[Server]) {
    etcd.stop();
    assert!(eventually(|| servers[1].json("cluster status")["trouble"].is_string()));
    let refused = failure(&servers[1], "table create late --tenant shop");
    assert!(refused.contains("cannot agree") && refused.contains("cluster status"), "{refused}");
    let told = servers[1].output("get items key:1 --tenant shop");
    assert_eq!(String::from_utf8_lossy(&told.stdout).trim_end(), "1", "records are served");
    etcd.restart();
    assert!(eventually(|| servers.iter().all(|server| server.json("cluster status")["trouble"].is_null())));
    servers[1].json("table create late --tenant shop --quota 1048576");
    let has_it = |server: &Server| names(&server.json("table list --tenant shop")).contains(&"late".to_owned());
    assert!(eventually(|| servers.iter().all(has_it)));
}

/// A server with tables of its own does not lose them to a cluster.
fn check_strangers(etcd: &EtcdProcess) {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let alone = ["--data", "127.0.0.1:0", "--workers", "1", "--no-builder"];
    let server = Server::start_in(None, Arc::clone(&folder), &alone);
    server.json("tenant create other");
    server.json("table create own --tenant other");
    drop(server);
    let cluster = etcd.cluster();
    let output = serve(None, folder.path(), &[&alone[..], &["--cluster", &cluster]].concat()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("other/own") && error.contains("sandstorm export"), "{error}");
}
