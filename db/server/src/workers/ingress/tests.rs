//! Flows, batches, shedding, and the kernel's filter, with a queue as the driver.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use sandstorm_net::driver::socket_filter::BpfInstruction;
use sandstorm_net::driver::{DriverCounters, DriverWaiter, DriverWaker, Outbox, ReceivePressure};
use sandstorm_net::rpc::{MessageHeader, Operation, encode_message};
use sandstorm_net::rx_budget::RxBufferBudget;
use sandstorm_net::shared_bytes::SharedBytes;

use super::super::early_drop::EarlyDropController;
use super::super::verified_peers::VerifiedPeers;
use super::*;
use crate::limits::OVERLOAD_WINDOW_US;
use sandstorm_catalog::{Directory, NewTenant};

/// A socket of a test: it returns or filters datagrams in their order.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<(PeerAddr, Vec<u8>)>,
    /// Unix times at which these were received, as long as there are any.
    received_unix_ns: VecDeque<u64>,
    programs: usize,
    program: usize,
    refuses_programs: bool,
    /// The budget of buffers in which datagrams stay; none: they are copied.
    rx_budget: Option<Arc<RxBufferBudget>>,
}

/// A datagram that stays in its buffer.
struct Buffer {
    bytes: Vec<u8>,
    rx_budget: Arc<RxBufferBudget>,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.rx_budget.give_back();
    }
}

impl DatagramDriver for Queue {
    fn local(&self) -> PeerAddr {
        peer(0)
    }

    fn burst(&self) -> Burst {
        Burst::new(BURST, 1472)
    }

    fn receive(&mut self, burst: &mut Burst) -> usize {
        burst.clear();
        while let Some((peer, datagram)) = self.waiting.front() {
            if let Some(unix_ns) = self.received_unix_ns.pop_front() {
                burst.note_arrival(unix_ns);
            }
            let put = match self.rx_budget.as_ref().filter(|budget| budget.take()) {
                None => burst.push(*peer, datagram),
                Some(budget) => {
                    let buffer = Buffer { bytes: datagram.clone(), rx_budget: Arc::clone(budget) };
                    burst.push_shared(*peer, SharedBytes::of(Arc::new(buffer)))
                }
            };
            if !put {
                break;
            }
            self.waiting.pop_front();
        }
        burst.len()
    }

    fn transmit(&mut self, _: &mut Outbox) -> usize {
        0
    }

    fn waiter(&self) -> DriverWaiter {
        DriverWaiter::new(None).unwrap()
    }

    fn waker(&self) -> DriverWaker {
        self.waiter().waker()
    }

    fn pressure(&mut self) -> ReceivePressure {
        ReceivePressure { filled: self.waiting.len().min(1000) as u32, thrown_away: 0 }
    }

    fn set_filter(&mut self, program: &[BpfInstruction]) -> bool {
        self.program = program.len();
        self.programs += 1;
        !self.refuses_programs
    }

    fn counters(&self) -> DriverCounters {
        DriverCounters::default()
    }
}

fn peer(port: u16) -> PeerAddr {
    ([127, 0, 0, 1], port).into()
}

/// A get of a tenant; `number` tells it from others.
fn get(tenant: u32, number: u64) -> Vec<u8> {
    let header = MessageHeader { flags: 0, operations: 1, tenant, session: 1, sequence: number, acked: 0 };
    let mut message = vec![0xCC, 8, 0, 0xC0, 0, 0, 0, 1];
    let mut body = Vec::new();
    encode_message(&header, &[Operation::get(1, b"key")], &mut body);
    message.extend(body);
    message
}

struct Port {
    queue: Queue,
    ingress: IngressScheduler,
    known: VerifiedPeers,
    directory: Arc<Directory>,
    sent: u64,
}

/// A closed tenant for each of the names; tenant number n is verified at port n.
fn port(tenants: &[&str]) -> (Port, Vec<u32>) {
    port_of(tenants, 100)
}

/// The same, with a limit of verified addresses.
fn port_of(tenants: &[&str], addresses: usize) -> (Port, Vec<u32>) {
    let directory = Directory::new(sandstorm_store::Epochs::new());
    let mut known = VerifiedPeers::new(addresses);
    let ids: Vec<u32> =
        tenants.iter().map(|name| directory.create_tenant(NewTenant::named(name)).unwrap().0.tenant.id).collect();
    ids.iter().for_each(|id| known.note(peer(*id as u16), *id, 0));
    (Port { queue: Queue::default(), ingress: IngressScheduler::new(), known, directory, sent: 0 }, ids)
}

