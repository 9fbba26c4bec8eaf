//! Promise: each key of a table with durability `disk` behaves as one copy of it would, over kills of the server: for
//! puts, conditional puts, deletes and gets of many clients at once, in all protocols. The real binary is killed with
//! SIGKILL while they ask; `SANDSTORM_KILLS` sets how many times. `common/key_history.rs` has the checker; the tests
//! here hold it to histories that are right, and to such that are not.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use sandstorm_client::blocking::Client;
use sandstorm_client::control::DurabilityLevel;
use sandstorm_client::{Config, Error, PutOptions, PutOutcome};

use crate::common::key_history::{HistoryEvent, KeyAnswer, KeyHistories, KeyRequest, KeyValue, check_key};
use crate::disk::{MemcachedCounting, OWN_DEADLINE, RedisCounting, TOKEN, start_with, stream, text};
use crate::records::{LONG, RecordServer};

/// Few keys, so that clients meet.
const KEYS: u64 = 6;

/// A client that asks for single keys. An error ends its work: the server is gone. `Ok(None)`: no answer has come.
pub(super) trait HistoryClient {
    fn ask(&mut self, key: &str, request: KeyRequest) -> Result<Option<KeyAnswer>, String>;

    /// Whether it can write on condition of a value, of which it knows the version.
    fn can_expect(&self, _key: &str, _value: u64) -> bool {
        false
    }
}

fn number(value: &str) -> Result<KeyValue, String> {
    value.trim().parse().map(Some).map_err(text)
}

impl HistoryClient for RedisCounting {
    fn ask(&mut self, key: &str, request: KeyRequest) -> Result<Option<KeyAnswer>, String> {
        let answer = match request {
            KeyRequest::Put(value) => {
                RedisCounting::ask(self, &["SET", key, &value.to_string()]).map(|_| KeyAnswer::Done)?
            }
            KeyRequest::PutIf(_, value) => {
                let said = RedisCounting::ask(self, &["SET", key, &value.to_string(), "NX"])?;
                KeyAnswer::Said(said.starts_with("+OK"))
            }
            KeyRequest::Delete => KeyAnswer::Said(RedisCounting::ask(self, &["DEL", key])?.starts_with(":1")),
            KeyRequest::Increment => {
                let sum = RedisCounting::ask(self, &["INCR", key])?;
                KeyAnswer::Sum(sum.trim_start_matches(':').trim().parse().map_err(text)?)
            }
            KeyRequest::Get => match RedisCounting::ask(self, &["GET", key])? {
                absent if absent.starts_with("$-1") => KeyAnswer::Found(None),
                _ => KeyAnswer::Found(number(&self.line()?)?),
            },
        };
        Ok(Some(answer))
    }
}

/// A client of memcached's protocol, and the `cas` number of each value that it has read, by key.
struct MemcachedHistory(MemcachedCounting, HashMap<String, (u64, String)>);

impl MemcachedHistory {
    fn store(&mut self, words: &str, value: u64) -> Result<bool, String> {
        let value = value.to_string();
        let cas = words.split_once(" cas=").map_or("", |(_, cas)| cas);
        let words = words.split(" cas=").next().unwrap_or_default();
        let cas = if cas.is_empty() { String::new() } else { format!(" {cas}") };
        let command = format!("{words} 0 0 {}{cas}\r\n{value}\r\n", value.len());
        self.0.0.get_ref().write_all(command.as_bytes()).map_err(text)?;
        Ok(self.0.line()?.starts_with("STORED"))
    }
}

