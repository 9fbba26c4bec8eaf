//! The thread that all triggers share.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::active::{ActiveTrigger, InvocationPlace, TriggerKey, TriggerStatus};
use super::definition::{TriggerDefinition, TriggerSource};
use super::expiry_requests::{self, ExpiryRequests};
use super::state_file::{self, DeadLetter, StoredTrigger};
use super::trigger_outcome::{DeclaredTrigger, TriggerError};
use crate::config::ConfigError;
use crate::events::{EventCode, NewEvent};
use crate::limits::{
    TRIGGER_CALLS_PER_TURN, TRIGGER_LOOK, TRIGGER_LOOK_MAX, TRIGGER_WRITE_EVERY, TRIGGER_WRITE_PER_MIB, TRIGGERS,
    TRIGGERS_PER_TENANT,
};
use sandstorm_catalog::{Directory, TenantView};
use sandstorm_log::LogTail;
use sandstorm_server::workers::{LocalCall, LocalCallResult};

/// Longest wait for the log before the triggers are written.
const LOG_WAIT: Duration = Duration::from_secs(5);

/// Takes the event that a trigger has paused itself.
pub(crate) type EventSink = Box<dyn Fn(NewEvent) + Send + Sync>;

/// Makes calls of a tenant on its home worker.
pub(crate) type CallSink = Box<dyn Fn(u32, Vec<LocalCall>) + Send + Sync>;

/// What wakes the thread.
enum RunnerMessage {
    /// Something was changed, or calls have ended.
    Changed,
    /// The server stops.
    Stop,
}

/// A call that has ended.
struct EndedTriggerCall {
    key: Arc<TriggerKey>,
    place: InvocationPlace,
    result: LocalCallResult,
}

/// The calls that have ended and that the thread has not taken yet. It is woken for the first of them alone.
struct EndedCalls {
    calls: Mutex<Vec<EndedTriggerCall>>,
    wake: Sender<RunnerMessage>,
}

impl EndedCalls {
    fn push(&self, call: EndedTriggerCall) {
        let mut calls = self.calls.lock();
        calls.push(call);
        let is_first = calls.len() == 1;
        drop(calls);
        if is_first {
            // The thread has stopped: the call is made again after the start.
            let _stopped = self.wake.send(RunnerMessage::Changed);
        }
    }

    fn take(&self) -> Vec<EndedTriggerCall> {
        std::mem::take(&mut *self.calls.lock())
    }
}

struct RunnerState {
    triggers: BTreeMap<TriggerKey, ActiveTrigger>,
    /// Whether the file is to be written.
    is_changed: bool,
    written_at: Instant,
    written_bytes: usize,
}

struct SharedRunner {
    directory: Arc<Directory>,
    events: EventSink,
    folder: Option<PathBuf>,
    state: Mutex<RunnerState>,
    expiry_requests: ExpiryRequests,
    /// Whether a trigger waits for changes of a table.
    follows: AtomicBool,
    /// Whether the thread has been told that the log has got on, and has not looked yet.
    is_told: AtomicBool,
    messages: Mutex<Sender<RunnerMessage>>,
}

/// See the head of this file; the threads stop when this is dropped.
pub struct TriggerRunner {
    shared: Arc<SharedRunner>,
    /// The one that makes calls, and the one that asks for expiries.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for TriggerRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TriggerRunner").field("triggers", &self.shared.state.lock().triggers.len()).finish()
    }
}

