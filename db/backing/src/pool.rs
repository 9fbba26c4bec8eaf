//! The threads that ask backings, and their queue. Tables take turns, so a table with many requests, or with a backing
//! that hangs, leaves threads to the others.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};
use sandstorm_store::{Epochs, Participant};

use crate::limits::{BACKING_THREADS, REQUESTS_PER_TABLE, TICK};

/// A request that a thread makes.
pub(crate) enum TableRequest {
    Load(Box<[u8]>),
    Write(Box<[u8]>),
    /// A key was admitted to be changed: if its change has not come, it is forgotten.
    Forget(Box<[u8]>),
}

/// A table's side, as the threads use it.
pub(crate) trait BackedRequests: Send + Sync {
    /// What waits for threads.
    fn queue(&self) -> &Mutex<TableQueue>;

    /// Milliseconds of the clock of its queue.
    fn clock_ms(&self) -> u64;

    /// Makes a request.
    fn run(&self, request: &TableRequest, participant: &mut Participant);

    /// Fails the loads that no thread makes any more.
    fn refuse_loads(&self);
}

/// What of a table waits for threads.
#[derive(Debug, Default)]
pub(crate) struct TableQueue {
    loads: VecDeque<Box<[u8]>>,
    writes: VecDeque<Box<[u8]>>,
    /// Writes whose time has not come, by it.
    delayed: BTreeMap<(u64, u64), Box<[u8]>>,
    delays: u64,
    /// Keys that were admitted to be changed, by the time at which that is looked at.
    admitted: VecDeque<(u64, Box<[u8]>)>,
    forgets: VecDeque<Box<[u8]>>,
    under_way: usize,
    /// Whether the table is in the queue of those with work.
    is_noticed: bool,
}

impl TableQueue {
    pub(crate) fn push_load(&mut self, key: &[u8]) {
        self.loads.push_back(key.into());
    }

    pub(crate) fn push_write(&mut self, key: &[u8], due_ms: u64) {
        if due_ms == 0 {
            self.writes.push_back(key.into());
        } else {
            self.delays += 1;
            self.delayed.insert((due_ms, self.delays), key.into());
        }
    }

    /// Has a key looked at whose change may not come.
    pub(crate) fn push_admitted(&mut self, key: &[u8], look_ms: u64) {
        self.admitted.push_back((look_ms, key.into()));
    }

    /// Has those looked at whose changes should have come by now.
    fn release_admitted(&mut self, now_ms: u64) {
        while let Some((_, key)) = self.admitted.pop_front_if(|(look_ms, _)| *look_ms <= now_ms) {
            self.forgets.push_back(key);
        }
    }

    /// Has those written whose time has come; returns whether there is work.
    pub(crate) fn release_until(&mut self, now_ms: u64) -> bool {
        while let Some(first) = self.delayed.first_entry()
            && first.key().0 <= now_ms
        {
            self.writes.push_back(first.remove());
        }
        self.has_work()
    }

    fn has_work(&self) -> bool {
        self.under_way < REQUESTS_PER_TABLE
            && !(self.loads.is_empty() && self.writes.is_empty() && self.forgets.is_empty())
    }

    /// Takes the next request: loads first, since a reader waits for each.
    fn take(&mut self) -> Option<TableRequest> {
        if self.under_way >= REQUESTS_PER_TABLE {
            return None;
        }
        let load = self.loads.pop_front().map(TableRequest::Load);
        let write = load.or_else(|| self.writes.pop_front().map(TableRequest::Write));
        let taken = write.or_else(|| self.forgets.pop_front().map(TableRequest::Forget))?;
        self.under_way += 1;
        Some(taken)
    }
}

#[derive(Default)]
struct BackingPoolState {
    /// Tables with work, each once, in the order of their turns.
    turns: VecDeque<Weak<dyn BackedRequests>>,
    tables: Vec<Weak<dyn BackedRequests>>,
    is_stopping: bool,
}

/// The threads: see the head of this file.
pub struct BackingPool {
    state: Mutex<BackingPoolState>,
    work: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Of the tables, once threads may be started.
    epochs: OnceLock<Arc<Epochs>>,
    /// Called when a wait has ended: workers look at the answers that they hold.
    ended: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

impl std::fmt::Debug for BackingPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackingPool").finish_non_exhaustive()
    }
}

impl BackingPool {
    /// Makes a pool without threads.
    pub fn new() -> Arc<BackingPool> {
        Arc::new(BackingPool {
            state: Mutex::default(),
            work: Condvar::new(),
            threads: Mutex::default(),
            epochs: OnceLock::new(),
            ended: Mutex::default(),
        })
    }