impl Port {
    fn send(&mut self, from: u16, tenant: u32, count: usize) {
        for _ in 0..count {
            self.sent += 1;
            self.queue.waiting.push_back((peer(from), get(tenant, self.sent)));
        }
    }

    fn receive(&mut self) {
        let (snapshot, budget) = (self.directory.snapshot(), self.queue.rx_budget.clone());
        let classifier = DatagramClassifier {
            snapshot: &snapshot,
            verified_peers: &mut self.known,
            now_us: 1,
            rx_budget: budget.as_deref(),
            last: None,
        };
        self.ingress.receive(&mut self.queue, classifier, true);
    }

    /// Serves one batch, at a microsecond each. Returns the number of datagrams of each flow.
    fn part(&mut self) -> Option<Vec<(FlowKey, usize)>> {
        self.part_of(|_| 0, 1000)
    }

    /// Serves one batch. `more` is the additional work of a flow's datagrams, and each unit of work takes `unit_ns`.
    fn part_of(&mut self, more: impl Fn(FlowKey) -> u32, unit_ns: u64) -> Option<Vec<(FlowKey, usize)>> {
        if !self.ingress.next_batch() {
            return None;
        }
        let shares: Vec<(FlowKey, usize)> =
            self.ingress.slices().iter().map(|slice| (slice.key, usize::from(slice.count))).collect();
        let count = self.ingress.batch_len();
        let (mut costs, mut work) = (BatchCosts::default(), 0);
        for (number, (class, count)) in shares.iter().enumerate() {
            costs.add_work(number as u8, more(*class) * *count as u32);
            work += u64::from(1 + more(*class)) * *count as u64;
        }
        let work = if shares.is_empty() { count as u64 } else { work };
        assert_eq!(self.ingress.finish_batch(unit_ns * work, &costs), count);
        Some(if shares.is_empty() { vec![(None, count)] } else { shares })
    }

    /// Receives and serves in turns of `serve_us` microseconds, until nothing waits or `turns` have passed. Returns the
    /// served datagrams of each flow.
    fn turns(&mut self, turns: usize, serve_us: usize) -> BTreeMap<FlowKey, usize> {
        let mut served = BTreeMap::new();
        for _ in 0..turns {
            self.receive();
            let mut done = 0;
            while done < serve_us
                && let Some(shares) = self.part()
            {
                for (class, count) in shares {
                    *served.entry(class).or_default() += count;
                    done += count;
                }
            }
        }
        served
    }
}

/// A worker that comes late finds what came together, and what came long after it: few datagrams, which are served
/// unsorted otherwise, and so many that they are sorted.
#[test]
fn datagrams_of_one_flow_wait_from_when_each_was_received() {
    const UNIX_NS: u64 = 1_800_000_000_000_000_000;
    const NOW_NS: u64 = 1_000_000_000;
    for count in [3, BURST] {
        let (mut port, ids) = port(&["a"]);
        port.send(ids[0] as u16, ids[0], count);
        let received_ns = (0..count).map(|number| if number < 2 { 0 } else { 300_000_000 });
        port.queue.received_unix_ns = received_ns.clone().map(|ns| UNIX_NS + ns).collect();
        let mut clock = ArrivalClock::default();
        clock.note(0, UNIX_NS);
        port.ingress.begin_turn(NOW_NS, clock);
        port.receive();
        assert!(port.ingress.next_batch());
        let found: Vec<u64> = (0..port.ingress.batch_len()).map(|number| port.ingress.received_ns(number)).collect();
        assert_eq!(found, received_ns.collect::<Vec<_>>(), "{count}");
    }
}

#[test]
fn a_flood_leaves_buffers_for_waiting_datagrams_of_others_and_unauthenticated_ones_get_none() {
    let (mut port, ids) = port(&["a", "b", "c"]);
    let budget = Arc::new(RxBufferBudget::new(200, 1500));
    port.queue.rx_budget = Some(Arc::clone(&budget));
    let waiting = |port: &mut Port, from: u16, tenant: u32, count: usize| {
        let before = budget.waiting();
        port.send(from, tenant, count);
        while !port.queue.waiting.is_empty() {
            port.receive();
        }
        budget.waiting() - before
    };
    // From an unverified address.
    assert_eq!(waiting(&mut port, 40_000, ids[0], 500), 0, "they wait as copies");
    let flood = waiting(&mut port, ids[0] as u16, ids[0], 500);
    assert!((64..=100).contains(&flood), "about two thirds of half of them: {flood}");
    let next = waiting(&mut port, ids[1] as u16, ids[1], 500);
    assert!(next > 0 && flood + next <= 100, "{flood} and {next}");
    assert!(budget.take(), "what comes next has a buffer until it is sorted");
    budget.give_back();
    let mut served = 0;
    while let Some(shares) = port.part() {
        served += shares.iter().map(|(_, count)| count).sum::<usize>();
    }
    assert_eq!((served, budget.out()), (1500, 0), "all are served, and all buffers are back");
}

