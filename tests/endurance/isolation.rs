//! Promise: a tenant reaches its own tables and those that are granted to it at that moment, and nothing else. Tenants
//! with the same table ids, table names, keys and extensions run side by side on one worker. Another worker steals from
//! it, and tables, tenants and grants come and go at random. Every answer must be one that some moment of its request
//! allowed.
//!
//! Each table has a tag of its own, which its records contain, so that an answer shows its table. The history is kept
//! in ticks of one clock: a change takes effect somewhere between the ticks before and after its call.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::common::alone::ran_alone;
use crate::common::{Answer, Stop, Wire, data_plane, library, library_of};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sandstorm_catalog::{FIRST_GRANTED_ID, GrantAccess, GrantIssuer, NewTable, NewTenant, TableEntry};
use sandstorm_extension::{BudgetOverride, ExtensionLibrary};
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{KillCause, MultiGetEntries, OpKind, Operation, RpcStatus, push_key};
use sandstorm_store::{Participant, WriteOptions};

/// Tenants, by their ids.
const TENANTS: std::ops::RangeInclusive<u32> = 1..=3;
/// Changes of one run, at least.
const CHANGES: u64 = 1_000;
/// Times that each kind of answer must occur.
const ENOUGH: u64 = 10;
/// Timeout until then. It takes some seconds; this is for a machine under load.
const PATIENCE: Duration = Duration::from_secs(600);
/// Pause of a client that was refused as unknown. A worker sends 20,000 such refusals a second, and every request here
/// must be answered, however long all tenants are absent while the changes do not get the processor.
const UNKNOWN_TENANT_PAUSE: Duration = Duration::from_micros(300);
/// A table's counter starts at this times its tag: a sum shows the table, and the number of the addition.
const BASE: u64 = 1_000_000;

/// Reads `k` of the table that its arguments name, lets other calls run for a while, reads it again; replies with both.
const TWICE: &str = r#"
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let name = core::str::from_utf8(args)?;
    let table = db.table(name)?;
    let first = db.get(table, b"k").await?.ok_or(Error::not_found("k"))?;
    for _ in 0..500 {
        yield_now().await;
    }
    let second = db.get(table, b"k").await;
    db.reply(first.value())?;
    db.reply(match &second {
        Ok(Some(record)) => record.value(),
        Ok(None) => b"absent",
        Err(error) if error.kind() == ErrorKind::UnknownTable => b"unknown",
        Err(_) => b"wrong",
    })
}
"#;

/// The ticks before and after a call.
type When = (u64, u64);

/// The time from one change to the next.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: When,
    to: Option<When>,
}

impl Span {
    /// Returns whether it may have been true at some moment of `when`.
    fn may(&self, when: When) -> bool {
        self.from.0 <= when.1 && self.to.is_none_or(|to| when.0 <= to.1)
    }

    /// Returns whether it was certainly true during all of `when`.
    fn must(&self, when: When) -> bool {
        self.from.1 <= when.0 && self.to.is_none_or(|to| when.1 <= to.0)
    }
}

/// A tenant's access to a table; `None`: it is its own.
#[derive(Clone, Debug)]
struct Reach {
    id: u64,
    name: String,
    tag: u64,
    access: Option<GrantAccess>,
    span: Span,
}

/// Everything that was ever true.
#[derive(Default)]
struct History {
    reaches: HashMap<u32, Vec<Reach>>,
    lives: HashMap<u32, Vec<Span>>,
}

/// The kinds of requests.
#[derive(Clone, Debug)]
enum TestRequest {
    Get(u64),
    MultiGet(u64),
    Increment(u64),
    InvokeGet(u64),
    InvokeTwice(String),
}

/// A request with its answer.
struct Observation {
    tenant: u32,
    when: When,
    request: TestRequest,
    answer: Answer,
}

impl History {
    fn reaches(&self, tenant: u32, request: &TestRequest) -> Vec<&Reach> {
        let named = |reach: &&Reach| match request {
            TestRequest::Get(id)
            | TestRequest::MultiGet(id)
            | TestRequest::Increment(id)
            | TestRequest::InvokeGet(id) => reach.id == *id,
            TestRequest::InvokeTwice(name) => reach.name == *name,
        };
        self.reaches.get(&tenant).into_iter().flatten().filter(named).collect()
    }

