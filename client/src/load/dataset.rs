//! The records of a load: their ids, keys and values.

use super::class::KeyPopulation;
use super::graph::Graph;
use super::keys::{
    self, ACCOUNT, COUNTER, LINK, LIST, MISSING, RECORD, ROW, ROW_LIST, TREE, USER, mix64, write_key, write_value,
};
use super::{Class, MemcachedPool, Mix, rows};
use crate::limits;
use rand::Rng;

/// The records of a load, and the shape of its requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    /// The table's id.
    pub table: u64,
    /// Plain records, ids `0..records`.
    pub records: u64,
    /// Bytes of a key; default 30, more where its number needs them.
    pub key_len: usize,
    /// Bytes of a value; default 100.
    pub value_len: usize,
    /// Pool whose key and value sizes plain records have instead, and whose share of misses requests have; default:
    /// none.
    pub pool: Option<MemcachedPool>,
    /// True if records may be gone, since the table is a cache; default no.
    pub may_lack: bool,
    /// Links of the chains, ids `0..links` in one ring; 0: no chains.
    pub links: u64,
    /// Hops of one chase; default 8.
    pub depth: u32,
    /// Lists, ids `0..lists`; 0: none.
    pub lists: u64,
    /// Records named by a list; default 30.
    pub list_len: u32,
    /// Rows for the decision tree; 0: none.
    pub rows: u64,
    /// Lists of such rows, as long as the others; 0: none.
    pub row_lists: u64,
    /// Users with passwords; 0: none.
    pub users: u64,
    /// Accounts of a closed economy, at most 2^32; 0: none.
    pub accounts: u64,
    /// Rounds of hashing of a password; default 1000.
    pub auth_rounds: u32,
    /// Records of a scan at most (at least one; evenly drawn); default 100, YCSB E's.
    pub scan_most: u32,
    /// Rounds of arithmetic of `aggregate` on each record; default 0.
    pub rounds: u32,
    /// Gets of one call of `long`; default 128.
    pub long_gets: u32,
    /// Gets between two yields of `long`; default 8.
    pub long_yield_every: u32,
    /// The misbehaviour of `bad`; default `loop`.
    pub bad: String,
    /// The graph whose objects the records are; default none, and plain records.
    pub graph: Option<Graph>,
}

/// The balance that each account has at first: more than is ever moved from one.
pub(super) const INITIAL_BALANCE: u64 = 1 << 40;

/// A kind of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordKind {
    Record,
    Link,
    List,
    Tree,
    Row,
    RowList,
    User,
    Account,
}

impl Data {
    /// `records` plain records in `table`, all else by default; none of the other kinds.
    pub fn new(table: u64, records: u64) -> Data {
        Data {
            table,
            records,
            key_len: 30,
            value_len: 100,
            pool: None,
            may_lack: false,
            links: 0,
            depth: 8,
            lists: 0,
            list_len: 30,
            rows: 0,
            row_lists: 0,
            users: 0,
            accounts: 0,
            auth_rounds: 1000,
            scan_most: 100,
            rounds: 0,
            long_gets: 128,
            long_yield_every: 8,
            bad: "loop".to_owned(),
            graph: None,
        }
    }

    /// Adds the chains, lists, rows and users that `mix` asks for: as many as there are records. There are at most
    /// [`limits::LOAD_MAX_LISTS`] lists, [`limits::LOAD_MAX_LISTS`] rows, and [`limits::LOAD_MAX_USERS`] users. If the
    /// mix asks for a graph, that takes the place of all these.
    #[must_use]
    pub fn for_mix(mut self, mix: &Mix) -> Data {
        let has = |population| mix.classes().any(|class| class.population() == population);
        let lists = self.records.clamp(1, limits::LOAD_MAX_LISTS);
        if has(KeyPopulation::Links) {
            self.links = self.links.max(self.records.max(1));
        }
        if has(KeyPopulation::Lists) {
            self.lists = self.lists.max(lists);
        }
        if has(KeyPopulation::RowLists) {
            self.rows = self.rows.max(lists);
            self.row_lists = self.row_lists.max(lists);
        }
        if has(KeyPopulation::Users) {
            self.users = self.users.max(self.records.clamp(1, limits::LOAD_MAX_USERS));
        }
        if has(KeyPopulation::Accounts) {
            self.accounts = self.accounts.max(self.records.clamp(2, u64::from(u32::MAX)));
        }
        if mix.classes().any(Class::is_of_graph) {
            self.graph.get_or_insert_default();
        }
        self
    }

