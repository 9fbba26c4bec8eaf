//! The queue of builds. Tenants take turns, however many builds each has waiting. At most one build of a tenant runs at
//! a time, so its versions follow each other. A tenant that pushes a thousand times delays another's push by at most
//! about one compilation. A waiter may leave: a dropped [`QueueTicket`] is out of the queue.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The running and waiting builds of a builder.
#[derive(Clone)]
pub struct BuildQueue(Arc<Mutex<BuildQueueState>>);

/// The reason why a build gets no turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRefusal {
    /// The tenant has as many builds waiting as it may.
    TenantFull,
    /// All slots of the queue are taken, and no tenant has more of them than this one.
    Full,
    /// It waited, and was displaced in favour of a tenant with fewer waiting builds.
    Displaced,
}

struct BuildQueueState {
    /// Builds that may run at the same time, and builds that run.
    slots: usize,
    running: usize,
    /// Builds that may wait in all, and builds that wait.
    places: usize,
    waiting: usize,
    lanes: HashMap<u32, TenantBuilds>,
    /// Tenants with a waiting or running build, in the order of their turns.
    order: VecDeque<u32>,
    next_ticket: u64,
}

#[derive(Default)]
struct TenantBuilds {
    waiting: VecDeque<QueuedBuild>,
    running: bool,
}

struct QueuedBuild {
    ticket: u64,
    tell: oneshot::Sender<Result<(), QueueRefusal>>,
}

/// A waiting build's slot in the queue.
#[must_use]
pub struct QueueTicket {
    queue: BuildQueue,
    tenant: u32,
    ticket: u64,
    told: oneshot::Receiver<Result<(), QueueRefusal>>,
    over: bool,
}

/// The right to build, until it is dropped.
#[must_use]
pub struct BuildPermit {
    queue: BuildQueue,
    tenant: u32,
}

impl BuildQueue {
    /// Creates a queue for `places` waiting builds; `slots` more run at the same time.
    pub fn new(slots: usize, places: usize) -> BuildQueue {
        BuildQueue(Arc::new(Mutex::new(BuildQueueState {
            slots: slots.max(1),
            running: 0,
            places,
            waiting: 0,
            lanes: HashMap::new(),
            order: VecDeque::new(),
            next_ticket: 0,
        })))
    }

    /// Queues a build of that tenant, which may have `most` waiting.
    ///
    /// # Errors
    /// `TenantFull`, or `Full`. Where the queue is full, the newest build of the tenant that has the most waiting is
    /// displaced by one of a tenant that has fewer.
    pub fn enter(&self, tenant: u32, most: u32) -> Result<QueueTicket, QueueRefusal> {
        let mut state = self.0.lock();
        let lane = state.lanes.get(&tenant);
        let (own, running) = lane.map_or((0, false), |lane| (lane.waiting.len(), lane.running));
        let at_once = own == 0 && !running && state.running < state.slots;
        if !at_once && own >= most as usize {
            return Err(QueueRefusal::TenantFull);
        }
        if !at_once && state.waiting >= state.places {
            state.displace(own + 1)?;
        }
        let (tell, told) = oneshot::channel();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        if is_new_tenant(&state, tenant) {
            state.order.push_back(tenant);
        }
        state.lanes.entry(tenant).or_default().waiting.push_back(QueuedBuild { ticket, tell });
        state.waiting += 1;
        state.dispatch();
        Ok(QueueTicket { queue: self.clone(), tenant, ticket, told, over: false })
    }

    /// Returns how many builds run, and how many wait.
    pub fn load(&self) -> (usize, usize) {
        let state = self.0.lock();
        (state.running, state.waiting)
    }
}

fn is_new_tenant(state: &BuildQueueState, tenant: u32) -> bool {
    !state.lanes.contains_key(&tenant)
}

impl BuildQueueState {
    /// Displaces the newest build of the tenant that has the most waiting, if that is more than `own`.
    fn displace(&mut self, own: usize) -> Result<(), QueueRefusal> {
        let longest = self.lanes.iter_mut().max_by_key(|(_, lane)| lane.waiting.len());
        let (_, lane) = longest.filter(|(_, lane)| lane.waiting.len() > own).ok_or(QueueRefusal::Full)?;
        if let Some(waiter) = lane.waiting.pop_back() {
            self.waiting -= 1;
            // A waiter that has left needs no answer.
            let _gone = waiter.tell.send(Err(QueueRefusal::Displaced));
        }
        Ok(())
    }

    /// Gives free slots to the tenants in their turn.
    fn dispatch(&mut self) {
        let mut looked_at = 0;
        while self.running < self.slots && looked_at < self.order.len() {
            let Some(tenant) = self.order.pop_front() else { return };
            let Some(lane) = self.lanes.get_mut(&tenant) else { continue };
            let next = if lane.running { None } else { lane.waiting.pop_front() };
            self.order.push_back(tenant);
            let Some(waiter) = next else {
                looked_at += 1;
                continue;
            };
            self.waiting -= 1;
            if waiter.tell.send(Ok(())).is_ok() {
                lane.running = true;
                self.running += 1;
            }
            looked_at = 0;
        }
    }