impl HistoryClient for MemcachedHistory {
    fn ask(&mut self, key: &str, request: KeyRequest) -> Result<Option<KeyAnswer>, String> {
        let answer = match request {
            KeyRequest::Put(value) => {
                assert!(self.store(&format!("set {key}"), value)?);
                KeyAnswer::Done
            }
            KeyRequest::PutIf(None, value) => KeyAnswer::Said(self.store(&format!("add {key}"), value)?),
            KeyRequest::PutIf(Some(_), value) => {
                let (_, cas) = self.1[key].clone();
                KeyAnswer::Said(self.store(&format!("cas {key} cas={cas}"), value)?)
            }
            KeyRequest::Delete => {
                self.0.0.get_ref().write_all(format!("delete {key}\r\n").as_bytes()).map_err(text)?;
                KeyAnswer::Said(self.0.line()?.starts_with("DELETED"))
            }
            KeyRequest::Increment => {
                // It counts where there is a number, and makes none.
                self.0.0.get_ref().write_all(format!("incr {key} 1\r\n").as_bytes()).map_err(text)?;
                KeyAnswer::Sum(self.0.line()?.trim().parse().map_err(text)?)
            }
            KeyRequest::Get => {
                self.0.0.get_ref().write_all(format!("gets {key}\r\n").as_bytes()).map_err(text)?;
                let head = self.0.line()?;
                if head.starts_with("END") {
                    return Ok(Some(KeyAnswer::Found(None)));
                }
                let cas = head.split_whitespace().last().unwrap_or_default().to_owned();
                let found = number(&self.0.line()?)?;
                self.0.line()?;
                found.map(|value| self.1.insert(key.to_owned(), (value, cas)));
                KeyAnswer::Found(found)
            }
        };
        Ok(Some(answer))
    }

    fn can_expect(&self, key: &str, value: u64) -> bool {
        self.1.get(key).is_some_and(|(known, _)| *known == value)
    }
}

pub(super) struct OwnHistory {
    pub(super) client: Client,
    pub(super) table: u64,
    /// The version of the value that it has read, by key.
    pub(super) versions: HashMap<String, (u64, u64)>,
}

impl HistoryClient for OwnHistory {
    fn ask(&mut self, key: &str, request: KeyRequest) -> Result<Option<KeyAnswer>, String> {
        let (client, table, bytes) = (&self.client, self.table, key.as_bytes());
        let put =
            |value: u64, options: &PutOptions| client.put_outcome(table, bytes, value.to_string().as_bytes(), options);
        let said = |outcome| KeyAnswer::Said(matches!(outcome, PutOutcome::Written { .. }));
        let done = match request {
            KeyRequest::Put(value) => put(value, &PutOptions::default()).map(|_| KeyAnswer::Done),
            KeyRequest::PutIf(None, value) => put(value, &PutOptions::default().if_absent()).map(said),
            KeyRequest::PutIf(Some(_), value) => {
                let (_, version) = self.versions[key];
                put(value, &PutOptions::default().if_version(version)).map(said)
            }
            KeyRequest::Delete => client.delete(table, bytes).map(KeyAnswer::Said),
            KeyRequest::Increment => client.increment(table, bytes, 1).map(|sum| KeyAnswer::Sum(sum.unsigned_abs())),
            KeyRequest::Get => client.get(table, bytes).map(|record| {
                let found =
                    record.map(|record| (String::from_utf8_lossy(&record.value).parse().unwrap(), record.version));
                found.map(|found| self.versions.insert(key.to_owned(), found));
                KeyAnswer::Found(found.map(|(value, _)| value))
            }),
        };
        match done {
            Ok(answer) => Ok(Some(answer)),
            // It may have run, or may run still.
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(text(error)),
        }
    }

    fn can_expect(&self, key: &str, value: u64) -> bool {
        self.versions.get(key).is_some_and(|(known, _)| *known == value)
    }
}

/// The same client, which asks for everything in a transaction.
struct TransactionHistory(OwnHistory);