impl TriggerRunner {
    /// Starts the triggers that a state directory has; without one they end with the server.
    ///
    /// # Errors
    /// The file cannot be used, or the system gives no thread.
    pub(crate) fn start(
        directory: Arc<Directory>,
        events: EventSink,
        folder: Option<&Path>,
        calls: CallSink,
    ) -> Result<TriggerRunner, ConfigError> {
        let stored = folder.map(state_file::read).transpose()?.unwrap_or_default();
        let mut triggers = BTreeMap::new();
        for one in stored {
            let key = (one.tenant, one.spec.name.clone());
            triggers.insert(key, ActiveTrigger::of(one).map_err(ConfigError::new)?);
        }
        let (sender, receiver) = channel();
        let written_at = Instant::now();
        let state = RunnerState { triggers, is_changed: false, written_at, written_bytes: 0 };
        let folder = folder.map(Path::to_owned);
        let (state, messages) = (Mutex::new(state), Mutex::new(sender.clone()));
        let (expiry_requests, follows, is_told) =
            (ExpiryRequests::default(), AtomicBool::new(false), AtomicBool::new(false));
        let shared =
            Arc::new(SharedRunner { directory, events, folder, state, expiry_requests, follows, is_told, messages });
        let told = Arc::downgrade(&shared);
        shared.directory.on_log_progress(Arc::new(move || {
            if let Some(shared) = told.upgrade() {
                shared.note_log();
            }
        }));
        // Before a checkpoint may remove what they need.
        shared.retain_log();
        let (ask, asked) = channel();
        let (running, asking) = (Arc::clone(&shared), Arc::clone(&shared));
        let no_thread = |error: std::io::Error| ConfigError::new(format!("no thread for triggers: {error}"));
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(run).map_err(no_thread)
        };
        // It ends when the other one has dropped its sender.
        let asker = spawn("trigger-expiry", Box::new(move || asking.ask_again(&asked)))?;
        let ended = Arc::new(EndedCalls { calls: Mutex::default(), wake: sender });
        let caller = spawn("triggers", Box::new(move || running.run(&receiver, &ended, &calls, &ask)))?;
        Ok(TriggerRunner { shared, threads: Mutex::new(vec![caller, asker]) })
    }

    /// Makes a trigger. Of a table's trigger the first change is the next one.
    ///
    /// # Errors
    /// [`TriggerError`].
    pub(crate) fn create(
        &self,
        view: &TenantView,
        spec: TriggerDefinition,
        now_ms: u64,
    ) -> Result<TriggerStatus, TriggerError> {
        let position = self.start_position(view, &spec)?;
        let key = (view.tenant.id, spec.name.clone());
        let created = self.change(|state| {
            if state.triggers.contains_key(&key) {
                return Err(TriggerError::Exists(key.1.clone()));
            }
            let own = state.triggers.keys().filter(|(tenant, _)| *tenant == key.0).count();
            if own >= TRIGGERS_PER_TENANT {
                return Err(TriggerError::TooMany(format!("the tenant has {own} triggers, as many as it may have")));
            }
            if state.triggers.len() >= TRIGGERS {
                return Err(TriggerError::TooMany(format!("there are {TRIGGERS} triggers, as many as there may be")));
            }
            let (tenant, tenant_name) = (view.tenant.id, view.tenant.name.clone());
            let (last_due_ms, paused, dead_letters) = (now_ms, String::new(), Vec::new());
            let stored = StoredTrigger { tenant, tenant_name, spec, position, last_due_ms, paused, dead_letters };
            let trigger = ActiveTrigger::of(stored).map_err(TriggerError::Invalid)?;
            let status = trigger.status(position);
            state.triggers.insert(key.clone(), trigger);
            Ok(status)
        })?;
        self.shared.ask_for_expiry(key.0)?;
        Ok(created)
    }

    /// Checks a trigger; returns the position of its table's feed that it would begin with.
    ///
    /// # Errors
    /// [`TriggerError`].
    pub(crate) fn start_position(&self, view: &TenantView, spec: &TriggerDefinition) -> Result<u64, TriggerError> {
        match spec.source().map_err(TriggerError::Invalid)? {
            TriggerSource::Schedule(_) => Ok(0),
            TriggerSource::Table(table) => {
                let entry = view.table_by_name(&table).ok_or_else(|| TriggerError::UnknownTable(table.clone()))?;
                let log = self.shared.directory.change_log();
                let log = log.as_ref().filter(|_| entry.table.is_logged());
                Ok(log.ok_or_else(|| TriggerError::NotLogged(table.clone()))?.durable())
            }
        }
    }

    /// Makes a trigger, or changes the one of its name that calls the same extension. One that stays at its table keeps
    /// its position, and all keep their dead letters.
    ///
    /// # Errors
    /// [`TriggerError`]; `Exists` if the one of its name calls another extension.
    pub(crate) fn declare(
        &self,
        view: &TenantView,
        spec: TriggerDefinition,
        now_ms: u64,
    ) -> Result<DeclaredTrigger, TriggerError> {
        let key = (view.tenant.id, spec.name.clone());
        let known = self.shared.state.lock().triggers.get(&key).map(|known| known.spec.clone());
        match known {
            None => self.create(view, spec, now_ms).map(|_| DeclaredTrigger::Created),
            Some(known) if known == spec => Ok(DeclaredTrigger::Unchanged),
            Some(known) if known.extension != spec.extension => Err(TriggerError::Exists(key.1)),
            Some(_) => {
                let position = self.start_position(view, &spec)?;
                self.change(|state| {
                    let Some(known) = state.triggers.get(&key) else {
                        return Err(TriggerError::Unknown(key.1.clone()));
                    };
                    let (mut stored, epoch) = (known.stored(), known.epoch);
                    if stored.spec.table != spec.table {
                        stored.position = position;
                    }
                    (stored.spec, stored.last_due_ms) = (spec, now_ms);
                    let mut trigger = ActiveTrigger::of(stored).map_err(TriggerError::Invalid)?;
                    // Calls of the old one that still run are not this one's.
                    trigger.epoch = epoch + 1;
                    state.triggers.insert(key.clone(), trigger);
                    Ok(())
                })?;
                self.shared.ask_for_expiry(key.0).map(|()| DeclaredTrigger::Changed)
            }
        }
    }

    /// Removes a trigger with its dead letters. A call that runs goes on.
    ///
    /// # Errors
    /// [`TriggerError`].
    pub(crate) fn remove(&self, tenant: u32, name: &str) -> Result<(), TriggerError> {
        self.change(|state| {
            let removed = state.triggers.remove(&(tenant, name.to_owned()));
            removed.map(drop).ok_or_else(|| TriggerError::Unknown(name.to_owned()))
        })?;
        self.shared.ask_for_expiry(tenant)
    }

    /// Removes the triggers of a tenant that is gone.
    pub(crate) fn remove_tenant(&self, tenant: u32) {
        let removed = self.change(|state| {
            state.triggers.retain(|(of, _), _| *of != tenant);
            Ok(())
        });
        if let Err(error) = removed {
            // The next start removes them.
            tracing::warn!(%error, "the triggers of a tenant that was deleted stay in their file");
        }
    }

    /// Pauses a trigger, or resumes it.
    ///
    /// # Errors
    /// [`TriggerError`].
    pub(crate) fn set_paused(&self, tenant: u32, name: &str, paused: bool, now_ms: u64) -> Result<(), TriggerError> {
        self.with(tenant, name, |trigger| {
            if paused {
                trigger.pause("its tenant or the operator paused it".to_owned())
            } else {
                trigger.resume(now_ms)
            }
            Ok(())
        })
    }

    /// Makes the calls of dead letters again, or with a position those for all changes behind it; `u64::MAX`: for those
    /// from now on. Returns the number of letters.
    ///
    /// # Errors
    /// [`TriggerError`].
    pub(crate) fn replay(&self, tenant: u32, name: &str, from: Option<u64>) -> Result<usize, TriggerError> {
        let log = self.shared.directory.change_log();
        self.with(tenant, name, |trigger| {
            let Some(from) = from else { return Ok(trigger.replay_letters()) };
            let log = log.filter(|_| trigger.table().is_some());
            let log = log.ok_or_else(|| TriggerError::NoPositions(name.to_owned()))?;
            let from = if from == u64::MAX { log.durable() } else { from };
            LogTail::at(&log, from).map_err(|error| TriggerError::Invalid(error.to_string()))?;
            trigger.replay_from(from);
            Ok(0)
        })
    }

    /// The dead letters of a trigger, the oldest first.
    ///
    /// # Errors
    /// [`TriggerError`].
    pub(crate) fn dead_letters(&self, tenant: u32, name: &str) -> Result<Vec<DeadLetter>, TriggerError> {
        let state = self.shared.state.lock();
        let trigger = state.triggers.get(&(tenant, name.to_owned()));
        trigger.map(ActiveTrigger::dead_letters).ok_or_else(|| TriggerError::Unknown(name.to_owned()))
    }

    /// Removes the dead letters of a trigger; returns their number.
    ///
    /// # Errors
    /// [`TriggerError`].
    pub(crate) fn discard_letters(&self, tenant: u32, name: &str) -> Result<usize, TriggerError> {
        self.with(tenant, name, |trigger| Ok(trigger.discard_letters()))
    }

    /// The triggers of a tenant by name.
    pub(crate) fn list(&self, tenant: u32) -> Vec<TriggerStatus> {
        let log_end = self.shared.directory.change_log().map_or(0, |log| log.durable());
        let state = self.shared.state.lock();
        let own = state.triggers.iter().filter(|((of, _), _)| *of == tenant);
        own.map(|(_, trigger)| trigger.status(log_end)).collect()
    }

    /// Writes how far the triggers have come, and makes no more calls.
    pub(crate) fn stop(&self) {
        self.shared.send(RunnerMessage::Stop);
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of triggers had panicked");
            }
        }
    }

    fn with<T>(
        &self,
        tenant: u32,
        name: &str,
        change: impl FnOnce(&mut ActiveTrigger) -> Result<T, TriggerError>,
    ) -> Result<T, TriggerError> {
        self.change(|state| {
            let trigger = state.triggers.get_mut(&(tenant, name.to_owned()));
            change(trigger.ok_or_else(|| TriggerError::Unknown(name.to_owned()))?)
        })
    }

    /// Makes a change, which is on the disk when this returns.
    fn change<T>(&self, change: impl FnOnce(&mut RunnerState) -> Result<T, TriggerError>) -> Result<T, TriggerError> {
        let mut state = self.shared.state.lock();
        let done = change(&mut state)?;
        let written = self.shared.write(&mut state);
        drop(state);
        self.shared.retain_log();
        self.shared.send(RunnerMessage::Changed);
        written.map(|()| done).map_err(|error| TriggerError::Unwritable(error.to_string()))
    }
}

