//! The ledger of a turn's answers, from which tenants' latencies are counted.
//!
//! A request's time begins when the host receives its last packet, if the kernel says when that was
//! ([`super::ingress`]). Else it begins at the clock reading with which the turn began in which its worker took the
//! packet. It waits until the batch begins in which it is answered. (A message that runs in pieces waits from piece to
//! piece.) It ends with the first clock reading after its answer has left, which is that of the next turn: plain
//! requests need no reading of their own.
//!
//! The last part of that time is sending: from when answers are ready until they have left. Measuring it takes one more
//! clock reading, so it is done in one of [`SENDING_SAMPLE`] turns that answer anything. Turns in which calls end are
//! sampled as often: their replies are counted by extension as well, which takes a reference to it.

use std::cmp::Reverse;
use std::sync::Arc;

use super::ended_call::EndedCall;
use super::slow::SlowAnswer;
use crate::limits::SENDING_SAMPLE;
use sandstorm_accounts::{RequestSubject, RequestWaits};
use sandstorm_catalog::DirectorySnapshot;
use sandstorm_extension::LoadedExtension;
use sandstorm_metrics::histogram::RequestClass;
use sandstorm_metrics::{OPERATIONS, SlowThreshold};
use sandstorm_net::rpc::{OpKind, Operation};

/// Whether latencies, turns and slow requests are measured: always, but for a build with `--cfg unobserved`, which
/// `scripts/compare` has beside this one to tell what measuring costs.
pub(super) const IS_OBSERVED: bool = !cfg!(unobserved);

/// Adjacent requests of one tenant and kind that waited for as long, and began to be served together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AnsweredRequests {
    tenant: u32,
    class: RequestClass,
    waiting_ns: u64,
    begun_ns: u64,
    count: u64,
}

/// Requests of one tenant and kind whose answers were ready at the same time.
#[derive(Debug)]
struct ReadyAnswers {
    tenant: u32,
    class: RequestClass,
    /// The extension whose calls they were; `None`: other requests.
    extension: Option<Arc<LoadedExtension>>,
    ready_ns: u64,
    count: u64,
}

/// As what the latency of a message's answer is counted.
#[derive(Clone, Copy, Default)]
pub(super) struct AnswerLatency<'a> {
    /// The kind of its requests; `None`: calls, which are counted where they end, or what reads and writes nothing.
    pub(super) class: Option<RequestClass>,
    /// The first of its requests, and what these have waited for, if it has to wait and was slow.
    pub(super) first: Option<&'a Operation<'a>>,
    pub(super) waits: Option<&'a RequestWaits>,
}

/// A call that has ended, in a turn in which the sending of replies is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampledCall<'a> {
    pub(super) tenant: u32,
    pub(super) extension: &'a Arc<LoadedExtension>,
}

/// A call whose reply is ready, and has not left.
#[derive(Debug)]
pub(super) struct ReadyCall {
    pub(super) tenant: u32,
    pub(super) extension: Arc<LoadedExtension>,
    pub(super) ready_ns: u64,
    /// Whether its sending is measured.
    pub(super) is_sampled: bool,
    /// What is counted once its reply may leave; `None`: it was counted when it ended.
    pub(super) ended: Option<Box<EndedCall>>,
}

impl ReadyCall {
    /// The same, ready only at `ready_ns`: its reply waited for the log until then.
    pub(super) fn again(self, ready_ns: u64) -> ReadyCall {
        ReadyCall { ready_ns, ..self }
    }

    /// The bytes of memory that it takes.
    pub(super) fn size(&self) -> usize {
        size_of::<ReadyCall>() + self.ended.as_deref().map_or(0, EndedCall::size)
    }
}