    /// Removes a tenant's queue when it is empty.
    fn tidy(&mut self, tenant: u32) {
        if self.lanes.get(&tenant).is_some_and(|lane| !lane.running && lane.waiting.is_empty()) {
            self.lanes.remove(&tenant);
            self.order.retain(|other| *other != tenant);
        }
    }

    fn release(&mut self, tenant: u32) {
        self.running -= 1;
        if let Some(lane) = self.lanes.get_mut(&tenant) {
            lane.running = false;
        }
        // Its turn is over: every tenant that came meanwhile is before it.
        self.order.retain(|other| *other != tenant);
        self.order.push_back(tenant);
        self.dispatch();
        self.tidy(tenant);
    }
}

impl QueueTicket {
    /// Waits for the turn. May be dropped while it waits.
    ///
    /// # Errors
    /// `Displaced`.
    pub async fn turn(mut self) -> Result<BuildPermit, QueueRefusal> {
        let told = (&mut self.told).await;
        self.over = true;
        // The queue keeps a waiter until it has sent it a result.
        told.unwrap_or(Err(QueueRefusal::Displaced))?;
        Ok(BuildPermit { queue: self.queue.clone(), tenant: self.tenant })
    }
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut state = self.queue.0.lock();
        let ticket = self.ticket;
        let found = state.lanes.get_mut(&self.tenant).is_some_and(|lane| {
            let before = lane.waiting.len();
            lane.waiting.retain(|waiter| waiter.ticket != ticket);
            lane.waiting.len() < before
        });
        if found {
            state.waiting -= 1;
            state.tidy(self.tenant);
        } else if self.told.try_recv() == Ok(Ok(())) {
            state.release(self.tenant);
        }
    }
}

impl Drop for BuildPermit {
    fn drop(&mut self) {
        self.queue.0.lock().release(self.tenant);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Polls for the turn once; `Err` where it has not come yet.
    fn ask(place: QueueTicket) -> Result<Result<BuildPermit, QueueRefusal>, ()> {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(place.turn()).poll(&mut context) {
            Poll::Ready(turn) => Ok(turn),
            Poll::Pending => Err(()),
        }
    }

    #[track_caller]
    fn now(place: QueueTicket) -> BuildPermit {
        ask(place).expect("its turn").expect("not displaced")
    }

    #[test]
    fn tenants_take_turns_whatever_each_has_waiting() {
        let queue = BuildQueue::new(1, 100);
        let first = now(queue.enter(1, 10).unwrap());
        let many: Vec<QueueTicket> = (0..5).map(|_| queue.enter(1, 10).unwrap()).collect();
        let other = queue.enter(2, 10).unwrap();
        assert_eq!(queue.load(), (1, 6));
        drop(first);
        let turn = now(other);
        assert_eq!(queue.load(), (1, 5), "the flood came first, but had its turn");
        drop(turn);
        many.into_iter().for_each(|place| drop(now(place)));
        assert_eq!(queue.load(), (0, 0));
    }

    #[test]
    fn one_build_of_a_tenant_runs_at_a_time_and_others_use_the_free_slots() {
        let queue = BuildQueue::new(2, 100);
        let first = now(queue.enter(1, 10).unwrap());
        let second = queue.enter(1, 10).unwrap();
        let other = now(queue.enter(2, 10).unwrap());
        assert_eq!(queue.load(), (2, 1));
        drop(other);
        assert_eq!(queue.load(), (1, 1), "a free slot is not for the tenant that builds");
        drop(first);
        drop(now(second));
        assert_eq!(queue.load(), (0, 0));
    }

    #[test]
    fn waiting_is_bounded_for_each_tenant_and_in_all() {
        let queue = BuildQueue::new(1, 6);
        let _running = now(queue.enter(9, 4).unwrap());
        let mut flood: Vec<QueueTicket> = (0..4).map(|_| queue.enter(1, 4).unwrap()).collect();
        assert_eq!(queue.enter(1, 4).err(), Some(QueueRefusal::TenantFull));
        let _two: Vec<QueueTicket> = (0..2).map(|_| queue.enter(2, 4).unwrap()).collect();
        let _fair = queue.enter(3, 4).expect("a place, from the one who has most");
        assert_eq!(ask(flood.pop().unwrap()).unwrap().err(), Some(QueueRefusal::Displaced));
        assert_eq!(queue.enter(1, 4).err(), Some(QueueRefusal::Full), "it has most itself");
        assert_eq!(queue.enter(2, 4).err(), Some(QueueRefusal::Full), "nobody has more than it would have");
        assert_eq!(queue.load(), (1, 6));
    }

    #[test]
    fn who_leaves_makes_room_and_holds_nobody_up() {
        let queue = BuildQueue::new(1, 10);
        let running = now(queue.enter(1, 4).unwrap());
        let leaves = queue.enter(2, 4).unwrap();
        let stays = queue.enter(3, 4).unwrap();
        drop(leaves);
        assert_eq!(queue.load(), (1, 1));
        let told_and_left = queue.enter(4, 4).unwrap();
        drop(running);
        drop(now(stays));
        drop(told_and_left);
        assert_eq!(queue.load(), (0, 0), "a turn that was never taken is given back");
        assert!(queue.0.lock().lanes.is_empty() && queue.0.lock().order.is_empty());
    }
}
