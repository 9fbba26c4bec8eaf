//! Grants compared with a model, and the knowledge that an owner may gain from them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;

use proptest::prelude::*;

use super::*;
use crate::{AccessError, DirectoryOptions, NewTable, NewTenant, QuotaChanges};
use sandstorm_store::Epochs;

fn directory(tenants: &[&str]) -> Arc<Directory> {
    let directory = Directory::with_options(Epochs::new(), DirectoryOptions::default());
    for tenant in tenants {
        directory.create_tenant(NewTenant::named(tenant)).unwrap();
        table(&directory, tenant, "t");
    }
    directory
}

fn table(directory: &Directory, tenant: &str, name: &str) {
    directory.create_table(tenant, NewTable { quota_bytes: Some(1 << 20), ..NewTable::named(name) }).unwrap();
}

fn view(directory: &Directory, tenant: &str) -> Arc<TenantView> {
    directory.snapshot().by_name(tenant).unwrap().clone()
}

/// The owner grants its table `t` to another tenant.
fn grant(directory: &Directory, owner: &str, to: &str, access: GrantAccess) -> IssuedGrant {
    directory.grant(owner, "t", to, access, GrantIssuer::Owner).unwrap()
}

#[test]
fn a_granted_table_is_read_under_the_owners_name_until_the_grant_is_revoked_by_those_who_run_too() {
    let directory = directory(&["a", "b", "c"]);
    assert!(grant(&directory, "a", "b", GrantAccess::Read).in_force());
    let held = view(&directory, "b");
    let id = held.id_of("a/t").unwrap();
    let own = view(&directory, "a").table_by_name("t").unwrap().clone();
    assert!(id >= FIRST_GRANTED_ID && held.id_of("t") == Some(1), "its own table keeps its name");
    assert!(std::ptr::eq(held.reach(id, false).unwrap(), &*own));
    assert_eq!(held.reach(id, true).err(), Some(AccessError::ReadOnly));
    assert_eq!(view(&directory, "c").reach(id, false).err(), Some(AccessError::Unknown), "an id is one tenant's");

    grant(&directory, "a", "b", GrantAccess::ReadWrite);
    assert!(held.reach(id, true).is_ok(), "a change holds for those who have an older view");
    assert_eq!(view(&directory, "b").id_of("a/t"), Some(id));
    grant(&directory, "a", "b", GrantAccess::Read);
    assert_eq!(held.reach(id, true).err(), Some(AccessError::ReadOnly));
    assert_eq!(view(&directory, "a").given.len(), 1);

    directory.revoke("a", "t", "b").unwrap();
    assert_eq!(
        (held.reach(id, false).err(), held.reach(id, true).err()),
        (Some(AccessError::Unknown), Some(AccessError::Unknown))
    );
    let now = view(&directory, "b");
    assert!(now.granted.is_empty() && now.id_of("a/t").is_none() && view(&directory, "a").given.is_empty());
    let again = directory.revoke("a", "t", "b").unwrap_err();
    assert_eq!(again.to_string(), "table \"t\" is not granted to \"b\"");

    grant(&directory, "a", "b", GrantAccess::Read);
    assert_eq!(view(&directory, "b").id_of("a/t"), Some(id + 1), "ids are not used again");
    assert!(held.reach(id, false).is_err());
}

#[test]
fn dropping_the_table_or_deleting_either_tenant_ends_a_grant_and_nobody_inherits_it() {
    for end in ["table", "owner", "grantee"] {
        let directory = directory(&["a", "b"]);
        grant(&directory, "a", "b", GrantAccess::ReadWrite);
        let held = view(&directory, "b");
        let id = held.id_of("a/t").unwrap();
        let entry: Weak<TableEntry> = Arc::downgrade(view(&directory, "a").table_by_name("t").unwrap());
        match end {
            "table" => drop(directory.drop_table("a", "t").unwrap()),
            "owner" => drop(directory.delete_tenant("a").unwrap()),
            _ => drop(directory.delete_tenant("b").unwrap()),
        }
        assert_eq!(held.reach(id, false).err(), Some(AccessError::Unknown), "{end}");
        match end {
            "table" => table(&directory, "a", "t"),
            "owner" => {
                directory.create_tenant(NewTenant { id: Some(1), ..NewTenant::named("a") }).unwrap();
                table(&directory, "a", "t");
            }
            _ => drop(directory.create_tenant(NewTenant { id: Some(2), ..NewTenant::named("b") }).unwrap()),
        }
        assert!(view(&directory, "b").granted.is_empty(), "{end}");
        assert_eq!(held.reach(id, false).err(), Some(AccessError::Unknown), "{end}");
        // For an own, existing table the owner's list shows the grant, even if the grantee is gone.
        assert_eq!(view(&directory, "a").given.len(), usize::from(end == "grantee"), "{end}");
        assert!(!view(&directory, "a").given.iter().any(IssuedGrant::in_force));
        drop(held);
        directory.reap();
        assert_eq!(entry.upgrade().is_some(), end == "grantee", "a grant that ended keeps no table");
    }
}

