//! The janitor: a thread that sweeps expired records out of the tables, a few slots at a time, and gives free memory
//! back to the kernel. It also ends the grace periods of old tokens, which the control port does sooner if there is
//! one. It checks extensions whose calls keep being killed, and the state of a device.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::limits::{FREEING_ROUNDS_PER_SWEEP, SWEEP_INTERVAL_MS, SWEEP_SLOTS, WATCHED_SWEEP_SLOTS};
use sandstorm_catalog::limits::KILL_POLICY_INTERVAL_MS;
use sandstorm_catalog::{Directory, KillPolicy};
use sandstorm_metrics::ServerMetrics;
use sandstorm_store::{Epochs, Participant, RecordTable};

/// The running thread; stops when dropped.
pub struct Janitor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Janitor {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(directory: Arc<Directory>, epochs: Arc<Epochs>, metrics: Arc<ServerMetrics>) -> io::Result<Janitor> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("janitor".into()).spawn(move || {
            let mut participant = epochs.register();
            participant.offline();
            let (mut kill_policy, mut swept_ms, mut logged) = (KillPolicy::default(), 0, None);
            while !stopped.load(Relaxed) {
                let now_ms = unix_ms();
                if now_ms.abs_diff(swept_ms) >= SWEEP_INTERVAL_MS {
                    swept_ms = now_ms;
                    directory.expire_graces();
                    participant.online();
                    sweep(&directory, &mut participant);
                    participant.offline();
                    sandstorm_store::release_free_memory();
                    log_device_changes(&metrics, &mut logged);
                }
                if let Some(log) = directory.change_log() {
                    log.look_for_stall();
                }
                kill_policy.look(&directory, metrics.kills(), now_ms);
                std::thread::park_timeout(Duration::from_millis(KILL_POLICY_INTERVAL_MS));
            }
        })?;
        Ok(Janitor { stop, thread: Some(thread) })
    }
}

/// Sweeps a part of every table.
fn sweep(directory: &Directory, participant: &mut Participant) {
    let snapshot = directory.snapshot();
    let is_watched = |table: &RecordTable| table.logs_expiry() && table.is_logged();
    let watched =
        snapshot.iter().flat_map(|view| view.tables.values()).filter(|entry| is_watched(&entry.table)).count();
    for view in snapshot.iter() {
        for entry in view.tables.values() {
            // This thread has no tenant, so no tenant is charged for the flush.
            entry.flush_if_due(participant, unix_ms(), |_| ());
            if is_watched(&entry.table) {
                sweep_watched(
                    (&view.tenant.name, &entry.name()),
                    &entry.table,
                    participant,
                    WATCHED_SWEEP_SLOTS / watched.max(1),
                );
            } else {
                entry.table.sweep(participant, unix_ms(), SWEEP_SLOTS);
            }
            participant.quiescent();
        }
    }
    // Frees the records that sleeping or ended threads have left: sleeping workers do not come to them.
    for _ in 0..FREEING_ROUNDS_PER_SWEEP {
        participant.quiescent();
        if !participant.is_freeing() {
            break;
        }
    }
}

/// Sweeps up to all of a table whose log is told of what expires: somebody waits for it.
fn sweep_watched((tenant, name): (&str, &str), table: &RecordTable, participant: &mut Participant, slots: usize) {
    let mut cold = Vec::new();
    for _ in 0..slots.div_ceil(SWEEP_SLOTS).max(1) {
        table.sweep_with(participant, unix_ms(), SWEEP_SLOTS, &mut cold);
        participant.quiescent();
        if table.is_swept() {
            break;
        }
    }
    let unreadable = table.expire_cold(participant, &cold, unix_ms());
    participant.online();
    if unreadable > 0 {
        tracing::warn!(tenant, table = name, unreadable, "expired records cannot be read from the disk: they stay");
    }
}

/// The state of a device that was logged last: whether its link is up, what wakes the workers, and why it reads no more
/// of the tables.
type LoggedDeviceState = Option<(bool, String, Option<String>)>;

/// Logs a change of the workers' device, if they have one: its link goes up or down, something else wakes the workers,
/// or it can no longer be told of more memory, or can again.
fn log_device_changes(metrics: &ServerMetrics, logged: &mut LoggedDeviceState) {
    let Some(state) = metrics.device() else { return };
    let now = (state.up, state.wakes.clone(), state.refused.clone());
    if logged.as_ref() == Some(&now) {
        return;
    }
    let before = logged.replace(now);
    let other_wakes = before.as_ref().is_some_and(|(_, wakes, _)| *wakes != state.wakes);
    let refuses = state.refused.is_some() && before.is_none_or(|(.., refused)| refused != state.refused);
    // With a peer process at the other end, a link that is down needs no warning: that process has not started or has
    // ended.
    if (state.up || state.is_peer_process) && !other_wakes && !refuses {
        tracing::info!("network: {state}");
    } else {
        tracing::warn!("network: {state}");
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Drop for Janitor {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the janitor had panicked");
            }
        }
    }
}
