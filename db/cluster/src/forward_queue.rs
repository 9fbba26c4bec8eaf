//! The commands that wait for one server: round robin between tenants, with a bound on what waits, which tenants share,
//! and on what each tenant has under way. Without threads; the time is given.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandstorm_net::dynamic_threshold::DynamicThreshold;

use crate::forward_batch::{BatchUnderWay, ForwardFailure};
use crate::limits::{
    FORWARD_LINKS, FORWARD_LINKS_OF_TENANT, FORWARD_PAUSE, FORWARD_PAUSE_MOST, FORWARD_PAUSES, FORWARD_TRIES,
    FORWARD_WAITING, FORWARD_WAITING_BYTES, FORWARD_WAITING_DATAGRAMS,
};

/// Commands of a batch that go to one server.
pub(crate) struct ForwardPart {
    pub(crate) under_way: Arc<BatchUnderWay>,
    /// Their numbers in the batch, in their order. Of those that are run one after the other, later ones may go to
    /// another server afterwards.
    pub(crate) numbers: Vec<usize>,
    /// Times that it was sent on, or again.
    pub(crate) tries: usize,
    /// Time that it was to wait before these.
    pub(crate) paused: Duration,
    /// What the client is told if it is not sent in time.
    pub(crate) why: ForwardFailure,
}

impl ForwardPart {
    /// Whether it was sent as often, or has waited as long, as it may.
    pub(crate) fn is_given_up(&self) -> bool {
        self.tries >= FORWARD_TRIES || self.paused >= FORWARD_PAUSES
    }

    /// The time until it is sent again: twice the last one.
    pub(crate) fn next_pause(&self) -> Duration {
        (self.paused + FORWARD_PAUSE).min(FORWARD_PAUSE_MOST)
    }

    fn tenant(&self) -> u32 {
        self.under_way.batch.tenant
    }

    fn is_datagram(&self) -> bool {
        self.under_way.batch.is_datagram
    }

    fn bytes(&self) -> usize {
        let commands = self.numbers.iter().filter_map(|number| self.under_way.batch.commands.get(*number));
        commands.map(|command| command.bytes.len()).sum()
    }
}

/// How much waits.
#[derive(Clone, Copy, Default)]
struct WaitingParts {
    parts: usize,
    bytes: usize,
    /// Those of the parts that datagrams have brought.
    datagrams: usize,
}

/// What the threads of a queue need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadNeed {
    /// Nothing can be sent.
    Nothing,
    /// The idle threads are enough.
    Wake,
    /// One more. It is counted already.
    Start,
}

/// See the head of this file.
#[derive(Default)]
pub(crate) struct ForwardQueue {
    /// Tenants with commands that can be sent.
    turns: VecDeque<u32>,
    ready: HashMap<u32, VecDeque<ForwardPart>>,
    /// Commands that are to be sent later.
    later: Vec<(Instant, ForwardPart)>,
    under_way: HashMap<u32, usize>,
    waiting: WaitingParts,
    /// The same of each tenant that has some.
    waiting_of: HashMap<u32, WaitingParts>,
    /// Threads that send them, and those of them that have nothing to do.
    pub(crate) threads: usize,
    pub(crate) idle: usize,
}

impl ForwardQueue {
    /// Adds commands, which are sent at `at` at the earliest. Commands that return to the queue are always taken.
    ///
    /// # Errors
    /// The tenant's limit on waiting commands is reached.
    pub(crate) fn push(&mut self, part: ForwardPart, at: Option<Instant>) -> Result<(), ForwardPart> {
        let (tenant, bytes, all) = (part.tenant(), part.bytes(), self.waiting);
        let own = self.waiting_of.get(&tenant).copied().unwrap_or_default();
        let fits = DynamicThreshold::of(FORWARD_WAITING).admits(all.parts, own.parts)
            && DynamicThreshold::of(FORWARD_WAITING_BYTES).admits_size(all.bytes, own.bytes, bytes)
            && (!part.is_datagram()
                || DynamicThreshold::of(FORWARD_WAITING_DATAGRAMS).admits(all.datagrams, own.datagrams));
        if !fits && part.tries == 0 && all.parts > 0 {
            return Err(part);
        }
        for waiting in [&mut self.waiting, self.waiting_of.entry(tenant).or_default()] {
            (waiting.parts, waiting.bytes) = (waiting.parts + 1, waiting.bytes + bytes);
            waiting.datagrams += usize::from(part.is_datagram());
        }
        match at {
            Some(at) => self.later.push((at, part)),
            None => self.push_ready(part),
        }
        Ok(())
    }