    /// Returns the kind of the answer, or the reason why no moment of the request allowed it.
    fn explain(&self, observation: &Observation) -> Result<&'static str, String> {
        let Observation { tenant, when, request, answer } = observation;
        let reaches = self.reaches(*tenant, request);
        let writes = matches!(request, TestRequest::Increment(_));
        let may = |reach: &&&Reach| reach.span.may(*when) && !(writes && reach.access == Some(GrantAccess::Read));
        let allowed = || reaches.iter().filter(may);
        let certain = |tag: Option<u64>| {
            reaches.iter().any(|reach| reach.span.must(*when) && tag.is_none_or(|tag| tag == reach.tag))
        };
        let explained = |holds: bool, kind| if holds { Ok(kind) } else { Err(format!("not allowed: {kind}")) };
        // The number of the error's kind is the part of an extension's failure beside its text.
        let status = match (answer.status, answer.number) {
            (RpcStatus::Failed, 1) => RpcStatus::NotFound,
            (RpcStatus::Failed, 3) => RpcStatus::UnknownTable,
            (status, _) => status,
        };
        match status {
            RpcStatus::Ok => {
                let (tag, second) = tag_of(request, answer)?;
                let Some(reach) = allowed().find(|reach| reach.tag == tag || tag == 0) else {
                    return Err(format!("it is of table {tag}"));
                };
                match second.as_deref() {
                    None if reach.access.is_some() => Ok(if writes { "granted, written" } else { "granted, read" }),
                    None => Ok(if writes { "own, written" } else { "own, read" }),
                    Some("unknown") => explained(!certain(Some(tag)), "ended while running"),
                    Some(again) => explained(again.parse() == Ok(tag), "read twice"),
                }
            }
            // A new table is empty at first.
            RpcStatus::NotFound => explained(allowed().next().is_some(), "empty"),
            RpcStatus::ReadOnly => {
                let read = |reach: &&Reach| reach.access == Some(GrantAccess::Read) && reach.span.may(*when);
                explained(writes && reaches.iter().any(read), "read only")
            }
            RpcStatus::UnknownTable => explained(!certain(None), "no such table"),
            RpcStatus::Unauthenticated | RpcStatus::UnknownExtension => {
                let lives = self.lives.get(tenant).into_iter().flatten();
                explained(!lives.clone().any(|life| life.must(*when)), "no such tenant")
            }
            // Calls of a tenant that is deleted end, if they are under way for that long.
            RpcStatus::Killed if answer.number == KillCause::Unloaded as u64 => {
                let lives = self.lives.get(tenant).into_iter().flatten();
                explained(!lives.clone().any(|life| life.must(*when)), "deleted while running")
            }
            other => Err(format!("{other:?} is no answer to this")),
        }
    }
}

/// The tag of the answer's table; 0 if the table is new and has none yet. Also the result of a second reading.
fn tag_of(request: &TestRequest, answer: &Answer) -> Result<(u64, Option<String>), String> {
    let number = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        text.parse::<u64>().map_err(|_| format!("{text:?} is no tag"))
    };
    match request {
        TestRequest::Get(_) | TestRequest::InvokeGet(_) => Ok((number(&answer.value)?, None)),
        TestRequest::Increment(_) => Ok((answer.number / BASE, None)),
        TestRequest::MultiGet(_) => {
            let mut tags = Vec::new();
            for one in MultiGetEntries::new(&answer.value) {
                let one = one.map_err(|_| "a bad body".to_owned())?;
                tags.push(if one.status == RpcStatus::Ok { number(one.value)? } else { 0 });
            }
            // Both keys have the tag as their value; while a table is being filled, one of them may be missing.
            let filled: Vec<u64> = tags.iter().copied().filter(|tag| *tag != 0).collect();
            let same = tags.len() == 2 && filled.windows(2).all(|two| two[0] == two[1]);
            if same {
                Ok((filled.first().copied().unwrap_or(0), None))
            } else {
                Err(format!("keys of tables {tags:?}"))
            }
        }
        TestRequest::InvokeTwice(_) => {
            let (first, second) = answer.value.split_at_checked(TAG_DIGITS).ok_or("a short reply")?;
            Ok((number(first)?, Some(String::from_utf8_lossy(second).into_owned())))
        }
    }
}

