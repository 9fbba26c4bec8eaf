//! The stack as a driver: a worker's part of it, and a port.

use super::counters::StackCounters;
use super::handover::HandoverBatch;
use super::interface::{StackError, StackInterface};
use super::interrupt_arming::InterruptArming;
use super::wire::FrameDropReason;
use super::wire::udp::DatagramHeaders;
use super::worker::{RouteOutcome, StackWorker};
use super::{ChecksumFill, FramePart, FramePort, TxFrame};
use crate::driver::{
    Burst, DatagramDriver, DriverCounters, DriverWaiter, DriverWaker, Outbox, ReceivePressure, SleepPolicy,
};
use crate::limits::{
    ARMED_SLEEP_US, BURST, MAX_JUNK_BURSTS, POLLED_DEEP_IDLE_AFTER_US, POLLED_DEEP_SLEEP_US, POLLED_IDLE_AFTER_US,
    POLLED_IDLE_SLEEP_US, POLLED_SLEEP_US, default_datagram,
};
use crate::r2p2::PeerAddr;
use crate::shared_bytes::SharedBytes;
use arrayvec::ArrayVec;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// A driver over a port that moves Ethernet frames.
#[derive(Debug)]
pub struct StackDriver<P: FramePort> {
    port: P,
    pub(super) worker: StackWorker,
    /// Datagrams that other workers have handed over.
    inbox: HandoverBatch,
    waiter: DriverWaiter,
    waker: DriverWaker,
    /// The limit for the sleep of a waiting thread.
    terms: Arc<SleepPolicy>,
    polled: bool,
    alarm: InterruptArming,
    /// The time when a datagram last came or went.
    busy_us: u64,
    counters: DriverCounters,
}

/// The longest sleep of a worker with work due that no datagram will announce, microseconds.
const SHORT_SLEEP_US: u64 = 1000;

impl<P: FramePort> StackDriver<P> {
    /// Creates the driver of worker `index` of an interface, with a queue pair of its own. The first worker announces
    /// the interface's addresses.
    ///
    /// # Errors
    /// If there is no such worker, or it has a driver already; if the port does not let in the groups that IPv6 needs;
    /// if the process has no file descriptor left.
    pub fn new(interface: Arc<StackInterface>, index: usize, mut port: P) -> Result<StackDriver<P>, StackError> {
        let inbox = interface.inboxes.get(index).ok_or(StackError::Worker(index))?;
        let (descriptor, interrupt) = (port.descriptor(), port.interrupt());
        let polled = descriptor.is_none();
        let alarm = InterruptArming::new(polled && interrupt.is_some());
        let max_sleep_us = AtomicU64::new(if polled { POLLED_SLEEP_US } else { u64::MAX });
        let terms = Arc::new(SleepPolicy { max_sleep_us, listens: AtomicBool::new(!polled) });
        let waiter = DriverWaiter::with_policy(descriptor.or(interrupt), Arc::clone(&terms))
            .map_err(|error| StackError::Waker(index, error.to_string()))?;
        let waker = waiter.waker();
        // On a device that the kernel shares, the kernel joins the groups.
        let listens = interface.options.isolated || port.listen(&interface.groups());
        if !listens && interface.v6.is_some() {
            return Err(StackError::Groups);
        }
        if !inbox.own(waker.clone()) {
            return Err(StackError::Worker(index));
        }
        let now_us = (interface.clock)();
        let mut worker = StackWorker::new(interface, index, port.offload());
        if index == 0 {
            worker.announce();
        }
        Ok(StackDriver {
            port,
            worker,
            inbox: HandoverBatch::default(),
            waiter,
            waker,
            terms,
            polled,
            alarm,
            busy_us: now_us,
            counters: DriverCounters::default(),
        })
    }

    /// Returns the state that the workers share.
    pub fn interface(&self) -> &Arc<StackInterface> {
        &self.worker.interface
    }

