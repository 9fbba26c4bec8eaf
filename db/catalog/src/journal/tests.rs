//! The directory across restarts, compared with its earlier state; the journal cut and damaged at every byte.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::{
    Directory, DirectoryError, DirectoryOptions, GrantAccess, GrantIssuer, NewTable, NewTenant, QuotaChanges,
    Suspension, TableDurability, TenantChange, TenantView,
};
use sandstorm_accounts::TokenHash;
use sandstorm_extension::{BudgetOverride, CodePolicy, CodeTier, ExtensionLibrary, LoadedExtension};
use sandstorm_store::{Epochs, StorageMode};

/// A directory with a journal in `folder`, and its persisted state.
fn open(folder: &Path) -> Arc<Directory> {
    let (journal, kept) = Journal::open(folder).expect("a journal");
    let directory =
        Directory::with_options(Epochs::new(), DirectoryOptions { workers: 3, ..DirectoryOptions::default() });
    directory.restore(&kept).expect("restored");
    directory.start_journal(journal).expect("kept");
    directory
}

/// A change over few names, so that changes interact.
#[derive(Clone, Debug)]
enum Change {
    Create { name: u8, id: Option<u32>, total_us: Option<u64> },
    Delete { name: u8 },
    CreateTable { tenant: u8, table: u8, cache: bool, quota_mib: u64 },
    DropTable { tenant: u8, table: u8 },
    Rotate { name: u8, grace_s: u64 },
    Revoke { name: u8 },
    Set { name: u8, open: Option<bool>, home: Option<u32>, code: Option<CodePolicy>, tables: Option<u32> },
    Confine { name: u8, extension: u8, confined: bool },
    Grant { owner: u8, table: u8, to: u8, access: GrantAccess },
    Withdraw { owner: u8, table: u8, to: u8 },
    GiveUp { name: u8, owner: u8, table: u8 },
    Budget { name: u8, total_us: Option<u64> },
    Load { name: u8, extension: u8 },
    Unload { name: u8, extension: u8 },
    Suspend { name: u8, extension: u8, binding: bool, until_replaced: bool },
    Resume { name: u8, extension: u8 },
    Restart,
}

fn change() -> impl Strategy<Value = Change> {
    let (n, few) = (|| 0u8..3, || 0u8..3);
    let access = prop_oneof![Just(GrantAccess::Read), Just(GrantAccess::ReadWrite)];
    prop_oneof![
        3 => (n(), prop::option::of(1u32..5), prop::option::of(1_000u64..9_000))
            .prop_map(|(name, id, total_us)| Change::Create { name, id, total_us }),
        1 => n().prop_map(|name| Change::Delete { name }),
        3 => (n(), few(), any::<bool>(), 1u64..5)
            .prop_map(|(tenant, table, cache, quota_mib)| Change::CreateTable { tenant, table, cache, quota_mib }),
        1 => (n(), few()).prop_map(|(tenant, table)| Change::DropTable { tenant, table }),
        1 => (n(), prop_oneof![Just(0u64), Just(3600)]).prop_map(|(name, grace_s)| Change::Rotate { name, grace_s }),
        1 => n().prop_map(|name| Change::Revoke { name }),
        2 => (n(), any::<Option<bool>>(), prop::option::of(0u32..3), prop::option::of(code()), prop::option::of(1u32..9))
            .prop_map(|(name, open, home, code, tables)| Change::Set { name, open, home, code, tables }),
        1 => (n(), few(), any::<bool>())
            .prop_map(|(name, extension, confined)| Change::Confine { name, extension, confined }),
        3 => (n(), few(), n(), access).prop_map(|(owner, table, to, access)| Change::Grant { owner, table, to, access }),
        1 => (n(), few(), n()).prop_map(|(owner, table, to)| Change::Withdraw { owner, table, to }),
        1 => (n(), n(), few()).prop_map(|(name, owner, table)| Change::GiveUp { name, owner, table }),
        1 => (n(), prop::option::of(1_000u64..9_000)).prop_map(|(name, total_us)| Change::Budget { name, total_us }),
        2 => (n(), few()).prop_map(|(name, extension)| Change::Load { name, extension }),
        1 => (n(), few()).prop_map(|(name, extension)| Change::Unload { name, extension }),
        2 => (n(), few(), any::<bool>(), any::<bool>()).prop_map(|(name, extension, binding, until_replaced)| {
            Change::Suspend { name, extension, binding, until_replaced }
        }),
        1 => (n(), few()).prop_map(|(name, extension)| Change::Resume { name, extension }),
        2 => Just(Change::Restart),
    ]
}