#[test]
fn little_is_served_as_it_came() {
    let (mut port, ids) = port(&["a", "b"]);
    for round in 0..10 {
        port.send(ids[round % 2] as u16, ids[round % 2], 1);
    }
    port.receive();
    assert!(port.ingress.next_batch());
    let order: Vec<u8> =
        (0..port.ingress.batch_len()).map(|number| port.ingress.datagram(number).unwrap().2[8 + 16]).collect();
    assert_eq!(order, (1..=10).collect::<Vec<_>>());
    assert_eq!(port.ingress.finish_batch(1, &BatchCosts::default()), 10);
    assert!(!port.ingress.next_batch() && port.ingress.flows.is_empty());
    port.receive();
    assert!(!port.ingress.next_batch());
}

#[test]
fn a_message_waits_for_one_share_of_each_other_flow_whatever_is_queued_there() {
    let (mut port, ids) = port(&["flood", "quiet", "other"]);
    let (flood, quiet, other) = (ids[0], ids[1], ids[2]);
    port.send(flood as u16, flood, 20_000);
    port.turns(20, 30);
    for _ in 0..50 {
        port.send(flood as u16, flood, 60);
        port.send(other as u16, other, 10);
        port.send(quiet as u16, quiet, 1);
        let mut before = 0;
        // The socket is emptied over some turns; then the message is in its flow.
        for _ in 0..2_000 {
            let waits = port.queue.waiting.iter().any(|(from, _)| *from == peer(quiet as u16));
            port.receive();
            let Some(shares) = port.part() else { break };
            let other = shares.iter().take_while(|(class, _)| *class != Some(quiet)).map(|(_, count)| count);
            before += if waits { 0 } else { other.sum::<usize>() };
            if shares.iter().any(|(class, _)| *class == Some(quiet)) {
                break;
            }
        }
        assert!(before <= 2 * BURST, "{before} datagrams served first");
    }
}

#[test]
fn flows_share_by_time_and_unauthenticated_senders_get_the_least() {
    let (mut port, ids) = port(&["a", "b"]);
    let (a, b) = (ids[0], ids[1]);
    let mut served = BTreeMap::<FlowKey, usize>::new();
    for _ in 0..2_000 {
        port.send(a as u16, a, 40);
        port.send(b as u16, b, 10);
        // A forged name, and an address that is verified for another tenant.
        port.send(9_999, a, 20);
        port.send(a as u16, b, 10);
        for (class, count) in port.turns(1, 27) {
            *served.entry(class).or_default() += count;
        }
    }
    let of = |class: FlowKey| served[&class] as f64;
    let ratio = of(Some(a)) / of(Some(b));
    assert!((0.8..1.9).contains(&ratio), "a and b both ask for more than they get, or nearly: {served:?}");
    assert!(of(None) < 0.5 * of(Some(b)), "strangers get a quarter of a share: {served:?}");
    assert!(of(None) > 100.0, "and are served: {served:?}");
    assert!(
        port.ingress.shed() > 0 && port.ingress.flows[&Some(b)].window.shed == 0,
        "who keeps within the share loses nothing"
    );
}

#[test]
fn what_is_held_is_bounded_and_given_back() {
    let (mut port, ids) = port(&["flood"]);
    for _ in 0..300 {
        port.send(ids[0] as u16, ids[0], 1_000);
        port.turns(10, 5);
    }
    assert!(port.ingress.bursts.len() <= MAX_BURSTS && port.ingress.packs.len() <= MAX_PACKS);
    let in_use =
        |port: &Port| -> usize { port.ingress.bursts.iter().chain(&port.ingress.packs).map(|store| store.left).sum() };
    let waiting = port.ingress.flows[&Some(ids[0])].waiting;
    assert_eq!(in_use(&port), waiting);
    while !port.queue.waiting.is_empty() || port.part().is_some() {
        port.turns(1, 100);
    }
    assert_eq!(in_use(&port), 0);
    assert!(port.ingress.active.is_empty());
}

