//! The log of events: what is kept, in memory and in files, and how it is read.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::code::EventCode;
use super::event::{EventFilter, NewEvent, ServerEvent};
use super::folding::EventFolder;
use crate::config::ConfigError;
use crate::json_lines::{JsonLineFiles, make_private_folder};
use crate::limits::{
    EVENT_LINE_BYTES, EVENT_WAITERS, EVENT_WAITERS_PER_TENANT, OPERATOR_EVENTS_PER_FILE, TENANT_EVENTS_PER_FILE,
};

/// The folder in the state directory.
const FOLDER: &str = "events";

/// The log. What tenants do, and what is done to their calls, is kept apart from the rest: they cannot push out of the
/// log what operators did. Nor can one push out what others did: of what it does again and again, most is folded.
#[derive(Debug)]
pub struct EventLog {
    store: Mutex<EventStore>,
    /// Rates are measured from here.
    started: Instant,
    added: Notify,
    /// Requests that wait for an event, by the id of their tenant; 0: the operator's.
    waiters: Mutex<HashMap<u32, usize>>,
}

/// The permit of a request to wait for an event.
#[derive(Debug)]
pub(crate) struct EventWaitPermit<'l> {
    log: &'l EventLog,
    tenant: u32,
}

impl Drop for EventWaitPermit<'_> {
    fn drop(&mut self) {
        let mut waiters = self.log.waiters.lock();
        if let Some(count) = waiters.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                waiters.remove(&self.tenant);
            }
        }
    }
}

#[derive(Debug)]
struct EventStore {
    /// The number of the last event.
    last_id: u64,
    folder: EventFolder,
    operator: EventStream,
    tenants: EventStream,
}

#[derive(Debug)]
struct EventStream {
    /// Events in one file, at most.
    per_file: usize,
    /// The events of both files, the oldest first.
    events: VecDeque<ServerEvent>,
    /// Events up to this number may have been dropped to make room.
    dropped_id: u64,
    files: Option<JsonLineFiles<ServerEvent>>,
}

/// Events that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPage {
    /// The events, the oldest first.
    pub events: Vec<ServerEvent>,
    /// The position to continue from.
    pub next: u64,
    /// Whether events behind the given position are kept no more.
    pub missed: bool,
}

impl EventStream {
    fn in_memory(per_file: usize) -> EventStream {
        EventStream { per_file, events: VecDeque::new(), dropped_id: 0, files: None }
    }

    fn open(folder: &Path, name: &str, per_file: usize) -> Result<EventStream, ConfigError> {
        let (files, events): (_, Vec<ServerEvent>) = JsonLineFiles::open(folder, name, per_file, EVENT_LINE_BYTES)
            .map_err(|error| ConfigError::new(format!("events in {}: {error}", folder.display())))?;
        let is_whole = events.len() < per_file;
        let dropped_id = events.first().filter(|_| !is_whole).map_or(0, |first| first.id.saturating_sub(1));
        Ok(EventStream { per_file, events: events.into(), dropped_id, files: Some(files) })
    }

    fn add(&mut self, event: ServerEvent) {
        if let Some(files) = &mut self.files {
            files.append(&event);
        }
        if self.events.len() >= 2 * self.per_file {
            self.dropped_id = self.events.pop_front().map_or(0, |event| event.id);
        }
        self.events.push_back(event);
    }

    /// The events after a position.
    fn after(&self, position: u64) -> impl DoubleEndedIterator<Item = &ServerEvent> {
        self.events.range(self.events.partition_point(|event| event.id <= position)..)
    }
}

/// The deletion of a tenant ends its story in both streams: another tenant of that name and id begins behind it.
fn is_in_both(code: EventCode) -> bool {
    matches!(code, EventCode::TenantDeleted)
}

impl AsRef<EventLog> for EventLog {
    fn as_ref(&self) -> &EventLog {
        self
    }
}

impl EventLog {
    /// A log that is kept in memory alone.
    pub fn in_memory() -> EventLog {
        let operator = EventStream::in_memory(OPERATOR_EVENTS_PER_FILE);
        EventLog::of(EventStore::of(operator, EventStream::in_memory(TENANT_EVENTS_PER_FILE)))
    }

    fn of(store: EventStore) -> EventLog {
        let (store, started) = (Mutex::new(store), Instant::now());
        EventLog { store, started, added: Notify::new(), waiters: Mutex::default() }
    }