fn code() -> impl Strategy<Value = CodePolicy> {
    prop_oneof![Just(CodePolicy::Sandboxed), Just(CodePolicy::Native), Just(CodePolicy::None)]
}

/// The working tokens of a tenant, as its clients remember them.
#[derive(Clone, Debug, Default)]
struct Tokens {
    current: String,
    old: Option<String>,
    void: Vec<String>,
}

/// An extension that no client calls.
fn nothing(name: &str, version: u64, tier: CodeTier) -> Arc<LoadedExtension> {
    let library = ExtensionLibrary::of_nothing();
    Arc::new(LoadedExtension::new(name, version, library, BudgetOverride::default()).in_tier(tier))
}

/// All that a client can see of a tenant, except for the parts that a restart drops.
fn seen(view: &TenantView) -> String {
    let tenant = &view.tenant;
    let tables: Vec<_> = view.sorted_tables().iter().map(|t| (t.id, t.name(), t.mode(), t.quota_bytes())).collect();
    let given: Vec<_> = view.given.iter().map(|g| (g.table.clone(), g.to.clone(), g.access, g.in_force())).collect();
    let received: Vec<_> = view.sorted_granted().iter().map(|g| (g.id, g.name(), g.access())).collect();
    let suspended: BTreeMap<_, _> = view.suspended.iter().map(|(name, why)| (name.clone(), why.clone())).collect();
    let budgets: BTreeMap<_, _> = tenant.budgets.iter().collect();
    let code = (tenant.code.policy(), view.confined.iter().collect::<BTreeMap<_, _>>());
    let quotas = tenant.quotas.list();
    let versions: Vec<_> = (0..3).map(|n| view.versions.highest(&format!("e{n}"))).collect();
    let old = tenant.old_token().map(|old| old.recorded_ends_ms);
    let (id, name, origin, open, home) = (tenant.id, &tenant.name, tenant.origin, tenant.open, tenant.home_worker);
    format!(
        "{:?}",
        ((id, name, origin, open, home, old, code), quotas, budgets, tables, given, received, suspended, versions)
    )
}

fn all(directory: &Directory) -> BTreeMap<u32, String> {
    directory.snapshot().iter().map(|view| (view.tenant.id, seen(view))).collect()
}

fn tenant(name: u8) -> String {
    format!("t{name}")
}

fn extension(name: u8) -> String {
    format!("e{name}")
}

fn suspension(of: u8, binding: bool, until_replaced: bool) -> Suspension {
    match (binding, until_replaced) {
        (true, _) => Suspension::binding(1_000),
        (false, false) => Suspension::new(&extension(of), 2_000, "it was asked for"),
        (false, true) => Suspension::until_replaced(3_000, "its source does not pass"),
    }
}

