//! Promise: of a table with a backing nothing is copied when slots move. They are given away once the backing has all
//! of them, deletes as well; where it does not take it, or is another one at the target, they stay and are served.

use sandstorm_catalog::{BackingPolicy, BackingSettings, NewTable};
use sandstorm_store::{StorageMode, StoreCondition};

use crate::backed_moves::unmovable;
use crate::copy_format::CopyAsk;
use crate::slot_copy::CopyTables as _;
use crate::slot_move_tests::{TwoServers, copy};

fn backed(name: &str, url: &str) -> NewTable {
    let settings = BackingSettings { policy: BackingPolicy::WriteThrough, ..BackingSettings::of(url) };
    let quota_bytes = Some(1 << 20);
    NewTable { mode: StorageMode::Cache, backing: Some(settings), quota_bytes, ..NewTable::named(name) }
}

/// The objects of a folder.
fn objects(folder: &std::path::Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

fn start(new: NewTable) -> TwoServers {
    let servers = TwoServers::start();
    servers.directories.iter().for_each(|directory| directory.open_backings().unwrap());
    servers.directories[0].create_table("shop", new).unwrap();
    servers.directories[1].catch_up().unwrap();
    servers
}

fn end(servers: &TwoServers) {
    servers.directories.iter().for_each(|directory| directory.close_backings());
}

#[test]
fn slots_are_given_away_once_the_backing_has_all_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let servers = start(backed("front", &format!("file://{}", folder.path().display())));
    for round in 0..20 {
        servers.write("front", format!("a-{round}").as_bytes()).unwrap();
        servers.write("front", format!("gone-{round}").as_bytes()).unwrap();
    }
    let view = servers.directories[0].snapshot().by_name("shop").unwrap().clone();
    let entry = view.table_by_name("front").unwrap().clone();
    for round in 0..20 {
        let key = format!("gone-{round}");
        let (participant, hash) = (servers.directories[0].participant(), entry.table.hash(key.as_bytes()));
        let deleted = entry.table.delete(&participant, hash, key.as_bytes(), StoreCondition::Always, 1);
        assert_eq!(deleted, Ok(true), "{key} is in memory");
    }
    assert_eq!(copy(&servers, |_, _| {}), Ok(()));
    let mut wanted: Vec<String> = (0..20).map(|round| format!("a-{round}")).collect();
    wanted.sort();
    assert_eq!((objects(folder.path()), servers.arrived("front")), (wanted, 0), "nothing is copied");
    end(&servers);
}

#[test]
fn slots_stay_and_are_served_while_a_backing_does_not_take_what_it_has_to() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("objects");
    let servers = start(backed("front", &format!("file://{}", folder.display())));
    let (mut is_away, mut waited) = (false, 0);
    let copied = copy(&servers, |servers, ask| {
        if *ask == CopyAsk::Changes && !is_away && waited == 0 {
            is_away = true;
            std::fs::rename(&folder, parent.path().join("away")).unwrap();
            servers.write("front", b"a").unwrap();
        }
        if *ask == CopyAsk::Freeze {
            waited += 1;
            assert!(servers.desks[0].slots().owns_all(), "they are served until all is written");
            if waited == 3 {
                std::fs::rename(parent.path().join("away"), &folder).unwrap();
            }
        }
    });
    assert!(waited >= 3, "{waited}");
    assert_eq!((copied, objects(&folder)), (Ok(()), vec!["a".to_owned()]));
    assert!(!servers.desks[0].slots().owns_slot(0));
    end(&servers);
}

#[test]
fn slots_are_served_again_where_a_backing_does_not_tell_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let servers = start(backed("front", &format!("file://{}", folder.path().display())));
    servers.ask(1, CopyAsk::Begin).unwrap();
    let name = folder.path().join(".sandstorm-folder");
    std::fs::remove_file(&name).unwrap();
    std::fs::create_dir(&name).unwrap();
    let head = servers.ask(1, CopyAsk::Freeze).unwrap().head;
    assert!(head.waits && head.waits_for.is_some_and(|why| why.contains("front")));
    assert!(servers.desks[0].slots().owns_all(), "nothing is frozen");
    std::fs::remove_dir(&name).unwrap();
    let head = servers.ask(1, CopyAsk::Freeze).unwrap().head;
    assert!(!head.waits && !servers.desks[0].slots().owns_slot(0));
    end(&servers);
}

#[test]
fn a_backing_that_is_not_one_for_all_servers_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let servers = start(backed("front", &format!("file://{}", folder.path().display())));
    let wanted = servers.ask(1, CopyAsk::Begin).unwrap().head.tables;
    assert!(wanted.iter().any(|table| table.backing.is_some()));
    let mut own = servers.target_tables();
    assert_eq!(own.check(&wanted), Ok(()));
    // As if it were another machine's folder of the same name.
    std::fs::remove_file(folder.path().join(".sandstorm-folder")).unwrap();
    let why = own.check(&wanted).unwrap_err();
    assert!(why.contains("not what is behind it at the source"), "{why}");
    assert_eq!(unmovable(&servers.directories[0]), None);
    servers.directories[0].create_table("shop", backed("trial", "memory:trial")).unwrap();
    let why = unmovable(&servers.directories[0]).unwrap();
    assert!(why.contains("shop/trial"), "{why}");
    end(&servers);
}