impl Drop for TriggerRunner {
    fn drop(&mut self) {
        self.stop();
    }
}

impl SharedRunner {
    fn send(&self, message: RunnerMessage) {
        // The thread has stopped: nothing is to be done.
        let _stopped = self.messages.lock().send(message);
    }

    /// Wakes the thread, since changes are on the disk that it may wait for. Called by the log's thread.
    fn note_log(&self) {
        if self.follows.load(Ordering::SeqCst) && !self.is_told.swap(true, Ordering::SeqCst) {
            self.send(RunnerMessage::Changed);
        }
    }

    /// The thread that makes calls; `ask` takes tenants whose tables are to be asked for expiries.
    fn run(&self, messages: &Receiver<RunnerMessage>, ended: &Arc<EndedCalls>, calls: &CallSink, ask: &Sender<u32>) {
        let mut is_behind = false;
        loop {
            let pause = if is_behind { Duration::ZERO } else { self.pause() };
            let mut next = match messages.recv_timeout(pause) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let mut stops = false;
            while let Some(message) = next {
                stops |= matches!(message, RunnerMessage::Stop);
                next = messages.try_recv().ok();
            }
            self.note_ended(ended.take());
            if stops {
                return self.write_handled(true);
            }
            is_behind = self.turn(ended, calls, ask);
            self.write_handled(false);
        }
    }