/// Number of digits with which tags are written.
const TAG_DIGITS: usize = 8;

/// Makes all changes, and records what is true.
struct Changer<'s> {
    plane: &'s DataPlane,
    clock: &'s AtomicU64,
    random: StdRng,
    participant: Participant,
    extensions: [(&'static str, Arc<ExtensionLibrary>); 2],
    tags: u64,
    /// By owner: name and tag.
    tables: BTreeMap<u32, BTreeMap<String, u64>>,
    history: History,
}

fn name(tenant: u32) -> String {
    format!("n{tenant}")
}

impl Changer<'_> {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }

    fn change(&mut self) {
        let (owner, to) = (self.random.random_range(TENANTS), self.random.random_range(TENANTS));
        let table = format!("t{}", self.random.random_range(0..2));
        match self.random.random_range(0..20) {
            0 => self.delete_tenant(owner),
            1..4 => self.create_tenant(owner),
            4 => self.drop_table(owner, &table),
            5..9 => self.create_table(owner, table),
            9..12 => self.end_grant(owner, &table, to, |directory, owner, table, to| {
                directory.revoke(&owner, table, &to).is_ok()
            }),
            12 => self.end_grant(owner, &table, to, |directory, owner, table, to| {
                directory.drop_grant(&to, &format!("{owner}/{table}")).is_ok()
            }),
            _ => self.grant(owner, &table, to),
        }
    }

    fn create_tenant(&mut self, id: u32) {
        let before = self.tick();
        let new = NewTenant { id: Some(id), open: true, ..NewTenant::named(&name(id)) };
        if self.plane.directory.create_tenant(new).is_err() {
            return;
        }
        let budget = BudgetOverride { slice_us: Some(100_000), total_us: Some(1_000_000), ..BudgetOverride::default() };
        for (name_of, library) in &self.extensions {
            let extension = crate::common::loaded(name_of, 1, Arc::clone(library), budget);
            self.plane.directory.put_extension(id, Arc::new(extension)).expect("an extension is loaded");
        }
        self.tables.insert(id, BTreeMap::new());
        let span = Span { from: (before, self.tick()), to: None };
        self.history.lives.entry(id).or_default().push(span);
        self.create_table(id, "t0".to_owned());
    }

    fn delete_tenant(&mut self, id: u32) {
        let before = self.tick();
        if self.plane.directory.delete_tenant(id).is_err() {
            return;
        }
        let when = (before, self.tick());
        self.tables.remove(&id);
        for life in self.history.lives.get_mut(&id).into_iter().flatten() {
            life.to.get_or_insert(when);
        }
        let owned = format!("{}/", name(id));
        self.end(when, |tenant, reach| tenant == id || reach.name.starts_with(&owned));
    }

    fn create_table(&mut self, owner: u32, table: String) {
        let before = self.tick();
        let new = NewTable { quota_bytes: Some(1 << 20), ..NewTable::named(&table) };
        let Ok(entry) = self.plane.directory.create_table(owner, new) else { return };
        self.tags += 1;
        let tag = self.tags;
        self.fill(&entry, tag);
        self.tables.get_mut(&owner).expect("a tenant").insert(table.clone(), tag);
        let span = Span { from: (before, self.tick()), to: None };
        let reach = Reach { id: entry.id, name: table, tag, access: None, span };
        self.history.reaches.entry(owner).or_default().push(reach);
    }

    /// Writes the tag under two keys, the second one last, and the counter, to which others may be adding already.
    fn fill(&mut self, entry: &TableEntry, tag: u64) {
        let table = &entry.table;
        let value = format!("{tag:0TAG_DIGITS$}");
        let start = (tag * BASE).to_string();
        for (key, value) in [("n", &start), ("k", &value), ("l", &value)] {
            let hash = table.hash(key.as_bytes());
            let write = WriteOptions::default();
            table.put(&self.participant, hash, key.as_bytes(), value.as_bytes(), &write, 1).expect("room");
        }
        self.participant.quiescent();
    }

    fn drop_table(&mut self, owner: u32, table: &str) {
        let before = self.tick();
        if self.plane.directory.drop_table(owner, table).is_err() {
            return;
        }
        let when = (before, self.tick());
        self.tables.get_mut(&owner).expect("a tenant").remove(table);
        let granted = format!("{}/{table}", name(owner));
        self.end(when, |tenant, reach| reach.name == granted || (tenant == owner && reach.name == table));
    }

    fn grant(&mut self, owner: u32, table: &str, to: u32) {
        let access = if self.random.random() { GrantAccess::Read } else { GrantAccess::ReadWrite };
        let before = self.tick();
        let given = self.plane.directory.grant(&name(owner), table, &name(to), access, GrantIssuer::Owner);
        let when = (before, self.tick());
        if !given.is_ok_and(|given| given.in_force()) {
            return;
        }
        // An existing grant continues with another access.
        let granted = format!("{}/{table}", name(owner));
        self.end(when, |tenant, reach| tenant == to && reach.name == granted);
        let id = self.plane.directory.snapshot().find(to).expect("a tenant").id_of(&granted).expect("a grant");
        let tag = self.tables[&owner][table];
        let reach = Reach { id, name: granted, tag, access: Some(access), span: Span { from: when, to: None } };
        self.history.reaches.entry(to).or_default().push(reach);
    }

    fn end_grant(
        &mut self,
        owner: u32,
        table: &str,
        to: u32,
        end: impl FnOnce(&sandstorm_catalog::Directory, String, &str, String) -> bool,
    ) {
        let before = self.tick();
        if end(&self.plane.directory, name(owner), table, name(to)) {
            let granted = format!("{}/{table}", name(owner));
            self.end((before, self.tick()), |tenant, reach| tenant == to && reach.name == granted);
        }
    }

    /// Ends everything that is still true.
    fn end(&mut self, when: When, which: impl Fn(u32, &Reach) -> bool) {
        for (tenant, reaches) in &mut self.history.reaches {
            for reach in reaches.iter_mut().filter(|reach| reach.span.to.is_none() && which(*tenant, reach)) {
                reach.span.to = Some(when);
            }
        }
    }
}

