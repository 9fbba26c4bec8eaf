//! The thread that all triggers share.

mod agreed_triggers;
mod move_waits;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use super::active::{ActiveTrigger, TriggerStatus};
use super::begun_calls::{BegunCalls, CallSinks, EndedCalls, EndedTriggerCall, begin_calls};
use super::call_routes::{CallHome, CallRoutes};
use super::definition::{TriggerDefinition, TriggerSource};
use super::definition_change::TriggerChange;
use super::expiry_requests::{self, ExpiryRequests};
use super::state_file::{DeadLetter, StoredTrigger};
use super::trigger_outcome::{DeclaredTrigger, TriggerError};
use super::trigger_store::{KeptTrigger, TriggerStore};
use super::typed_calls;
use crate::config::ConfigError;
use crate::events::{EventCode, NewEvent};
use crate::limits::{TRIGGER_LOOK, TRIGGER_LOOK_MAX, TRIGGER_WRITE_LOOK};
use sandstorm_catalog::{Directory, TenantView};
use sandstorm_cluster::change_calls::ChangeCaller;
use sandstorm_log::{ChangeLog, LogTail};
use sandstorm_schema::ExtensionSchema;

/// Takes the event that a trigger has paused itself.
pub(crate) type EventSink = Box<dyn Fn(NewEvent) + Send + Sync>;

/// Why a paused trigger makes no calls.
const PAUSED: &str = "its tenant or the operator paused it";

/// What wakes the thread.
enum RunnerMessage {
    /// Something was changed, or calls have ended.
    Changed,
    /// The server stops.
    Stop,
}

struct SharedRunner {
    directory: Arc<Directory>,
    events: EventSink,
    store: TriggerStore,
    expiry_requests: ExpiryRequests,
    /// Taken while what servers of a cluster have agreed on is taken over.
    taking_over: Mutex<()>,
    /// Whether a trigger waits for changes of a table.
    follows: AtomicBool,
    /// Whether the thread has been told that the log has got on, and has not looked yet.
    is_told: AtomicBool,
    /// [`sandstorm_store::slots::SlotOwnership::lost_places`], as it was seen last.
    lost_places: AtomicU64,
    messages: Mutex<Sender<RunnerMessage>>,
}

/// See the head of this file; the threads stop when this is dropped.
pub struct TriggerRunner {
    shared: Arc<SharedRunner>,
    /// The one that makes calls, the one that asks for expiries, and the one that writes how far triggers have come.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for TriggerRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TriggerRunner").field("triggers", &self.shared.store.len()).finish()
    }
}