/// The ledger: see the head of this file. It holds no more than one turn answers.
#[derive(Debug)]
pub(super) struct LatencyLedger {
    entries: Vec<AnsweredRequests>,
    /// What each entry is about, for the case that it is slow; empty where nothing is.
    subjects: Vec<RequestSubject>,
    /// What entries waited for beside their turn, by their number. Most waited for nothing.
    waits: Vec<(usize, RequestWaits)>,
    slow: Vec<SlowAnswer>,
    begun_ns: u64,
    /// Answers that are being sent, in a turn in which that is measured.
    sending: Vec<ReadyAnswers>,
    /// How many of the entries are among them, or left before.
    ready: usize,
    /// Turns that answered anything.
    turns: u32,
    /// Turns in which calls have ended.
    reply_turns: u32,
    /// From when on a request is slow.
    pub(super) slow_ns: u64,
}

/// Whether sending is measured in the turn of this number. Which turns these are follows no period that clients could
/// keep.
#[inline]
fn is_sampled(turn: u32) -> bool {
    // The multiplier is 2^32 over the golden ratio: its multiples spread evenly.
    IS_OBSERVED && turn.wrapping_mul(0x9E37_79B9) < u32::MAX / SENDING_SAMPLE
}

/// The kind of a plain operation; none for those that read and write nothing. Calls are counted when they end.
#[inline]
pub(super) fn class_of(op: OpKind) -> Option<RequestClass> {
    match op {
        OpKind::Get | OpKind::MultiGet | OpKind::Ttl => Some(RequestClass::Get),
        OpKind::Put | OpKind::Delete | OpKind::Increment | OpKind::Commit | OpKind::Touch => Some(RequestClass::Put),
        OpKind::Range | OpKind::Count | OpKind::Rank | OpKind::Nth => Some(RequestClass::Range),
        OpKind::Ping | OpKind::Hello | OpKind::Invoke => None,
    }
}

/// What an operation is about.
#[inline]
pub(super) fn subject_of(first: &Operation<'_>) -> RequestSubject {
    RequestSubject::new(OPERATIONS[first.op as usize], first.table, first.key)
}

impl Default for LatencyLedger {
    fn default() -> LatencyLedger {
        LatencyLedger {
            entries: Vec::new(),
            subjects: Vec::new(),
            waits: Vec::new(),
            slow: Vec::new(),
            begun_ns: 0,
            sending: Vec::new(),
            ready: 0,
            turns: 0,
            reply_turns: 0,
            slow_ns: SlowThreshold::OFF,
        }
    }
}