    /// How long there is nothing to do unless a message comes.
    fn pause(&self) -> Duration {
        let (state, now_ms) = (self.state.lock(), clock_ms());
        let due = state.triggers.values().filter_map(ActiveTrigger::next_look_ms).min();
        let due = due.map_or(TRIGGER_LOOK_MAX, |due_ms| Duration::from_millis(due_ms.saturating_sub(now_ms)));
        // Never at once: a call that is due may still wait for its table, or for the call before it, and an answer
        // wakes this thread anyway.
        due.clamp(TRIGGER_LOOK, TRIGGER_LOOK_MAX)
    }

    fn note_ended(&self, ended: Vec<EndedTriggerCall>) {
        if ended.is_empty() {
            return;
        }
        let (mut state, now_ms) = (self.state.lock(), clock_ms());
        state.is_changed = true;
        for EndedTriggerCall { key, place, result } in ended {
            let Some(trigger) = state.triggers.get_mut(&*key) else { continue };
            if trigger.end_call(place, (result.status, &result.value), now_ms) {
                self.note_pause(trigger);
            }
        }
    }

    /// Records that a trigger has paused itself.
    fn note_pause(&self, trigger: &ActiveTrigger) {
        let tenant = Some((trigger.tenant_name.clone(), trigger.tenant));
        let (subject, text) = (Some(trigger.spec.name.clone()), trigger.paused.clone());
        (self.events)(NewEvent { tenant, subject, text, ..NewEvent::of_server(EventCode::TriggerPaused) });
    }

