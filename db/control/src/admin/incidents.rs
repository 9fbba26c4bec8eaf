//! Kills, measures against extensions, and slow requests, kept over a restart: a server that was restarted in the
//! morning can still say what happened in the night.
//!
//! The latest of each tenant are in memory, with its other counts. Once a second new ones are written to files of JSON
//! lines, as many as the limits allow. A start reads what earlier runs of the server have written, and answers show it
//! beside what is new. Values are not written, nor keys of tables whose records are in memory alone; of arguments what
//! the manifest asks to keep.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use sandstorm_catalog::{Directory, DirectorySnapshot, TenantView};
use sandstorm_metrics::SlowThreshold;
use sandstorm_net::rate_limiter::RateLimiter;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::kept_slow_request::KeptSlowRequest;
use super::slow::full_response;
use super::slow_numbers::SlowNumbers;
use super::types::{KillResponse, SlowRequestResponse};
use crate::config::ConfigError;
use crate::events::EventLog;
use crate::json_lines::{JsonLineFiles, make_private_folder, shortened};
use crate::limits::{
    INCIDENT_INTERVAL_US, INCIDENT_LINE_BYTES, INCIDENT_PLACES, INCIDENT_TEXT_BYTES, INCIDENTS_OF_ALL_TENANTS,
    INCIDENTS_OF_TENANT, INCIDENTS_PER_FILE,
};

/// The folder in the state directory.
const FOLDER: &str = "incidents";

/// The incidents: see the head of this file.
#[derive(Debug, Default)]
pub(super) struct IncidentLog {
    earlier: Mutex<EarlierIncidents>,
    /// The number of the last slow request that earlier runs of the server may have had; 0: there is none.
    last_slow_id: u64,
    /// `None`: nothing is written.
    writer: Option<Mutex<IncidentWriter>>,
}

/// Incidents by the ids of their tenants, the oldest of each first.
type KeptIncidents<T> = HashMap<u32, Vec<T>>;

/// What earlier runs of the server have written.
#[derive(Debug, Default)]
struct EarlierIncidents {
    kills: KeptIncidents<KillResponse>,
    slow: KeptIncidents<KeptSlowRequest>,
}

/// A line of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum IncidentLine<T> {
    /// An incident of the tenant of an id.
    Incident { tenant_id: u32, shown: T },
    /// The tenant of an id was deleted: lines before this one are of no tenant.
    TenantEnded { tenant_id: u32 },
}

#[derive(Debug)]
struct IncidentWriter {
    /// Rates are measured from here.
    started: Instant,
    looked_us: Option<u64>,
    kills: IncidentFiles<KillResponse>,
    slow: IncidentFiles<KeptSlowRequest>,
    slow_numbers: SlowNumbers,
    tenants: HashMap<u32, IncidentMark>,
}

#[derive(Debug)]
struct IncidentFiles<T> {
    files: JsonLineFiles<IncidentLine<T>>,
    of_all: RateLimiter,
}

/// What was seen of a tenant when its counts were read last.
#[derive(Debug, Default)]
struct IncidentMark {
    serial: u64,
    /// The numbers of its latest kill, policy event and slow request.
    kill: u64,
    policy_event: u64,
    slow_id: u64,
    kill_rate: RateLimiter,
    slow_rate: RateLimiter,
}

/// The tenant that an incident names.
trait IncidentOfTenant {
    fn tenant(&self) -> &str;
    fn at_ms(&self) -> u64;
}

impl IncidentOfTenant for KillResponse {
    fn tenant(&self) -> &str {
        &self.tenant
    }

    fn at_ms(&self) -> u64 {
        self.at_ms
    }
}

impl IncidentOfTenant for KeptSlowRequest {
    fn tenant(&self) -> &str {
        &self.shown.tenant
    }

    fn at_ms(&self) -> u64 {
        self.shown.at_ms
    }
}