/// Makes the change; returns without effect if the directory refuses it.
fn apply(directory: &Directory, tokens: &mut BTreeMap<String, Tokens>, change: &Change) -> Result<(), DirectoryError> {
    match change.clone() {
        Change::Create { name, id, total_us } => {
            let quotas = QuotaChanges { total_us, ..QuotaChanges::default() };
            let new = NewTenant { id, quotas, ..NewTenant::named(&tenant(name)) };
            let (_, token) = directory.create_tenant(new)?;
            tokens.insert(tenant(name), Tokens { current: token, ..Tokens::default() });
        }
        Change::Delete { name } => {
            directory.delete_tenant(&tenant(name))?;
            tokens.remove(&tenant(name));
        }
        Change::CreateTable { tenant: of, table, cache, quota_mib } => {
            let mode = if cache { StorageMode::Cache } else { StorageMode::Store };
            let (quota_bytes, ordered) = (Some(quota_mib << 20), table % 2 == 0);
            let new = NewTable { mode, quota_bytes, ordered, ..NewTable::named(&tenant(table)) };
            directory.create_table(&tenant(of), new)?;
        }
        Change::DropTable { tenant: of, table } => drop(directory.drop_table(&tenant(of), &tenant(table))?),
        Change::Rotate { name, grace_s } => {
            let token = directory.rotate_with_grace(&tenant(name), Duration::from_secs(grace_s))?;
            let known = tokens.entry(tenant(name)).or_default();
            let replaced = std::mem::replace(&mut known.current, token);
            known.void.extend(known.old.take());
            if grace_s > 0 { known.old = Some(replaced) } else { known.void.push(replaced) }
        }
        Change::Revoke { name } => {
            directory.revoke_old_token(&tenant(name))?;
            let known = tokens.entry(tenant(name)).or_default();
            known.void.extend(known.old.take());
        }
        Change::Set { name, open, home, code, tables } => {
            let quotas = QuotaChanges { tables, ..QuotaChanges::default() };
            let change = TenantChange { open, home_worker: home, home_fixed: None, code, quotas };
            directory.update_tenant(&tenant(name), &change)?;
        }
        Change::Confine { name, extension: of, confined: true } => {
            directory.confine_extension(&tenant(name), &extension(of), "it was asked for")?;
        }
        Change::Confine { name, extension: of, .. } => directory.release_extension(&tenant(name), &extension(of))?,
        Change::Grant { owner, table, to, access } => {
            directory.grant(&tenant(owner), &tenant(table), &tenant(to), access, GrantIssuer::Owner)?;
        }
        Change::Withdraw { owner, table, to } => directory.revoke(&tenant(owner), &tenant(table), &tenant(to))?,
        Change::GiveUp { name, owner, table } => {
            directory.drop_grant(&tenant(name), &format!("{}/{}", tenant(owner), tenant(table)))?;
        }
        Change::Budget { name, total_us } => {
            directory.set_budget(&tenant(name), "e0", BudgetOverride { total_us, ..BudgetOverride::default() })?;
        }
        Change::Load { name, extension: of } => {
            let view = directory.snapshot().find(&tenant(name))?.clone();
            let tier = view.tier_of(&extension(of)).unwrap_or_default();
            let version = view.versions.next(&extension(of));
            directory.put_extension(&tenant(name), nothing(&extension(of), version, tier))?;
        }
        Change::Unload { name, extension: of } => drop(directory.remove_extension(&tenant(name), &extension(of))?),
        Change::Suspend { name, extension: of, binding, until_replaced } => {
            directory.suspend(&tenant(name), &extension(of), suspension(of, binding, until_replaced))?;
        }
        Change::Resume { name, extension: of } => {
            directory.set_suspended(&tenant(name), &extension(of), false, true)?;
        }
        Change::Restart => {}
    }
    Ok(())
}

/// The same directory after a restart, with its extensions.
fn restart(folder: &Path, directory: Arc<Directory>) -> Arc<Directory> {
    let loaded: Vec<_> = directory
        .snapshot()
        .iter()
        .flat_map(|view| {
            view.extensions.values().map(|extension| (view.tenant.id, extension.clone())).collect::<Vec<_>>()
        })
        .collect();
    drop(directory);
    let again = open(folder);
    for (tenant, extension) in loaded {
        match again.reload_extension(tenant, extension) {
            // The tenant was moved, and nothing was built for its new tier.
            Ok(()) | Err(DirectoryError::NoCode(_) | DirectoryError::WrongTier { .. }) => {}
            Err(error) => panic!("its tenant is there: {error}"),
        }
    }
    again
}