impl LatencyLedger {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.sending.is_empty()
    }

    /// Notes that the answers noted so far are ready, and only have to be sent. `read_ns` reads the clock.
    #[inline]
    pub(super) fn note_ready(&mut self, read_ns: impl FnOnce() -> u64) {
        if !is_sampled(self.turns) || self.ready == self.entries.len() {
            return;
        }
        let ready_ns = read_ns();
        let ready = self.entries.iter().skip(self.ready).map(|entry| {
            let AnsweredRequests { tenant, class, count, .. } = *entry;
            ReadyAnswers { tenant, class, extension: None, ready_ns, count }
        });
        self.sending.extend(ready);
        self.ready = self.entries.len();
    }

    /// Notes a turn in which calls have ended. Returns whether the sending of their replies is measured.
    #[inline]
    pub(super) fn begin_replies(&mut self) -> bool {
        self.reply_turns = self.reply_turns.wrapping_add(1);
        is_sampled(self.reply_turns)
    }

    /// Notes that the reply of a call was ready at `ready_ns`, and only has to be sent.
    pub(super) fn note_ready_call(&mut self, SampledCall { tenant, extension }: SampledCall<'_>, ready_ns: u64) {
        match self.sending.last_mut() {
            Some(last)
                if (last.tenant, last.ready_ns) == (tenant, ready_ns)
                    && last.extension.as_ref().is_some_and(|one| Arc::ptr_eq(one, extension)) =>
            {
                last.count += 1;
            }
            _ => {
                let extension = Some(Arc::clone(extension));
                self.sending.push(ReadyAnswers { tenant, class: RequestClass::Call, extension, ready_ns, count: 1 });
            }
        }
    }

    /// The same of a call whose reply waited since.
    pub(super) fn note_sent_call(&mut self, ReadyCall { tenant, extension, ready_ns, is_sampled, .. }: ReadyCall) {
        if is_sampled {
            self.note_ready_call(SampledCall { tenant, extension: &extension }, ready_ns);
        }
    }

    /// Notes that what is answered from here on began to be served at `now_ns`.
    #[inline]
    pub(super) fn begin_batch(&mut self, now_ns: u64) {
        self.begun_ns = now_ns;
    }

    /// Notes a request that is answered. `subject` is asked for where it may turn out to be slow.
    #[inline]
    pub(super) fn note(
        &mut self,
        tenant: u32,
        class: RequestClass,
        received_ns: u64,
        subject: impl FnOnce() -> RequestSubject,
    ) {
        if !IS_OBSERVED {
            return;
        }
        let (begun_ns, waiting_ns) = (self.begun_ns, self.begun_ns.saturating_sub(received_ns));
        let entry = AnsweredRequests { tenant, class, waiting_ns, begun_ns, count: 1 };
        match self.entries.last_mut() {
            Some(last) if *last == AnsweredRequests { count: last.count, ..entry } => last.count += 1,
            _ => {
                self.entries.push(entry);
                if self.slow_ns != SlowThreshold::OFF {
                    self.subjects.push(subject());
                }
            }
        }
    }

    /// Notes what the requests that were noted last have waited for beside their turn, for the case that they are slow;
    /// of several that are one entry, what the first has waited for.
    #[cold]
    pub(super) fn note_waits(&mut self, waits: RequestWaits) {
        if self.slow_ns != SlowThreshold::OFF
            && let Some(last) = self.entries.len().checked_sub(1)
            && self.waits.last().is_none_or(|(of, _)| *of != last)
        {
            self.waits.push((last, waits));
        }
    }

    /// Counts the requests for their tenants, as worker number `worker`: their answers have left by `now_ns`. `note`
    /// gets each tenant with the number of its requests, once for those that are adjacent.
    pub(super) fn settle(
        &mut self,
        snapshot: &DirectorySnapshot,
        worker: usize,
        now_ns: u64,
        mut note: impl FnMut(u32, u64),
    ) {
        for (number, entry) in self.entries.drain(..).enumerate() {
            let AnsweredRequests { tenant, class, waiting_ns, begun_ns, count } = entry;
            note(tenant, count);
            // A tenant may have been deleted since.
            if let Some(view) = snapshot.tenant(tenant) {
                let latency = view.tenant.usage.latency(worker).of(class);
                let service_ns = now_ns.saturating_sub(begun_ns);
                latency.record(waiting_ns, service_ns, count);
                if waiting_ns.saturating_add(service_ns) >= self.slow_ns
                    && let Some(subject) = self.subjects.get(number)
                {
                    let subject = *subject;
                    // Their numbers only grow. Many may be slow at once: when answers are released together.
                    let at = self.waits.partition_point(|(of, _)| *of < number);
                    let waits = self.waits.get(at).filter(|(of, _)| *of == number);
                    let waits = waits.map_or_else(RequestWaits::default, |(_, waits)| *waits);
                    self.slow.push(SlowAnswer { tenant, class, subject, count, waiting_ns, service_ns, waits });
                }
            }
        }
        self.subjects.clear();
        self.waits.clear();
        for ReadyAnswers { tenant, class, extension, ready_ns, count } in self.sending.drain(..) {
            let sending_ns = now_ns.saturating_sub(ready_ns);
            if let Some(view) = snapshot.tenant(tenant) {
                view.tenant.usage.latency(worker).of(class).record_sending(sending_ns, count);
            }
            if let Some(extension) = extension {
                extension.latency.record_sending(worker, sending_ns, count);
            }
        }
        self.ready = 0;
        self.turns = self.turns.wrapping_add(1);
    }

    /// Whether any of those that were counted was slow.
    #[inline]
    pub(super) fn has_slow(&self) -> bool {
        !self.slow.is_empty()
    }

    /// Takes the slow ones, the slowest first.
    #[cold]
    pub(super) fn take_slow(&mut self) -> Vec<SlowAnswer> {
        self.slow.sort_by_key(|slow| Reverse(slow.waiting_ns + slow.service_ns));
        std::mem::take(&mut self.slow)
    }
}