#[test]
fn an_owner_is_told_the_same_whether_the_grantee_is_there_has_room_or_wants_it() {
    let directory = directory(&["a", "b", "dropped", "full"]);
    let none = QuotaChanges { grants_received: Some(0), ..QuotaChanges::default() };
    directory.set_quotas("full", &none).unwrap();
    for to in ["b", "dropped", "full", "nobody"] {
        let given = grant(&directory, "a", to, GrantAccess::Read);
        assert_eq!((&*given.table, &*given.to, given.access), ("t", to, GrantAccess::Read));
        assert_eq!(given.in_force(), ["b", "dropped"].contains(&to));
    }
    directory.drop_grant("dropped", "a/t").unwrap();
    assert!(view(&directory, "dropped").granted.is_empty());
    let listed: Vec<_> = view(&directory, "a").given.iter().map(|given| given.to.to_string()).collect();
    assert_eq!(listed, ["b", "dropped", "full", "nobody"]);
    for to in listed {
        directory.revoke("a", "t", &to).unwrap();
    }
    let asked =
        |to| directory.grant("a", "t", to, GrantAccess::Read, GrantIssuer::Operator).map(|given| given.in_force());
    assert_eq!(asked("b"), Ok(true));
    assert_eq!(asked("nobody"), Err(DirectoryError::UnknownTenant("nobody".into())));
    assert!(matches!(asked("full"), Err(DirectoryError::OverQuota { quota: "grants_received", .. })));
    assert_eq!(view(&directory, "a").given.len(), 1, "what was refused is not listed");
    assert_eq!(asked("a"), Err(DirectoryError::GrantToSelf("a".into())));
}

#[test]
fn grants_are_bounded_for_the_one_who_gives_and_the_one_who_gets() {
    let directory = directory(&["a", "b"]);
    for number in 0..GRANTS_PER_RECEIVER {
        table(&directory, "a", &format!("t{number}"));
        let give = |to| directory.grant("a", &format!("t{number}"), to, GrantAccess::Read, GrantIssuer::Owner);
        assert!(give("b").is_ok() && give("nobody").is_ok());
    }
    let over = ["b", "nobody"].map(|to| directory.grant("a", "t", to, GrantAccess::Read, GrantIssuer::Owner).err());
    assert!(over.iter().all(|error| matches!(error, Some(DirectoryError::TooManyGrants { .. }))), "{over:?}");
    directory.grant("a", "t0", "b", GrantAccess::ReadWrite, GrantIssuer::Owner).expect("a change takes no room");
    directory.set_quotas("a", &QuotaChanges { grants_given: Some(3), ..QuotaChanges::default() }).unwrap();
    let over = directory.grant("a", "t", "c", GrantAccess::Read, GrantIssuer::Owner).unwrap_err();
    assert_eq!(over.to_string(), "tenant \"a\" is at its quota grants_given = 3");
}

#[test]
fn names_and_ids_of_granted_tables_cannot_be_taken_and_a_grantee_does_not_own_them() {
    let directory = directory(&["a", "b"]);
    grant(&directory, "a", "b", GrantAccess::ReadWrite);
    assert!(matches!(directory.create_table("b", NewTable::named("a/t")), Err(DirectoryError::InvalidName { .. })));
    let wanted = NewTable { id: Some(FIRST_GRANTED_ID), ..NewTable::named("u") };
    assert_eq!(directory.create_table("b", wanted).err(), Some(DirectoryError::TableIdTooLarge(FIRST_GRANTED_ID)));
    let not_owned = Some(DirectoryError::NotOwned("a/t".into()));
    assert_eq!(directory.drop_table("b", "a/t").err(), not_owned);
    assert_eq!(directory.grant("b", "a/t", "c", GrantAccess::Read, GrantIssuer::Owner).err(), not_owned);
    assert_eq!(directory.drop_grant("b", "t").err(), Some(DirectoryError::NotGranted("t".into())));
    assert!(view(&directory, "b").id_of("a/t").is_some());
}

/// A change over few names, so that changes meet each other.
#[derive(Clone, Debug)]
enum Change {
    Create(u8),
    Delete(u8),
    CreateTable(u8, u8),
    DropTable(u8, u8),
    Grant(u8, u8, u8, bool),
    Revoke(u8, u8, u8),
    GiveUp(u8, u8, u8),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let (n, t) = (0u8..3, 0u8..2);
    let change = prop_oneof![
        1 => n.clone().prop_map(Change::Create),
        1 => n.clone().prop_map(Change::Delete),
        2 => (n.clone(), t.clone()).prop_map(|(n, t)| Change::CreateTable(n, t)),
        1 => (n.clone(), t.clone()).prop_map(|(n, t)| Change::DropTable(n, t)),
        4 => (n.clone(), t.clone(), n.clone(), any::<bool>()).prop_map(|(n, t, to, write)| Change::Grant(n, t, to, write)),
        1 => (n.clone(), t.clone(), n.clone()).prop_map(|(n, t, to)| Change::Revoke(n, t, to)),
        1 => (n.clone(), n, t).prop_map(|(n, owner, t)| Change::GiveUp(n, owner, t)),
    ];
    prop::collection::vec(change, 1..80)
}