/// A journal cut anywhere within its last line is the state before that line, and whole it is the state after.
fn cut_everywhere(before: &[u8], after: &[u8]) {
    let (old, ..) = file::read(before).expect("it was good");
    let (new, whole, _) = file::read(after).expect("it is good");
    assert_eq!(whole, after.len());
    for cut in before.len()..after.len() {
        let (state, whole, _) = file::read(&after[..cut]).unwrap_or_else(|damage| panic!("cut at {cut}: {damage:?}"));
        assert_eq!((whole, &state), (before.len(), &old), "cut at {cut}");
        // The length is on the disk, but only the bytes before the cut.
        let unwritten = [&after[..cut], &vec![0; after.len() - cut]].concat();
        let (state, whole, _) = file::read(&unwritten).unwrap_or_else(|damage| panic!("zeros from {cut}: {damage:?}"));
        assert_eq!((whole, &state), (before.len(), &old), "zeros from {cut}");
    }
    assert_ne!((&old.tenants, old.next_tenant), (&new.tenants, new.next_tenant), "a line is a change");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_restart_changes_nothing_that_is_kept(changes in prop::collection::vec(change(), 1..60)) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(JOURNAL_FILE);
        let mut directory = open(folder.path());
        let mut tokens = BTreeMap::new();
        for change in changes {
            let before = std::fs::read(&file).expect("the journal");
            let refused = apply(&directory, &mut tokens, &change).is_err();
            let after = std::fs::read(&file).expect("the journal");
            prop_assert!(!refused || before == after, "what is refused is not written: {:?}", change);
            if after.len() > before.len() {
                cut_everywhere(&before, &after);
            }
            if let Change::Restart = change {
                let was = all(&directory);
                directory = restart(folder.path(), directory);
                prop_assert_eq!(was, all(&directory));
                let snapshot = directory.snapshot();
                for (name, known) in &tokens {
                    let tenant = &snapshot.by_name(name).expect("the tenant").tenant;
                    let works = |token: &String| tenant.token_matches(token.as_bytes());
                    prop_assert!(works(&known.current) && known.old.iter().all(works) && !known.void.iter().any(works));
                }
            }
        }
    }
}

#[test]
fn ids_are_not_given_out_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let directory = open(folder.path());
    let (first, _) = directory.create_tenant(NewTenant::named("a")).unwrap();
    directory.create_tenant(NewTenant::named("b")).unwrap();
    let table = directory.create_table("b", NewTable::named("t")).unwrap().id;
    directory.drop_table("b", "t").unwrap();
    directory.delete_tenant("a").unwrap();
    let directory = restart(folder.path(), directory);
    assert!(directory.create_tenant(NewTenant::named("c")).unwrap().0.tenant.id > first.tenant.id + 1);
    assert!(directory.create_table("b", NewTable::named("u")).unwrap().id > table);
}

/// The journal of a server that had no tiers: two tenants, of which one has an extension.
const JOURNAL_WITHOUT_TIERS: &str = concat!(
    r#"{"line":1,"next_tenant":3,"next_home":0,"put":[],"gone":[]}"#,
    "\n",
    r#"{"line":2,"next_tenant":3,"next_home":0,"put":[{"id":1,"name":"old","origin":"made","open":true,"home_worker":0,"#,
    r#""quotas":{},"token":"TOKEN","budgets":{},"tables":[],"next_table":1,"given":[],"received":[],"#,
    r#""next_granted":281474976710656,"suspended":{"e0":{"since_ms":1,"text":"slow","binding":true}},"#,
    r#""versions":{"loaded":{"e0":{"version":4,"manifest_version":"1","loaded_at_ms":5}},"unloaded":{},"floor":0}}],"#,
    r#""gone":[]}"#,
    "\n",
);