#[cfg(test)]
mod tests {
    use sandstorm_catalog::{Directory, NewTenant};
    use sandstorm_extension::{BudgetOverride, ExtensionLibrary};
    use sandstorm_store::Epochs;

    use super::*;

    fn extension() -> Arc<LoadedExtension> {
        Arc::new(LoadedExtension::new("e", 1, ExtensionLibrary::of_nothing(), BudgetOverride::default()))
    }

    #[test]
    fn answers_are_counted_for_their_tenant_with_the_time_that_each_waited() {
        let directory = Directory::new(Epochs::new());
        for name in ["one", "two"] {
            directory.create_tenant(NewTenant::named(name)).expect("a tenant");
        }
        let snapshot = directory.snapshot();
        let id = |name: &str| snapshot.by_name(name).expect("a tenant").tenant.id;
        let mut ledger = LatencyLedger { slow_ns: 16_000, ..LatencyLedger::default() };
        let get = || RequestSubject::of("get");
        ledger.begin_batch(10_000);
        (0..3).for_each(|_| ledger.note(id("one"), RequestClass::Get, 10_000, get));
        ledger.note(id("two"), RequestClass::Put, 4_000, || RequestSubject::new("put", 3, b"k"));
        ledger.begin_batch(14_000);
        ledger.note(id("one"), RequestClass::Get, 10_000, get);
        ledger.note(u32::MAX, RequestClass::Get, 10_000, get);
        assert_eq!(ledger.entries.len(), 4, "adjacent ones are one entry");
        let mut noted = Vec::new();
        ledger.settle(&snapshot, 0, 20_000, |tenant, count| noted.push((tenant, count)));
        assert_eq!(noted, [(id("one"), 3), (id("two"), 1), (id("one"), 1), (u32::MAX, 1)]);
        assert!(ledger.is_empty());
        let slow: Vec<_> = ledger.take_slow().into_iter().map(|slow| (slow.tenant, slow.count, slow.subject)).collect();
        assert_eq!(slow, [(id("two"), 1, RequestSubject::new("put", 3, b"k"))], "the threshold is 16 us");
        assert!(!ledger.has_slow());
        let read = |name: &str, class: RequestClass| {
            let counts = snapshot.by_name(name).expect("a tenant").tenant.usage.latencies()[class as usize].clone();
            (counts.total.count(), counts.total.sum_ns, counts.waiting.sum_ns, counts.service.sum_ns)
        };
        assert_eq!(read("one", RequestClass::Get), (4, 3 * 10_000 + 10_000, 4_000, 3 * 10_000 + 6_000));
        assert_eq!(read("two", RequestClass::Put), (1, 16_000, 6_000, 10_000));
        assert_eq!(read("two", RequestClass::Get), (0, 0, 0, 0));
    }

    #[test]
    fn each_slow_entry_has_its_own_waits_and_one_at_most() {
        let directory = Directory::new(Epochs::new());
        directory.create_tenant(NewTenant::named("one")).expect("a tenant");
        let snapshot = directory.snapshot();
        let tenant = snapshot.by_name("one").expect("a tenant").tenant.id;
        let mut ledger = LatencyLedger { slow_ns: 1, ..LatencyLedger::default() };
        ledger.begin_batch(1_000_000);
        let waits = |disk_ns: u64| RequestWaits { disk_ns, ..RequestWaits::default() };
        for number in 0..1_000u64 {
            // Each two have waited for as long, and are one entry.
            for disk_ns in [number, u64::MAX] {
                ledger.note(tenant, RequestClass::Get, number, || RequestSubject::of("get"));
                if number % 2 == 1 {
                    ledger.note_waits(waits(disk_ns));
                }
            }
        }
        assert_eq!((ledger.entries.len(), ledger.waits.len()), (1_000, 500), "no more of them than entries");
        ledger.settle(&snapshot, 0, 2_000_000, |_, _| ());
        let slow = ledger.take_slow();
        assert_eq!(slow.len(), 1_000);
        for one in slow {
            let number = 1_000_000 - one.waiting_ns;
            let expected = if number % 2 == 1 { waits(number) } else { RequestWaits::default() };
            assert_eq!((one.waits, one.count), (expected, 2), "entry {number}");
        }
    }