impl HistoryClient for TransactionHistory {
    fn ask(&mut self, key: &str, request: KeyRequest) -> Result<Option<KeyAnswer>, String> {
        let (bytes, table) = (key.as_bytes(), self.0.table);
        let done = self.0.client.transact(|transaction| {
            let found = transaction.get(table, bytes)?;
            let found = found.map(|record| String::from_utf8_lossy(&record.value).parse::<u64>().unwrap());
            let mut write = |value: u64| transaction.put(table, bytes, value.to_string().as_bytes());
            Ok::<_, Error>(match request {
                KeyRequest::Put(value) => {
                    write(value);
                    KeyAnswer::Done
                }
                KeyRequest::PutIf(expected, value) => {
                    let holds = found == expected;
                    if holds {
                        write(value);
                    }
                    KeyAnswer::Said(holds)
                }
                KeyRequest::Delete => {
                    transaction.delete(table, bytes);
                    KeyAnswer::Said(found.is_some())
                }
                KeyRequest::Increment => {
                    let sum = found.unwrap_or(0) + 1;
                    write(sum);
                    KeyAnswer::Sum(sum)
                }
                KeyRequest::Get => KeyAnswer::Found(found),
            })
        });
        match done {
            Ok(answer) => Ok(Some(answer)),
            // The last of its tries may have run, or may run still.
            Err(Error::Timeout { .. }) => Ok(None),
            // It met others each time, and has done nothing: as if it had not been asked. The checker may place it
            // nowhere, as a request without an answer.
            Err(Error::TransactionConflict { .. }) => Ok(None),
            Err(error) => Err(text(error)),
        }
    }

    fn can_expect(&self, _key: &str, _value: u64) -> bool {
        true
    }
}

fn clients(server: &RecordServer, table: u64) -> Vec<Box<dyn HistoryClient + Send>> {
    let tenant = server.control.tenant("shop").unwrap().id;
    let own = |sealing| {
        let config = Config::new(server.data.parse().unwrap(), tenant).sealing(sealing).deadline(LONG);
        let client = Client::connect(config.token(TOKEN)).unwrap().with_deadline(OWN_DEADLINE);
        Box::new(OwnHistory { client, table, versions: HashMap::new() })
    };
    vec![
        Box::new(RedisCounting(stream(&server.redis), false)),
        Box::new(RedisCounting(stream(&server.redis), false)),
        Box::new(MemcachedHistory(MemcachedCounting(stream(&server.memcached)), HashMap::new())),
        own(sandstorm_client::Sealing::default()),
        own(sandstorm_client::Sealing::Always),
        Box::new(TransactionHistory(*own(sandstorm_client::Sealing::default()))),
    ]
}

/// What the clients of a run share.
#[derive(Default)]
struct SharedRun {
    histories: KeyHistories,
    /// The last value that was written: each is written once.
    values: AtomicU64,
    is_killed: AtomicBool,
}

/// Draws a request; conditions are on values that this client has read, or on absence.
fn draw(client: &dyn HistoryClient, key: &str, last: KeyValue, run: &SharedRun, random: &mut SmallRng) -> KeyRequest {
    let value = || run.values.fetch_add(1, SeqCst) + 1;
    match random.random_range(0..10) {
        0..=2 => KeyRequest::Put(value()),
        3 => KeyRequest::Delete,
        4..=5 => match last.filter(|value| client.can_expect(key, *value)) {
            None => KeyRequest::PutIf(None, value()),
            known => KeyRequest::PutIf(known, value()),
        },
        _ => KeyRequest::Get,
    }
}

/// Asks until an error; counts the answers.
fn ask_on(
    client: &mut dyn HistoryClient,
    run: &SharedRun,
    answered: &AtomicU64,
    random: &mut SmallRng,
) -> Result<(), String> {
    let mut read = HashMap::new();
    loop {
        let key = format!("key:{}", random.random_range(0..KEYS));
        let request = draw(client, &key, read.get(&key).copied().flatten(), run, random);
        let number = run.histories.ask(&key, request);
        let answer = client.ask(&key, request)?;
        if let Some(answer) = answer {
            run.histories.answer(&key, number, answer);
            answered.fetch_add(1, SeqCst);
            if let KeyAnswer::Found(found) = answer {
                read.insert(key, found);
            }
        } else if run.is_killed.load(SeqCst) {
            return Err("it was killed".into());
        }
    }
}