impl<T: IncidentOfTenant + Clone + Serialize + DeserializeOwned> IncidentFiles<T> {
    /// Opens the files of a name, and reads the incidents of tenants that are still there.
    fn open(
        folder: &Path,
        name: &str,
        tenants: &DirectorySnapshot,
        deleted: &[(u32, u64)],
    ) -> io::Result<(IncidentFiles<T>, KeptIncidents<T>)> {
        let (mut files, lines) = JsonLineFiles::open(folder, name, INCIDENTS_PER_FILE, INCIDENT_LINE_BYTES)?;
        let mut found: KeptIncidents<T> = HashMap::new();
        for line in lines {
            match line {
                IncidentLine::Incident { tenant_id, shown } => found.entry(tenant_id).or_default().push(shown),
                IncidentLine::TenantEnded { tenant_id } => drop(found.remove(&tenant_id)),
            }
        }
        let is_of_another = |id: u32, shown: &T| {
            let named = tenants.tenant(id).is_some_and(|view| view.tenant.name == shown.tenant());
            !named || deleted.iter().any(|(other, at_ms)| *other == id && shown.at_ms() <= *at_ms)
        };
        let mut ended: Vec<u32> = Vec::new();
        for (id, incidents) in &mut found {
            let before = incidents.len();
            incidents.retain(|shown| !is_of_another(*id, shown));
            ended.extend((incidents.len() < before).then_some(*id));
        }
        ended.sort_unstable();
        // What is left of such an id comes behind the line that ends it.
        for tenant_id in ended {
            files.append(&IncidentLine::TenantEnded { tenant_id });
            for shown in found.get(&tenant_id).into_iter().flatten().cloned() {
                files.append(&IncidentLine::Incident { tenant_id, shown });
            }
        }
        found.retain(|_, incidents| !incidents.is_empty());
        Ok((IncidentFiles { files, of_all: RateLimiter::default() }, found))
    }

    /// Writes an incident, unless there were too many.
    fn write(&mut self, tenant_id: u32, shown: T, own: &mut RateLimiter, now_us: u64) {
        if own.admit(&INCIDENTS_OF_TENANT, now_us) && self.of_all.admit(&INCIDENTS_OF_ALL_TENANTS, now_us) {
            self.files.append(&IncidentLine::Incident { tenant_id, shown });
        }
    }
}

impl IncidentLog {
    /// The incidents of a state directory. `events` tells which tenants were deleted.
    ///
    /// # Errors
    /// One line: a file cannot be read.
    pub(super) fn open(state: &Path, directory: &Directory, events: &EventLog) -> Result<IncidentLog, ConfigError> {
        let Some(folder) = make_private_folder(state, FOLDER, "kills and slow requests are") else {
            return Ok(IncidentLog::default());
        };
        let (snapshot, deleted) = (directory.snapshot(), events.deleted_tenants());
        let failed = |error| ConfigError::new(format!("incidents in {}: {error}", folder.display()));
        let (kill_files, kills) = IncidentFiles::open(&folder, "kills", &snapshot, &deleted).map_err(failed)?;
        let (slow_files, slow) = IncidentFiles::open(&folder, "slow", &snapshot, &deleted).map_err(failed)?;
        let kept = slow.values().flatten().map(|one: &KeptSlowRequest| one.shown.id).max().unwrap_or(0);
        let (slow_numbers, last_slow_id) = SlowNumbers::open(&folder, kept).map_err(failed)?;
        let seen = |view: &Arc<TenantView>| {
            (view.tenant.id, IncidentMark { serial: view.tenant.serial, ..IncidentMark::default() })
        };
        let writer = IncidentWriter {
            started: Instant::now(),
            looked_us: None,
            kills: kill_files,
            slow: slow_files,
            slow_numbers,
            tenants: snapshot.iter().map(seen).collect(),
        };
        let earlier = EarlierIncidents { kills, slow };
        Ok(IncidentLog { earlier: Mutex::new(earlier), last_slow_id, writer: Some(Mutex::new(writer)) })
    }