/// One tenant's client: requests the tables that it has access to, those that it once had, and those that it never had.
struct Asker<'s> {
    plane: &'s DataPlane,
    clock: &'s AtomicU64,
    random: StdRng,
    tenant: u32,
}

impl Asker<'_> {
    fn run(mut self, stop: &AtomicBool) -> Vec<Observation> {
        // All requests go to the first worker.
        let mut wire = Wire::new(self.plane, 0, self.tenant);
        let mut observations = Vec::new();
        while !stop.load(SeqCst) {
            let request: Vec<TestRequest> = (0..8).map(|_| self.next_request()).collect();
            let args: Vec<Vec<u8>> = request.iter().map(arguments).collect();
            let operations: Vec<_> =
                request.iter().zip(&args).map(|(request, args)| operation(request, args)).collect();
            let before = self.clock.fetch_add(1, SeqCst);
            let answers = wire.ask(&operations);
            let when = (before, self.clock.fetch_add(1, SeqCst));
            if answers.iter().all(|answer| answer.status == RpcStatus::Unauthenticated) {
                std::thread::sleep(UNKNOWN_TENANT_PAUSE);
            }
            let with = |(request, answer)| Observation { tenant: self.tenant, when, request, answer };
            observations.extend(request.into_iter().zip(answers).map(with));
        }
        observations
    }

    fn next_request(&mut self) -> TestRequest {
        let snapshot = self.plane.directory.snapshot();
        let mut ids: Vec<u64> =
            vec![self.random.random_range(0..4), FIRST_GRANTED_ID + self.random.random_range(0..50)];
        let other = self.random.random_range(TENANTS);
        let mut name = format!("t{}", self.random.random_range(0..2));
        if self.random.random() {
            name = format!("n{other}/{name}");
        }
        if let Some(view) = snapshot.tenant(self.tenant) {
            ids.extend(view.tables.keys().chain(view.granted.keys()));
        }
        let id = ids[self.random.random_range(0..ids.len())];
        match self.random.random_range(0..5) {
            0 => TestRequest::Get(id),
            1 => TestRequest::MultiGet(id),
            2 => TestRequest::Increment(id),
            3 => TestRequest::InvokeGet(id),
            _ => TestRequest::InvokeTwice(name),
        }
    }
}