/// Floods for `ms` milliseconds at 4 datagrams a microsecond of serving, with windows as a worker would end them.
fn flood(
    port: &mut Port,
    overload: &mut EarlyDropController,
    ids: &[u32],
    from_us: &mut u64,
    turns: usize,
    per_turn: usize,
) {
    for turn in 0..turns {
        let filtered = port.ingress.flows.get(&Some(ids[0])).map_or(1.0, |flow| flow.admit_fraction);
        let count = if port.queue.refuses_programs { per_turn } else { (per_turn as f64 * filtered) as usize };
        port.send(ids[0] as u16, ids[0], count);
        port.send(ids[1] as u16, ids[1], 1);
        port.turns(1, 30);
        *from_us += 100;
        if turn % 100 == 99 {
            overload.end_window(*from_us, &mut port.ingress, &port.known, &mut port.queue, |_, _, _| {});
        }
    }
}

#[test]
fn a_flooding_sender_is_dropped_early_until_the_flood_ends_and_no_other_is() {
    for refuses_programs in [false, true] {
        let (mut port, ids) = port(&["flood", "quiet"]);
        port.queue.refuses_programs = refuses_programs;
        let (mut overload, mut now_us) = (EarlyDropController::new(), 0);
        flood(&mut port, &mut overload, &ids, &mut now_us, 5_000, 120);
        let admit_fraction = port.ingress.flows[&Some(ids[0])].admit_fraction;
        assert!(
            (0.1..0.7).contains(&admit_fraction),
            "of four times its share about three eighths are let in: {admit_fraction}"
        );
        assert_eq!(overload.throttled(), 1, "the quiet one is not throttled");
        assert_eq!(overload.timer_us(), Some(now_us + OVERLOAD_WINDOW_US));
        assert_eq!(port.ingress.random_drop.is_some(), refuses_programs, "what the kernel cannot do is done here");
        assert!(port.queue.program > 0);
        let programs = port.queue.programs;
        assert!(programs < 50, "the kernel is not told every window: {programs}");
        flood(&mut port, &mut overload, &ids, &mut now_us, 3_000, 1);
        assert_eq!((overload.throttled(), overload.timer_us(), port.queue.program), (0, None, 0), "lifted");
        assert!(port.ingress.random_drop.is_none());
    }
}

#[test]
fn a_flow_of_rejected_messages_is_dropped_early_below_the_limit() {
    let (mut port, ids) = port(&["over_its_rate", "quiet"]);
    let mut overload = EarlyDropController::new();
    for round in 1..100u64 {
        port.send(ids[0] as u16, ids[0], 500);
        port.send(9_999, ids[1], 500);
        port.send(ids[1] as u16, ids[1], 500);
        for _ in 0..50 {
            port.receive();
            while port.ingress.next_batch() {
                let mut costs = BatchCosts::default();
                for (number, slice) in port.ingress.slices().iter().enumerate() {
                    let refused = if slice.key == Some(ids[1]) { 0 } else { slice.count };
                    costs.add_rejected(number as u8, u64::from(refused));
                }
                port.ingress.finish_batch(1000, &costs);
            }
        }
        overload.end_window(round * OVERLOAD_WINDOW_US, &mut port.ingress, &port.known, &mut port.queue, |_, _, _| {});
    }
    let admit_fraction = |class: FlowKey| port.ingress.flows.get(&class).map_or(1.0, |flow| flow.admit_fraction);
    assert!(admit_fraction(Some(ids[0])) < 0.01 && admit_fraction(None) < 0.01 && admit_fraction(Some(ids[1])) == 1.0);
    assert_eq!(port.ingress.shed(), 0);
    assert_eq!(overload.throttled(), 2);
}

#[test]
fn of_many_tenants_with_a_message_each_a_part_has_many() {
    const TENANTS: usize = 500;
    let names: Vec<String> = (0..TENANTS).map(|number| format!("tenant-{number}")).collect();
    let (mut port, ids) = port_of(&names.iter().map(String::as_str).collect::<Vec<_>>(), TENANTS);
    for _ in 0..3 {
        ids.iter().for_each(|id| port.send(*id as u16, *id, 1));
    }
    let (mut order, mut parts) = (Vec::new(), 0);
    loop {
        port.receive();
        // At a quarter of a microsecond each, as plain gets are served.
        let Some(shares) = port.part_of(|_| 0, 250) else { break };
        parts += 1;
        for (class, count) in shares {
            order.extend(std::iter::repeat_n(class, count));
        }
    }
    assert_eq!(order.len(), 3 * TENANTS);
    assert!(parts <= 3 * TENANTS / (BURST / 2), "{parts} parts for {} messages", order.len());
    let mut served = BTreeMap::<FlowKey, usize>::new();
    for class in &order[..TENANTS] {
        *served.entry(*class).or_default() += 1;
    }
    assert!(served.len() > TENANTS / 4, "everybody's first message before most of the others' second");
    assert!(port.ingress.active.is_empty() && port.ingress.flows.values().all(|flow| flow.waiting == 0));
}