    /// Opens the log of a state directory.
    ///
    /// # Errors
    /// One line: a file cannot be read, or the folder not be made.
    pub fn open(state: &Path) -> Result<EventLog, ConfigError> {
        EventLog::open_sized(state, TENANT_EVENTS_PER_FILE)
    }

    fn open_sized(state: &Path, of_tenants: usize) -> Result<EventLog, ConfigError> {
        let Some(folder) = make_private_folder(state, FOLDER, "events are") else { return Ok(EventLog::in_memory()) };
        let operator = EventStream::open(&folder, "operator", OPERATOR_EVENTS_PER_FILE)?;
        Ok(EventLog::of(EventStore::of(operator, EventStream::open(&folder, "tenants", of_tenants)?)))
    }

    /// Records an event. One of those that a tenant causes again and again is counted, and told later with others.
    pub fn record(&self, event: NewEvent) {
        self.record_at(event, self.now_us());
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn record_at(&self, event: NewEvent, now_us: u64) {
        let mut store = self.store.lock();
        // What was counted belongs before the end.
        let ended = match (event.code, &event.tenant) {
            (EventCode::TenantDeleted, Some((_, id))) => store.folder.take_all(Some(*id), now_us),
            (EventCode::ServerStopped, _) => store.folder.take_all(None, now_us),
            _ => Vec::new(),
        };
        let admitted = store.folder.admit(event, now_us);
        let is_told = !ended.is_empty() || admitted.is_some();
        ended.into_iter().chain(admitted).for_each(|event| store.add(event));
        drop(store);
        if is_told {
            self.added.notify_waiters();
        }
    }

    /// Records how many events were counted, where it is time to tell.
    pub(super) fn tell_folded(&self) {
        self.tell_folded_at(self.now_us());
    }

    fn tell_folded_at(&self, now_us: u64) {
        let mut store = self.store.lock();
        let told = store.folder.take_due(now_us);
        let is_told = !told.is_empty();
        told.into_iter().for_each(|event| store.add(event));
        drop(store);
        if is_told {
            self.added.notify_waiters();
        }
    }

    /// Events that were held back because all tenants together had too many.
    pub(crate) fn held_back(&self) -> u64 {
        self.store.lock().folder.held_back()
    }

    /// The number of the last event; 0: there was none.
    pub(super) fn last_id(&self) -> u64 {
        self.store.lock().last_id
    }

    /// Whether the server whose events these are has stopped in order; `None` if there are none.
    pub fn last_stop_was_orderly(&self) -> Option<bool> {
        let store = self.store.lock();
        let mut ends = store.operator.events.iter().rev();
        ends.find_map(|event| match event.code {
            EventCode::ServerStopped => Some(true),
            EventCode::ServerStarted => Some(false),
            _ => None,
        })
    }

    /// Tenants that were deleted: their ids, and when. Later ones may have the same ids.
    pub(crate) fn deleted_tenants(&self) -> Vec<(u32, u64)> {
        let store = self.store.lock();
        let deleted = store.operator.events.iter().filter(|event| event.code == EventCode::TenantDeleted);
        deleted.filter_map(|event| Some((event.tenant_id?, event.at_ms))).collect()
    }

    /// Reads at most `limit` events: those next after the position, or the newest without one.
    pub fn read(&self, filter: &EventFilter, limit: usize) -> EventPage {
        let store = self.store.lock();
        // A position of a log that is gone: everything is new.
        let after = filter.after.map(|after| if after > store.last_id { 0 } else { after });
        let from = after.unwrap_or(0).max(store.hidden_up_to(filter));
        let is_taken = |event: &&ServerEvent| filter.takes(event);
        let mut events: Vec<ServerEvent> = match after {
            Some(_) => {
                let first = |stream: &EventStream| -> Vec<ServerEvent> {
                    stream.after(from).filter(is_taken).take(limit).map(|event| filter.shown(event)).collect()
                };
                [first(&store.operator), first(&store.tenants)].concat()
            }
            None => {
                let last = |stream: &EventStream| -> Vec<ServerEvent> {
                    stream.after(from).rev().filter(is_taken).take(limit).map(|event| filter.shown(event)).collect()
                };
                [last(&store.operator), last(&store.tenants)].concat()
            }
        };
        events.sort_by_key(|event| event.id);
        events.dedup_by_key(|event| event.id);
        let is_cut = events.len() > limit;
        match after {
            Some(_) => events.truncate(limit),
            None => drop(events.drain(..events.len().saturating_sub(limit))),
        }
        // Behind what was read, or behind all if there was nothing more to read.
        let is_full = after.is_some() && (is_cut || events.len() == limit);
        let next = events.last().filter(|_| is_full).map_or(store.last_id, |last| last.id);
        let missed = filter.after.is_some_and(|asked| Some(asked) != after || store.has_dropped_after(asked));
        EventPage { events, next, missed }
    }

    /// Permits a request of a tenant (0: the operator's) to wait for an event, unless too many do.
    pub(crate) fn wait(&self, tenant: u32) -> Option<EventWaitPermit<'_>> {
        let mut waiters = self.waiters.lock();
        let (all, own) = (waiters.values().sum::<usize>(), waiters.get(&tenant).copied().unwrap_or(0));
        if all >= EVENT_WAITERS || (tenant != 0 && own >= EVENT_WAITERS_PER_TENANT) {
            return None;
        }
        waiters.insert(tenant, own + 1);
        Some(EventWaitPermit { log: self, tenant })
    }