impl TriggerRunner {
    /// Starts the triggers that a state directory has; without one they end with the server.
    ///
    /// # Errors
    /// A file cannot be used, or the system gives no thread.
    pub(crate) fn start(
        directory: Arc<Directory>,
        events: EventSink,
        folder: Option<&Path>,
        calls: CallSinks,
    ) -> Result<TriggerRunner, ConfigError> {
        let store = TriggerStore::open(Arc::clone(&directory), folder)?;
        let (sender, receiver) = channel();
        let messages = Mutex::new(sender.clone());
        let (expiry_requests, follows, is_told) =
            (ExpiryRequests::default(), AtomicBool::new(false), AtomicBool::new(false));
        let (taking_over, lost_places) = (Mutex::default(), AtomicU64::new(0));
        let shared = SharedRunner {
            directory,
            events,
            store,
            expiry_requests,
            taking_over,
            follows,
            is_told,
            lost_places,
            messages,
        };
        let shared = Arc::new(shared);
        let told = Arc::downgrade(&shared);
        shared.directory.on_log_progress(Arc::new(move || {
            if let Some(shared) = told.upgrade() {
                shared.note_log();
            }
        }));
        // Before a checkpoint may remove what they need.
        shared.store.retain_log();
        if shared.is_in_cluster()
            && let Err(error) = shared.take_over(None, &mut BTreeSet::new())
        {
            tracing::warn!(%error, "not all triggers of the cluster are taken over yet");
        }
        // A server of a cluster tells of all tables until here.
        expiry_requests::ask_at_start(&shared.directory, &shared.store);
        let (ask, asked) = channel();
        let (end, ends) = channel();
        let (end_too, ends_too) = channel();
        let (running, asking, writing) = (Arc::clone(&shared), Arc::clone(&shared), Arc::clone(&shared));
        let no_thread = |error: std::io::Error| ConfigError::new(format!("no thread for triggers: {error}"));
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(run).map_err(no_thread)
        };
        // They end when the one that makes calls has dropped its senders.
        let asker = spawn("trigger-expiry", Box::new(move || asking.ask_again(&asked)))?;
        let writer = spawn("trigger-files", Box::new(move || writing.write_until(&ends)))?;
        let sender = Mutex::new(sender);
        let ended = EndedCalls::new(Box::new(move || {
            // The thread has stopped: the call is made again after the start.
            let _stopped = sender.lock().send(RunnerMessage::Changed);
        }));
        let run = move || {
            running.run(&receiver, &ended, &calls, &ask);
            drop((end, end_too));
        };
        let caller = spawn("triggers", Box::new(run))?;
        let mut threads = vec![caller, asker, writer];
        if shared.is_in_cluster() {
            let taking = Arc::clone(&shared);
            threads.push(spawn("trigger-agreed", Box::new(move || taking.take_over_until(&ends_too)))?);
        }
        Ok(TriggerRunner { shared, threads: Mutex::new(threads) })
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
        self.check_call(view.tenant.id, &spec)?;
        if self.shared.is_in_cluster() {
            return self.create_agreed(view.tenant.id, &spec);
        }
        let (tenant, name) = (view.tenant.id, spec.name.clone());
        let created = self.change(tenant, &name, |trigger| {
            if trigger.is_some() {
                return Err(TriggerError::Exists(name.clone()));
            }
            let log_id = self.shared.directory.change_log().map_or(0, |log| log.id());
            let stored = StoredTrigger::begins(&view.tenant, spec, (position, log_id), now_ms);
            let made = ActiveTrigger::of(stored).map_err(TriggerError::Invalid)?;
            let status = made.status(position);
            *trigger = Some(made);
            Ok(status)
        })?;
        self.shared.ask_for_expiry(tenant)?;
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

    /// Checks that what it calls takes what it gives, if that is loaded by now.
    fn check_call(&self, tenant: u32, spec: &TriggerDefinition) -> Result<(), TriggerError> {
        let source = spec.source().map_err(TriggerError::Invalid)?;
        let snapshot = self.shared.directory.snapshot();
        let checked = snapshot.tenant(tenant).map_or(Ok(()), |view| typed_calls::check(view, spec, &source));
        checked.map_err(TriggerError::Invalid)
    }

    /// Checks that a version which is built, but not loaded yet, takes what a trigger gives.
    ///
    /// # Errors
    /// `Invalid`.
    pub(crate) fn check_built(schema: Option<&ExtensionSchema>, spec: &TriggerDefinition) -> Result<(), TriggerError> {
        let checked = spec.source().and_then(|source| typed_calls::check_built(schema, spec, &source));
        checked.map_err(TriggerError::Invalid)
    }

