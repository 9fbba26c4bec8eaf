//! Promise (docs/cluster.md): where another server takes the place of one that is gone, it makes the calls of tables'
//! triggers for what that one had acknowledged and not called for: for each change, those of a key in the order of its
//! versions, also where it starts again meanwhile, or is replaced in turn. The server that was replaced makes none of
//! them when it is back.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandstorm_builder::{BuilderKey, prepare_folder};
use sandstorm_client::{Config, PutOptions, blocking};
use serde_json::Value;
use tempfile::TempDir;

use super::cluster::{EtcdProcess, start, status};
use super::cluster_copies::{SERVERS, await_succession, have_copies, id, options, shown};
use crate::common::eventually;
use crate::common::process::{Server, state_in};

const ITEMS: u64 = 1;
const SEEN: u64 = 2;
const KEYS: usize = 24;

/// Notes the last number of each key, and a key of which a number came before that for an earlier one. One that comes
/// again is left out: calls are made at least once. Refuses a key as long as the record `{key}shut` is there.
const IN_ORDER: &str = r#"#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::change::Change;
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let seen = db.table("seen")?;
    let change = Change::decode(args)?;
    let key = core::str::from_utf8(change.key).unwrap_or("?");
    if db.get(seen, format!("{{{key}}}shut").as_bytes()).await?.is_some() {
        return Err(Error::new("it is shut"));
    }
    let last = match db.get(seen, change.key).await? {
        Some(last) => u64::from_le_bytes(last.value().try_into()?),
        None => 0,
    };
    let number = u64::from_le_bytes(change.value.try_into()?);
    if number > last + 1 {
        db.put(seen, format!("{{{key}}}gap").as_bytes(), change.value).await?;
    }
    if number > last {
        db.put(seen, change.key, change.value).await?;
    }
    Ok(())
}
"#;

/// Servers with tables of durability `copies`, a trigger and its extension.
struct GatedCluster {
    servers: Vec<Option<Server>>,
    ids: Vec<String>,
    /// Folder and options of each.
    places: Vec<(Arc<TempDir>, Vec<String>)>,
    _config: TempDir,
}

fn write_extension(folder: &Path) -> String {
    let extension = folder.join("in_order");
    fs::create_dir_all(extension.join("src")).unwrap();
    fs::write(extension.join("extension.toml"), "name = \"in_order\"\nversion = \"0.1.0\"\n").unwrap();
    fs::write(extension.join("src/lib.rs"), IN_ORDER).unwrap();
    extension.display().to_string()
}

fn key_of(number: usize) -> String {
    format!("k{number}")
}

impl GatedCluster {
    fn start(etcd: &EtcdProcess) -> GatedCluster {
        assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
        let folders: Vec<Arc<TempDir>> = (0..SERVERS).map(|_| Arc::new(tempfile::tempdir().unwrap())).collect();
        let builder = state_in(folders[0].path()).join("builder");
        prepare_folder(&builder).unwrap();
        let key = BuilderKey::open(&builder).unwrap().public();
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("sandstorm.toml");
        let table = |name: &str, id: u64| format!("{{ name = '{name}', id = {id}, durability = 'copies' }}");
        let tables = format!("tables = [{}, {}]", table("items", ITEMS), table("seen", SEEN));
        let tenant = format!("[[tenants]]\nname = 'shop'\nid = 1\nopen = true\n{tables}\n");
        fs::write(&config, format!("[builder]\ntrusted_keys = ['{key}']\n{tenant}")).unwrap();
        let all = options(etcd, &config, "by-command");
        let place = |(at, folder): (usize, &Arc<TempDir>)| {
            // The first one builds.
            let own = all.iter().filter(|option| at > 0 || *option != "--no-builder");
            (Arc::clone(folder), own.cloned().collect())
        };
        let places: Vec<(Arc<TempDir>, Vec<String>)> = folders.iter().enumerate().map(place).collect();
        let servers: Vec<Option<Server>> =
            places.iter().map(|(folder, options)| Some(start(Arc::clone(folder), options))).collect();
        let ids = servers.iter().flatten().map(id).collect();
        let cluster = GatedCluster { servers, ids, places, _config: folder };
        assert!(eventually(|| status(cluster.any())["epoch"].as_u64() >= Some(1)));
        cluster.await_copies();
        let pushed = write_extension(folders[0].path());
        // On a machine that does much else a compiler may need more time of the processor than it may have.
        let push = || cluster.at(0).output(&format!("ext push {pushed} --tenant shop")).status.success();
        assert!(eventually(push), "it is not built");
        let has_it = |server: &Server| {
            let list = server.json("ext list --tenant shop");
            list.as_array().unwrap().iter().any(|one| one["name"] == "in_order")
        };
        assert!(eventually(|| cluster.living().all(has_it)));
        cluster
            .at(1)
            .json("trigger create order --extension in_order --on items --ops put --retries 120 --tenant shop");
        let has_it = |server: &Server| !server.json("trigger list --tenant shop").as_array().unwrap().is_empty();
        assert!(eventually(|| cluster.living().all(has_it)));
        cluster
    }

    fn at(&self, at: usize) -> &Server {
        self.servers[at].as_ref().expect("it runs")
    }

    fn living(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().flatten()
    }

    fn any(&self) -> &Server {
        self.living().next().expect("one runs")
    }

