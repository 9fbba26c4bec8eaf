//! Servers of a cluster whose directories are agreed, over an agreement in memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sandstorm_extension::{BudgetOverride, CodePolicy, CodeTier, ExtensionLibrary, LoadedExtension};
use sandstorm_log::LogError;
use sandstorm_store::slots::SlotOwnership;
use sandstorm_store::{Epochs, WriteOptions};

use super::agreed_changes::agreed_form;
use super::agreed_in_memory::AgreedInMemory;
use super::journal::JournalTenant;
use super::persistence::directory_image;
use super::*;

fn cluster(servers: usize) -> (Arc<AgreedInMemory>, Vec<Arc<Directory>>) {
    cluster_with(servers, || DirectoryOptions { code: CodePolicy::Native, ..DirectoryOptions::default() })
}

fn cluster_with(servers: usize, options: impl Fn() -> DirectoryOptions) -> (Arc<AgreedInMemory>, Vec<Arc<Directory>>) {
    let memory = Arc::new(AgreedInMemory::default());
    let agreement: Arc<dyn DirectoryAgreement> = Arc::clone(&memory) as _;
    let server = |number: usize| {
        let directory = Directory::with_options(Epochs::new(), options());
        directory.join_cluster(&Arc::new(SlotOwnership::new(format!("{number:040x}"))));
        let found = AgreedImage::read(&*agreement, &Default::default()).unwrap();
        found.iter().for_each(|found| directory.restore(&found.image).unwrap());
        directory.agree_with(&agreement, found.as_ref()).unwrap();
        directory
    };
    (memory, (0..servers).map(server).collect())
}

fn view(directory: &Directory, name: &str) -> Arc<TenantView> {
    directory.snapshot().by_name(name).unwrap().clone()
}

fn version(number: u64) -> Arc<LoadedExtension> {
    let new = LoadedExtension::new("e", number, ExtensionLibrary::of_nothing(), BudgetOverride::default());
    Arc::new(new.in_tier(CodeTier::Native))
}

/// What is agreed, as a server has it.
fn forms(directory: &Directory) -> BTreeMap<u32, JournalTenant> {
    let image = directory_image(&directory.next.lock(), &directory.snapshot());
    image.tenants.into_iter().map(|(id, tenant)| (id, agreed_form(tenant))).collect()
}

/// The grants that tenants can use, and whether their owners' lists say so.
fn usable(directory: &Directory) -> Vec<String> {
    let snapshot = directory.snapshot();
    let mut found = Vec::new();
    for view in snapshot.iter() {
        let name = &view.tenant.name;
        for grant in view.sorted_granted() {
            let table = view.id_of(&grant.name()).and_then(|id| view.reach(id, false).ok()).map(|entry| entry.name());
            found.push(format!("{name} has {} as {}: {:?}, {table:?}", grant.name(), grant.id, grant.access()));
        }
        found.extend(view.given.iter().map(|given| {
            format!("{name} gives {} to {}: {:?}, {}", given.table, given.to, given.access, given.in_force())
        }));
    }
    found.sort();
    found
}