    /// Makes a trigger, or changes the one of its name that calls the same extension, as [`TriggerRunner::set`] does.
    /// A trigger of the same table keeps its position, an unchanged schedule its next time.
    ///
    /// # Errors
    /// [`TriggerError`]; `Exists` if the one of its name calls another extension.
    pub(crate) fn declare(
        &self,
        view: &TenantView,
        spec: TriggerDefinition,
        now_ms: u64,
    ) -> Result<DeclaredTrigger, TriggerError> {
        let (tenant, name) = (view.tenant.id, spec.name.clone());
        if self.is_agreed(tenant, &name) {
            return self.declare_agreed(view, &spec);
        }
        let known = self.shared.store.find(tenant).and_then(|own| own.read(&name, |known| known.spec.clone()));
        match known {
            None => self.create(view, spec, now_ms).map(|_| DeclaredTrigger::Created),
            Some(known) if known == spec => Ok(DeclaredTrigger::Unchanged),
            Some(known) if known.called().0 != spec.called().0 => Err(TriggerError::Exists(name)),
            Some(_) => {
                let position = self.start_position(view, &spec)?;
                self.check_call(tenant, &spec)?;
                self.change(tenant, &name, |trigger| {
                    let known = trigger.as_mut().ok_or_else(|| TriggerError::Unknown(name.clone()))?;
                    *known = known.redefined(spec, position, now_ms).map_err(TriggerError::Invalid)?;
                    Ok(())
                })?;
                self.shared.ask_for_expiry(tenant).map(|()| DeclaredTrigger::Changed)
            }
        }
    }

    /// Changes a trigger in its place. A call that runs goes on, and may be made again by the new definition.
    ///
    /// # Errors
    /// [`TriggerError`].
    pub(crate) fn set(
        &self,
        view: &TenantView,
        name: &str,
        change: TriggerChange,
        now_ms: u64,
    ) -> Result<TriggerStatus, TriggerError> {
        let tenant = view.tenant.id;
        if self.is_agreed(tenant, name) {
            return self.set_agreed(view, name, &change);
        }
        let log_end = self.shared.directory.change_log().map_or(0, |log| log.durable());
        let status = self.with(tenant, name, |trigger| {
            let spec = change.of(&trigger.spec).map_err(TriggerError::Invalid)?;
            if spec != trigger.spec {
                let start = self.start_position(view, &spec)?;
                self.check_call(tenant, &spec)?;
                *trigger = trigger.redefined(spec, start, now_ms).map_err(TriggerError::Invalid)?;
            }
            Ok(trigger.status(log_end))
        })?;
        self.shared.ask_for_expiry(tenant)?;
        Ok(status)
    }

    /// One of a tenant's triggers.
    ///
    /// # Errors
    /// There is none of that name.
    pub(crate) fn show(&self, tenant: u32, name: &str) -> Result<TriggerStatus, TriggerError> {
        let log_end = self.shared.directory.change_log().map_or(0, |log| log.durable());
        let own = self.shared.store.find(tenant);
        let found = own.and_then(|own| own.read(name, |trigger| trigger.status(log_end)));
        found.ok_or_else(|| TriggerError::Unknown(name.to_owned()))
    }

    /// Removes a trigger with its dead letters. A call that runs goes on.
    ///
    /// # Errors
    /// [`TriggerError`].
    pub(crate) fn remove(&self, tenant: u32, name: &str) -> Result<(), TriggerError> {
        if self.is_agreed(tenant, name) {
            return self.remove_agreed(tenant, name);
        }
        self.change(tenant, name, |trigger| {
            trigger.take().map(drop).ok_or_else(|| TriggerError::Unknown(name.to_owned()))
        })?;
        self.shared.ask_for_expiry(tenant)
    }

    /// Removes the triggers of a tenant that is gone.
    pub(crate) fn remove_tenant(&self, tenant: u32) {
        let removed = self.shared.store.remove_tenant(tenant);
        self.shared.send(RunnerMessage::Changed);
        if let Err(error) = removed {
            tracing::warn!(%error, "triggers of a tenant that was deleted stay in their files until they can be removed");
        }
    }