    /// Returns the number of records of the kind that such classes ask for.
    pub(super) fn count(&self, population: KeyPopulation) -> u64 {
        match population {
            KeyPopulation::Records => self.records,
            KeyPopulation::Links => self.links,
            KeyPopulation::Lists => self.lists,
            KeyPopulation::RowLists => self.row_lists,
            KeyPopulation::Users => self.users,
            KeyPopulation::Accounts => self.accounts,
        }
    }

    /// Bytes of plain record `id`'s key.
    pub fn key_len_of(&self, id: u64) -> usize {
        self.pool.map_or(self.key_len, |pool| pool.key_len(id))
    }

    /// Bytes of plain record `id`'s value.
    pub fn value_len_of(&self, id: u64) -> usize {
        self.pool.map_or(self.value_len, |pool| pool.value_len(id))
    }

    /// Decides whether a request of that class asks for a record that is not there, as often as the pool's share of
    /// misses says. The records that a pool deletes never exist: else its share of hits would not last.
    pub(super) fn draws_missing(&self, class: Class, rng: &mut impl Rng) -> bool {
        match (class, self.pool) {
            (Class::Get, Some(pool)) => rng.random::<f64>() >= pool.hit_ratio(),
            (Class::Delete, Some(_)) => true,
            _ => false,
        }
    }

    /// The salt of a record as it is first loaded.
    pub fn first_salt(id: u64) -> u64 {
        mix64(id ^ 0x5EED)
    }

    /// The link behind link `id`: a step that is coprime to the number of links, so that they form one ring.
    pub fn next_link(&self, id: u64) -> u64 {
        self.link_after(id, 1)
    }

    pub(super) fn link_after(&self, id: u64, hops: u64) -> u64 {
        let links = u128::from(self.links.max(1));
        let step = u128::from(coprime_step(self.links.max(1)));
        ((u128::from(id) + step * (u128::from(hops) % links)) % links) as u64
    }

    /// Record `at` of list `id`.
    pub fn list_member(&self, id: u64, at: u32) -> u64 {
        self.member(id, at, self.records)
    }

    /// Row `at` of list of rows `id`.
    pub(super) fn row_member(&self, id: u64, at: u32) -> u64 {
        self.member(id, at, self.rows)
    }

    fn member(&self, id: u64, at: u32, of: u64) -> u64 {
        mix64(id.wrapping_mul(u64::from(self.list_len) + 1).wrapping_add(u64::from(at))) % of.max(1)
    }

    /// Writes the value of link `id`: `next_len u8 | next key`, then filler up to the length of a value.
    pub fn write_link(&self, id: u64, value: &mut Vec<u8>, scratch: &mut Vec<u8>) {
        write_key(LINK, self.next_link(id), self.link_key_len(), scratch);
        let head = 1 + scratch.len();
        value.clear();
        value.push(scratch.len() as u8);
        value.extend_from_slice(scratch);
        let filler = self.value_len.saturating_sub(head).max(keys::MIN_CHECKED_VALUE_LEN);
        write_value(id, 0, filler, scratch);
        value.extend_from_slice(scratch);
    }

    /// A link's key length: it must fit the one byte before it.
    fn link_key_len(&self) -> usize {
        self.key_len.clamp(keys::MIN_KEY_LEN, 255)
    }