    /// Returns the counters of this worker's stack.
    pub fn stack_counters(&self) -> &StackCounters {
        &self.worker.counters
    }

    /// Returns the port.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// Returns the port, to change its settings.
    pub fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// Takes the datagrams that other workers have handed over, into half of the burst. A flood of them must not keep
    /// this worker from its own queue, which carries its neighbours' answers.
    fn drain_inbox(&mut self, burst: &mut Burst) {
        let reserved = burst.free_slots() / 2;
        if let Some(inbox) = self.worker.interface.inboxes.get(self.worker.index) {
            inbox.take(&mut self.inbox);
        }
        while burst.free_slots() > reserved && !self.inbox.is_empty() {
            let counters = &mut self.worker.counters;
            self.inbox.pop(|peer, datagram| {
                if !burst.push(peer, datagram) {
                    counters.refuse(FrameDropReason::BufferTooSmall);
                }
                true
            });
        }
    }

    /// Puts a large datagram of frame `index` into the burst: in the port's own buffer if the port gives it out, else
    /// as a copy.
    fn push_large(&mut self, index: usize, (peer, range): (PeerAddr, Range<usize>), burst: &mut Burst) {
        let put = match self.port.take(index) {
            Some(buffer) => {
                let share = SharedBytes::of(Arc::new(buffer)).into_slice(range);
                share.is_some_and(|share| burst.push_shared(peer, share))
            }
            None => {
                let bytes = self.port.frame(index).and_then(|frame| frame.bytes.get(range));
                bytes.is_some_and(|bytes| burst.push(peer, bytes))
            }
        };
        if !put {
            self.worker.counters.refuse(FrameDropReason::BufferTooSmall);
        }
    }

    fn hand_over(&mut self) {
        let worker = &mut self.worker;
        if !std::mem::take(&mut worker.has_handover) {
            return;
        }
        for (batch, inbox) in worker.handover.iter_mut().zip(&worker.interface.inboxes) {
            if !batch.is_empty() {
                let lost = inbox.put(batch);
                worker.counters.count_drops(FrameDropReason::HandoverFull, lost);
            }
        }
    }

    /// Does the work that time or neighbours have made due, and sends the stack's own frames.
    fn work(&mut self, now_us: u64) {
        self.worker.release(now_us);
        while !self.worker.queue.frames.is_empty() {
            let (taken, all) = self.send_stack_frames();
            self.worker.queue.advance(taken);
            if !all {
                break;
            }
        }
    }

    /// Sends the first of the stack's own frames. Returns how many of them the port has dealt with, and whether those
    /// were all that it was offered.
    fn send_stack_frames(&mut self) -> (usize, bool) {
        let own = |frame| TxFrame { header: frame, ip_header_len: 0, fill: ChecksumFill::default(), parts: &[] };
        let queued = self.worker.queue.frames.iter().take(BURST);
        let frames: ArrayVec<TxFrame<'_>, BURST> = queued.map(|frame| own(frame)).collect();
        let taken = self.port.transmit(&frames);
        (taken, taken >= frames.len())
    }

    /// Sends the first datagrams of the outbox that can be sent at once. Returns how many of its datagrams are done
    /// with, and whether the port has room for more.
    fn send_datagrams(&mut self, now_us: u64, outbox: &Outbox) -> (usize, bool) {
        let mut headers = ArrayVec::new();
        let (mut stop, mut last) = (None, None);
        for datagram in outbox.iter().take(BURST) {
            match self.worker.route(now_us, datagram.peer, datagram.parts(), &mut last, &mut headers) {
                RouteOutcome::Frame => {}
                other => {
                    stop = Some((other, datagram));
                    break;
                }
            }
        }
        let ready = headers.len();
        let taken = self.send_frames(outbox, &headers);
        if taken < ready {
            return (taken, false);
        }
        // A datagram that cannot be sent is dealt with after all earlier ones were sent, so that it is looked at once.
        match stop {
            None => (taken, true),
            Some((RouteOutcome::AwaitNeighbour(hop), datagram)) => {
                self.worker.queue_unresolved(now_us, hop, datagram.peer, datagram.parts());
                (taken + 1, true)
            }
            Some((RouteOutcome::Dropped(why), _)) => {
                self.worker.counters.drop(why);
                (taken + 1, true)
            }
            Some((RouteOutcome::Frame, _)) => (taken, true),
        }
    }

