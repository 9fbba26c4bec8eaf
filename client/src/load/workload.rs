//! What is asked: classes of operations, mixes of them, and the records that they need.

use super::keys::{self, LINK, LIST, RECORD, check_value, mix, write_key, write_value};
use crate::message::{Message, PutOptions};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A kind of request. Each has its own row in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Reads one record.
    Get,
    /// Writes one record.
    Put,
    /// Reads the records of a list in one operation.
    MultiGet,
    /// Adds one to a counter.
    Increment,
    /// Calls `get`.
    InvokeGet,
    /// Calls `chain`: a pointer chase inside of the server.
    Chain,
    /// The same pointer chase by gets, one after another; its latency is that of the whole chase.
    ChainGets,
    /// Calls `aggregate` on a list.
    Aggregate,
    /// What `aggregate` does by a get of the list and a multi-get; its latency is that of both.
    AggregateGets,
    /// Calls `long`: many gets of the records of a list.
    Long,
    /// Calls `bad` with the way that the options name; being killed is its expected end.
    Bad,
}

impl Class {
    /// All classes.
    pub const ALL: [Class; 11] = [
        Class::Get,
        Class::Put,
        Class::MultiGet,
        Class::Increment,
        Class::InvokeGet,
        Class::Chain,
        Class::ChainGets,
        Class::Aggregate,
        Class::AggregateGets,
        Class::Long,
        Class::Bad,
    ];

    /// Its name in mixes and reports.
    pub fn name(self) -> &'static str {
        match self {
            Class::Get => "get",
            Class::Put => "put",
            Class::MultiGet => "multi-get",
            Class::Increment => "increment",
            Class::InvokeGet => "invoke-get",
            Class::Chain => "chain",
            Class::ChainGets => "chain-gets",
            Class::Aggregate => "aggregate",
            Class::AggregateGets => "aggregate-gets",
            Class::Long => "long",
            Class::Bad => "bad",
        }
    }

    /// The extension that it calls, if it calls one.
    pub fn extension(self) -> Option<&'static str> {
        match self {
            Class::InvokeGet => Some("get"),
            Class::Chain => Some("chain"),
            Class::Aggregate => Some("aggregate"),
            Class::Long => Some("long"),
            Class::Bad => Some("bad"),
            _ => None,
        }
    }

    /// Whether its ids are those of lists.
    fn reads_list(self) -> bool {
        matches!(self, Class::MultiGet | Class::Aggregate | Class::AggregateGets | Class::Long)
    }

    pub(super) fn index(self) -> usize {
        self as usize
    }
}

/// Shares of classes, such as `get=95,put=5`; also a class alone, or `ycsb-a`, `ycsb-b`, `ycsb-c`.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    shares: Vec<(Class, f64)>,
    total: f64,
}

impl Mix {
    /// A mix of one class.
    pub fn only(class: Class) -> Mix {
        Mix { shares: vec![(class, 1.0)], total: 1.0 }
    }

    /// The class for `draw`, a number from 0 up to 1.
    pub fn pick(&self, draw: f64) -> Class {
        let mut rest = draw * self.total;
        for (class, share) in &self.shares {
            rest -= share;
            if rest < 0.0 {
                return *class;
            }
        }
        self.shares.last().map_or(Class::Get, |(class, _)| *class)
    }

    /// The classes in it.
    pub fn classes(&self) -> impl Iterator<Item = Class> + '_ {
        self.shares.iter().map(|(class, _)| *class)
    }

    pub(super) fn has(&self, class: Class) -> bool {
        self.classes().any(|one| one == class)
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (class, share)) in self.shares.iter().enumerate() {
            write!(f, "{}{}={share}", if index > 0 { "," } else { "" }, class.name())?;
        }
        Ok(())
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Mix, String> {
        let text = match text {
            "ycsb-a" => "get=50,put=50",
            "ycsb-b" => "get=95,put=5",
            "ycsb-c" => "get=100",
            other => other,
        };
        let mut shares = Vec::new();
        for part in text.split(',') {
            let (name, share) = part.split_once('=').unwrap_or((part, "1"));
            let class = Class::ALL.into_iter().find(|class| class.name() == name.trim());
            let class = class.ok_or_else(|| {
                let names: Vec<&str> = Class::ALL.iter().map(|class| class.name()).collect();
                format!("'{name}' is no workload: ycsb-a, ycsb-b, ycsb-c, or shares of {}", names.join(", "))
            })?;
            let share: f64 = share.trim().parse().map_err(|_| format!("'{part}': the share is no number"))?;
            if !(share > 0.0 && share.is_finite()) {
                return Err(format!("'{part}': a share is above 0"));
            }
            shares.push((class, share));
        }
        let total = shares.iter().map(|(_, share)| share).sum();
        Ok(Mix { shares, total })
    }
}