    /// Writes the value of list `id`: `len u16 | key`, repeated.
    pub fn write_list(&self, id: u64, value: &mut Vec<u8>, scratch: &mut Vec<u8>) {
        value.clear();
        for at in 0..self.list_len {
            self.write_record_key(self.list_member(id, at), scratch);
            value.extend_from_slice(&(scratch.len() as u16).to_le_bytes());
            value.extend_from_slice(scratch);
        }
    }

    fn write_row_list(&self, id: u64, value: &mut Vec<u8>, scratch: &mut Vec<u8>) {
        value.clear();
        for at in 0..self.list_len {
            self.write_member_key(Class::Analysis, id, at, scratch);
            value.extend_from_slice(&(scratch.len() as u16).to_le_bytes());
            value.extend_from_slice(scratch);
        }
    }

    fn items(&self) -> [(RecordKind, u64); 8] {
        [
            (RecordKind::Record, self.records),
            (RecordKind::Link, self.links),
            (RecordKind::List, self.lists),
            (RecordKind::Tree, self.rows.min(1)),
            (RecordKind::Row, self.rows),
            (RecordKind::RowList, self.row_lists),
            (RecordKind::User, self.users),
            (RecordKind::Account, self.accounts),
        ]
    }

    /// Records to be filled, of all kinds; of a graph its objects, beside which there are more.
    pub fn total(&self) -> u64 {
        if self.graph.is_some() { self.records } else { self.items_total() }
    }

    pub(super) fn items_total(&self) -> u64 {
        self.items().iter().map(|(_, count)| count).sum()
    }

    /// Writes key and value of member `at` of a list that such a class asks for, as they are first loaded.
    pub(super) fn write_member(&self, class: Class, id: u64, at: u32, key: &mut Vec<u8>, value: &mut Vec<u8>) {
        self.write_member_key(class, id, at, key);
        if class.population() == KeyPopulation::RowLists {
            rows::write_row(self.row_member(id, at), value);
        } else {
            let member = self.list_member(id, at);
            write_value(member, Data::first_salt(member), self.value_len_of(member), value);
        }
    }

    /// Writes the key of member `at` of such a list.
    pub(super) fn write_member_key(&self, class: Class, id: u64, at: u32, key: &mut Vec<u8>) {
        if class.population() == KeyPopulation::RowLists {
            write_key(ROW, self.row_member(id, at), self.key_len, key);
        } else {
            self.write_record_key(self.list_member(id, at), key);
        }
    }

    /// The members of its list that a client reads in that step of `long` by gets, one behind the other, round and
    /// round.
    pub(super) fn long_batch(&self, step: u32) -> std::ops::Range<u32> {
        let every = if self.long_yield_every == 0 { self.long_gets } else { self.long_yield_every };
        let from = every.saturating_mul(step.saturating_sub(1));
        from.min(self.long_gets)..from.saturating_add(every).min(self.long_gets)
    }

    /// Writes key and value of item `index` of all that is to be filled: records come first, then links, then lists,
    /// then the others.
    pub(super) fn write_item(&self, index: u64, key: &mut Vec<u8>, value: &mut Vec<u8>) {
        let mut id = index;
        let mut kind = RecordKind::Record;
        for (item, count) in self.items() {
            kind = item;
            if id < count {
                break;
            }
            id -= count;
        }
        match kind {
            RecordKind::Record => {
                self.write_record_key(id, key);
                write_value(id, Data::first_salt(id), self.value_len_of(id), value);
            }
            RecordKind::Link => {
                self.write_link(id, value, key);
                self.write_key_of(Class::Chain, id, key);
            }
            RecordKind::List => {
                self.write_list(id, value, key);
                self.write_key_of(Class::Aggregate, id, key);
            }
            RecordKind::Tree => {
                rows::write_tree(value);
                self.write_tree_key(key);
            }
            RecordKind::Row => {
                rows::write_row(id, value);
                write_key(ROW, id, self.key_len, key);
            }
            RecordKind::RowList => {
                self.write_row_list(id, value, key);
                self.write_key_of(Class::Analysis, id, key);
            }
            RecordKind::User => {
                rows::write_user(id, self.auth_rounds, value);
                self.write_key_of(Class::Auth, id, key);
            }
            RecordKind::Account => {
                value.clear();
                value.extend_from_slice(&INITIAL_BALANCE.to_le_bytes());
                self.write_key_of(Class::Balance, id, key);
            }
        }
    }