    /// Ends when an event has come. It has to be made before the log is read.
    pub(crate) fn added(&self) -> tokio::sync::futures::Notified<'_> {
        self.added.notified()
    }
}

impl EventStore {
    fn of(operator: EventStream, tenants: EventStream) -> EventStore {
        let last_id = [&operator, &tenants].into_iter().filter_map(|stream| stream.events.back()).map(|last| last.id);
        let last_id = last_id.max().unwrap_or(0);
        EventStore { last_id, folder: EventFolder::default(), operator, tenants }
    }

    /// Adds an event with the next number.
    fn add(&mut self, event: NewEvent) {
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        self.last_id += 1;
        let is_of_tenant = event.is_of_tenant();
        let event = event.recorded(self.last_id, u64::try_from(at_ms).unwrap_or(u64::MAX));
        if is_in_both(event.code) {
            self.tenants.add(event.clone());
            self.operator.add(event);
        } else if is_of_tenant {
            self.tenants.add(event);
        } else {
            self.operator.add(event);
        }
    }

    /// The number of the event up to which a tenant sees nothing: another one of its name was deleted then.
    fn hidden_up_to(&self, filter: &EventFilter) -> u64 {
        if filter.visible_to.is_none() {
            return 0;
        }
        let of_other = |event: &&ServerEvent| event.code == EventCode::TenantDeleted && filter.is_visible(event);
        let ends = [&self.operator, &self.tenants].map(|stream| stream.events.iter().rev().find(of_other));
        ends.into_iter().flatten().map(|event| event.id).max().unwrap_or(0)
    }