/// The records of a load and the shape of what is asked about them.
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    /// The table's id.
    pub table: u64,
    /// Plain records, ids `0..records`.
    pub records: u64,
    /// Bytes of a key; default 30, at least [`keys::MIN_KEY_LEN`].
    pub key_len: usize,
    /// Bytes of a value; default 100.
    pub value_len: usize,
    /// Links of the chains, ids `0..links` in one ring; 0: no chains.
    pub links: u64,
    /// Hops of one chase; default 8.
    pub depth: u32,
    /// Lists, ids `0..lists`; 0: none.
    pub lists: u64,
    /// Records named by a list; default 30.
    pub list_len: u32,
    /// Rounds of arithmetic of `aggregate` on each record; default 0.
    pub rounds: u32,
    /// Gets of one call of `long`; default 128.
    pub long_gets: u32,
    /// Gets between two yields of `long`; default 8.
    pub long_yield_every: u32,
    /// In which way `bad` is bad; default `loop`.
    pub bad: String,
}

impl Data {
    /// `records` plain records in `table`, all else by default; no chains and lists.
    pub fn new(table: u64, records: u64) -> Data {
        Data {
            table,
            records,
            key_len: 30,
            value_len: 100,
            links: 0,
            depth: 8,
            lists: 0,
            list_len: 30,
            rounds: 0,
            long_gets: 128,
            long_yield_every: 8,
            bad: "loop".to_owned(),
        }
    }

    /// With the chains and lists that `mix` asks for, as many as there are records (lists: at most 10,000).
    #[must_use]
    pub fn for_mix(mut self, mix: &Mix) -> Data {
        if mix.has(Class::Chain) || mix.has(Class::ChainGets) {
            self.links = self.links.max(self.records.max(1));
        }
        if mix.classes().any(Class::reads_list) {
            self.lists = self.lists.max(self.records.clamp(1, 10_000));
        }
        self
    }

    /// The salt of a record as it is first loaded.
    pub fn first_salt(id: u64) -> u64 {
        mix(id ^ 0x5EED)
    }

    /// The link behind link `id`: a step that is coprime to the number of links, so that they form one ring.
    pub fn next_link(&self, id: u64) -> u64 {
        self.link_after(id, 1)
    }

    fn link_after(&self, id: u64, hops: u64) -> u64 {
        let links = u128::from(self.links.max(1));
        let step = u128::from(coprime_step(self.links.max(1)));
        ((u128::from(id) + step * (u128::from(hops) % links)) % links) as u64
    }

    /// Record `at` of list `id`.
    pub fn list_member(&self, id: u64, at: u32) -> u64 {
        mix(id.wrapping_mul(u64::from(self.list_len) + 1).wrapping_add(u64::from(at))) % self.records.max(1)
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
            write_key(RECORD, self.list_member(id, at), self.key_len, scratch);
            value.extend_from_slice(&(scratch.len() as u16).to_le_bytes());
            value.extend_from_slice(scratch);
        }
    }

    /// Writes key and value of item `index` of all that is to be filled: records come first, then links, then lists.
    pub(super) fn write_item(&self, index: u64, key: &mut Vec<u8>, value: &mut Vec<u8>) {
        let Data { records, links, .. } = *self;
        if index < records {
            self.write_key_of(Class::Get, index, key);
            write_value(index, Data::first_salt(index), self.value_len, value);
        } else if index < records + links {
            self.write_link(index - records, value, key);
            self.write_key_of(Class::Chain, index - records, key);
        } else {
            self.write_list(index - records - links, value, key);
            self.write_key_of(Class::Aggregate, index - records - links, key);
        }
    }

    pub(super) fn write_key_of(&self, class: Class, id: u64, key: &mut Vec<u8>) {
        match class {
            Class::Chain | Class::ChainGets => write_key(LINK, id, self.link_key_len(), key),
            class if class.reads_list() => write_key(LIST, id, self.key_len, key),
            Class::Increment => write_key(b'n', id, self.key_len, key),
            _ => write_key(RECORD, id, self.key_len, key),
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

/// A request on its way through its steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) class: Class,
    pub(super) id: u64,
    /// Of a chase by gets: hops done; of an aggregate by gets: steps done.
    pub(super) step: u32,
    /// When it was meant to be sent, in nanoseconds since the run's start.
    pub(super) intended_ns: u64,
    /// Whether to check its reply.
    pub(super) verify: bool,
}

/// What the reply to an [`Ask`] means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It is done, and the reply, if checked, is right.
    Done,
    /// It goes on with another step.
    Again,
    /// The reply is wrong.
    Wrong,
}

/// Buffers for keys and values, reused from request to request.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    key: Vec<u8>,
    value: Vec<u8>,
    keys: Vec<Vec<u8>>,
}