    pub(super) fn write_record_key(&self, id: u64, key: &mut Vec<u8>) {
        write_key(RECORD, id, self.key_len_of(id), key);
    }

    /// Writes the key of a record that is never written, as long as that of record `id`.
    pub(super) fn write_missing_key(&self, id: u64, key: &mut Vec<u8>) {
        write_key(MISSING, id, self.key_len_of(id), key);
    }

    pub(super) fn write_tree_key(&self, key: &mut Vec<u8>) {
        write_key(TREE, 0, self.key_len, key);
    }

    pub(super) fn write_key_of(&self, class: Class, id: u64, key: &mut Vec<u8>) {
        match class.population() {
            KeyPopulation::Links => write_key(LINK, id, self.link_key_len(), key),
            KeyPopulation::Lists => write_key(LIST, id, self.key_len, key),
            KeyPopulation::RowLists => write_key(ROW_LIST, id, self.key_len, key),
            KeyPopulation::Users => write_key(USER, id, self.key_len, key),
            KeyPopulation::Accounts => write_key(ACCOUNT, id, self.key_len, key),
            KeyPopulation::Records if class == Class::Increment => write_key(COUNTER, id, self.key_len, key),
            KeyPopulation::Records => self.write_record_key(id, key),
        }
    }
}

/// A step near the golden section of `count` that shares no divisor with it.
fn coprime_step(count: u64) -> u64 {
    let mut step = ((count as f64) * 0.618_033_988_749_895) as u64 | 1;
    while gcd(step, count) != 1 {
        step += 2;
    }
    step
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_links_form_one_ring_whatever_their_number() {
        for links in [1, 2, 3, 10, 97, 100, 1024] {
            let data = Data { links, ..Data::new(1, 10) };
            let mut at = 0;
            let seen: HashSet<u64> = (0..links)
                .map(|hop| {
                    assert_eq!(at, data.link_after(0, hop));
                    at = data.next_link(at);
                    at
                })
                .collect();
            assert_eq!((seen.len() as u64, at), (links, 0));
        }
    }

    #[test]
    fn a_link_names_its_next_and_a_list_its_members() {
        let data = Data { links: 50, lists: 5, ..Data::new(1, 1000) };
        let (mut value, mut scratch, mut key) = (Vec::new(), Vec::new(), Vec::new());
        data.write_link(7, &mut value, &mut scratch);
        write_key(LINK, data.next_link(7), data.key_len, &mut key);
        assert_eq!(value[1..1 + usize::from(value[0])], key);
        assert_eq!(value.len(), data.value_len);
        data.write_list(3, &mut value, &mut scratch);
        assert_eq!(value.len(), data.list_len as usize * (2 + data.key_len));
        write_key(RECORD, data.list_member(3, 0), data.key_len, &mut key);
        assert_eq!(value[2..2 + data.key_len], key);
    }

    #[test]
    fn no_two_items_have_one_key_whatever_their_sizes() {
        for pool in [None, Some(MemcachedPool::Usr), Some(MemcachedPool::Etc)] {
            let mix: Mix = "get,chain,aggregate,analysis,auth".parse().unwrap();
            let data = Data { pool, key_len: 1, auth_rounds: 1, ..Data::new(1, 3000) }.for_mix(&mix);
            let (mut key, mut value, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
            for index in 0..data.total() {
                data.write_item(index, &mut key, &mut value);
                assert!(seen.insert(key.clone()), "item {index}: {key:?}");
            }
            data.write_missing_key(5, &mut key);
            assert!(!seen.contains(&key));
        }
    }
}