/// The value of a request.
fn arguments(request: &TestRequest) -> Vec<u8> {
    match request {
        TestRequest::Get(_) | TestRequest::Increment(_) => Vec::new(),
        TestRequest::MultiGet(_) => {
            let mut keys = Vec::new();
            push_key(&mut keys, b"k");
            push_key(&mut keys, b"l");
            keys
        }
        TestRequest::InvokeGet(id) => [&id.to_le_bytes()[..], b"k"].concat(),
        TestRequest::InvokeTwice(name) => name.clone().into_bytes(),
    }
}

fn operation<'a>(request: &TestRequest, value: &'a [u8]) -> Operation<'a> {
    match request {
        TestRequest::Get(id) => Operation::get(*id, b"k"),
        TestRequest::MultiGet(id) => Operation::multiget(*id, 2, value),
        TestRequest::Increment(id) => Operation::increment(*id, b"n", 1),
        TestRequest::InvokeGet(_) => Operation::invoke(b"get", value),
        TestRequest::InvokeTwice(_) => Operation::invoke(b"twice", value),
    }
}

/// The kinds of answers that must occur for the run to mean anything.
const KINDS: [&str; 9] = [
    "own, read",
    "own, written",
    "granted, read",
    "granted, written",
    "read twice",
    "ended while running",
    "read only",
    "no such table",
    "no such tenant",
];

/// One run: all requests, and everything that was true.
fn run(plane: &DataPlane, seed: u64) -> (Vec<Observation>, History) {
    let (clock, stop) = (AtomicU64::new(1), AtomicBool::new(false));
    let mut changer = Changer {
        plane,
        clock: &clock,
        random: StdRng::seed_from_u64(seed),
        participant: plane.epochs.register(),
        extensions: [("get", library("get")), ("twice", library_of("twice", TWICE))],
        tags: 0,
        tables: BTreeMap::new(),
        history: History::default(),
    };
    TENANTS.for_each(|tenant| changer.create_tenant(tenant));
    let observations = std::thread::scope(|scope| {
        let askers: Vec<_> = TENANTS
            .map(|tenant| {
                let random = StdRng::seed_from_u64(seed.wrapping_mul(31).wrapping_add(u64::from(tenant)));
                let asker = Asker { plane, clock: &clock, random, tenant };
                scope.spawn(|| asker.run(&stop))
            })
            .collect();
        let stopped = Stop(&stop);
        for _ in 0..CHANGES {
            changer.change();
            // Requests run in between, however busy the machine is.
            let seen = clock.load(SeqCst);
            while clock.load(SeqCst) < seen + 4 && !askers.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                std::thread::yield_now();
            }
        }
        drop(stopped);
        askers.into_iter().flat_map(|asker| asker.join().expect("an asker")).collect()
    });
    TENANTS.for_each(|tenant| changer.delete_tenant(tenant));
    let silent: u64 = plane.metrics.worker(0).map_or(0, |counters| counters.refusals_unsent.get());
    assert_eq!(silent, 0, "each question had an answer");
    (observations, changer.history)
}

#[test]
fn every_answer_is_one_that_some_moment_of_its_request_allowed() {
    if ran_alone(module_path!(), "every_answer_is_one_that_some_moment_of_its_request_allowed") {
        return;
    }
    let plane = data_plane(2);
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    let begun = Instant::now();
    let mut seed = 0;
    while seed < 2 || KINDS.iter().any(|kind| seen.get(kind).copied().unwrap_or(0) < ENOUGH) {
        assert!(begun.elapsed() < PATIENCE, "after {seed} runs: {seen:?}");
        seed += 1;
        let (observations, history) = run(&plane, seed);
        let mut sums = BTreeSet::new();
        for observation in &observations {
            let explained = history.explain(observation);
            let Observation { tenant, when, request, answer } = observation;
            let kind = explained.unwrap_or_else(|why| {
                let reaches = history.reaches(*tenant, request);
                panic!(
                    "seed {seed}, tenant {tenant}, {when:?}, {request:?}: {answer:?}: {why}; it reached {reaches:#?}"
                )
            });
            *seen.entry(kind).or_default() += 1;
            if answer.op == OpKind::Increment && answer.status == RpcStatus::Ok && answer.number > BASE {
                assert!(sums.insert(answer.number), "seed {seed}: two additions gave {}", answer.number);
            }
        }
    }
    println!("{seed} runs: {seen:?}");
}