#[test]
fn tenants_of_a_journal_without_tiers_stay_native_and_later_journals_say_so() {
    let token = JournalToken::of(&TokenHash::of_chosen("a-token-of-the-old-server").unwrap());
    let token = serde_json::to_string(&token).unwrap();
    let text = JOURNAL_WITHOUT_TIERS.replace("\"TOKEN\"", &token);
    let lines = std::iter::once(r#"{"sandstorm_directory":1}"#).chain(text.lines());
    let written: Vec<String> = lines.map(|json| format!("{}{json}\n", file::line_head(json.as_bytes()))).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(JOURNAL_FILE);
    std::fs::write(&path, written.concat()).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    for start in 1..=2 {
        let directory = open(folder.path());
        let snapshot = directory.snapshot();
        let view = snapshot.by_name("old").expect("it is there");
        assert_eq!((view.tenant.code.policy(), view.tier_of("e0")), (CodePolicy::Native, Some(CodeTier::Native)));
        directory.reload_extension("old", nothing("e0", 4, CodeTier::Native)).expect("as it ran");
        assert_eq!(directory.snapshot().by_name("old").unwrap().suspension("e0").unwrap().text.as_ref(), "slow");
        let kept = std::fs::read_to_string(&path).unwrap();
        assert!(kept.contains(r#""code":"native""#), "start {start}: {kept}");
        let (new, _) = directory.create_tenant(NewTenant::named(&format!("new{start}"))).unwrap();
        assert_eq!(new.tenant.code.policy(), CodePolicy::Sandboxed, "the default of new ones");
    }
}

#[test]
fn every_changed_byte_is_found_and_a_cut_file_is_the_state_of_then() {
    let folder = tempfile::tempdir().unwrap();
    let directory = open(folder.path());
    for name in 0..3 {
        directory.create_tenant(NewTenant::named(&tenant(name))).unwrap();
    }
    drop(directory);
    let good = std::fs::read(folder.path().join(JOURNAL_FILE)).unwrap();
    file::read(&good).expect("it is good");
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let damage = file::read(&bad).expect_err("a bit is another");
        assert!(format!("{damage:?}").contains("line"), "{damage:?}");
    }
    let lines: Vec<&[u8]> = good.split_inclusive(|byte| *byte == b'\n').collect();
    for missing in 0..lines.len() - 1 {
        let bad: Vec<u8> =
            lines.iter().enumerate().filter(|(n, _)| *n != missing).flat_map(|(_, l)| l.to_vec()).collect();
        file::read(&bad).expect_err("a line is missing");
    }
}

#[test]
fn homes_are_where_they_were_after_a_restart_fixed_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let directory = open(folder.path());
    let (moved, _) = directory.create_tenant(NewTenant::named("moved")).unwrap();
    directory.create_tenant(NewTenant { home_worker: Some(1), ..NewTenant::named("fixed") }).unwrap();
    assert!(directory.move_home(moved.tenant.id, 0, 2).unwrap());
    let directory = restart(folder.path(), directory);
    let home = |name: &str| {
        let tenant = Arc::clone(&directory.snapshot().by_name(name).unwrap().tenant);
        (tenant.home_worker, tenant.home_fixed)
    };
    assert_eq!((home("moved"), home("fixed")), ((2, false), (1, true)));
}

#[test]
fn what_cannot_be_used_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(JOURNAL_FILE);
    let directory = open(folder.path());
    directory.create_tenant(NewTenant::named("a")).unwrap();
    let second = Journal::open(folder.path()).expect_err("it is in use").to_string();
    assert!(second.contains("another server runs") && second.contains("--state"), "{second}");
    drop(directory);
    let good = std::fs::read(&file).unwrap();
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    let refused = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        Journal::open(folder.path()).expect_err("it is damaged").to_string()
    };
    let mut bad = good.clone();
    bad[60] ^= 1;
    for said in [refused(&bad), refused(b""), refused(&good[..20])] {
        let path = file.display().to_string();
        assert!(said.starts_with(&path) && said.contains("backup") && !said.contains('\n'), "{said}");
    }
    std::fs::write(&file, &good).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let open_to_all = Journal::open(folder.path()).expect_err("others could read it").to_string();
    assert!(open_to_all.contains("chmod 600"), "{open_to_all}");
}

#[test]
fn a_change_that_cannot_be_kept_is_refused_and_has_not_happened() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let directory = open(&state);
    directory.create_tenant(NewTenant::named("a")).unwrap();
    directory.create_tenant(NewTenant::named("b")).unwrap();
    directory.create_table("a", NewTable::named("t")).unwrap();
    directory.grant("a", "t", "b", GrantAccess::Read, GrantIssuer::Operator).unwrap();
    let was = all(&directory);
    directory.journal.lock().as_mut().expect("a journal").lose_file();
    std::fs::rename(&state, folder.path().join("gone")).unwrap();
    let error = directory.revoke("a", "t", "b").expect_err("nothing can be written");
    assert!(matches!(&error, DirectoryError::JournalUnavailable(why) if why.contains("cannot be kept")), "{error:?}");
    directory.grant("a", "t", "b", GrantAccess::ReadWrite, GrantIssuer::Operator).expect_err("nor this");
    directory.delete_tenant("a").expect_err("nor this");
    assert_eq!(all(&directory), was);
    std::fs::rename(folder.path().join("gone"), &state).unwrap();
    directory.grant("a", "t", "b", GrantAccess::ReadWrite, GrantIssuer::Operator).expect("the disk is back");
    let now = all(&directory);
    assert_ne!(now, was);
    assert_eq!(all(&restart(&state, directory)), now);
}