    fn send_frames(&mut self, outbox: &Outbox, headers: &[DatagramHeaders]) -> usize {
        let parts: ArrayVec<[FramePart<'_>; 2], BURST> = outbox
            .iter()
            .take(headers.len())
            .map(|datagram| {
                let shared = datagram.shared().map(|(share, range)| FramePart::Shared(share, range));
                [FramePart::Bytes(datagram.parts()[0]), shared.unwrap_or(FramePart::Bytes(&[]))]
            })
            .collect();
        let mut frames = ArrayVec::<TxFrame<'_>, BURST>::new();
        for (headers, parts) in headers.iter().zip(&parts) {
            frames.push(TxFrame { header: headers.bytes(), ip_header_len: headers.ip, fill: headers.fill, parts });
        }
        let taken = self.port.transmit(&frames).min(headers.len());
        self.counters.sent += taken as u64;
        self.counters.sent_messages += taken as u64;
        let bytes: usize = outbox.iter().take(taken).map(|datagram| datagram.len()).sum();
        self.counters.sent_bytes += bytes as u64;
        taken
    }

    /// Returns how long a waiting thread may sleep, microseconds.
    #[cfg(test)]
    pub(super) fn max_sleep_us(&self) -> u64 {
        self.terms.max_sleep_us.load(Relaxed)
    }

    /// Updates how long a waiting thread may sleep.
    fn update_sleep_policy(&self, now_us: u64) {
        let worker = &self.worker;
        let mut max_sleep_us = match now_us.saturating_sub(self.busy_us) {
            _ if !self.polled => u64::MAX,
            _ if self.alarm.is_set() => ARMED_SLEEP_US,
            idle_us if idle_us < POLLED_IDLE_AFTER_US => POLLED_SLEEP_US,
            idle_us if idle_us < POLLED_DEEP_IDLE_AFTER_US => POLLED_IDLE_SLEEP_US,
            _ => POLLED_DEEP_SLEEP_US,
        };
        if !worker.unresolved.is_empty() {
            max_sleep_us = max_sleep_us.min(worker.unresolved.due_us.saturating_sub(now_us).max(SHORT_SLEEP_US));
        }
        if !worker.queue.frames.is_empty() || !self.inbox.is_empty() {
            max_sleep_us = max_sleep_us.min(SHORT_SLEEP_US);
        }
        let SleepPolicy { max_sleep_us: before_us, listens } = &*self.terms;
        if before_us.load(Relaxed) != max_sleep_us {
            before_us.store(max_sleep_us, Relaxed);
        }
        // An interrupt that came late, when no thread waited for it any more, ends no sleep.
        let has_event_source = !self.polled || self.alarm.is_set();
        if listens.load(Relaxed) != has_event_source {
            listens.store(has_event_source, Relaxed);
        }
    }
}

impl<P: FramePort> DatagramDriver for StackDriver<P> {
    fn local(&self) -> PeerAddr {
        self.worker.interface.local(self.worker.index)
    }

    fn burst(&self) -> Burst {
        if self.port.coalesces() { Burst::default() } else { Burst::new(BURST, self.worker.interface.mtu) }
    }

