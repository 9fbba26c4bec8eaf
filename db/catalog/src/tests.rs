//! The directory compared with a model, quotas, tokens.

use std::collections::BTreeMap;
use std::sync::Weak;

use proptest::prelude::*;

use super::*;
use sandstorm_store::{Epochs, WriteOptions};

fn directory(options: DirectoryOptions) -> Arc<Directory> {
    Directory::with_options(Epochs::new(), options)
}

fn plain() -> Arc<Directory> {
    directory(DirectoryOptions { workers: 3, ..DirectoryOptions::default() })
}

fn small_table(name: &str) -> NewTable {
    NewTable { quota_bytes: Some(1 << 20), ..NewTable::named(name) }
}

/// A change of the directory, over few names, so that changes interact.
#[derive(Clone, Debug)]
enum Change {
    Create { name: u8, id: Option<u32> },
    Delete { name: u8 },
    CreateTable { tenant: u8, table: u8, id: Option<u64>, quota_mib: u64 },
    DropTable { tenant: u8, table: u8 },
    Rotate { name: u8 },
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let name = 0u8..4;
    let table = 0u8..4;
    let change = prop_oneof![
        (name.clone(), prop::option::of(0u32..5)).prop_map(|(name, id)| Change::Create { name, id }),
        name.clone().prop_map(|name| Change::Delete { name }),
        (name.clone(), table.clone(), prop::option::of(0u64..5), 1u64..5)
            .prop_map(|(tenant, table, id, quota_mib)| Change::CreateTable { tenant, table, id, quota_mib }),
        (name.clone(), table).prop_map(|(tenant, table)| Change::DropTable { tenant, table }),
        name.prop_map(|name| Change::Rotate { name }),
    ];
    prop::collection::vec(change, 1..60)
}

/// The expected directory: names to ids, tables with their quotas, tokens.
#[derive(Default)]
struct Model {
    tenants: BTreeMap<String, ModelTenant>,
}

#[derive(Default)]
struct ModelTenant {
    id: u32,
    token: String,
    tables: BTreeMap<String, (u64, u64)>,
}

const MODEL_TABLES: u32 = 3;
const MODEL_MIB: u64 = 6;

impl Model {
    /// Makes the change in both, and reports their differences.
    fn step(&mut self, directory: &Directory, change: &Change) -> Result<(), TestCaseError> {
        match change {
            Change::Create { name, id } => self.create(directory, &format!("t{name}"), *id),
            Change::Delete { name } => {
                let name = format!("t{name}");
                let expected = self.tenants.remove(&name).is_some();
                prop_assert_eq!(directory.delete_tenant(&name).is_ok(), expected);
                Ok(())
            }
            Change::CreateTable { tenant, table, id, quota_mib } => {
                self.create_table(directory, &format!("t{tenant}"), format!("m{table}"), *id, quota_mib << 20)
            }
            Change::DropTable { tenant, table } => {
                let (tenant, table) = (format!("t{tenant}"), format!("m{table}"));
                let expected = self.tenants.get_mut(&tenant).and_then(|t| t.tables.remove(&table)).is_some();
                prop_assert_eq!(directory.drop_table(&tenant, &table).is_ok(), expected);
                Ok(())
            }
            Change::Rotate { name } => {
                let name = format!("t{name}");
                let rotated = directory.rotate_token(&name);
                let expected = self.tenants.get_mut(&name);
                prop_assert_eq!(rotated.is_ok(), expected.is_some());
                if let (Some(tenant), Ok(token)) = (expected, rotated) {
                    tenant.token = token;
                }
                Ok(())
            }
        }
    }

    fn create(&mut self, directory: &Directory, name: &str, id: Option<u32>) -> Result<(), TestCaseError> {
        let created = directory.create_tenant(NewTenant { id, ..NewTenant::named(name) });
        let id_free = id.is_none_or(|id| id != 0 && self.tenants.values().all(|t| t.id != id));
        prop_assert_eq!(created.is_ok(), id_free && !self.tenants.contains_key(name), "{:?}", created.err());
        if let Ok((view, token)) = created {
            let assigned = view.tenant.id;
            prop_assert!(id.is_none_or(|id| id == assigned) && assigned != 0);
            prop_assert!(self.tenants.values().all(|t| t.id != assigned), "id {assigned} was given twice");
            self.tenants.insert(name.into(), ModelTenant { id: assigned, token, ..ModelTenant::default() });
        }
        Ok(())
    }