    fn push_ready(&mut self, part: ForwardPart) {
        let tenant = part.tenant();
        let parts = self.ready.entry(tenant).or_default();
        if parts.is_empty() {
            self.turns.push_back(tenant);
        }
        parts.push_back(part);
    }

    /// The next commands to be sent, by turns between the tenants. [`ForwardQueue::finish`] follows.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<ForwardPart> {
        while let Some(due) = self.later.iter().position(|(at, _)| *at <= now) {
            let (_, part) = self.later.remove(due);
            self.push_ready(part);
        }
        let may = |tenant: &u32| self.under_way.get(tenant).is_none_or(|count| *count < FORWARD_LINKS_OF_TENANT);
        let turn = self.turns.iter().position(may)?;
        let tenant = self.turns.remove(turn)?;
        let parts = self.ready.get_mut(&tenant)?;
        let part = parts.pop_front();
        match parts.is_empty() {
            true => drop(self.ready.remove(&tenant)),
            false => self.turns.push_back(tenant),
        }
        let part = part?;
        self.leaves(&part);
        *self.under_way.entry(tenant).or_default() += 1;
        Some(part)
    }

    /// Notes that commands wait no more.
    fn leaves(&mut self, part: &ForwardPart) {
        let (tenant, bytes, datagrams) = (part.tenant(), part.bytes(), usize::from(part.is_datagram()));
        let own = self.waiting_of.entry(tenant).or_default();
        for waiting in [&mut self.waiting, &mut *own] {
            (waiting.parts, waiting.bytes) = (waiting.parts - 1, waiting.bytes - bytes);
            waiting.datagrams -= datagrams;
        }
        if own.parts == 0 {
            self.waiting_of.remove(&tenant);
        }
    }

    /// Notes that commands of a tenant which were taken are answered, or wait again.
    pub(crate) fn finish(&mut self, tenant: u32) {
        if let Some(count) = self.under_way.get_mut(&tenant) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(&tenant);
            }
        }
    }

    /// The threads that are needed to send all that can be sent. A woken thread counts as idle until it runs, and its
    /// commands as waiting.
    pub(crate) fn need_threads(&mut self) -> ThreadNeed {
        // One looks at what is to be sent later.
        let mut needed = usize::from(!self.later.is_empty());
        for (tenant, parts) in &self.ready {
            let under_way = self.under_way.get(tenant).copied().unwrap_or(0);
            needed += parts.len().min(FORWARD_LINKS_OF_TENANT.saturating_sub(under_way));
            if needed > self.idle {
                break;
            }
        }
        if needed > self.idle && self.threads < FORWARD_LINKS {
            self.threads += 1;
            return ThreadNeed::Start;
        }
        if needed > 0 { ThreadNeed::Wake } else { ThreadNeed::Nothing }
    }

    /// When the next of those are due that wait for a time.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.later.iter().map(|(at, _)| *at).min()
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.parts == 0
    }

    /// Takes all that wait.
    pub(crate) fn take_all(&mut self) -> Vec<ForwardPart> {
        let ready = std::mem::take(&mut self.ready).into_values().flatten();
        let all = ready.chain(self.later.drain(..).map(|(_, part)| part)).collect();
        self.turns.clear();
        self.waiting_of.clear();
        self.waiting = WaitingParts::default();
        all
    }
}

#[cfg(test)]
mod tests {
    use sandstorm_net::forwarding::{ForwardedBatch, ForwardedCommand};

    use super::*;