    /// Finds calls and begins them, some of each trigger. Returns whether there is more to do at once.
    fn turn(&self, ended: &Arc<EndedCalls>, calls: &CallSink, ask: &Sender<u32>) -> bool {
        let (snapshot, log, now_ms) = (self.directory.snapshot(), self.directory.change_log(), clock_ms());
        let mut state = self.state.lock();
        // Before the log is read: what comes behind that is told.
        let follows = state.triggers.values().any(|trigger| trigger.table().is_some() && trigger.paused.is_empty());
        self.follows.store(follows, Ordering::SeqCst);
        self.is_told.store(false, Ordering::SeqCst);
        let RunnerState { triggers, is_changed, .. } = &mut *state;
        let before = triggers.len();
        triggers.retain(|(tenant, _), trigger| {
            snapshot.tenant(*tenant).is_some_and(|view| view.tenant.name == trigger.tenant_name)
        });
        *is_changed |= triggers.len() != before;
        let is_missing = |(tenant, _): &TriggerKey, trigger: &ActiveTrigger| {
            snapshot.tenant(*tenant).is_some_and(|view| expiry_requests::is_missing(trigger, view))
        };
        let missing: BTreeSet<u32> =
            triggers.iter().filter(|(key, trigger)| is_missing(key, trigger)).map(|(key, _)| key.0).collect();
        let mut is_behind = false;
        for (key, trigger) in triggers.iter_mut() {
            let Some(view) = snapshot.tenant(key.0).filter(|_| trigger.paused.is_empty()) else { continue };
            let (position, due_ms) = (trigger.position(), trigger.next_due_ms());
            is_behind |= !trigger.find_calls(view, log.as_ref(), now_ms);
            *is_changed |= (position, due_ms) != (trigger.position(), trigger.next_due_ms());
            if !trigger.paused.is_empty() {
                self.note_pause(trigger);
                *is_changed = true;
            }
            let begun = begin_calls(trigger, now_ms, ended);
            if !begun.is_empty() {
                calls(view.tenant.home_worker, begun);
            }
        }
        drop(state);
        for tenant in missing.into_iter().filter(|tenant| self.expiry_requests.queue(*tenant)) {
            // Its thread ends after this one, unless it has panicked, which is told at the end.
            let _ended = ask.send(tenant);
        }
        is_behind
    }