/// One change of any kind; it may be refused.
fn change(directory: &Directory, random: &mut StdRng) -> Result<(), DirectoryError> {
    let mut pick = |most: u32| random.random_range(0..most);
    let (tenant, other) = (format!("t{}", pick(4)), format!("t{}", pick(4)));
    let (table, kind, number) = (format!("x{}", pick(4)), pick(14), u64::from(pick(3)));
    let tenant = tenant.as_str();
    let small = Some(1 << 20);
    match kind {
        0 | 1 => directory.create_tenant(NewTenant::named(tenant)).map(drop),
        2 => directory.delete_tenant(tenant).map(drop),
        3 | 4 => {
            let id = (number == 0).then_some(7);
            directory.create_table(tenant, NewTable { id, quota_bytes: small, ..NewTable::named(&table) }).map(drop)
        }
        5 => directory.drop_table(tenant, &table).map(drop),
        6 => {
            let name = Some(format!("x{number}"));
            directory.change_table(tenant, &table, &TableAlteration { name, ..Default::default() }).map(drop)
        }
        7 | 8 => {
            let access = if number == 0 { GrantAccess::ReadWrite } else { GrantAccess::Read };
            directory.grant(tenant, &table, &other, access, GrantIssuer::Owner).map(drop)
        }
        9 => directory.revoke(tenant, &table, &other),
        10 => directory.drop_grant(tenant, &format!("{other}/{table}")),
        11 => {
            let quotas = QuotaChanges { requests_per_s: Some(number as u32 + 1), ..QuotaChanges::default() };
            directory.set_quotas(tenant, &quotas).map(drop)
        }
        12 => {
            let next = directory.snapshot().find(tenant)?.versions.next("e");
            directory.put_extension(tenant, version(next)).map(drop)
        }
        _ => directory.rotate_with_grace(tenant, Duration::from_secs(60 * number)).map(drop),
    }
}

#[test]
fn servers_have_the_same_whatever_is_changed_where() {
    for seed in 0..40 {
        let mut random = StdRng::seed_from_u64(seed);
        let (_, servers) = cluster(3);
        let mut made = 0;
        for _ in 0..150 {
            let at = random.random_range(0..servers.len());
            made += usize::from(change(&servers[at], &mut random).is_ok());
            if random.random_ratio(1, 4) {
                servers[random.random_range(0..servers.len())].catch_up().unwrap();
            }
        }
        assert!(made > 10, "seed {seed}: {made}");
        for server in &servers {
            server.catch_up().unwrap();
        }
        for server in &servers[1..] {
            assert_eq!(forms(server), forms(&servers[0]), "seed {seed}");
            assert_eq!(usable(server), usable(&servers[0]), "seed {seed}");
        }
        // One that joins has all as well.
        let agreement = servers[0].agreement().unwrap();
        let joined = Directory::with_options(Epochs::new(), DirectoryOptions::default());
        let found = AgreedImage::read(&*agreement, &Default::default()).unwrap().unwrap();
        joined.restore(&found.image).unwrap();
        joined.agree_with(&agreement, Some(&found)).unwrap();
        assert_eq!((forms(&joined), usable(&joined)), (forms(&servers[0]), usable(&servers[0])), "seed {seed}");
    }
}

#[test]
fn what_is_used_goes_on_over_others_changes() {
    let (_, servers) = cluster(2);
    let [here, there] = servers.as_slice() else { panic!("two") };
    let (_, token) = here.create_tenant(NewTenant::named("shop")).unwrap();
    let new = NewTable { id: Some(7), quota_bytes: Some(1 << 20), ..NewTable::named("items") };
    here.create_table("shop", new.clone()).unwrap();
    there.catch_up().unwrap();
    let before = view(there, "shop");
    assert!(before.tenant.token_matches(token.as_bytes()), "the token works everywhere");
    let entry = Arc::clone(before.table_by_name("items").unwrap());
    let participant = there.participant();
    entry.table.put(&participant, entry.table.hash(b"k"), b"k", b"v", &WriteOptions::default(), 1).unwrap();
    // Another server changes the table, the quotas and the token.
    let name = Some("goods".to_owned());
    here.change_table("shop", "items", &TableAlteration { name, ..Default::default() }).unwrap();
    let rotated = here.rotate_with_grace("shop", Duration::from_secs(60)).unwrap();
    there.catch_up().unwrap();
    let now = view(there, "shop");
    assert!(Arc::ptr_eq(now.table_by_name("goods").unwrap(), &entry) && &*entry.name() == "goods");
    assert!(Arc::ptr_eq(&now.tenant.usage, &before.tenant.usage));
    assert!(now.tenant.token_matches(rotated.as_bytes()) && now.tenant.token_matches(token.as_bytes()));
    assert!(now.tenant.has_credential(before.tenant.credential), "sessions go on within the grace period");
    assert_ne!(now.tenant.credential, before.tenant.credential);
    // A table that was dropped and made again under its id is another one.
    here.drop_table("shop", "goods").unwrap();
    here.create_table("shop", NewTable { name: "goods".to_owned(), ..new }).unwrap();
    there.catch_up().unwrap();
    let now = view(there, "shop");
    assert!(!Arc::ptr_eq(now.table_by_name("goods").unwrap(), &entry));
    assert_eq!(now.table_by_name("goods").unwrap().table.stats().records, 0);
}