    fn part(tenant: u32, bytes: usize) -> ForwardPart {
        let commands = vec![ForwardedCommand { slot: 0, changes: false, bytes: vec![0; bytes] }];
        let batch = ForwardedBatch { tenant, table: 1, serial: 1, commands, ..Default::default() };
        let under_way = Arc::new(BatchUnderWay::new(batch, Instant::now(), &Arc::default(), Box::new(|_| ())));
        ForwardPart { under_way, numbers: vec![0], tries: 0, paused: Duration::ZERO, why: ForwardFailure::Late }
    }

    /// A part that a datagram has brought.
    fn datagram(tenant: u32) -> ForwardPart {
        let batch = ForwardedBatch { is_datagram: true, ..part(tenant, 1).under_way.batch.clone() };
        let under_way = Arc::new(BatchUnderWay::new(batch, Instant::now(), &Arc::default(), Box::new(|_| ())));
        ForwardPart { under_way, ..part(tenant, 1) }
    }

    fn push(queue: &mut ForwardQueue, part: ForwardPart) -> bool {
        queue.push(part, None).is_ok()
    }

    #[test]
    fn tenants_take_turns_and_none_has_all_links() {
        let (mut queue, now) = (ForwardQueue::default(), Instant::now());
        for _ in 0..10 {
            assert!(push(&mut queue, part(1, 9)));
        }
        assert!(push(&mut queue, part(2, 9)));
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop(now)).map(|part| part.tenant()).collect();
        assert_eq!(order, [1, 2, 1, 1, 1], "half of the links, and the other tenant's turn");
        queue.finish(1);
        assert_eq!(queue.pop(now).map(|part| part.tenant()), Some(1));
        assert!(queue.pop(now).is_none() && !queue.is_empty());
        for _ in 0..4 {
            queue.finish(1);
        }
        assert_eq!(std::iter::from_fn(|| queue.pop(now)).count(), 4);
        assert_eq!(queue.take_all().len(), 1);
        assert!(queue.is_empty());
    }

    #[test]
    fn what_waits_is_bounded_in_number_and_bytes_and_what_was_sent_before_is_always_taken() {
        let mut queue = ForwardQueue::default();
        assert!(push(&mut queue, part(1, FORWARD_WAITING_BYTES + 1)), "one that is alone");
        assert!(!push(&mut queue, part(2, 1)));
        let again = ForwardPart { tries: 1, ..part(2, 1) };
        assert!(push(&mut queue, again));
        assert_eq!(queue.take_all().len(), 2);
        let tenants = (0..).take_while(|tenant| {
            let taken = (0..=FORWARD_WAITING).take_while(|_| push(&mut queue, part(*tenant, 1))).count();
            taken > 0
        });
        assert!(tenants.count() > 5);
        assert!(queue.waiting.parts <= FORWARD_WAITING && queue.waiting.parts > FORWARD_WAITING * 9 / 10);
        let most = queue.waiting_of.len() as u32;
        assert!(!push(&mut queue, part(most, 1)));
        let next = queue.pop(Instant::now()).map(|part| part.tenant());
        assert!(next == Some(0) && push(&mut queue, part(most, 1)));
    }

    #[test]
    fn one_tenant_leaves_room_for_the_commands_of_others() {
        let (mut queue, now) = (ForwardQueue::default(), Instant::now());
        let many = (0..FORWARD_WAITING).take_while(|_| push(&mut queue, part(1, 1))).count();
        assert!((FORWARD_WAITING / 2..FORWARD_WAITING * 3 / 4).contains(&many), "{many}");
        assert!((0..FORWARD_WAITING / 8).all(|_| push(&mut queue, part(2, 1))));
        while let Some(part) = queue.pop(now) {
            queue.finish(part.tenant());
        }
        assert!(queue.is_empty() && queue.waiting_of.is_empty());
        let large = FORWARD_WAITING_BYTES / 16;
        let many = (0..FORWARD_WAITING).take_while(|_| push(&mut queue, part(1, large))).count();
        assert!((8..12).contains(&many), "{many}");
        assert!((0..2).all(|_| push(&mut queue, part(2, large))));
        assert!(!push(&mut queue, part(1, large)));
        assert_eq!(queue.take_all().len(), many + 2);
    }

    #[test]
    fn datagrams_leave_room_for_those_of_other_tenants_and_for_connections() {
        let (mut queue, now) = (ForwardQueue::default(), Instant::now());
        let many = (0..FORWARD_WAITING).take_while(|_| push(&mut queue, datagram(1))).count();
        assert!((FORWARD_WAITING_DATAGRAMS / 2..FORWARD_WAITING_DATAGRAMS * 3 / 4).contains(&many), "{many}");
        assert!((0..FORWARD_WAITING_DATAGRAMS / 8).all(|_| push(&mut queue, datagram(2))));
        assert!(!push(&mut queue, datagram(1)));
        // A connection of the same tenant has what it would have without them, but for their number.
        assert!((0..FORWARD_WAITING / 4).all(|_| push(&mut queue, part(1, 1))));
        let again = ForwardPart { tries: 1, ..datagram(1) };
        assert!(push(&mut queue, again), "what was sent before is always taken");
        while let Some(part) = queue.pop(now) {
            queue.finish(part.tenant());
        }
        assert!(queue.is_empty() && queue.waiting.datagrams == 0 && push(&mut queue, datagram(1)));
    }

    #[test]
    fn as_many_threads_are_started_as_there_is_to_send() {
        let (mut queue, now) = (ForwardQueue::default(), Instant::now());
        assert_eq!(queue.need_threads(), ThreadNeed::Nothing);
        assert!(push(&mut queue, part(1, 1)));
        assert_eq!((queue.need_threads(), queue.threads), (ThreadNeed::Start, 1));
        assert_eq!(queue.pop(now).map(|part| part.tenant()), Some(1));
        queue.finish(1);
        queue.idle = 1;
        // The one that waits is woken, and has not run when the next one comes.
        assert!(push(&mut queue, part(1, 1)));
        assert_eq!(queue.need_threads(), ThreadNeed::Wake);
        assert!(push(&mut queue, part(1, 1)));
        assert_eq!((queue.need_threads(), queue.threads), (ThreadNeed::Start, 2));
        // No more than a tenant may have under way.
        queue.idle = 0;
        (0..20).for_each(|_| assert!(push(&mut queue, part(1, 1))));
        (0..FORWARD_LINKS_OF_TENANT).for_each(|_| assert!(queue.pop(now).is_some()));
        assert_eq!((queue.need_threads(), queue.threads), (ThreadNeed::Nothing, 2));
        for tenant in 2..20 {
            assert!(push(&mut queue, part(tenant, 1)));
            let need = if queue.threads < FORWARD_LINKS { ThreadNeed::Start } else { ThreadNeed::Wake };
            assert_eq!(queue.need_threads(), need);
        }
        assert_eq!(queue.threads, FORWARD_LINKS);
        // One thread sees to all that is to be sent later.
        let mut queue = ForwardQueue::default();
        assert!(queue.push(part(1, 1), Some(now)).is_ok());
        assert_eq!(queue.need_threads(), ThreadNeed::Start);
        queue.idle = 1;
        assert!(queue.push(part(1, 1), Some(now)).is_ok());
        assert_eq!(queue.need_threads(), ThreadNeed::Wake);
    }

    #[test]
    fn pauses_get_longer_and_end() {
        let (mut part, mut pauses) = (part(1, 1), Vec::new());
        while !part.is_given_up() {
            let pause = part.next_pause();
            pauses.push(pause.as_millis());
            part.paused += pause;
        }
        assert_eq!(pauses, [20, 40, 80, 160, 320, 320, 320, 320, 320, 320]);
        let tried = ForwardPart { tries: FORWARD_TRIES, paused: Duration::ZERO, ..part };
        assert!(tried.is_given_up());
    }

    #[test]
    fn what_is_to_be_sent_later_waits_until_then() {
        let (mut queue, now) = (ForwardQueue::default(), Instant::now());
        let at = now + Duration::from_secs(1);
        assert!(queue.push(part(1, 1), Some(at)).is_ok());
        assert!(queue.pop(now).is_none() && !queue.is_empty());
        assert_eq!(queue.next_due(), Some(at));
        assert!(queue.pop(at).is_some() && queue.is_empty());
    }
}