impl Data {
    /// Appends the operation of `ask`'s present step.
    pub(super) fn write_ask(&self, ask: &Ask, salt: u64, message: &mut Message, scratch: &mut Scratch) {
        let Scratch { key, value, keys } = scratch;
        self.write_key_of(ask.class, ask.id, key);
        match ask.class {
            Class::Get | Class::ChainGets => message.get(self.table, key),
            Class::Put => {
                write_value(ask.id, salt, self.value_len, value);
                message.put(self.table, key, value, &PutOptions::default());
            }
            Class::Increment => message.increment(self.table, key, 1),
            Class::AggregateGets if ask.step == 0 => message.get(self.table, key),
            Class::MultiGet | Class::AggregateGets => {
                keys.resize_with(self.list_len as usize, Vec::new);
                for (at, key) in (0..).zip(keys.iter_mut()) {
                    write_key(RECORD, self.list_member(ask.id, at), self.key_len, key);
                }
                message.multi_get(self.table, keys);
            }
            Class::InvokeGet | Class::Chain | Class::Aggregate | Class::Long | Class::Bad => {
                value.clear();
                value.extend_from_slice(&self.table.to_le_bytes());
                match ask.class {
                    Class::Chain => value.extend_from_slice(&self.depth.to_le_bytes()),
                    Class::Aggregate => value.extend_from_slice(&self.rounds.to_le_bytes()),
                    Class::Long => {
                        value.extend_from_slice(&self.long_gets.to_le_bytes());
                        value.extend_from_slice(&self.long_yield_every.to_le_bytes());
                    }
                    _ => {}
                }
                value.extend_from_slice(if ask.class == Class::Bad { self.bad.as_bytes() } else { key });
                message.invoke(ask.class.extension().unwrap_or_default(), 0, value);
            }
        }
    }

    /// Looks at a successful reply. `read_only`: nobody writes, so that sums are known.
    pub(super) fn see(&self, ask: &mut Ask, found: bool, reply: &[u8], read_only: bool, scratch: &mut Scratch) -> Seen {
        match ask.class {
            Class::ChainGets if ask.step + 1 < self.depth => {
                if !found {
                    return Seen::Wrong;
                }
                // The client needs the reply for its next step, as any client would; it is checked at the end.
                ask.id = self.next_link(ask.id);
                ask.step += 1;
                return Seen::Again;
            }
            Class::AggregateGets if ask.step == 0 => {
                ask.step = 1;
                return if found { Seen::Again } else { Seen::Wrong };
            }
            _ => {}
        }
        if !ask.verify || self.is_right(ask, found, reply, read_only, scratch) { Seen::Done } else { Seen::Wrong }
    }

    fn is_right(&self, ask: &Ask, found: bool, reply: &[u8], read_only: bool, scratch: &mut Scratch) -> bool {
        let Scratch { key, value, .. } = scratch;
        match ask.class {
            Class::Get | Class::InvokeGet => found && reply.len() == self.value_len && check_value(ask.id, reply),
            Class::Put | Class::Increment | Class::Bad => found,
            Class::Long => found && reply.first_chunk::<4>() == Some(&self.long_gets.to_le_bytes()),
            Class::ChainGets => {
                self.write_link(ask.id, value, key);
                found && reply == value.as_slice()
            }
            Class::Chain => {
                self.write_link(self.link_after(ask.id, u64::from(self.depth.max(1)) - 1), value, key);
                found && reply == value.as_slice()
            }
            Class::MultiGet | Class::AggregateGets => found && self.members_are_right(ask.id, reply),
            Class::Aggregate => {
                let Some((sum, counts)) = reply.split_first_chunk::<8>() else { return false };
                let counted = [self.list_len.to_le_bytes(), [0; 4]].concat();
                found && counts == counted && (!read_only || u64::from_le_bytes(*sum) == self.sum_of(ask.id))
            }
        }
    }

    /// Whether a multi-get's answer holds the records of list `id` in order.
    fn members_are_right(&self, id: u64, mut reply: &[u8]) -> bool {
        for at in 0..self.list_len {
            let Some((head, rest)) = reply.split_first_chunk::<17>() else { return false };
            let len = u32::from_le_bytes([head[13], head[14], head[15], head[16]]) as usize;
            let Some((value, rest)) = rest.split_at_checked(len) else { return false };
            if head[0] != 0 || value.len() != self.value_len || !check_value(self.list_member(id, at), value) {
                return false;
            }
            reply = rest;
        }
        reply.is_empty()
    }

    /// What `aggregate` answers for list `id` while every record is as first loaded.
    fn sum_of(&self, id: u64) -> u64 {
        let mut value = Vec::new();
        (0..self.list_len).fold(0u64, |sum, at| {
            let member = self.list_member(id, at);
            write_value(member, Data::first_salt(member), self.value_len, &mut value);
            value.resize(value.len().max(8), 0);
            let number = value.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let churned = (0..self.rounds)
                .fold(number, |x, _| x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
            sum.wrapping_add(churned)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn mixes_parse_as_they_print_and_pick_in_proportion() {
        let mix: Mix = "get=95,put=5".parse().unwrap();
        assert_eq!(mix, "ycsb-b".parse().unwrap());
        assert_eq!(mix.to_string().parse::<Mix>().unwrap(), mix);
        let gets = (0..1000).filter(|draw| mix.pick(f64::from(*draw) / 1000.0) == Class::Get).count();
        assert_eq!(gets, 950);
        for class in Class::ALL {
            assert_eq!(class.name().parse::<Mix>().unwrap(), Mix::only(class));
        }
        for text in ["", "gets", "get=0", "get=x", "get=-1,put=2", "get=inf"] {
            assert!(text.parse::<Mix>().is_err(), "{text}");
        }
    }

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
}