#[test]
fn on_a_full_disk_a_server_starts_refuses_changes_and_still_takes_rights_away_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let directory = open(folder.path());
    directory.create_tenant(NewTenant::named("a")).unwrap();
    directory.put_extension("a", nothing("e0", 1, CodeTier::Sandboxed)).unwrap();
    let old = directory.rotate_with_grace("a", Duration::from_secs(3600)).unwrap();
    directory.rotate_with_grace("a", Duration::from_millis(1)).unwrap();
    let file = folder.path().join(JOURNAL_FILE);
    let was = std::fs::read(&file).unwrap();
    drop(directory);

    let start = |full: bool| {
        let (mut journal, kept) = Journal::open(folder.path()).expect("a journal");
        journal.fill_disk(full);
        let directory =
            Directory::with_options(Epochs::new(), DirectoryOptions { workers: 3, ..DirectoryOptions::default() });
        directory.restore(&kept).expect("restored");
        directory.start_journal(journal).map(|()| directory)
    };
    let directory = start(true).expect("it goes on with what is there");
    directory.reload_extension("a", nothing("e0", 1, CodeTier::Sandboxed)).unwrap();
    let (since_ms, why) = directory.not_kept().expect("it says so");
    assert!(since_ms > 1_700_000_000_000 && why.contains(&file.display().to_string()), "{why}");
    let refused = directory.set_home_worker("a", 2).expect_err("it could not be kept");
    assert!(matches!(refused, DirectoryError::JournalUnavailable(_)), "{refused:?}");
    directory.suspend("a", "e0", Suspension::new("e0", 1, "it was asked for")).expect_err("nor this");
    let works = |directory: &Directory, token: &str| {
        directory.snapshot().by_name("a").expect("it is there").tenant.token_matches(token.as_bytes())
    };
    std::thread::sleep(Duration::from_millis(5));
    directory.expire_graces();
    assert!(!works(&directory, &old), "a grace ends all the same");
    directory.suspend_by_policy("a", "e0", Suspension::new("e0", 1, "it was killed")).expect("and the server suspends");
    assert!(directory.snapshot().by_name("a").expect("it is there").is_suspended("e0"));
    assert_eq!(std::fs::read(&file).unwrap(), was, "what was kept is as it was");

    directory.journal.lock().as_mut().expect("a journal").fill_disk(false);
    directory.set_home_worker("a", 2).expect("there is room again");
    assert_eq!(directory.not_kept(), None);
    let now = all(&directory);
    assert_eq!(all(&restart(folder.path(), directory)), now, "with what had been done meanwhile");
    // Without a file to continue with, nothing is served.
    std::fs::remove_file(&file).unwrap();
    start(true).expect_err("there was no journal");
}