    fn create_table(
        &mut self,
        directory: &Directory,
        tenant: &str,
        name: String,
        id: Option<u64>,
        quota: u64,
    ) -> Result<(), TestCaseError> {
        let new = NewTable { id, quota_bytes: Some(quota), ..NewTable::named(&name) };
        let created = directory.create_table(tenant, new);
        let Some(model) = self.tenants.get_mut(tenant) else {
            prop_assert_eq!(created.err(), Some(DirectoryError::UnknownTenant(tenant.into())));
            return Ok(());
        };
        let id_free = id.is_none_or(|id| id != 0 && model.tables.values().all(|(taken, _)| *taken != id));
        let reserved: u64 = model.tables.values().map(|(_, quota)| quota).sum();
        let fits = model.tables.len() < MODEL_TABLES as usize && reserved + quota <= MODEL_MIB << 20;
        let expected = id_free && fits && !model.tables.contains_key(&name);
        prop_assert_eq!(created.is_ok(), expected, "{:?}", created.err());
        if let Ok(entry) = created {
            prop_assert!(id.is_none_or(|id| id == entry.id) && entry.id != 0);
            prop_assert!(model.tables.values().all(|(taken, _)| *taken != entry.id));
            model.tables.insert(name, (entry.id, quota));
        }
        Ok(())
    }