/// The grants in force: owner, table and grantee to access. Also the tenants and tables that exist.
#[derive(Default)]
struct Model {
    tables: BTreeMap<u8, BTreeSet<u8>>,
    grants: BTreeMap<(u8, u8, u8), GrantAccess>,
}

impl Model {
    fn step(&mut self, directory: &Directory, change: &Change) {
        let name = |n: &u8| format!("n{n}");
        match change {
            Change::Create(n) => {
                if directory
                    .create_tenant(NewTenant { id: Some(u32::from(*n) + 1), ..NewTenant::named(&name(n)) })
                    .is_ok()
                {
                    self.tables.insert(*n, BTreeSet::new());
                }
            }
            Change::Delete(n) => {
                if directory.delete_tenant(&name(n)).is_ok() {
                    self.tables.remove(n);
                    self.grants.retain(|(owner, _, to), _| owner != n && to != n);
                }
            }
            Change::CreateTable(n, t) => {
                let new = NewTable { quota_bytes: Some(1 << 20), ..NewTable::named(&name(t)) };
                if directory.create_table(&name(n), new).is_ok() {
                    self.tables.get_mut(n).expect("an owner").insert(*t);
                }
            }
            Change::DropTable(n, t) => {
                if directory.drop_table(&name(n), &name(t)).is_ok() {
                    self.tables.get_mut(n).expect("an owner").remove(t);
                    self.grants.retain(|(owner, table, _), _| owner != n || table != t);
                }
            }
            Change::Grant(n, t, to, write) => {
                let access = if *write { GrantAccess::ReadWrite } else { GrantAccess::Read };
                let given = directory.grant(&name(n), &name(t), &name(to), access, GrantIssuer::Owner);
                assert_eq!(given.is_ok(), n != to && self.tables.get(n).is_some_and(|tables| tables.contains(t)));
                if given.is_ok() && self.tables.contains_key(to) {
                    self.grants.insert((*n, *t, *to), access);
                }
            }
            Change::Revoke(n, t, to) => {
                let had = self.grants.remove(&(*n, *t, *to)).is_some();
                assert!(directory.revoke(&name(n), &name(t), &name(to)).is_ok() || !had);
            }
            Change::GiveUp(n, owner, t) => {
                let had = self.grants.remove(&(*owner, *t, *n)).is_some();
                assert_eq!(directory.drop_grant(&name(n), &format!("n{owner}/n{t}")).is_ok(), had);
            }
        }
    }

    /// A tenant's current view reaches exactly the model's tables; an older view reaches no more.
    fn check(&self, now: &DirectorySnapshot, older: &[Arc<TenantView>]) {
        for n in self.tables.keys() {
            let view = now.by_name(&format!("n{n}")).expect("a tenant");
            let expected: BTreeMap<String, GrantAccess> = self
                .grants
                .iter()
                .filter(|((_, _, to), _)| to == n)
                .map(|((owner, t, _), access)| (format!("n{owner}/n{t}"), *access))
                .collect();
            let found: BTreeMap<String, GrantAccess> = view
                .granted
                .values()
                .map(|grant| (grant.name().to_string(), grant.access().expect("an ended grant is in no new view")))
                .collect();
            assert_eq!(found, expected);
            assert_eq!(view.granted_names.len(), view.granted.len());
            for (name, access) in found {
                let id = view.id_of(&name).expect("an id");
                let (owner, table) = name.split_once('/').expect("a name");
                let owned = now.by_name(owner).expect("an owner").table_by_name(table).expect("its table");
                assert!(std::ptr::eq(view.reach(id, false).expect("read"), &**owned));
                assert_eq!(view.reach(id, true).is_ok(), access == GrantAccess::ReadWrite);
            }
        }
        for old in older {
            let still = now.tenant(old.tenant.id).filter(|view| view.tenant.serial == old.tenant.serial);
            for grant in old.granted.values().filter(|grant| grant.access().is_some()) {
                let view = still.expect("a grant to a deleted tenant has ended");
                assert!(Arc::ptr_eq(view.granted.get(&grant.id).expect("in force"), grant));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// Grants, revocations, creations, drops and deletions come in any order, with reused ids and names. Every tenant
    /// reaches exactly the tables that are granted to it now, and a holder of an older view no more.
    #[test]
    fn grants_agree_with_a_model(changes in changes()) {
        let directory = Directory::with_options(Epochs::new(), DirectoryOptions::default());
        let (mut model, mut older) = (Model::default(), Vec::new());
        for change in &changes {
            older.extend(directory.snapshot().iter().cloned());
            model.step(&directory, change);
            model.check(&directory.snapshot(), &older);
        }
    }
}
