//! The janitor: a thread that ends the grace periods of old tokens (sooner done by the control port, if there is one).
//! It checks extensions whose calls keep being killed, the state of a device, and whether the log's disk stalls. It
//! never blocks. Beside it runs the sweeper, which may wait for the disk: it sweeps expired records out of the tables,
//! a few slots at a time, and gives free memory back to the kernel.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::limits::{
    COLD_EXPIRIES_PER_SWEEP, FREEING_ROUNDS_PER_SWEEP, SWEEP_INTERVAL_MS, SWEEP_SLOTS, WATCHED_SWEEP_SLOTS,
};
use sandstorm_catalog::limits::KILL_POLICY_INTERVAL_MS;
use sandstorm_catalog::{Directory, KillPolicy};
use sandstorm_metrics::ServerMetrics;
use sandstorm_store::{Epochs, Participant, RecordTable};

/// The running threads; stop when dropped.
pub struct Janitor {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Janitor {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn start(directory: Arc<Directory>, epochs: Arc<Epochs>, metrics: Arc<ServerMetrics>) -> io::Result<Janitor> {
        let mut janitor = Janitor { stop: Arc::new(AtomicBool::new(false)), threads: Vec::new() };
        let swept = Arc::clone(&directory);
        let (mut kill_policy, mut looked_ms, mut logged) = (KillPolicy::default(), 0, None);
        janitor.spawn("janitor", KILL_POLICY_INTERVAL_MS, move || {
            let now_ms = unix_ms();
            if now_ms.abs_diff(looked_ms) >= SWEEP_INTERVAL_MS {
                looked_ms = now_ms;
                directory.expire_graces();
                log_device_changes(&metrics, &mut logged);
            }
            if let Some(log) = directory.change_log() {
                log.look_for_stall();
            }
            kill_policy.look(&directory, metrics.kills(), now_ms);
        })?;
        let mut participant = epochs.register();
        participant.offline();
        janitor.spawn("sweeper", SWEEP_INTERVAL_MS, move || {
            participant.online();
            sweep(&swept, &mut participant);
            participant.offline();
            sandstorm_store::release_free_memory();
        })?;
        Ok(janitor)
    }

    /// Starts a thread that does the same again and again, with a pause in between.
    fn spawn(&mut self, name: &str, pause_ms: u64, mut round: impl FnMut() + Send + 'static) -> io::Result<()> {
        let stopped = Arc::clone(&self.stop);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            while !stopped.load(Relaxed) {
                round();
                std::thread::park_timeout(Duration::from_millis(pause_ms));
            }
        })?;
        self.threads.push(thread);
        Ok(())
    }
}

/// Sweeps a part of every table.
fn sweep(directory: &Directory, participant: &mut Participant) {
    let snapshot = directory.snapshot();
    let is_watched = |table: &RecordTable| table.logs_expiry() && table.is_logged();
    let watched: Vec<_> = snapshot.iter().flat_map(|view| view.tables.values()).collect();
    let watched = watched.iter().filter(|entry| is_watched(&entry.table));
    let cold = watched.clone().filter(|entry| entry.table.is_larger_than_memory()).count();
    let budget = (WATCHED_SWEEP_SLOTS / watched.count().max(1), COLD_EXPIRIES_PER_SWEEP.div_ceil(cold.max(1)));
    for view in snapshot.iter() {
        for entry in view.tables.values() {
            // This thread has no tenant, so no tenant is charged for the flush.
            entry.flush_if_due(participant, unix_ms(), |_| ());
            if is_watched(&entry.table) {
                let unreadable = entry.table.sweep_logged(participant, unix_ms(), budget);
                participant.online();
                if unreadable > 0 {
                    let (tenant, table) = (&view.tenant.name, entry.name());
                    tracing::warn!(%tenant, %table, unreadable, "expired records cannot be read from the disk: they stay");
                }
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
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the janitor, or the sweeper, had panicked");
            }
        }
    }
}