    /// Whether events after this number may have been dropped.
    fn has_dropped_after(&self, position: u64) -> bool {
        self.operator.dropped_id.max(self.tenants.dropped_id) > position
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::event::EventActor;

    fn event(code: EventCode, actor: EventActor, tenant: &str, id: u32) -> NewEvent {
        let from = Some("10.1.2.3".parse().expect("an address"));
        NewEvent { actor, from, ..NewEvent::of_server(code).about(tenant, id) }
    }

    fn codes(page: &EventPage) -> Vec<(u64, EventCode)> {
        page.events.iter().map(|event| (event.id, event.code)).collect()
    }

    #[test]
    fn a_reader_gets_each_event_once_from_page_to_page() {
        let log = EventLog::in_memory();
        for number in 0..50 {
            let actor = if number % 3 == 0 { EventActor::Operator } else { EventActor::Tenant };
            log.record(event(EventCode::TableCreated, actor, if number % 2 == 0 { "a" } else { "b" }, 1));
        }
        let filter = |after| EventFilter { after, tenant: Some("a".into()), ..EventFilter::default() };
        let (mut position, mut seen) = (0, Vec::new());
        loop {
            let page = log.read(&filter(Some(position)), 7);
            assert!(page.events.len() <= 7 && !page.missed);
            position = page.next;
            seen.extend(page.events.iter().map(|event| event.id));
            if page.events.is_empty() {
                break;
            }
        }
        assert_eq!(seen, (1..=50).step_by(2).collect::<Vec<_>>(), "in order, none twice, none left out");
        assert_eq!(position, 50);
        let newest = log.read(&filter(None), 3);
        assert_eq!(newest.events.iter().map(|event| event.id).collect::<Vec<_>>(), [45, 47, 49]);
        assert_eq!(newest.next, 50);
        assert!(log.read(&filter(Some(99)), 3).missed, "a position of another log");
    }

    #[test]
    fn tenants_see_their_own_and_nothing_of_another_that_had_their_name() {
        let log = EventLog::in_memory();
        for (code, actor, tenant, id) in [
            (EventCode::TenantCreated, EventActor::Operator, "a", 1),
            (EventCode::TableCreated, EventActor::Tenant, "a", 1),
            (EventCode::TenantDeleted, EventActor::Operator, "a", 1),
            (EventCode::TenantCreated, EventActor::Operator, "a", 1),
            (EventCode::TableCreated, EventActor::Tenant, "a", 1),
            (EventCode::TableCreated, EventActor::Tenant, "b", 2),
        ] {
            log.record(event(code, actor, tenant, id));
        }
        log.record(NewEvent::of_server(EventCode::ServerStarted));
        let own = EventFilter { visible_to: Some(("a".into(), 1)), ..EventFilter::default() };
        for after in [None, Some(0)] {
            let page = log.read(&EventFilter { after, ..own.clone() }, 100);
            assert_eq!(codes(&page), [(4, EventCode::TenantCreated), (5, EventCode::TableCreated)]);
            assert_eq!(page.events[0].from, None, "where the operator sits is not told");
            assert!(page.events[1].from.is_some(), "where its own request came from is");
        }
        let all = log.read(&EventFilter::default(), 100);
        assert_eq!(all.events.len(), 7, "the operator sees all, each once");
        let code = |code: &str| {
            let filter = EventFilter { code: Some(code.into()), ..EventFilter::default() };
            log.read(&filter, 100).events.len()
        };
        assert_eq!([code("tenant"), code("tenant.created"), code("ten"), code("server")], [3, 2, 0, 1]);
    }

    #[test]
    fn files_are_bounded_and_read_again_and_tenants_do_not_displace_operators() {
        let folder = tempfile::tempdir().expect("a folder");
        let per_file = 512;
        let log = EventLog::open_sized(folder.path(), per_file).expect("a log");
        log.record(event(EventCode::TenantCreated, EventActor::Operator, "a", 1));
        let hostile = "\u{1b}]0;x\u{7} \u{202e}\n{\"id\":9}".repeat(100);
        // So many tenants that none is at its limit.
        for id in 0..3 * per_file as u32 {
            let text = hostile.clone();
            log.record(NewEvent { text, ..event(EventCode::ExtensionRefused, EventActor::Tenant, "a", id) });
        }
        let names = ["operator.jsonl", "tenants.jsonl", "tenants.1.jsonl"];
        let read = |name: &str| std::fs::read(folder.path().join(FOLDER).join(name)).expect("a file");
        for name in names {
            let text = read(name);
            assert!(text.iter().all(|byte| matches!(byte, b'\n' | b' '..=b'~')), "{name}");
            let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            assert!(lines.clone().count() <= 1 + per_file);
            assert!(lines.map(<[u8]>::len).max() < Some(crate::limits::EVENT_LINE_BYTES));
        }
        let before = log.read(&EventFilter::default(), usize::MAX);
        assert_eq!(before.events[0].code, EventCode::TenantCreated, "it is there still");
        assert!(log.read(&EventFilter { after: Some(5), ..EventFilter::default() }, 1).missed);
        drop(log);
        // The machine stopped in the middle of a line.
        let current = folder.path().join(FOLDER).join("tenants.jsonl");
        let mut bytes = std::fs::read(&current).expect("a file");
        bytes.extend_from_slice(b"{\"id\":77,\"at");
        std::fs::write(&current, bytes).expect("room");
        let log = EventLog::open_sized(folder.path(), per_file).expect("a log");
        log.record(NewEvent::of_server(EventCode::ServerStarted));
        log.record(event(EventCode::TableCreated, EventActor::Tenant, "a", 1));
        drop(log);
        let after =
            EventLog::open_sized(folder.path(), per_file).expect("a log").read(&EventFilter::default(), usize::MAX);
        let last_id = before.events.last().map_or(0, |event| event.id);
        let newest: Vec<u64> = after.events.iter().rev().take(2).map(|event| event.id).collect();
        assert_eq!(newest, [last_id + 2, last_id + 1], "numbers go on");
        let same = before.events.iter().rev().zip(after.events.iter().rev().skip(2)).take(100);
        assert!(same.into_iter().all(|(before, after)| before == after));
    }

    /// A tenant renamed a table as often as it may, and after some minutes no other tenant's events were left.
    #[test]
    fn a_tenant_with_thousands_of_events_leaves_those_of_others_and_all_of_its_own_are_counted() {
        const HOUR_US: u64 = 3_600_000_000;
        let folder = tempfile::tempdir().expect("a folder");
        let log = EventLog::open_sized(folder.path(), 512).expect("a log");
        log.record_at(event(EventCode::TokenCreated, EventActor::Tenant, "quiet", 2), 0);
        let renames = 20 * 3600;
        for number in 0..renames {
            let now_us = number * HOUR_US / renames;
            log.record_at(event(EventCode::TableChanged, EventActor::Tenant, "loud", 1), now_us);
            if number % 20 == 0 {
                log.tell_folded_at(now_us);
            }
        }
        log.record_at(event(EventCode::TokenRevoked, EventActor::Tenant, "quiet", 2), HOUR_US);
        let ids = |page: &EventPage| page.events.iter().map(|event| event.id).collect::<Vec<_>>();
        let counted = |page: &EventPage| {
            page.events.iter().filter(|event| event.code == EventCode::TableChanged).map(|event| event.count).sum()
        };
        let page = log.read(&EventFilter { after: Some(0), ..EventFilter::default() }, usize::MAX);
        assert_eq!(ids(&page), (1..=page.next).collect::<Vec<_>>(), "in order, without a gap: nothing was dropped");
        assert!(!page.missed && page.events.len() < 100, "{}", page.events.len());
        let told: u64 = counted(&page);
        assert!(told < renames && told > renames / 2, "{told}: the last ones are still counted");
        let sum = page.events.iter().find(|event| event.count > 1).expect("a number of many");
        assert!(sum.text.starts_with(&format!("{} more in 60 s", sum.count)), "{}", sum.text);
        let position = page.next;
        log.record(NewEvent::of_server(EventCode::ServerStopped));
        drop(log);
        let log = EventLog::open_sized(folder.path(), 512).expect("a log");
        let all = log.read(&EventFilter { after: Some(0), ..EventFilter::default() }, usize::MAX);
        assert_eq!(counted(&all), renames, "a stop tells the rest");
        let next = log.read(&EventFilter { after: Some(position), ..EventFilter::default() }, usize::MAX);
        let expected = [(position + 1, EventCode::TableChanged), (position + 2, EventCode::ServerStopped)];
        assert_eq!(codes(&next), expected, "one that follows gets the number, and then the end");
        let of_quiet = EventFilter { tenant: Some("quiet".into()), ..EventFilter::default() };
        let found: Vec<_> = log.read(&of_quiet, 10).events.iter().map(|event| event.code).collect();
        assert_eq!(found, [EventCode::TokenCreated, EventCode::TokenRevoked]);
    }

    #[test]
    fn a_deleted_tenant_s_events_are_told_before_its_end() {
        let log = EventLog::in_memory();
        (0..60).for_each(|_| log.record_at(event(EventCode::TableChanged, EventActor::Tenant, "a", 1), 0));
        log.record_at(event(EventCode::TenantDeleted, EventActor::Operator, "a", 1), 0);
        let page = log.read(&EventFilter::default(), 2);
        assert_eq!(codes(&page), [(51, EventCode::TableChanged), (52, EventCode::TenantDeleted)]);
        assert_eq!(page.events[0].count, 10);
    }

    #[test]
    fn few_requests_wait_at_a_time_and_a_tenant_has_its_part() {
        let log = EventLog::in_memory();
        let of_one: Vec<_> = std::iter::from_fn(|| log.wait(7)).collect();
        assert_eq!(of_one.len(), EVENT_WAITERS_PER_TENANT);
        let of_operator: Vec<_> = std::iter::from_fn(|| log.wait(0)).collect();
        assert_eq!(of_operator.len(), EVENT_WAITERS - EVENT_WAITERS_PER_TENANT);
        drop(of_one);
        assert!(log.wait(8).is_some());
        drop(of_operator);
        assert!(log.waiters.lock().is_empty());
    }

    #[test]
    fn the_end_of_the_server_before_is_known() {
        let log = EventLog::in_memory();
        assert_eq!(log.last_stop_was_orderly(), None);
        log.record(NewEvent::of_server(EventCode::ServerStarted));
        assert_eq!(log.last_stop_was_orderly(), Some(false));
        log.record(NewEvent::of_server(EventCode::ServerStopped));
        assert_eq!(log.last_stop_was_orderly(), Some(true));
    }
}