    fn receive(&mut self, burst: &mut Burst) -> usize {
        burst.clear();
        self.worker.large_datagram_bytes = self.port.worth_taking();
        let now_us = (self.worker.interface.clock)();
        self.drain_inbox(burst);
        let (mut drained, mut frames) = (self.inbox.is_empty(), 0);
        for _ in 0..MAX_JUNK_BURSTS {
            let free = burst.free_slots().min(BURST);
            if free == 0 {
                drained = false;
                break;
            }
            let count = self.port.receive(free);
            for index in 0..count {
                if let Some(frame) = self.port.frame(index) {
                    self.worker.input(now_us, &frame, burst);
                }
                if let Some(large) = self.worker.large.take() {
                    self.push_large(index, large, burst);
                }
            }
            frames += count;
            drained &= count < free;
            if count < free {
                break;
            }
        }
        self.counters.received_messages += frames as u64;
        self.alarm.after_poll(&mut self.port, now_us, frames);
        self.hand_over();
        self.work(now_us);
        if !burst.is_empty() {
            self.busy_us = now_us;
        }
        if !drained {
            burst.mark_undrained();
        } else if burst.is_empty()
            && let Some(inbox) = self.worker.interface.inboxes.get(self.worker.index)
            && !inbox.rest()
        {
            // A datagram has come since: no sleep.
            self.waker.wake();
        }
        self.update_sleep_policy(now_us);
        self.counters.received += burst.len() as u64;
        self.counters.received_bytes += burst.iter().map(|(_, datagram)| datagram.len() as u64).sum::<u64>();
        burst.len()
    }

    fn transmit(&mut self, outbox: &mut Outbox) -> usize {
        let (before, now_us) = (outbox.len(), (self.worker.interface.clock)());
        while !outbox.is_empty() {
            let (done, room) = self.send_datagrams(now_us, outbox);
            outbox.advance(done);
            if !room {
                self.counters.send_full += 1;
                // Datagrams that wait for room are sent as soon as there is some: no long sleep.
                self.busy_us = now_us;
                outbox.compact();
                break;
            }
        }
        if outbox.len() < before {
            self.busy_us = now_us;
        }
        self.work(now_us);
        self.update_sleep_policy(now_us);
        before - outbox.len()
    }

    fn may_sleep(&mut self) -> bool {
        // A worker that sends again soon sleeps by the clock.
        let worker = &self.worker;
        let nothing_waits = worker.unresolved.is_empty() && worker.queue.frames.is_empty() && self.inbox.is_empty();
        let idle_us = (worker.interface.clock)().saturating_sub(self.busy_us);
        self.alarm.may_sleep(&mut self.port, nothing_waits && idle_us >= POLLED_IDLE_AFTER_US)
    }

    fn waiter(&self) -> DriverWaiter {
        self.waiter.clone()
    }

    fn waker(&self) -> DriverWaker {
        self.waker.clone()
    }

    fn pressure(&mut self) -> ReceivePressure {
        if self.worker.index == 0 && self.port.came_up() {
            // The announcement leaves with the next datagrams, or when the port is next looked at.
            self.worker.announce();
        }
        self.port.pressure()
    }

    fn counters(&self) -> DriverCounters {
        let (stack, (late, late_bytes)) = (&self.worker.counters, self.worker.late);
        DriverCounters {
            receive_errors: stack.malformed(),
            truncated: stack.refused(FrameDropReason::BufferTooSmall),
            sent: self.counters.sent + late,
            sent_bytes: self.counters.sent_bytes + late_bytes,
            sent_messages: self.counters.sent_messages + late,
            send_errors: stack.unsent() + self.port.send_errors(),
            ..self.counters
        }
    }

    fn max_datagram(&self) -> usize {
        self.worker.interface.max_datagram()
    }

    fn usual_datagram(&self) -> usize {
        default_datagram(self.worker.interface.v6.is_some()).min(self.max_datagram())
    }

    fn outbox(&self) -> Outbox {
        let path_mtus: Arc<StackInterface> = Arc::clone(&self.worker.interface);
        Outbox::along(path_mtus)
    }

    fn details(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.worker.counters.named().for_each(|(name, count)| each(name, count));
    }
}