#[test]
fn a_version_is_called_where_its_code_is_loaded_and_the_one_before_until_then() {
    let (_, servers) = cluster(2);
    let [here, there] = servers.as_slice() else { panic!("two") };
    here.create_tenant(NewTenant::named("shop")).unwrap();
    here.put_extension("shop", version(1)).unwrap();
    there.catch_up().unwrap();
    assert!(view(there, "shop").extension("e").is_none(), "its code is not here yet");
    there.adopt_version("shop", version(1)).unwrap();
    here.put_extension("shop", version(2)).unwrap();
    there.catch_up().unwrap();
    assert_eq!(view(there, "shop").extension("e").unwrap().version, 1);
    there.adopt_version("shop", version(1)).expect_err("another one is to be called");
    there.adopt_version("shop", version(2)).unwrap();
    let now = view(there, "shop");
    assert_eq!((now.extension("e").unwrap().version, now.kept_versions("e")[0].version), (2, 1));
    assert_eq!(forms(there), forms(here), "to load code changes nothing that is agreed");
    here.remove_extension("shop", "e").unwrap();
    there.catch_up().unwrap();
    assert!(view(there, "shop").extension("e").is_none());
}

#[test]
fn without_an_answer_changes_are_refused_and_restrictions_hold() {
    let (memory, servers) = cluster(2);
    let [here, there] = servers.as_slice() else { panic!("two") };
    here.create_tenant(NewTenant::named("shop")).unwrap();
    here.put_extension("shop", version(1)).unwrap();
    there.catch_up().unwrap();
    there.adopt_version("shop", version(1)).unwrap();
    memory.set_away(true);
    let refused = there.create_table("shop", NewTable::named("items")).unwrap_err();
    assert_eq!(refused, DirectoryError::NoAgreement("away".to_owned()));
    assert!(view(there, "shop").tables.is_empty());
    there.suspend_by_policy("shop", "e", Suspension::new("e", 1, "it was killed too often")).unwrap();
    assert!(view(there, "shop").is_suspended("e") && !view(here, "shop").is_suspended("e"));
    memory.set_away(false);
    // The other server's changes meanwhile do not lift it.
    here.set_quotas("shop", &QuotaChanges { requests_per_s: Some(9), ..QuotaChanges::default() }).unwrap();
    assert!(there.is_behind(0));
    there.catch_up().unwrap();
    here.catch_up().unwrap();
    assert!(view(there, "shop").is_suspended("e") && view(here, "shop").is_suspended("e"));
    assert_eq!((view(there, "shop").tenant.quotas.requests_per_s, forms(there)), (9, forms(here)));
}

#[test]
fn what_two_have_begun_at_one_moment_has_one_order() {
    let (_, servers) = cluster(2);
    servers[0].create_tenant(NewTenant::named("shop")).unwrap();
    let taken = servers[1].create_tenant(NewTenant::named("shop")).unwrap_err();
    assert_eq!(taken, DirectoryError::TenantExists("shop".to_owned()));
    servers[1].create_table("shop", NewTable::named("a")).unwrap();
    let second = servers[0].create_table("shop", NewTable::named("b")).unwrap();
    assert_ne!(second.id, view(&servers[1], "shop").table_by_name("a").unwrap().id);
    std::thread::scope(|scope| {
        for (at, server) in servers.iter().enumerate() {
            scope.spawn(move || {
                for number in 0..20 {
                    let name = format!("s{at}-{number}");
                    server.create_tenant(NewTenant::named(&name)).unwrap();
                }
            });
        }
    });
    for server in &servers {
        server.catch_up().unwrap();
    }
    assert_eq!((forms(&servers[0]).len(), forms(&servers[0])), (41, forms(&servers[1])));
}