    #[test]
    fn sending_is_measured_in_some_turns_from_when_the_answers_are_ready() {
        let directory = Directory::new(Epochs::new());
        directory.create_tenant(NewTenant::named("one")).expect("a tenant");
        let snapshot = directory.snapshot();
        let (tenant, mut ledger) = (snapshot.by_name("one").expect("a tenant").tenant.id, LatencyLedger::default());
        let extension = extension();
        let (turns, mut readings) = (16 * u64::from(SENDING_SAMPLE), 0);
        for turn in 0..turns {
            let begun_ns = turn * 100_000;
            ledger.begin_batch(begun_ns);
            (0..3).for_each(|_| ledger.note(tenant, RequestClass::Get, begun_ns, || RequestSubject::of("get")));
            let mut read = |at_ns: u64| {
                readings += 1;
                begun_ns + at_ns
            };
            ledger.note_ready(|| read(4_000));
            // What was noted before is not ready again.
            ledger.note_ready(|| read(5_000));
            ledger.note(tenant, RequestClass::Put, begun_ns, || RequestSubject::of("put"));
            ledger.note_ready(|| read(6_000));
            if ledger.begin_replies() {
                let call = SampledCall { tenant, extension: &extension };
                let before = ledger.sending.len();
                (0..2).for_each(|_| ledger.note_ready_call(call, begun_ns + 9_000));
                let extension = Arc::clone(&extension);
                let waited = ReadyCall { tenant, extension, ready_ns: begun_ns, is_sampled: true, ended: None };
                ledger.note_sent_call(waited.again(begun_ns + 8_000));
                assert_eq!(ledger.sending.len() - before, 2, "those that were ready together are one entry");
            }
            // This one leaves with nothing that was measured.
            ledger.note(tenant, RequestClass::Range, begun_ns, || RequestSubject::of("range"));
            ledger.settle(&snapshot, 0, begun_ns + 10_000, |_, _| ());
            assert!(ledger.is_empty());
        }
        let sampled = readings / 2;
        assert!((14..=18).contains(&sampled), "one turn in {SENDING_SAMPLE}, not {sampled} of {turns}");
        let counts = snapshot.by_name("one").expect("a tenant").tenant.usage.latencies();
        let sent = |class: RequestClass| {
            let sending = &counts[class as usize].sending;
            (sending.count(), sending.sum_ns)
        };
        assert_eq!(sent(RequestClass::Get), (3 * sampled, 3 * sampled * 6_000));
        assert_eq!(sent(RequestClass::Put), (sampled, sampled * 4_000));
        let (calls, sum_ns) = sent(RequestClass::Call);
        assert!(calls % 3 == 0 && (14..=18).contains(&(calls / 3)), "of turns with calls as many, not {calls}");
        assert_eq!(sum_ns, calls / 3 * (2 * 1_000 + 2_000));
        assert_eq!(extension.latency.read().sending, counts[RequestClass::Call as usize].sending, "and by extension");
        assert_eq!(sent(RequestClass::Range), (0, 0));
        assert_eq!(counts[RequestClass::Call as usize].total.count(), 0, "a call is counted where it ends");
    }

    #[test]
    fn sending_is_measured_in_as_many_turns_where_calls_alone_end() {
        let (snapshot, extension) = (Directory::new(Epochs::new()).snapshot(), extension());
        let (turns, mut ledger) = (16 * u64::from(SENDING_SAMPLE), LatencyLedger::default());
        for turn in 0..turns {
            if ledger.begin_replies() {
                ledger.note_ready_call(SampledCall { tenant: u32::MAX, extension: &extension }, turn);
            }
            ledger.settle(&snapshot, 0, turn, |_, _| ());
        }
        let sampled = extension.latency.read().sending.count();
        assert!((14..=18).contains(&sampled), "one turn in {SENDING_SAMPLE}, not {sampled} of {turns}");
    }
}