    fn check(&self, snapshot: &DirectorySnapshot) -> Result<(), TestCaseError> {
        prop_assert_eq!(snapshot.len(), self.tenants.len());
        for (name, model) in &self.tenants {
            let view = snapshot.by_name(name).ok_or_else(|| TestCaseError::fail(format!("{name} is gone")))?;
            prop_assert!(Arc::ptr_eq(view, snapshot.tenant(model.id).unwrap()));
            prop_assert!(view.tenant.token_matches(model.token.as_bytes()));
            prop_assert_eq!(view.tables.len(), model.tables.len());
            prop_assert_eq!(view.table_names.len(), model.tables.len());
            for (name, (id, quota)) in &model.tables {
                let table = view.table_by_name(name).unwrap();
                prop_assert_eq!((table.id, table.quota_bytes(), &*table.name()), (*id, *quota, name.as_str()));
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Changes come in any order: creations, deletions, drops, rotations. The directory agrees with a plain map, a
    /// refused change changes nothing, and only each change increments the generation.
    #[test]
    fn directory_agrees_with_a_model(changes in changes()) {
        let quotas = Quotas { tables: MODEL_TABLES, memory_bytes: MODEL_MIB << 20, ..Quotas::default() };
        let directory = directory(DirectoryOptions { quotas, ..DirectoryOptions::default() });
        let mut model = Model::default();
        for change in &changes {
            let before = directory.snapshot();
            model.step(&directory, change)?;
            let after = directory.snapshot();
            model.check(&after)?;
            prop_assert_eq!(after.generation(), directory.generation());
            prop_assert!(after.generation() - before.generation() <= 1);
            prop_assert_eq!(after.generation() == before.generation(), Arc::ptr_eq(&after, &before));
        }
    }

    /// Requests over any second never exceed the rate by more than the burst of a tenth of a second and the one message
    /// that a tenant at rest is granted.
    #[test]
    fn rate_is_kept_over_every_second(rate in 10u32..5_000, gaps in prop::collection::vec((0u64..3_000_000, 1u32..20), 1..400)) {
        let usage = TenantUsage::new(1);
        let mut now = 1_000_000_000;
        let mut admitted: Vec<(u64, u32)> = Vec::new();
        for (gap, requests) in gaps {
            now += gap;
            if usage.admit(now, requests, rate) {
                admitted.push((now, requests));
            }
        }
        for (index, (start, _)) in admitted.iter().enumerate() {
            let within: u64 = admitted[index..].iter().filter(|(at, _)| at - start < 1_000_000_000).map(|(_, n)| u64::from(*n)).sum();
            prop_assert!(within <= u64::from(rate) + u64::from(rate) / 10 + 20, "{within} in a second at rate {rate}");
        }
    }
}

#[test]
fn homes_are_given_round_robin_and_may_be_moved() {
    let directory = plain();
    let homes: Vec<u32> = (0..6)
        .map(|i| directory.create_tenant(NewTenant::named(&format!("t{i}"))).unwrap().0.tenant.home_worker)
        .collect();
    assert_eq!(homes, [0, 1, 2, 0, 1, 2]);
    directory.set_home_worker("t0", 2).unwrap();
    assert_eq!(directory.snapshot().by_name("t0").unwrap().tenant.home_worker, 2);
    let refused = directory.set_home_worker("t0", 3).unwrap_err();
    assert_eq!(refused.to_string(), "home worker 3 is out of range: the server has workers 0 to 2");
}

#[test]
fn a_home_that_somebody_named_is_fixed_until_it_is_let_go() {
    let directory = plain();
    directory.create_tenant(NewTenant { home_worker: Some(1), ..NewTenant::named("named") }).unwrap();
    directory.create_tenant(NewTenant::named("given")).unwrap();
    let home = |name: &str| {
        let tenant = Arc::clone(&directory.snapshot().by_name(name).unwrap().tenant);
        (tenant.id, tenant.home_worker, tenant.home_fixed)
    };
    let ((named, ..), (given, ..)) = (home("named"), home("given"));
    assert!(!directory.move_home(named, 1, 2).unwrap(), "it is fixed");
    assert!(!directory.move_home(given, 1, 2).unwrap(), "it is elsewhere");
    assert!(directory.move_home(given, 0, 3).is_err(), "there is no such worker");
    assert!(!directory.move_home(given + 7, 0, 1).unwrap(), "there is no such tenant");
    assert!(directory.move_home(given, 0, 2).unwrap());
    assert_eq!((home("named"), home("given"), directory.homes_moved()), ((named, 1, true), (given, 2, false), 1));
    let change = |home_worker, home_fixed| {
        let change = TenantChange { home_worker, home_fixed, ..TenantChange::default() };
        directory.update_tenant("given", &change).unwrap();
        home("given")
    };
    assert_eq!(change(None, None), (given, 2, false), "another change leaves it as it is");
    assert_eq!(change(Some(1), None), (given, 1, true));
    assert_eq!(change(None, None), (given, 1, true));
    assert_eq!(change(None, Some(false)), (given, 1, false));
    assert_eq!(change(None, Some(true)), (given, 1, true), "where it is");
}

#[test]
fn a_held_view_outlives_deletion_and_frees_its_tables_when_let_go() {
    let directory = plain();
    directory.create_tenant(NewTenant::named("a")).unwrap();
    let table: Weak<TableEntry> = Arc::downgrade(&directory.create_table("a", small_table("t")).unwrap());
    let held = directory.snapshot().by_name("a").unwrap().clone();
    directory.drop_table("a", "t").unwrap();
    assert!(!held.tenant.usage.is_deleted());
    directory.delete_tenant("a").unwrap();
    assert!(directory.snapshot().by_name("a").is_none());
    assert!(held.tenant.usage.is_deleted(), "its calls are to end");
    assert!(held.table_by_name("t").is_some(), "who holds the view still has the table");
    assert_eq!((directory.reap(), directory.dropped_tables()), (0, 1), "a table in use is not freed");
    drop(held);
    assert!(table.upgrade().is_some(), "whoever lets go last does not pay for the freeing");
    assert_eq!((directory.reap(), directory.dropped_tables()), (1, 0));
    assert!(table.upgrade().is_none(), "nothing else keeps a dropped table");
}

#[test]
fn table_ids_are_not_used_again() {
    let directory = plain();
    directory.create_tenant(NewTenant::named("a")).unwrap();
    let first = directory.create_table("a", small_table("t")).unwrap().id;
    directory.drop_table("a", "t").unwrap();
    assert_ne!(directory.create_table("a", small_table("t")).unwrap().id, first);
}

#[test]
fn credentials_end_sessions_of_old_tokens_and_of_deleted_tenants() {
    let directory = plain();
    let credential = |d: &Directory| d.snapshot().by_name("a").unwrap().tenant.credential;
    directory.create_tenant(NewTenant { id: Some(7), ..NewTenant::named("a") }).unwrap();
    let first = credential(&directory);
    directory.rotate_token("a").unwrap();
    let second = credential(&directory);
    directory.delete_tenant(7).unwrap();
    directory.create_tenant(NewTenant { id: Some(7), ..NewTenant::named("a") }).unwrap();
    let third = credential(&directory);
    assert!(first < second && second < third);
}

#[test]
fn a_token_admits_its_own_tenant_only_and_rotation_ends_it() {
    let directory = plain();
    let (a, token_a) = directory.create_tenant(NewTenant::named("a")).unwrap();
    let (b, token_b) = directory.create_tenant(NewTenant::named("b")).unwrap();
    assert_eq!(token_a.len(), 64);
    assert!(a.tenant.admits(token_a.as_bytes()) && !a.tenant.admits(token_b.as_bytes()));
    assert!(b.tenant.admits(token_b.as_bytes()) && !b.tenant.admits(b""));
    let snapshot = directory.snapshot();
    let owner = |token: &str| snapshot.by_token(token.as_bytes()).map(|view| view.tenant.name.clone());
    assert_eq!((owner(&token_a), owner(&token_b)), (Some("a".into()), Some("b".into())));
    assert_eq!((owner(""), owner(&"x".repeat(5000))), (None, None));
    let rotated = directory.rotate_token("a").unwrap();
    let a = directory.snapshot().by_name("a").unwrap().clone();
    assert!(a.tenant.admits(rotated.as_bytes()) && !a.tenant.admits(token_a.as_bytes()));
    assert!(!format!("{:?}", a.tenant).contains(&rotated), "a token must not get into a log");
}

#[test]
fn open_tenants_admit_anyone_and_may_be_forbidden() {
    let (open, token) = plain().create_tenant(NewTenant { open: true, ..NewTenant::named("a") }).unwrap();
    assert!(open.tenant.admits(b"") && !open.tenant.token_matches(b""));
    assert!(open.tenant.token_matches(token.as_bytes()));
    let closed = directory(DirectoryOptions { allow_open: false, ..DirectoryOptions::default() });
    let refused = closed.create_tenant(NewTenant { open: true, ..NewTenant::named("a") }).unwrap_err();
    assert_eq!(refused, DirectoryError::OpenRefused("a".into()));
    closed.create_tenant(NewTenant::named("a")).unwrap();
    assert!(closed.set_open("a", true).is_err());
}

#[test]
fn names_and_tokens_are_checked() {
    let directory = plain();
    for name in ["", "-a", ".a", "a/b", "a b", "ä", &"x".repeat(65), "a\0"] {
        let refused = directory.create_tenant(NewTenant::named(name)).unwrap_err();
        assert!(matches!(refused, DirectoryError::InvalidName { .. }), "{name:?}: {refused}");
    }
    for token in ["short", "with a blank in the middle of it", &"x".repeat(257), "tökens-are-ascii-all-of-them"] {
        let new = NewTenant { token: Some(token.into()), ..NewTenant::named("a") };
        assert_eq!(directory.create_tenant(new).unwrap_err(), DirectoryError::InvalidToken);
    }
    assert!(directory.snapshot().is_empty());
}

#[test]
fn quotas_bound_tables_pushes_invocations_and_tenants() {
    let directory = directory(DirectoryOptions { max_tenants: 1, ..DirectoryOptions::default() });
    let quotas = QuotaChanges {
        tables: Some(1),
        pushes_per_hour: Some(2),
        concurrent_invocations: Some(2),
        extensions: Some(0),
        ..QuotaChanges::default()
    };
    let (view, _) = directory.create_tenant(NewTenant { quotas, ..NewTenant::named("a") }).unwrap();
    assert!(matches!(directory.create_tenant(NewTenant::named("b")), Err(DirectoryError::TooManyTenants(1))));
    directory.create_table("a", small_table("t")).unwrap();
    let over = directory.create_table("a", small_table("u")).err().unwrap();
    assert_eq!(over.to_string(), "tenant \"a\" is at its quota tables = 1");
    assert_eq!(over.refusal(), DirectoryErrorKind::OverQuota);

    assert!(view.tenant.begin_invocation().is_ok() && view.tenant.begin_invocation().is_ok());
    assert!(view.tenant.begin_invocation().is_err_and(|text| text.contains("concurrent_invocations")));
    view.tenant.end_invocations(1);
    assert!(view.tenant.begin_invocation().is_ok() && view.tenant.usage.running() == 2);

    assert!(matches!(directory.admit_push("a", "x", 0), Err(DirectoryError::OverQuota { quota: "extensions", .. })));
    directory.set_quotas("a", &QuotaChanges { extensions: Some(1), ..QuotaChanges::default() }).unwrap();
    directory.admit_push("a", "x", 1_000).unwrap();
    directory.admit_push("a", "x", 2_000).unwrap();
    assert!(matches!(
        directory.admit_push("a", "x", 3_600_999),
        Err(DirectoryError::OverQuota { quota: "pushes_per_hour", .. })
    ));
    directory.admit_push("a", "x", 3_601_000).unwrap();
}

#[test]
fn quotas_outside_of_their_range_are_refused_and_change_nothing() {
    let directory = plain();
    directory.create_tenant(NewTenant::named("a")).unwrap();
    let bad = [
        QuotaChanges { slice_us: Some(20_000), ..QuotaChanges::default() },
        QuotaChanges { weight: Some(0), ..QuotaChanges::default() },
        QuotaChanges { reply_bytes: Some(u64::MAX), ..QuotaChanges::default() },
    ];
    for changes in bad {
        assert!(matches!(directory.set_quotas("a", &changes), Err(DirectoryError::Quota(_))));
    }
    assert_eq!(directory.snapshot().by_name("a").unwrap().tenant.quotas, Quotas::default());
    let own = BudgetOverride { slice_us: Some(9), ..BudgetOverride::default() };
    assert!(directory.set_budget("a", "x", own).is_err());
    let own = BudgetOverride { slice_us: Some(500), total_us: Some(600), ..BudgetOverride::default() };
    directory.set_budget("a", "x", own).unwrap();
    assert_eq!(directory.snapshot().by_name("a").unwrap().tenant.budgets.get("x"), Some(&own));
}

#[test]
fn tables_without_a_quota_get_the_same_whichever_is_made_first() {
    let directory = plain();
    let quotas = QuotaChanges { memory_bytes: Some(8 << 20), ..QuotaChanges::default() };
    directory.create_tenant(NewTenant { quotas, ..NewTenant::named("a") }).unwrap();
    let quota = |name| directory.create_table("a", NewTable::named(name)).unwrap().quota_bytes() >> 20;
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    assert_eq!(names.map(quota), [1; 8]);
    let refused = directory.create_table("a", NewTable::named("i")).unwrap_err();
    assert!(matches!(refused, DirectoryError::RecordMemory { reserved: 0x80_0000, .. }), "{refused}");
}

#[test]
fn only_the_recent_kills_are_kept_newest_first() {
    let usage = TenantUsage::new(1);
    for version in 0..200 {
        usage.record_kill(sandstorm_accounts::KillRecord {
            extension: "x".into(),
            version,
            cause: sandstorm_net::rpc::KillCause::Panic,
            cpu_us: 1,
            wall_us: 2,
            at_ms: 3,
            worker: 0,
            text: String::new(),
            places: Vec::new(),
            arguments: Vec::new(),
        });
    }
    let kills = usage.kills();
    assert_eq!(kills.len(), sandstorm_accounts::limits::RECENT_KILLS);
    assert_eq!((kills[0].version, kills[63].version), (199, 136));
}

#[test]
fn a_change_wakes_the_workers_after_it_is_visible() {
    let directory = plain();
    let seen = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (watch, weak) = (seen.clone(), Arc::downgrade(&directory));
    directory.wake_on_change(move || {
        let generation = weak.upgrade().map_or(0, |directory| directory.snapshot().generation());
        watch.store(generation, std::sync::atomic::Ordering::Relaxed);
    });
    directory.create_tenant(NewTenant::named("a")).unwrap();
    assert_eq!(seen.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert!(directory.create_tenant(NewTenant::named("a")).is_err());
    assert_eq!(seen.load(std::sync::atomic::Ordering::Relaxed), 1, "a refused change wakes nobody");
}

#[test]
fn an_old_token_works_until_its_grace_ends_or_is_ended() {
    let directory = plain();
    let (_, first) = directory.create_tenant(NewTenant::named("a")).unwrap();
    let tenant = || directory.snapshot().by_name("a").unwrap().tenant.clone();
    let begun = tenant().credential;
    let hour = std::time::Duration::from_secs(3600);

    let second = directory.rotate_with_grace("a", hour).unwrap();
    let now = tenant();
    assert_eq!(
        (now.shown(first.as_bytes()), now.shown(second.as_bytes())),
        (Some(TokenMatch::Old), Some(TokenMatch::Current))
    );
    assert_eq!(now.credential_of(first.as_bytes()), Some(begun), "sessions of the old token go on");
    assert_eq!(now.credentials().collect::<Vec<_>>(), [now.credential, begun]);
    assert_eq!(now.verifiers().count(), 2);
    assert!(now.admits(first.as_bytes()) && now.admits(second.as_bytes()));
    let shown = |token: &str| directory.snapshot().shown(token.as_bytes()).map(|(_, shown)| shown);
    assert_eq!((shown(&first), shown(&second)), (Some(TokenMatch::Old), Some(TokenMatch::Current)));
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    assert!(now.old_token().unwrap().until_ms().abs_diff(wall + 3_600_000) < 600_000);
    directory.expire_graces();
    assert!(tenant().old_token().is_some(), "it is not over yet");

    // A second rotation within the grace: the older token is void at once.
    let third = directory.rotate_with_grace("a", hour).unwrap();
    assert_eq!([&first, &second, &third].map(|token| tenant().admits(token.as_bytes())), [false, true, true]);
    assert!(!tenant().credentials().any(|credential| credential == begun));
    assert!(directory.revoke_old_token("a").unwrap());
    assert!(!directory.revoke_old_token("a").unwrap(), "there is none left");
    assert!(directory.revoke_old_token("b").is_err());
    assert_eq!([&second, &third].map(|token| tenant().admits(token.as_bytes())), [false, true]);

    // The next check ends a grace period that is over; a grace of zero never begins.
    let fourth = directory.rotate_with_grace("a", std::time::Duration::from_nanos(1)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1));
    directory.expire_graces();
    assert_eq!([&third, &fourth].map(|token| tenant().admits(token.as_bytes())), [false, true]);
    let fifth = directory.rotate_token("a").unwrap();
    assert_eq!([&fourth, &fifth].map(|token| tenant().admits(token.as_bytes())), [false, true]);
    let shown = format!("{:?}", tenant());
    assert!(![first, second, third, fourth, fifth].iter().any(|token| shown.contains(token)));
}

#[test]
fn changes_are_bounded_over_time() {
    use sandstorm_accounts::limits::{CHANGES_BURST, CHANGES_PER_S};
    let usage = TenantUsage::new(1);
    let admitted = |now_ms: u64| (0..10_000).take_while(|_| usage.admit_change(now_ms * 1_000_000)).count() as u64;
    assert_eq!(admitted(1_000_000), CHANGES_BURST);
    assert_eq!((admitted(1_000_000), admitted(1_003_000), admitted(1_003_000)), (0, 3 * CHANGES_PER_S, 0));
    assert_eq!(admitted(9_000_000), CHANGES_BURST);
}

#[test]
fn a_table_with_durability_needs_a_server_that_keeps_records() {
    let durable = || NewTable { durability: Some(TableDurability::Interval), ..small_table("carts") };
    let directory = Directory::new(Epochs::new());
    directory.create_tenant(NewTenant::named("shop")).unwrap();
    let refused = directory.create_table("shop", durable()).expect_err("nothing is kept");
    assert_eq!(refused, DirectoryError::KeepsNothing("carts".into()));

    let folder = tempfile::tempdir().unwrap();
    let start = || {
        let epochs = Epochs::new();
        let options = DirectoryOptions { can_keep_records: true, ..DirectoryOptions::default() };
        let directory = Directory::with_options(Arc::clone(&epochs), options);
        let (journal, kept) = journal::Journal::open(folder.path()).unwrap();
        directory.restore(&kept).unwrap();
        directory.restore_records(&folder.path().join("log"), 1, |log| log.start()).unwrap();
        directory.start_journal(journal).unwrap();
        (directory, epochs)
    };
    let log_folder = folder.path().join("log");
    std::fs::create_dir(&log_folder).unwrap();
    let (directory, epochs) = start();
    directory.create_tenant(NewTenant::named("shop")).unwrap();
    let views = NewTable { mode: StorageMode::Cache, ..small_table("views") };
    directory.create_table("shop", views).unwrap();
    assert_eq!(std::fs::read_dir(&log_folder).unwrap().count(), 0, "no table needs it");
    assert!(directory.change_log().is_none(), "no table needs it");
    let carts = directory.create_table("shop", durable()).unwrap();
    let participant = epochs.register();
    let key = b"k";
    let write = sandstorm_store::WriteOptions { flags: 7, ..Default::default() };
    let version = carts.table.put(&participant, carts.table.hash(key), key, b"v", &write, 1).unwrap();
    directory.change_log().unwrap().close();
    drop((carts, participant, directory));

    let (directory, epochs) = start();
    let view = directory.snapshot().find("shop").unwrap().clone();
    let carts = view.table_by_name("carts").unwrap();
    assert_eq!(
        (carts.durability(), view.table_by_name("views").unwrap().durability().name()),
        (TableDurability::Interval, "none")
    );
    let participant = epochs.register();
    let guard = participant.guard();
    let record = carts.table.get(&guard, carts.table.hash(key), key, 1).unwrap();
    assert_eq!((record.value(), record.flags(), record.version()), (&b"v"[..], 7, version));
}

#[test]
fn quotas_of_cold_reads_hold_without_a_table_of_the_tenants_own_and_over_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let quota_of = |directory: &Directory| {
        let tenant = directory.snapshot().by_name("grantee").unwrap().tenant.id;
        directory.spill_pool().unwrap().quota(tenant).map(|quota| quota.reads_per_second)
    };
    let start = || {
        let directory = Directory::new(Epochs::new());
        let (journal, kept) = journal::Journal::open(folder.path()).unwrap();
        directory.open_spill_folder(&folder.path().join("spill")).unwrap();
        directory.restore(&kept).unwrap();
        directory.start_journal(journal).unwrap();
        directory
    };
    let directory = start();
    let quotas = QuotaChanges { cold_reads_per_s: Some(5), ..QuotaChanges::default() };
    directory.create_tenant(NewTenant { quotas, ..NewTenant::named("grantee") }).unwrap();
    assert_eq!(quota_of(&directory), Some(5));
    directory.close_spill_folder();
    drop(directory);
    let directory = start();
    assert_eq!(quota_of(&directory), Some(5), "it reads tables of others");
    directory.close_spill_folder();
}

#[test]
fn a_delayed_flush_removes_nothing_that_is_written_after_it() {
    const WRITERS: u64 = 8;
    let directory = plain();
    directory.create_tenant(NewTenant::named("a")).unwrap();
    let entry = directory.create_table("a", small_table("t")).unwrap();
    let put = |participant: &Participant, key: u64| {
        let key = key.to_le_bytes();
        let (hash, options) = (entry.table.hash(&key), WriteOptions::default());
        entry.table.put(participant, hash, &key, b"v", &options, 1).unwrap();
    };
    let participant = directory.participant();
    put(&participant, u64::MAX);
    entry.flush_at_ms.store(1, Relaxed);
    std::thread::scope(|scope| {
        // All of them find it due, and none may go on before it is done.
        let held = entry.table.exclusive(&participant, StripeSet::ALL);
        for key in 0..WRITERS {
            let (entry, put, participant) = (&entry, &put, directory.participant());
            scope.spawn(move || {
                entry.flush_if_due(&participant, 2, |_| ());
                put(&participant, key);
            });
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(held);
    });
    assert_eq!(entry.table.stats().records, WRITERS, "the record of before is gone, and no other");
    assert_eq!(entry.flush_at_ms.load(Relaxed), 0);
}