/// Two servers with the tenants `lab`, which shares `rank`, and `shop`.
fn sharing() -> Vec<Arc<Directory>> {
    let (_, servers) = cluster(2);
    let [here, there] = servers.as_slice() else { panic!("two") };
    let rank = || {
        let new = LoadedExtension::new("rank", 1, ExtensionLibrary::of_nothing(), BudgetOverride::default());
        Arc::new(new.in_tier(CodeTier::Sandboxed))
    };
    for name in ["lab", "shop"] {
        here.create_tenant(NewTenant { code: Some(CodePolicy::Sandboxed), ..NewTenant::named(name) }).unwrap();
    }
    here.put_extension("lab", rank()).unwrap();
    here.share_extension("lab", "rank", Some(ShareAudience::Everyone)).unwrap();
    there.catch_up().unwrap();
    there.adopt_version("lab", rank()).unwrap();
    // Of what follows the other server reads as it makes a change itself.
    let shop = view(there, "shop").tenant.id;
    let [owner, extension, name] = ["lab", "rank", "rank"].map(str::to_owned);
    let request = EnableRequest { owner, extension, name, version: None, follow: false, by_operator: false };
    there.enable_extension(&[shop], &request).unwrap();
    assert!(view(here, "shop").enabled.is_empty());
    servers
}

#[test]
fn what_another_server_has_just_enabled_is_not_unloaded() {
    let servers = sharing();
    let [here, there] = servers.as_slice() else { panic!("two") };
    let refused = here.remove_extension("lab", "rank").unwrap_err();
    assert_eq!(refused, DirectoryError::StillEnabled { extension: "rank".to_owned(), tenants: 1 });
    assert_eq!(here.forget_extension("lab", "rank"), Err(refused));
    assert_eq!(here.disable_everywhere(view(here, "lab").tenant.id, Some("rank")), Ok(1));
    here.remove_extension("lab", "rank").unwrap();
    there.catch_up().unwrap();
    assert!(view(there, "shop").enabled.is_empty() && view(there, "shop").extension("rank").is_none());
}

#[test]
fn what_another_server_has_just_enabled_goes_with_its_owner() {
    let servers = sharing();
    let [here, there] = servers.as_slice() else { panic!("two") };
    here.delete_tenant("lab").unwrap();
    there.catch_up().unwrap();
    for server in [here, there] {
        assert!(view(server, "shop").enabled.is_empty() && view(server, "shop").extension("rank").is_none());
    }
    assert_eq!(forms(here), forms(there));
}

#[test]
fn servers_ask_for_expiries_each_for_its_own_triggers() {
    let (_, servers) = cluster(2);
    let [here, there] = servers.as_slice() else { panic!("two") };
    let shop = here.create_tenant(NewTenant::named("shop")).unwrap().0.tenant.id;
    here.create_table("shop", NewTable::named("items")).unwrap();
    there.catch_up().unwrap();
    let logs = |server: &Directory| view(server, "shop").table_by_name("items").unwrap().table.logs_expiry();
    let ask = |server: &Directory, on| {
        let entry = Arc::clone(view(server, "shop").table_by_name("items").unwrap());
        server.watch_expiry_for_triggers(shop, &entry, on).unwrap();
        here.catch_up().unwrap();
        there.catch_up().unwrap();
    };
    // As a server of an earlier version had it agreed.
    here.watch_expiry("shop", "items", ExpiryWatcher::Triggers, true).unwrap();
    there.catch_up().unwrap();
    assert!(logs(here) && logs(there));
    ask(here, true);
    assert!(logs(here) && !logs(there), "each for itself");
    ask(there, true);
    ask(there, false);
    assert!(logs(here) && !logs(there), "each for itself");
    here.watch_expiry("shop", "items", ExpiryWatcher::Feed, true).unwrap();
    there.catch_up().unwrap();
    assert!(logs(here) && logs(there), "readers of feeds ask at all");
    here.watch_expiry("shop", "items", ExpiryWatcher::Feed, false).unwrap();
    there.catch_up().unwrap();
    assert!(logs(here) && !logs(there));
    ask(here, false);
    assert!(!logs(here) && !logs(there));
}