#[test]
fn whose_messages_are_more_work_has_fewer_of_them_served() {
    let (mut port, ids) = port(&["heavy", "light", "other"]);
    let heavy = Some(ids[0]);
    let mut served = BTreeMap::<FlowKey, usize>::new();
    for _ in 0..3_000 {
        port.send(ids[0] as u16, ids[0], 2);
        port.send(ids[1] as u16, ids[1], 60);
        port.send(ids[2] as u16, ids[2], 60);
        port.receive();
        let shares = port.part_of(|class| if class == heavy { 29 } else { 0 }, 300);
        for (class, count) in shares.unwrap_or_default() {
            *served.entry(class).or_default() += count;
        }
    }
    let of = |id: u32| served[&Some(id)] as f64;
    let ratio = 30.0 * of(ids[0]) / of(ids[1]);
    assert!((0.7..1.4).contains(&ratio), "its time is that of the others, whoever else is in its parts: {served:?}");
    let ratio = of(ids[1]) / of(ids[2]);
    assert!((0.8..1.25).contains(&ratio), "and theirs is alike: {served:?}");
}

/// A message of a tenant that waits for its turn.
fn waiting(port: &Port, tenant: u32, number: u64) -> PostponedMessage {
    let snapshot = port.directory.snapshot();
    PostponedMessage::unbegun(snapshot.tenant(tenant).unwrap(), get(tenant, number).split_off(8))
}

/// The next batch, at this cost: datagrams of these flows, or messages that continue.
fn next_costing(port: &mut Port, cost_ns: u64, again: usize) -> Option<(Vec<FlowKey>, usize, usize)> {
    if !port.ingress.next_batch() {
        return None;
    }
    let classes = port.ingress.slices().iter().map(|slice| slice.key).collect();
    let (datagrams, mut resumed) = (port.ingress.batch_len(), port.ingress.take_resumed());
    let count = resumed.len();
    resumed.drain(count.saturating_sub(again)..).rev().for_each(|message| port.ingress.postpone_again(message));
    assert_eq!(port.ingress.finish_batch(cost_ns, &BatchCosts::default()), datagrams + count);
    Some((classes, datagrams, count))
}

#[test]
fn messages_that_wait_go_on_at_their_tenants_turn_and_others_have_theirs_between() {
    let (mut port, ids) = port(&["a", "b"]);
    for number in 1..=5 {
        let message = waiting(&port, ids[0], number);
        assert!(port.ingress.postpone(message).is_ok());
    }
    port.send(ids[0] as u16, ids[0], 3);
    port.send(ids[1] as u16, ids[1], 2);
    port.receive();
    let (a, b) = (vec![Some(ids[0])], vec![Some(ids[1])]);
    assert_eq!(next_costing(&mut port, 100_000, 4), Some((a.clone(), 0, 5)), "alone, and one of them to its end");
    assert_eq!(next_costing(&mut port, 1_000, 0), Some((b, 2, 0)), "the neighbour is between");
    assert_eq!(next_costing(&mut port, 100_000, 1), Some((a.clone(), 0, 4)));
    assert_eq!(next_costing(&mut port, 100_000, 0), Some((a.clone(), 0, 1)));
    assert_eq!(next_costing(&mut port, 1_000, 0), Some((a, 3, 0)), "what came later is served later");
    assert_eq!(next_costing(&mut port, 1_000, 0), None);
    assert_eq!(port.ingress.postponed_bytes, 0);
}

#[test]
fn a_tenant_has_its_share_of_the_room_for_messages_that_wait() {
    const LARGE: usize = 8 << 20;
    let (mut port, ids) = port(&["a", "b"]);
    let large = |port: &Port, tenant| {
        let mut message = get(tenant, 1).split_off(8);
        message.reserve_exact(LARGE - message.len());
        PostponedMessage::unbegun(port.directory.snapshot().tenant(tenant).unwrap(), message)
    };
    let mut in_use = 0;
    while let Ok(()) = port.ingress.postpone(large(&port, ids[0])) {
        in_use += LARGE;
    }
    assert!(in_use > POSTPONED_BYTES / 2 && in_use < POSTPONED_BYTES * 3 / 4, "{in_use}");
    assert!(port.ingress.postpone(large(&port, ids[1])).is_ok(), "another one's share is left");
}