/// Has all clients ask, and kills the server once each has had some answers.
fn ask_and_kill(server: RecordServer, table: u64, run: &SharedRun, random: &mut SmallRng) {
    run.is_killed.store(false, SeqCst);
    let (all, least) = (clients(&server, table), random.random_range(1..60));
    let answered: Vec<_> = all.iter().map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for ((own, mut client), answered) in all.into_iter().enumerate().zip(&answered) {
            let mut random = SmallRng::seed_from_u64(random.random());
            threads.push(scope.spawn(move || {
                let ended = ask_on(&mut *client, run, answered, &mut random);
                assert!(run.is_killed.load(SeqCst), "client {own} of a living server: {ended:?}");
            }));
        }
        let begun = Instant::now();
        while answered.iter().any(|answered| answered.load(SeqCst) < least)
            && !threads.iter().any(|thread| thread.is_finished())
            && begun.elapsed() < LONG
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        run.is_killed.store(true, SeqCst);
        drop(server);
    });
    assert!(answered.iter().all(|answered| answered.load(SeqCst) >= least), "each client is answered: {answered:?}");
    run.histories.crash();
}

#[test]
fn each_key_is_as_one_copy_of_it_over_kills() {
    let kills = std::env::var("SANDSTORM_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(5);
    let folder = tempfile::tempdir().unwrap();
    let (mut random, run) = (SmallRng::seed_from_u64(kills), SharedRun::default());
    let (mut server, table) = start_with(folder.path(), DurabilityLevel::Disk);
    for _ in 0..kills {
        ask_and_kill(server, table, &run, &mut random);
        server = RecordServer::start(folder.path());
        // What is there now is seen, whatever the clients ask next.
        let mut reader = RedisCounting(stream(&server.redis), false);
        for key in 0..KEYS {
            let key = format!("key:{key}");
            let number = run.histories.ask(&key, KeyRequest::Get);
            let answer = HistoryClient::ask(&mut reader, &key, KeyRequest::Get).unwrap().unwrap();
            run.histories.answer(&key, number, answer);
        }
        run.histories.check();
    }
    assert!(run.histories.check() as u64 >= kills * KEYS);
}

/// A history of clients of one copy of a key, each request of which acts at a random moment between question and
/// answer; a crash at times.
fn right_history(random: &mut SmallRng, most: usize) -> Vec<HistoryEvent> {
    let (mut events, mut state, mut numbers, mut value) = (Vec::new(), None, 0, 0);
    // Asked and not acted; acted and not answered.
    let mut waiting: Vec<(u64, KeyRequest)> = Vec::new();
    let mut acted: Vec<(u64, KeyAnswer)> = Vec::new();
    while numbers < most as u64 || !waiting.is_empty() || !acted.is_empty() {
        match random.random_range(0..7) {
            0..=2 if numbers < most as u64 && waiting.len() + acted.len() < 4 => {
                (numbers, value) = (numbers + 1, value + 1);
                let request = match random.random_range(0..7) {
                    6 => KeyRequest::Increment,
                    0 => KeyRequest::Put(value),
                    1 => KeyRequest::PutIf(if random.random_bool(0.5) { state } else { None }, value),
                    2 => KeyRequest::Delete,
                    _ => KeyRequest::Get,
                };
                waiting.push((numbers, request));
                events.push(HistoryEvent::Asked(numbers, request));
            }
            3..=4 if !waiting.is_empty() => {
                let (number, request) = waiting.swap_remove(random.random_range(0..waiting.len()));
                let answer = match request {
                    KeyRequest::Put(value) => {
                        state = Some(value);
                        KeyAnswer::Done
                    }
                    KeyRequest::PutIf(expected, value) => {
                        let is_so = expected == state;
                        state = if is_so { Some(value) } else { state };
                        KeyAnswer::Said(is_so)
                    }
                    KeyRequest::Delete => KeyAnswer::Said(state.take().is_some()),
                    KeyRequest::Increment => {
                        state = Some(state.unwrap_or(0) + 1);
                        KeyAnswer::Sum(state.unwrap_or(0))
                    }
                    KeyRequest::Get => KeyAnswer::Found(state),
                };
                acted.push((number, answer));
            }
            5 if !acted.is_empty() => {
                let (number, answer) = acted.swap_remove(random.random_range(0..acted.len()));
                events.push(HistoryEvent::Answered(number, answer));
            }
            6 if random.random_bool(0.1) => {
                waiting.clear();
                acted.clear();
                events.push(HistoryEvent::Crashed);
            }
            _ => {}
        }
    }
    events
}

/// A request and its answer, with their places.
type AnsweredRequest = (Option<usize>, Option<usize>, KeyRequest, KeyAnswer);

/// Whether some order of these requests explains their answers, from a state on.
fn tries(left: &[AnsweredRequest], state: KeyValue) -> bool {
    left.is_empty()
        || (0..left.len()).any(|next| {
            let (asked, _, request, answer) = left[next];
            // Nothing that was answered before it was asked may come behind it.
            if left.iter().any(|(_, answered, ..)| *answered < asked) {
                return false;
            }
            let (after, says) = match request {
                KeyRequest::Put(value) => (Some(value), KeyAnswer::Done),
                KeyRequest::PutIf(expected, value) if expected == state => (Some(value), KeyAnswer::Said(true)),
                KeyRequest::PutIf(..) => (state, KeyAnswer::Said(false)),
                KeyRequest::Delete => (None, KeyAnswer::Said(state.is_some())),
                KeyRequest::Increment => (Some(state.unwrap_or(0) + 1), KeyAnswer::Sum(state.unwrap_or(0) + 1)),
                KeyRequest::Get => (state, KeyAnswer::Found(state)),
            };
            let mut rest = left.to_vec();
            rest.remove(next);
            says == answer && tries(&rest, after)
        })
}

/// Whether some order of the requests explains a history without crashes, all of whose requests are answered: by trying
/// all orders.
fn some_order_explains(events: &[HistoryEvent]) -> bool {
    let place = |wanted: HistoryEvent| events.iter().position(|event| *event == wanted);
    let mut requests = Vec::new();
    for event in events {
        let HistoryEvent::Answered(number, answer) = *event else { continue };
        let is_own = |event: &&HistoryEvent| matches!(event, HistoryEvent::Asked(own, _) if *own == number);
        let Some(HistoryEvent::Asked(_, request)) = events.iter().find(is_own).copied() else { continue };
        let (asked, answered) = (place(HistoryEvent::Asked(number, request)), place(*event));
        requests.push((asked, answered, request, answer));
    }
    tries(&requests, None)
}

#[test]
fn the_checker_takes_histories_of_one_copy_and_judges_others_as_all_orders_do() {
    let mut random = SmallRng::seed_from_u64(11);
    for _ in 0..300 {
        let events = right_history(&mut random, 60);
        assert_eq!(check_key(&events), Ok(()), "{events:?}");
    }
    let mut refused = 0;
    for _ in 0..3_000 {
        let mut events = right_history(&mut random, 6);
        if events.contains(&HistoryEvent::Crashed) {
            continue;
        }
        // The answers of two gets are exchanged, or one shows another value.
        let is_found = |event: &HistoryEvent| matches!(event, HistoryEvent::Answered(_, KeyAnswer::Found(_)));
        let mut gets: Vec<usize> = (0..events.len()).filter(|at| is_found(&events[*at])).collect();
        gets.shuffle(&mut random);
        if let Some(HistoryEvent::Answered(_, KeyAnswer::Found(found))) = gets.first().map(|at| &mut events[*at]) {
            *found = [None, Some(1), Some(2), Some(3)][random.random_range(0..4)];
        }
        let is_right = some_order_explains(&events);
        assert_eq!(check_key(&events).is_ok(), is_right, "{events:?}");
        refused += u32::from(!is_right);
    }
    assert!(refused > 100, "{refused} histories were wrong");
}

#[test]
fn the_checker_finds_a_planted_stale_read_a_lost_write_and_one_that_comes_late() {
    use HistoryEvent::{Answered, Asked, Crashed};
    use KeyAnswer::{Done, Found, NotRun, Said, Sum};
    use KeyRequest::{Delete, Get, Increment, Put, PutIf};
    let written = [Asked(1, Put(1)), Answered(1, Done), Asked(2, Put(2)), Answered(2, Done)];
    let wrong = |more: &[HistoryEvent], at: usize| {
        let events = [&written[..], more].concat();
        let found = check_key(&events).expect_err("nothing explains it");
        assert_eq!(found.0, at, "{found:?}");
    };
    wrong(&[Asked(3, Get), Answered(3, Found(Some(1)))], 5);
    // Once shown to one client, it is shown to all, also while the write is under way.
    wrong(
        &[Asked(3, Put(3)), Asked(4, Get), Answered(4, Found(Some(3))), Asked(5, Get), Answered(5, Found(Some(2)))],
        8,
    );
    // A crash has taken what was acknowledged, or only shown.
    wrong(&[Crashed, Asked(3, Get), Answered(3, Found(Some(1)))], 6);
    wrong(
        &[
            Asked(3, Put(3)),
            Asked(4, Get),
            Answered(4, Found(Some(3))),
            Crashed,
            Asked(5, Get),
            Answered(5, Found(Some(2))),
        ],
        9,
    );
    // A request to the server before has run on the one after it.
    wrong(
        &[
            Asked(3, Delete),
            Crashed,
            Asked(4, Get),
            Answered(4, Found(Some(2))),
            Asked(5, Get),
            Answered(5, Found(None)),
        ],
        9,
    );
    wrong(&[Asked(3, PutIf(Some(1), 3)), Answered(3, Said(true))], 5);
    wrong(&[Asked(3, PutIf(Some(2), 3)), Answered(3, Said(false))], 5);
    // An increment that counts twice, and one that counts nothing.
    for sum in [2, 4] {
        wrong(&[Asked(3, Increment), Answered(3, Sum(sum))], 5);
    }
    // Once it is seen, an unanswered increment is there.
    wrong(
        &[Asked(3, Increment), Asked(4, Get), Answered(4, Found(Some(3))), Asked(5, Get), Answered(5, Found(Some(2)))],
        8,
    );
    // What was refused as not run is seen by no client, before it is refused and after.
    wrong(&[Asked(3, Put(3)), Answered(3, NotRun), Asked(4, Get), Answered(4, Found(Some(3)))], 7);
    wrong(&[Asked(3, Put(3)), Asked(4, Get), Answered(4, Found(Some(3))), Answered(3, NotRun)], 6);
    wrong(&[Asked(3, Increment), Answered(3, NotRun), Asked(4, Increment), Answered(4, Sum(4))], 7);
    let refused = [Asked(3, Put(3)), Answered(3, NotRun), Asked(4, Get), Answered(4, Found(Some(2)))];
    assert_eq!(check_key(&[&written[..], &refused].concat()), Ok(()));
    // A get without an answer says nothing.
    let events = [&written[..], &[Asked(3, Get), Asked(4, Increment), Answered(4, Sum(3))]].concat();
    assert_eq!(check_key(&events), Ok(()));
    // What is unanswered may have run or not.
    for found in [Some(2), Some(3)] {
        let events = [&written[..], &[Asked(3, Put(3)), Crashed, Asked(4, Get), Answered(4, Found(found))]].concat();
        assert_eq!(check_key(&events), Ok(()));
    }
}