/// Two servers that keep records, with two tables that they do not keep.
fn keeping_servers(folder: &Path) -> Vec<Arc<Directory>> {
    let options = || DirectoryOptions { can_keep_records: true, ..DirectoryOptions::default() };
    let (_, servers) = cluster_with(2, options);
    for (number, server) in servers.iter().enumerate() {
        server.restore_records(&folder.join(format!("log-{number}")), 1, |log| log.start()).unwrap();
    }
    servers[0].create_tenant(NewTenant::named("shop")).unwrap();
    for name in ["items", "other"] {
        let new = NewTable { durability: Some(TableDurability::None), ..NewTable::named(name) };
        servers[0].create_table("shop", new).unwrap();
    }
    servers[1].catch_up().unwrap();
    servers
}

/// Changes a table's durability at a server whose checkpoints take no time.
fn switch(server: &Directory, table: &str, durability: TableDurability) {
    std::thread::scope(|scope| {
        let changed = scope.spawn(|| server.set_durability("shop", table, durability).map(drop));
        while !changed.is_finished() {
            let requests = server.checkpoint_requests();
            requests.pending().into_iter().for_each(|request| requests.serve(request, None));
            std::thread::yield_now();
        }
        changed.join().unwrap().unwrap();
    });
}

/// A table in memory only that is to be kept: its records have to be in a checkpoint first, which may take long.
#[test]
fn a_change_of_durability_holds_once_a_checkpoint_was_written_however_long_that_takes() {
    let folder = tempfile::tempdir().unwrap();
    let servers = keeping_servers(folder.path());
    ["items", "other"].iter().for_each(|table| switch(&servers[0], table, TableDurability::Disk));
    let second = &servers[1];
    second.catch_up().unwrap();
    let (requests, seen) = (second.checkpoint_requests(), view(second, "shop"));
    let tables = ["items", "other"].map(|name| seen.table_by_name(name).unwrap().clone());
    let look = || (second.settle_durability(), tables.each_ref().map(|entry| entry.table.is_logged()));
    // Nothing waits, and one checkpoint serves all tables: it has to have them.
    assert_eq!([look(), look()], [(Ok(false), [true; 2]), (Ok(false), [true; 2])]);
    assert_eq!((tables[0].durability(), requests.pending()), (TableDurability::None, Some(2)));
    requests.serve(2, Some(LogError::unusable("log", "its disk is full")));
    let (failed, logged) = look();
    assert!(failed.is_err() && logged == [false; 2], "{failed:?} {logged:?}");
    assert_eq!(look(), (Ok(false), [true; 2]));
    requests.serve(requests.pending().unwrap(), None);
    assert_eq!(look(), (Ok(true), [true; 2]));
    assert_eq!(tables.each_ref().map(|entry| entry.durability()), [TableDurability::Disk; 2]);
    assert_eq!((look(), requests.pending()), ((Ok(true), [true; 2]), None));
}

#[test]
fn a_change_of_durability_that_is_taken_back_before_it_holds_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let servers = keeping_servers(folder.path());
    switch(&servers[0], "items", TableDurability::Disk);
    servers[1].catch_up().unwrap();
    let entry = view(&servers[1], "shop").table_by_name("items").unwrap().clone();
    assert_eq!((servers[1].settle_durability(), entry.table.is_logged()), (Ok(false), true));
    switch(&servers[0], "items", TableDurability::None);
    servers[1].catch_up().unwrap();
    assert_eq!((servers[1].settle_durability(), entry.table.is_logged()), (Ok(true), false));
}