    /// Writes what is new, if the last look was not just now.
    pub(super) fn look(&self, directory: &Directory, slow: &SlowThreshold) {
        let Some(writer) = &self.writer else { return };
        let mut writer = writer.lock();
        let now_us = u64::try_from(writer.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        if writer.looked_us.is_none_or(|looked_us| now_us - looked_us >= INCIDENT_INTERVAL_US) {
            writer.slow_numbers.reserve(slow.last_id());
            self.look_at(&mut writer, directory, now_us);
        }
    }

    /// Writes what is new before the server ends: no request comes any more.
    pub(super) fn look_last(&self, directory: &Directory, slow: &SlowThreshold) {
        let Some(writer) = &self.writer else { return };
        let mut writer = writer.lock();
        let now_us = u64::try_from(writer.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.look_at(&mut writer, directory, now_us);
        writer.slow_numbers.end(slow.last_id());
    }

    fn look_at(&self, writer: &mut IncidentWriter, directory: &Directory, now_us: u64) {
        writer.looked_us = Some(now_us);
        let snapshot = directory.snapshot();
        let is_gone =
            |id: &u32, seen: &IncidentMark| snapshot.tenant(*id).is_none_or(|view| view.tenant.serial != seen.serial);
        let ended: Vec<u32> = writer.tenants.iter().filter(|(id, seen)| is_gone(id, seen)).map(|(id, _)| *id).collect();
        for tenant_id in ended {
            writer.tenants.remove(&tenant_id);
            writer.kills.files.append(&IncidentLine::TenantEnded { tenant_id });
            writer.slow.files.append(&IncidentLine::TenantEnded { tenant_id });
            self.earlier.lock().forget(tenant_id);
        }
        for view in snapshot.iter() {
            let serial = view.tenant.serial;
            let seen = writer.tenants.entry(view.tenant.id);
            let seen = seen.or_insert_with(|| IncidentMark { serial, ..IncidentMark::default() });
            write_kills(view, seen, &mut writer.kills, now_us);
            write_slow(&snapshot, view, seen, (&mut writer.slow, now_us));
        }
    }

    /// Kills and measures of earlier runs of the server, of a tenant.
    pub(super) fn kills_of(&self, view: &TenantView) -> Vec<KillResponse> {
        of_tenant(&self.earlier.lock().kills, view)
    }

    /// Slow requests of earlier runs of the server, of a tenant, with the names of all tenants.
    pub(super) fn slow_of(&self, view: &TenantView) -> Vec<KeptSlowRequest> {
        of_tenant(&self.earlier.lock().slow, view)
    }

    /// The number of the last slow request that earlier runs may have had, also of those that are not kept; 0: there is
    /// none.
    pub(super) fn last_slow_id(&self) -> u64 {
        self.last_slow_id
    }
}

impl EarlierIncidents {
    fn forget(&mut self, tenant_id: u32) {
        self.kills.remove(&tenant_id);
        self.slow.remove(&tenant_id);
    }
}

fn of_tenant<T: IncidentOfTenant + Clone>(all: &KeptIncidents<T>, view: &TenantView) -> Vec<T> {
    let of_id = all.get(&view.tenant.id).into_iter().flatten();
    of_id.filter(|shown| shown.tenant() == view.tenant.name).cloned().collect()
}

/// Writes a tenant's new kills, and the measures against its extensions.
fn write_kills(view: &TenantView, seen: &mut IncidentMark, files: &mut IncidentFiles<KillResponse>, now_us: u64) {
    let (name, usage) = (&view.tenant.name, &view.tenant.usage);
    let (kills, policy_events) = (usage.kills_after(seen.kill), usage.policy_events_after(seen.policy_event));
    (seen.kill, seen.policy_event) = (kills.last, policy_events.last);
    let mut new: Vec<KillResponse> = kills.entries.into_iter().map(|kill| KillResponse::of(name, kill)).collect();
    new.extend(policy_events.entries.into_iter().map(|event| KillResponse::from_notice(name, event)));
    new.sort_by_key(|one| one.at_ms);
    for mut shown in new {
        shown.text = shortened(shown.text, INCIDENT_TEXT_BYTES);
        shown.places.truncate(INCIDENT_PLACES);
        files.write(view.tenant.id, shown, &mut seen.kill_rate, now_us);
    }
}

/// Writes a tenant's new slow requests.
fn write_slow(
    snapshot: &DirectorySnapshot,
    view: &TenantView,
    seen: &mut IncidentMark,
    (files, now_us): (&mut IncidentFiles<KeptSlowRequest>, u64),
) {
    let new = view.tenant.usage.slow_requests.after(seen.slow_id);
    seen.slow_id = new.iter().map(|one| one.id).max().unwrap_or(seen.slow_id);
    for request in new {
        let subject = request.subject;
        let is_on_disk = view.tables.get(&subject.table).is_some_and(|table| !table.durability().is_none());
        let key_prefix = if is_on_disk { subject.key_prefix().to_vec() } else { Vec::new() };
        let shown = SlowRequestResponse { key: None, key_digest: None, ..full_response(snapshot, view, request) };
        files.write(view.tenant.id, KeptSlowRequest { shown, key_prefix }, &mut seen.slow_rate, now_us);
    }
}

#[cfg(test)]
#[path = "incidents_format_tests.rs"]
mod format_tests;

#[cfg(test)]
mod tests {
    use std::fs;

    use sandstorm_accounts::{KillRecord, PolicyEvent, RequestSubject, RequestWaits, SlowRequest, TurnShare};
    use sandstorm_catalog::{DirectoryOptions, NewTable, NewTenant, TableDurability};
    use sandstorm_metrics::histogram::RequestClass;
    use sandstorm_net::rpc::KillCause;
    use sandstorm_store::Epochs;

    use super::*;
    use crate::events::{EventCode, NewEvent};

    const HOUR_US: u64 = 3_600_000_000;

    fn directory(names: &[&str]) -> Arc<Directory> {
        let directory = Directory::new(Epochs::new());
        names.iter().for_each(|name| drop(directory.create_tenant(NewTenant::named(name)).expect("a tenant")));
        directory
    }

    fn view_of(directory: &Directory, name: &str) -> Arc<TenantView> {
        Arc::clone(directory.snapshot().by_name(name).expect("it is there"))
    }

    fn kill(directory: &Directory, tenant: &str, at_ms: u64) {
        view_of(directory, tenant).tenant.usage.record_kill(KillRecord {
            extension: "x".into(),
            version: 3,
            cause: KillCause::Panic,
            cpu_us: 5,
            wall_us: 6,
            at_ms,
            worker: 1,
            text: "é".repeat(INCIDENT_TEXT_BYTES),
            places: vec![sandstorm_accounts::CodePlace::default(); 3 * INCIDENT_PLACES],
            arguments: b"kept\x00".to_vec(),
        });
    }

    fn slow(directory: &Directory, tenant: &str, id: u64, turns: Vec<TurnShare>) {
        slow_in(directory, tenant, (1, b"secret"), id, turns);
    }

    fn slow_in(directory: &Directory, tenant: &str, (table, key): (u64, &[u8]), id: u64, turns: Vec<TurnShare>) {
        view_of(directory, tenant).tenant.usage.slow_requests.keep(SlowRequest {
            id,
            at_ms: id,
            class: RequestClass::Get,
            subject: RequestSubject::new("get", table, key),
            count: 1,
            waiting_ns: 1,
            service_ns: 2,
            waits: RequestWaits::default(),
            worker: 0,
            call: None,
            turns,
            known_ns: 3,
        });
    }

    /// What a run of the server that begins now has of earlier ones.
    fn open(state: &Path, directory: &Directory) -> IncidentLog {
        IncidentLog::open(state, directory, &EventLog::in_memory()).expect("readable files")
    }

    fn look(log: &IncidentLog, directory: &Directory, now_us: u64) {
        log.look_at(&mut log.writer.as_ref().expect("files").lock(), directory, now_us);
    }

    fn kill_times(log: &IncidentLog, directory: &Directory, tenant: &str) -> Vec<u64> {
        log.kills_of(&view_of(directory, tenant)).iter().map(|kill| kill.at_ms).collect()
    }

    #[test]
    fn kills_measures_and_slow_requests_are_there_after_a_restart_without_keys() {
        let state = tempfile::tempdir().expect("a folder");
        let before = directory(&["a", "b"]);
        let log = open(state.path(), &before);
        kill(&before, "a", 1_000);
        let text = "killed too often".to_owned();
        let notice = PolicyEvent { extension: "x".into(), version: 3, what: "slowed", at_ms: 2_000, text };
        view_of(&before, "a").tenant.usage.record_policy_event(notice);
        let b = view_of(&before, "b").tenant.id;
        slow(&before, "a", 7, vec![TurnShare { tenant: b, turns: 1, cpu_ns: 9, requests: 4 }]);
        look(&log, &before, 1);
        look(&log, &before, 2);
        assert_eq!(kill_times(&log, &before, "a"), [0; 0], "the tenant's own list has what is of this run");
        let text = fs::read_to_string(state.path().join(FOLDER).join("slow.jsonl")).expect("a file");
        assert!(!text.contains("secret"), "{text}");
        // One with another number was slow, too, and is not kept.
        let numbers = SlowThreshold::default();
        numbers.continue_after(8);
        assert_eq!(numbers.next_id(), 9);
        log.look_last(&before, &numbers);

        let after = directory(&["a", "b"]);
        let log = open(state.path(), &after);
        let a = view_of(&after, "a");
        let kills = log.kills_of(&a);
        let shown: Vec<(u64, &str)> = kills.iter().map(|kill| (kill.at_ms, &*kill.cause)).collect();
        assert_eq!(shown, [(1_000, "panic"), (2_000, "slowed")], "each once");
        assert_eq!((kills[0].places.len(), kills[0].arguments.as_str()), (INCIDENT_PLACES, "kept\\x00"));
        assert!(kills[0].text.len() <= INCIDENT_TEXT_BYTES + 3 && kills[0].text.ends_with("é…"));
        let requests = log.slow_of(&a);
        let shown = &requests[0].shown;
        assert_eq!((requests.len(), shown.id, &*shown.operation), (1, 7, "get"));
        assert_eq!((shown.turns[0].tenant.as_deref(), shown.turns[0].requests), (Some("b"), 4));
        assert_eq!((&shown.key, &shown.key_digest, shown.key_bytes), (&None, &None, 6));
        assert!(requests[0].key_prefix.is_empty(), "no table is known to have it on the disk");
        assert_eq!((log.last_slow_id(), log.slow_of(&view_of(&after, "b"))), (9, Vec::new()));
        look(&log, &after, 1);
        assert_eq!(kill_times(&open(state.path(), &after), &after, "a"), [1_000, 2_000], "nothing is written twice");
    }

    #[test]
    fn keys_are_there_after_a_restart_if_the_records_of_their_table_are() {
        let state = tempfile::tempdir().expect("a folder");
        let options = DirectoryOptions { can_keep_records: true, ..DirectoryOptions::default() };
        let tenants = Directory::with_options(Epochs::new(), options);
        tenants.create_tenant(NewTenant::named("a")).expect("a tenant");
        let kinds = [TableDurability::Interval, TableDurability::None];
        for (number, durability) in (1..).zip(kinds) {
            let name = format!("t{number}");
            let new = NewTable { id: Some(number), durability: Some(durability), ..NewTable::named(&name) };
            tenants.create_table("a", new).expect("a table");
        }
        let long: &[u8] = b"a key of more bytes than are kept \xff";
        let log = open(state.path(), &tenants);
        for (id, (table, key)) in (1..).zip([(1, &b"on the disk\xff"[..]), (2, b"in memory"), (1, long)]) {
            slow_in(&tenants, "a", (table, key), id, Vec::new());
        }
        look(&log, &tenants, 1);
        let found = open(state.path(), &tenants).slow_of(&view_of(&tenants, "a"));
        let keys: Vec<(&[u8], u64)> = found.iter().map(|one| (&*one.key_prefix, one.shown.key_bytes)).collect();
        assert_eq!(keys, [(&b"on the disk\xff"[..], 12), (b"", 9), (&long[..24], long.len() as u64)]);
        assert!(found.iter().all(|one| one.shown.key.is_none() && one.shown.key_digest.is_none()));
        // What the line had before there were keys.
        let before = serde_json::to_string(&found[1].shown).expect("JSON");
        assert_eq!(serde_json::from_str::<KeptSlowRequest>(&before).expect("a line of an earlier version"), found[1]);
    }

    #[test]
    fn a_tenant_that_was_made_anew_sees_nothing_of_the_one_before() {
        let state = tempfile::tempdir().expect("a folder");
        let tenants = directory(&["a", "b"]);
        let log = open(state.path(), &tenants);
        kill(&tenants, "a", 1_000);
        kill(&tenants, "b", 1_000);
        look(&log, &tenants, 1);
        drop(log);
        // It is deleted while this run has not looked yet.
        let tenants = directory(&["a", "b"]);
        let log = open(state.path(), &tenants);
        assert_eq!(kill_times(&log, &tenants, "a"), [1_000]);
        let id = view_of(&tenants, "a").tenant.id;
        tenants.delete_tenant("a").expect("it was there");
        tenants.create_tenant(NewTenant { id: Some(id), ..NewTenant::named("a") }).expect("a tenant");
        look(&log, &tenants, 1);
        assert_eq!(kill_times(&log, &tenants, "a"), [0; 0]);
        kill(&tenants, "a", 5_000);
        look(&log, &tenants, 2);
        let again = open(state.path(), &tenants);
        assert_eq!(kill_times(&again, &tenants, "a"), [5_000], "what is of the new one alone");
        assert_eq!(kill_times(&again, &tenants, "b"), [1_000]);
        // A crash in the moment after the deletion: the events alone know of it.
        let events = EventLog::in_memory();
        events.record(NewEvent::of_server(EventCode::TenantDeleted).about("a", id));
        for times in 0..2 {
            let log = IncidentLog::open(state.path(), &tenants, &events).expect("readable files");
            assert_eq!(kill_times(&log, &tenants, "a"), [0; 0], "start {times} after it");
        }
        assert_eq!(kill_times(&open(state.path(), &tenants), &tenants, "a"), [0; 0], "and it stays so");
    }

    #[test]
    fn a_tenant_that_is_killed_all_the_time_leaves_the_kills_of_others_and_files_are_bounded() {
        let state = tempfile::tempdir().expect("a folder");
        let tenants = directory(&["loud", "quiet"]);
        let log = open(state.path(), &tenants);
        kill(&tenants, "quiet", 7);
        for second in 0..3 * 3_600 {
            (0..5).for_each(|_| kill(&tenants, "loud", second));
            slow(&tenants, "loud", 1 + second, Vec::new());
            look(&log, &tenants, second * 1_000_000);
        }
        let after = open(state.path(), &tenants);
        let (kills, requests) = (kill_times(&after, &tenants, "loud"), after.slow_of(&view_of(&tenants, "loud")));
        assert!((16 + 5..=16 + 6).contains(&kills.len()), "16 at once and two an hour: {kills:?}");
        assert!((16 + 5..=16 + 6).contains(&requests.len()));
        assert!(kills.last().is_some_and(|last| *last >= 2 * 3_600), "the last hour has some: {kills:?}");
        assert_eq!(kill_times(&after, &tenants, "quiet"), [7]);
        for hour in 3..2_000 {
            kill(&tenants, "loud", hour);
            look(&after, &tenants, hour * HOUR_US);
        }
        let lines = |name: &str| {
            let text = fs::read_to_string(state.path().join(FOLDER).join(name)).expect("a file");
            text.lines().count()
        };
        assert_eq!(lines("kills.1.jsonl"), 1 + INCIDENTS_PER_FILE, "with the line that says the format");
        assert!(lines("kills.jsonl") <= 1 + INCIDENTS_PER_FILE);
    }
}