    /// Has the tables of a tenant log what expires, as its triggers want it.
    fn ask_for_expiry(&self, tenant: u32) -> Result<(), TriggerError> {
        self.expiry_requests.make(tenant, || {
            let wanted: BTreeSet<String> = {
                let state = self.state.lock();
                let own = state.triggers.iter().filter(|((of, _), _)| *of == tenant);
                own.filter_map(|(_, trigger)| expiry_requests::wanted_of(trigger)).map(str::to_owned).collect()
            };
            let asked = expiry_requests::ask(&self.directory, tenant, &wanted);
            asked.map_err(|error| TriggerError::Unwritable(format!("what expires is not logged yet: {error}")))
        })
    }

    /// The thread that asks again for tables that are new, or where it has failed.
    fn ask_again(&self, tenants: &Receiver<u32>) {
        for tenant in tenants {
            if let Err(error) = self.ask_for_expiry(tenant) {
                tracing::warn!(tenant, %error, "a trigger waits for what expires");
            }
        }
    }

    /// Writes how far the triggers have come, if it is time. What their calls did is on the disk before: else a crash
    /// could take it, and they would not be made again.
    fn write_handled(&self, is_last: bool) {
        let log = {
            let state = self.state.lock();
            let pause = TRIGGER_WRITE_EVERY + TRIGGER_WRITE_PER_MIB * (state.written_bytes >> 20) as u32;
            if !state.is_changed || !is_last && state.written_at.elapsed() < pause {
                return;
            }
            self.directory.change_log()
        };
        // Positions that are handled by now: later ones may have been by calls that the log has not yet.
        let mut state = self.state.lock();
        let stored: Vec<StoredTrigger> = state.triggers.values().map(ActiveTrigger::stored).collect();
        state.is_changed = false;
        state.written_at = Instant::now();
        drop(state);
        if let Some(log) = log.filter(|log| !log.wait(log.end(), LOG_WAIT)) {
            if log.failure().is_none() {
                self.state.lock().is_changed = true;
            }
            return;
        }
        match self.folder.as_deref().map(|folder| state_file::write(folder, stored)) {
            Some(Ok(bytes)) => self.state.lock().written_bytes = bytes,
            Some(Err(error)) => {
                tracing::error!(%error, "after a restart some calls of triggers are made again");
                self.state.lock().is_changed = true;
            }
            None => {}
        }
        self.retain_log();
    }

    /// Writes the file at once.
    fn write(&self, state: &mut RunnerState) -> Result<(), ConfigError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let stored = state.triggers.values().map(ActiveTrigger::stored).collect();
        if let Some(log) = self.directory.change_log()
            && !log.wait(log.end(), LOG_WAIT)
        {
            return Err(ConfigError::new(
                "the log of changes is not on the disk: its disk has failed or takes too long",
            ));
        }
        state.written_bytes = state_file::write(folder, stored)?;
        Ok(())
    }

    /// Has the log keep what triggers need.
    fn retain_log(&self) {
        let state = self.state.lock();
        let from = state.triggers.values().filter_map(ActiveTrigger::needs_log_from).min();
        if let Some(log) = self.directory.change_log() {
            log.retain_from(from);
        }
    }
}

/// The next calls of a trigger that may begin, as a worker takes them.
fn begin_calls(trigger: &mut ActiveTrigger, now_ms: u64, ended: &Arc<EndedCalls>) -> Vec<LocalCall> {
    let mut begun = Vec::new();
    while begun.len() < TRIGGER_CALLS_PER_TURN
        && let Some((place, args)) = trigger.begin_call(now_ms)
    {
        let (key, ended) = (Arc::clone(&trigger.key), Arc::clone(ended));
        let done = Box::new(move |result| ended.push(EndedTriggerCall { key, place, result }));
        let (tenant, extension) = (trigger.tenant, Arc::clone(&trigger.extension));
        begun.push(LocalCall { tenant, extension, version: 0, args, about: None, done });
    }
    begun
}

fn clock_ms() -> u64 {
    sandstorm_store::clock_ms(0)
}

#[cfg(test)]
mod tests;