/// Makes the journal that is kept as a golden file: each kind of thing that a directory has.
fn make_golden(folder: &Path) {
    let directory = open(folder);
    let shop =
        NewTenant { token: Some(GOLDEN_TOKEN.into()), code: Some(CodePolicy::Native), ..NewTenant::named("shop") };
    directory.create_tenant(shop).unwrap();
    directory.create_tenant(NewTenant { id: Some(9), open: true, ..NewTenant::named("bank") }).unwrap();
    let quotas = QuotaChanges { total_us: Some(5_000), ..QuotaChanges::default() };
    directory.update_tenant("shop", &TenantChange { home_worker: Some(2), quotas, ..TenantChange::default() }).unwrap();
    let items = NewTable { quota_bytes: Some(1 << 20), ordered: true, ..NewTable::named("items") };
    directory.create_table("shop", items).unwrap();
    let views = NewTable { mode: StorageMode::Cache, quota_bytes: Some(2 << 20), ..NewTable::named("views") };
    directory.create_table("shop", views).unwrap();
    directory.grant("shop", "items", "bank", GrantAccess::ReadWrite, GrantIssuer::Owner).unwrap();
    directory.set_budget("shop", "e0", BudgetOverride { total_us: Some(7_000), ..BudgetOverride::default() }).unwrap();
    directory.put_extension("shop", nothing("e0", 3, CodeTier::Native)).unwrap();
    directory.suspend("shop", "e0", Suspension::new("e0", 2_000, "it was asked for")).unwrap();
    directory.put_extension("shop", nothing("e1", 1, CodeTier::Native)).unwrap();
    directory.confine_extension("shop", "e1", "it was asked for").unwrap();
    directory.create_tenant(NewTenant::named("gone")).unwrap();
    directory.delete_tenant("gone").unwrap();
}

const GOLDEN_TOKEN: &str = "the-token-of-the-golden-journal";

#[test]
fn a_journal_of_an_earlier_version_is_read_as_what_it_was() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(JOURNAL_FILE);
    let folder = tempfile::tempdir().unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        make_golden(folder.path());
        std::fs::copy(folder.path().join(JOURNAL_FILE), &golden).unwrap();
    }
    let file = folder.path().join(JOURNAL_FILE);
    std::fs::copy(&golden, &file).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let directory = open(folder.path());
    let snapshot = directory.snapshot();
    let names: BTreeMap<_, _> = snapshot.iter().map(|view| (view.tenant.id, view.tenant.name.to_string())).collect();
    assert_eq!(names, BTreeMap::from([(1, "shop".to_owned()), (9, "bank".to_owned())]));
    let (shop, bank) = (snapshot.by_name("shop").unwrap(), snapshot.by_name("bank").unwrap());
    assert!(shop.tenant.token_matches(GOLDEN_TOKEN.as_bytes()) && !shop.tenant.open && bank.tenant.open);
    assert_eq!((shop.tenant.home_worker, shop.tenant.code.policy()), (2, CodePolicy::Native));
    let tables: Vec<_> = (shop.sorted_tables().iter())
        .map(|table| (table.id, table.name(), table.mode(), table.quota_bytes(), table.durability()))
        .collect();
    let [items, views] = &tables[..] else { panic!("two tables: {tables:?}") };
    assert_eq!((&*items.1, items.2, items.3, items.4), ("items", StorageMode::Store, 1 << 20, TableDurability::None));
    assert_eq!((&*views.1, views.2, views.3, views.4), ("views", StorageMode::Cache, 2 << 20, TableDurability::None));
    let received: Vec<_> = bank.sorted_granted().iter().map(|grant| (grant.name(), grant.access())).collect();
    assert_eq!(received, [("shop/items".into(), Some(GrantAccess::ReadWrite))]);
    let quotas = shop.tenant.quotas.list();
    assert!(quotas.iter().any(|(name, value)| (*name, *value) == ("total_us", 5_000)), "{quotas:?}");
    assert_eq!(shop.versions.highest("e0"), Some(3));
    assert!(shop.is_suspended("e0") && shop.confined.contains_key("e1"));
}

#[test]
fn a_journal_that_has_grown_is_replaced_by_one_that_holds_what_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let directory = open(folder.path());
    directory.create_tenant(NewTenant::named("a")).unwrap();
    directory.journal.lock().as_mut().expect("a journal").replace_at(20_000);
    let bytes = || directory.journal.lock().as_ref().expect("a journal").bytes();
    let (mut most, mut last, mut replaced) = (0, bytes(), false);
    for n in 0..100u32 {
        directory.set_home_worker("a", n % 3).unwrap();
        directory.set_quotas("a", &QuotaChanges { tables: Some(n + 1), ..QuotaChanges::default() }).unwrap();
        replaced |= bytes() < last;
        if !replaced {
            most = most.max(bytes());
        }
        last = bytes();
    }
    assert!(replaced && (18_000..22_000).contains(&most), "{most}");
    let was = all(&directory);
    assert_eq!(all(&restart(folder.path(), directory)), was);
}