    /// Pauses a trigger, or resumes it.
    ///
    /// # Errors
    /// [`TriggerError`].
    pub(crate) fn set_paused(&self, tenant: u32, name: &str, paused: bool, now_ms: u64) -> Result<(), TriggerError> {
        if self.is_agreed(tenant, name) {
            return self.pause_agreed(tenant, name, paused);
        }
        self.with(tenant, name, |trigger| {
            if paused {
                trigger.pause(PAUSED.to_owned())
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
            LogTail::at(&log, from)
                .map_err(|error| TriggerError::Invalid(format!("trigger {name:?} cannot go on from there: {error}")))?;
            trigger.replay_from(from, &log);
            Ok(0)
        })
    }

    /// The dead letters of a trigger, the oldest first.
    ///
    /// # Errors
    /// [`TriggerError`].
    pub(crate) fn dead_letters(&self, tenant: u32, name: &str) -> Result<Vec<DeadLetter>, TriggerError> {
        let own = self.shared.store.find(tenant);
        let letters = own.and_then(|own| own.read(name, ActiveTrigger::dead_letters));
        letters.ok_or_else(|| TriggerError::Unknown(name.to_owned()))
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
        let mut own = Vec::new();
        if let Some(of_tenant) = self.shared.store.find(tenant) {
            of_tenant.each(|kept| own.push(kept.trigger.status(log_end)));
        }
        own
    }

    /// What makes calls for changes of the log, for moves of slots.
    pub(crate) fn change_caller(&self) -> Arc<dyn ChangeCaller> {
        Arc::clone(&self.shared) as Arc<dyn ChangeCaller>
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
        self.change(tenant, name, |trigger| {
            change(trigger.as_mut().ok_or_else(|| TriggerError::Unknown(name.to_owned()))?)
        })
    }

    /// Makes a change, which is on the disk when this returns.
    fn change<T>(
        &self,
        tenant: u32,
        name: &str,
        change: impl FnOnce(&mut Option<ActiveTrigger>) -> Result<T, TriggerError>,
    ) -> Result<T, TriggerError> {
        let done = self.shared.store.change(tenant, name, change);
        self.shared.send(RunnerMessage::Changed);
        done
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
    fn run(&self, messages: &Receiver<RunnerMessage>, ended: &Arc<EndedCalls>, calls: &CallSinks, ask: &Sender<u32>) {
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
                return;
            }
            is_behind = self.turn(ended, calls, ask);
        }
    }

    /// How long there is nothing to do unless a message comes.
    fn pause(&self) -> Duration {
        let (mut due, now_ms): (Option<u64>, u64) = (None, clock_ms());
        for of_tenant in self.store.tenants() {
            of_tenant.each(|kept| due = [due, kept.trigger.next_look_ms()].into_iter().flatten().min());
        }
        let due = due.map_or(TRIGGER_LOOK_MAX, |due_ms| Duration::from_millis(due_ms.saturating_sub(now_ms)));
        // Never at once: a call that is due may still wait for its table, or for the call before it, and an answer
        // wakes this thread anyway.
        due.clamp(TRIGGER_LOOK, TRIGGER_LOOK_MAX)
    }

    fn note_ended(&self, ended: Vec<EndedTriggerCall>) {
        let now_ms = clock_ms();
        for calls in ended.chunk_by(|one, next| one.key.0 == next.key.0) {
            let Some(of_tenant) = self.store.find(calls[0].key.0) else { continue };
            let mut pauses = Vec::new();
            of_tenant.each_named(calls.iter().map(|call| call.key.1.as_str()), |at, kept| {
                let EndedTriggerCall { place, status, text, .. } = &calls[at];
                kept.is_changed = true;
                if kept.trigger.end_call(*place, (*status, text), now_ms) {
                    pauses.push(pause_event(&kept.trigger));
                }
            });
            pauses.into_iter().for_each(&self.events);
        }
    }