    /// Waits until each server has a copy of its log on another one.
    fn await_copies(&self) {
        let all: Vec<&String> = self.ids.iter().collect();
        assert!(eventually(|| have_copies(self.any(), &all)), "{}", status(self.any()));
    }

    fn client(&self) -> blocking::Client {
        let config = Config::new(self.any().data.parse().unwrap(), 1).deadline(Duration::from_secs(60));
        blocking::Client::connect(config).unwrap()
    }

    /// Puts a number under each key, until that is acknowledged.
    fn put(&self, number: u64) {
        let client = self.client();
        for key in (0..KEYS).map(key_of) {
            let put = || client.put(ITEMS, key.as_bytes(), &number.to_le_bytes(), &PutOptions::default()).is_ok();
            assert!(eventually(put), "{key}");
        }
    }

    /// Waits until each key's calls have come to a number, none before that for an earlier one.
    fn await_seen(&self, number: u64) {
        let client = self.client();
        for key in (0..KEYS).map(key_of) {
            let seen = || {
                let found = client.get(SEEN, key.as_bytes()).ok().flatten();
                found.map_or(0, |record| u64::from_le_bytes(record.value[..].try_into().unwrap()))
            };
            assert!(eventually(|| seen() == number), "{key}: {} of {number}: {}", seen(), self.triggers());
            let gap = client.get(SEEN, format!("{{{key}}}gap").as_bytes()).unwrap();
            assert!(gap.is_none(), "{key}: {gap:?} came before an earlier one");
        }
    }

    /// How each server shows the trigger.
    fn triggers(&self) -> String {
        self.living().map(|server| server.json("trigger list --tenant shop").to_string()).collect()
    }

    fn trigger(&self, at: usize) -> Value {
        self.at(at).json("trigger show order --tenant shop")
    }

    fn kill(&mut self, at: usize) {
        let mut killed = self.servers[at].take().expect("it runs");
        killed.process.kill().unwrap();
        killed.process.wait().unwrap();
    }

    fn start_again(&mut self, at: usize) {
        let (folder, options) = &self.places[at];
        self.servers[at] = Some(start(Arc::clone(folder), options));
        let is_back = || shown(self.any(), &self.ids[at])["lives"] == true;
        assert!(eventually(is_back), "{}", status(self.any()));
    }

    /// Has another server take the place of one that is gone; returns which.
    fn replace(&self, gone: usize) -> usize {
        let slots = |at: usize| shown(self.any(), &self.ids[at])["slots"].to_string();
        let before: Vec<String> = (0..SERVERS).map(slots).collect();
        let by = self.any();
        let begun = || by.output(&format!("cluster fail-over {}", self.ids[gone])).status.success();
        assert!(eventually(begun), "{}", status(by));
        await_succession(by, &self.ids[gone]);
        (0..SERVERS).find(|at| *at != gone && slots(*at) != before[*at]).expect("it has more slots")
    }
}

#[test]
fn a_successor_makes_the_calls_that_a_killed_server_has_not_made_each_key_in_its_order() {
    let Some(etcd) = EtcdProcess::start() else { return };
    let mut cluster = GatedCluster::start(&etcd);
    cluster.put(1);
    cluster.await_seen(1);
    let shut = |key: String| format!("{{{key}}}shut").into_bytes();
    let client = cluster.client();
    for key in (0..KEYS).map(key_of) {
        client.put(SEEN, &shut(key), b"1", &PutOptions::default()).unwrap();
    }
    drop(client);
    (2..=3).for_each(|number| cluster.put(number));
    let waits = |cluster: &GatedCluster, at: usize| {
        let trigger = cluster.trigger(at);
        trigger["open"].as_u64() > Some(0) && trigger["last_error"].to_string().contains("it is shut")
    };
    assert!(eventually(|| (0..SERVERS).all(|at| waits(&cluster, at))), "{}", cluster.triggers());

    cluster.kill(0);
    let successor = cluster.replace(0);
    cluster.put(4);
    // The one that was replaced leaves these calls to it.
    cluster.start_again(0);
    let makes_none = |trigger: &Value| trigger["open"] == 0 && trigger["behind_bytes"] == 0;
    assert!(eventually(|| makes_none(&cluster.trigger(0))), "{}", cluster.triggers());
    cluster.await_copies();

    // The successor starts again, and is then replaced itself: by one that was a successor already, or by the first.
    cluster.kill(successor);
    cluster.start_again(successor);
    cluster.put(5);
    cluster.await_copies();
    cluster.kill(successor);
    let next = cluster.replace(successor);
    cluster.put(6);
    cluster.start_again(successor);
    assert!(eventually(|| makes_none(&cluster.trigger(successor))), "{}", cluster.triggers());
    assert!(eventually(|| waits(&cluster, next)), "{}", cluster.triggers());

    let client = cluster.client();
    for key in (0..KEYS).map(key_of) {
        assert!(eventually(|| client.delete(SEEN, &shut(key.clone())).is_ok()));
    }
    // Their calls begin anew, without the pauses behind those that have failed.
    cluster.at(0).json("trigger set order --retries 119 --tenant shop");
    cluster.await_seen(6);
    for trigger in (0..SERVERS).map(|at| cluster.trigger(at)) {
        assert!(trigger["dead_letters"] == 0 && trigger["state"] == "running", "{trigger}");
    }
}