    /// Has `hook` called when a wait has ended.
    pub fn on_ended(&self, hook: Arc<dyn Fn() + Send + Sync>) {
        *self.ended.lock() = Some(hook);
    }

    pub(crate) fn note_ended(&self) {
        let hook = self.ended.lock().clone();
        if let Some(hook) = hook {
            hook();
        }
    }

    /// Starts the threads with the first table, until [`BackingPool::stop`].
    ///
    /// # Errors
    /// Those of the system, if there is a table.
    pub fn start(self: &Arc<Self>, epochs: &Arc<Epochs>) -> std::io::Result<()> {
        let _once = self.epochs.set(Arc::clone(epochs));
        if self.state.lock().tables.is_empty() { Ok(()) } else { self.start_threads() }
    }

    fn start_threads(self: &Arc<Self>) -> std::io::Result<()> {
        let mut threads = self.threads.lock();
        let Some(epochs) = self.epochs.get().filter(|_| threads.is_empty()) else { return Ok(()) };
        for number in 0..BACKING_THREADS {
            let (pool, epochs) = (Arc::clone(self), Arc::clone(epochs));
            let named = thread::Builder::new().name(format!("backing-{number}"));
            threads.push(named.spawn(move || pool.work_until_stopped(&epochs))?);
        }
        let pool = Arc::clone(self);
        threads.push(thread::Builder::new().name("backing-clock".to_owned()).spawn(move || pool.tick())?);
        Ok(())
    }

    /// Ends the threads, after the requests that are under way. What is dirty stays so.
    pub fn stop(&self) {
        self.state.lock().is_stopping = true;
        self.work.notify_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A thread that has panicked has said so.
            let _ended = thread.join();
        }
        let tables = std::mem::take(&mut self.state.lock().tables);
        tables.iter().filter_map(Weak::upgrade).for_each(|table| table.refuse_loads());
    }

    pub(crate) fn add_table(self: &Arc<Self>, table: &Weak<dyn BackedRequests>) {
        {
            let tables = &mut self.state.lock().tables;
            tables.retain(|table| table.strong_count() > 0);
            tables.push(Weak::clone(table));
        }
        if let Err(error) = self.start_threads() {
            tracing::error!(%error, "the system gives no threads that ask backings of tables");
        }
    }

    /// Notes that a table may have work.
    pub(crate) fn notice(&self, table: &Weak<dyn BackedRequests>) {
        let Some(live) = table.upgrade() else { return };
        let is_new = {
            let mut queue = live.queue().lock();
            let is_new = queue.has_work() && !queue.is_noticed;
            queue.is_noticed |= is_new;
            is_new
        };
        if is_new {
            self.state.lock().turns.push_back(Weak::clone(table));
            self.work.notify_one();
        }
    }

    fn work_until_stopped(&self, epochs: &Arc<Epochs>) {
        let mut participant = epochs.register();
        // Offline while it waits, so that memory is reclaimed meanwhile.
        participant.offline();
        while let Some(table) = self.wait_for_table() {
            let weak = Arc::downgrade(&table);
            let request = {
                let mut queue = table.queue().lock();
                queue.is_noticed = false;
                queue.take()
            };
            // Another thread goes on with the rest of its requests.
            self.notice(&weak);
            if let Some(request) = request {
                table.run(&request, &mut participant);
                participant.offline();
                table.queue().lock().under_way -= 1;
                self.notice(&weak);
            }
        }
    }

    fn wait_for_table(&self) -> Option<Arc<dyn BackedRequests>> {
        let mut state = self.state.lock();
        while !state.is_stopping {
            match state.turns.pop_front() {
                Some(table) => {
                    if let Some(table) = table.upgrade() {
                        return Some(table);
                    }
                }
                None => self.work.wait(&mut state),
            }
        }
        None
    }

    /// Has records written whose time has come.
    fn tick(&self) {
        loop {
            let tables: Vec<_> = {
                let mut state = self.state.lock();
                if state.is_stopping {
                    return;
                }
                state.tables.retain(|table| table.strong_count() > 0);
                state.tables.iter().filter_map(Weak::upgrade).collect()
            };
            for table in tables {
                let has_work = {
                    let (mut queue, now_ms) = (table.queue().lock(), table.clock_ms());
                    queue.release_admitted(now_ms);
                    queue.release_until(now_ms)
                };
                if has_work {
                    self.notice(&Arc::downgrade(&table));
                }
            }
            thread::sleep(TICK);
        }
    }
}