    /// Finds calls and begins them, some of each trigger. Returns whether there is more to do at once.
    fn turn(&self, ended: &Arc<EndedCalls>, calls: &CallSinks, ask: &Sender<u32>) -> bool {
        // Those with triggers first: what is made since has a later turn, with the tenants that there are then.
        let tenants = self.store.tenants();
        let snapshot = self.directory.snapshot();
        // Before the log is read: what comes behind that is told.
        let (mut follows, mut followed) = (false, Vec::new());
        for of_tenant in &tenants {
            let name_of = || self.directory.snapshot().tenant(of_tenant.tenant).map(|view| view.tenant.name.clone());
            self.store.drop_of_others(of_tenant, name_of);
            let number_of = |table: &str| snapshot.tenant(of_tenant.tenant)?.table_by_name(table)?.table.log_number();
            of_tenant.each(|KeptTrigger { trigger, .. }| {
                if let Some(table) = trigger.table().filter(|_| trigger.paused.is_empty()) {
                    follows = true;
                    followed.extend(number_of(table));
                }
            });
        }
        self.follows.store(follows, Ordering::SeqCst);
        self.is_told.store(false, Ordering::SeqCst);
        let (log, now_ms) = (self.directory.change_log(), clock_ms());
        if let Some(log) = &log {
            log.follow_tables(followed);
        }
        let (mut is_behind, routes) = (false, CallRoutes::now(self.directory.slots()));
        self.leave_lost_calls();
        for of_tenant in &tenants {
            let Some(view) = snapshot.tenant(of_tenant.tenant) else { continue };
            let (mut is_missing, mut begun, mut pauses) = (false, BegunCalls::default(), Vec::new());
            of_tenant.each(|kept| {
                is_missing |= expiry_requests::is_missing(&kept.trigger, view);
                if kept.trigger.paused.is_empty() {
                    is_behind |= !find_calls(kept, (view, log.as_ref(), &routes), now_ms);
                    begin_calls(kept, (view, &routes), now_ms, (ended, &mut begun));
                    pauses.extend((!kept.trigger.paused.is_empty()).then(|| pause_event(&kept.trigger)));
                }
            });
            if !begun.here.is_empty() {
                (calls.here)(view.tenant.home_worker, begun.here);
            }
            begun.elsewhere.into_iter().for_each(&calls.elsewhere);
            pauses.into_iter().for_each(&self.events);
            if is_missing && self.expiry_requests.queue(of_tenant.tenant) {
                // Its thread ends after this one, unless it has panicked, which is told at the end.
                let _ended = ask.send(of_tenant.tenant);
            }
        }
        is_behind
    }

    /// Has the tables of a tenant log what expires, as its triggers want it.
    fn ask_for_expiry(&self, tenant: u32) -> Result<(), TriggerError> {
        self.expiry_requests.make(tenant, || {
            let asked = expiry_requests::ask(&self.directory, &self.store, tenant);
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

    /// The thread that writes how far triggers have come: a slow disk holds up no calls.
    fn write_until(&self, end: &Receiver<()>) {
        while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(TRIGGER_WRITE_LOOK) {
            self.store.write_handled(false);
        }
        self.store.write_handled(true);
    }
}

/// The event that a trigger has paused itself.
fn pause_event(trigger: &ActiveTrigger) -> NewEvent {
    let tenant = Some((trigger.tenant_name.clone(), trigger.tenant));
    let (subject, text) = (Some(trigger.spec.name.clone()), trigger.paused.clone());
    NewEvent { tenant, subject, text, ..NewEvent::of_server(EventCode::TriggerPaused) }
}

/// Finds calls of a trigger. Returns whether it has read all that it can take.
fn find_calls(
    kept: &mut KeptTrigger,
    (view, log, routes): (&TenantView, Option<&Arc<ChangeLog>>, &CallRoutes),
    now_ms: u64,
) -> bool {
    let KeptTrigger { trigger, is_changed, .. } = kept;
    let before = (trigger.position(), trigger.next_due_ms());
    let home = if trigger.agreed.is_some() { routes.home(trigger.tenant, &trigger.spec.name) } else { CallHome::Here };
    let has_read_all = trigger.find_calls((view, log), &home, now_ms);
    *is_changed |= before != (trigger.position(), trigger.next_due_ms()) || !trigger.paused.is_empty();
    has_read_all
}

fn clock_ms() -> u64 {
    sandstorm_store::clock_ms(0)
}

#[cfg(test)]
mod tests;
