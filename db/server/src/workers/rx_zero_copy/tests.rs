use sandstorm_net::rpc::{OpKind, Operation, RpcStatus};

use super::super::record_operations;
use super::super::record_operations::operation_context::{OperationContext, RangeWork};
use super::*;
use sandstorm_metrics::WorkerCounters;
use sandstorm_store::{Epochs, Participant, RecordTable, TableConfig};

/// Bytes of the largest packet, and of a value that is large enough for its buffer.
const PACKET: usize = 8192;
const VALUE: usize = 3000;

/// A queue's buffers with a limit of stored values, and the tenants that write values.
struct Queue {
    budget: Arc<RxBufferBudget>,
    tenants: Vec<Arc<TenantUsage>>,
    /// One reference is here, and one more for each owner.
    buffers: Vec<Arc<Vec<u8>>>,
}

impl Queue {
    fn new(most: u32, tenants: usize) -> Queue {
        let tenants = (0..tenants).map(|_| Arc::new(TenantUsage::new(2))).collect();
        Queue { budget: Arc::new(RxBufferBudget::new(most, PACKET)), tenants, buffers: Vec::new() }
    }

    /// Runs `run` with a packet of a tenant.
    fn packet<R>(&mut self, tenant: usize, run: impl FnOnce(&ZeroCopyPacket<'_>, &[u8]) -> R) -> R {
        let buffer = Arc::new(vec![tenant as u8; PACKET]);
        self.buffers.push(Arc::clone(&buffer));
        let (share, has_stored_value, usage) = (SharedBytes::of(buffer), Cell::new(false), &self.tenants[tenant]);
        let refused = &usage.worker(0).rx_copied;
        let packet = ZeroCopyPacket {
            packet: &share,
            has_stored_value: &has_stored_value,
            rx_budget: &self.budget,
            port: 1,
            usage,
            refused,
        };
        run(&packet, &share)
    }

    fn share(&mut self, tenant: usize) -> Option<SharedBytes> {
        self.packet(tenant, |packet, bytes| packet.share(&bytes[100..100 + VALUE]))
    }

    /// Stores as many values as the tenant may.
    fn fill(&mut self, tenant: usize) -> Vec<SharedBytes> {
        std::iter::from_fn(|| self.share(tenant)).collect()
    }

    /// The buffers of each tenant, and of all together.
    fn usage(&self) -> (Vec<u32>, u32) {
        let other: u32 = self.tenants.iter().map(|usage| usage.rx_buffers(0).get()).sum();
        assert_eq!(other, 0, "of another queue");
        (self.tenants.iter().map(|usage| usage.rx_buffers(1).get()).collect(), self.budget.stored())
    }

    /// Buffers with other references.
    fn budget(&self) -> usize {
        self.buffers.iter().filter(|buffer| Arc::strong_count(buffer) > 1).count()
    }
}

#[test]
fn a_greedy_tenant_leaves_buffers_for_the_next() {
    let mut queue = Queue::new(300, 3);
    let first = queue.fill(0);
    assert_eq!((first.len(), queue.usage()), (200, (vec![200, 0, 0], 200)), "two thirds");
    let (second, third) = (queue.fill(1), queue.fill(2));
    assert!(second.len() > 60 && third.len() > 20 && queue.usage().1 < 300, "{} {}", second.len(), third.len());
    assert!(queue.share(0).is_none() && queue.share(1).is_none());
    let refused: Vec<u64> = queue.tenants.iter().map(|usage| usage.worker(0).rx_copied.get()).collect();
    assert_eq!(refused, [2, 2, 1], "and each is told of its own alone");
    // The buffers that the first tenant releases are free for all.
    drop(first);
    assert!(queue.share(1).is_some() && queue.usage().0[0] == 0);
    drop((second, third));
    assert_eq!((queue.usage(), queue.budget()), ((vec![0, 0, 0], 0), 0));
    // In turns they get equal parts.
    let mut all = Vec::new();
    while let Some(shares) = (0..3).map(|tenant| queue.share(tenant)).collect::<Option<Vec<_>>>() {
        all.extend(shares);
    }
    let (usage, _) = queue.usage();
    assert!(usage.iter().all(|usage| (84..=86).contains(usage)), "two of seven parts: {usage:?}");
    assert_eq!(Queue::new(0, 1).fill(0).len(), 0);
    assert_eq!(Queue::new(1, 1).fill(0).len(), 1);
}

#[test]
fn a_value_stays_that_fills_a_good_part_of_the_packet_and_one_of_a_packet() {
    let mut queue = Queue::new(300, 1);
    let least = queue.budget.value_bytes();
    assert_eq!(least, PACKET / 4);
    for (len, is_shared) in [(0, false), (least - 1, false), (least, true), (PACKET - 1, true)] {
        let usage = queue.packet(0, |packet, bytes| packet.share(&bytes[..len]));
        assert_eq!(usage.map(|usage| usage.len()), is_shared.then_some(len));
    }
    let usage = queue.packet(0, |packet, bytes| {
        assert!(packet.share(&vec![0; VALUE]).is_none(), "not of the packet");
        [0, VALUE].map(|at| packet.share(&bytes[at..at + VALUE]))
    });
    assert!(usage[0].is_some() && usage[1].is_none());
    assert_eq!((queue.usage(), queue.budget()), ((vec![1], 1), 1));
    assert_eq!(queue.tenants[0].worker(0).rx_copied.get(), 0, "there was a place for each");
    drop(usage);
    assert_eq!((queue.usage(), queue.budget()), ((vec![0], 0), 0));
}

fn run(
    table: &RecordTable,
    participant: &Participant,
    (op, value): (OpKind, &[u8]),
    packet: Option<ZeroCopyPacket<'_>>,
) -> RpcStatus {
    let (ranges, counters) = (RangeWork::new(), WorkerCounters::default());
    let context = OperationContext { participant, now_ms: 1, counters: &counters, ranges: &ranges, packet };
    let operation = Operation { key: b"key", value, ..Operation::new(op) };
    record_operations::run(&context, table, &operation, table.hash(b"key"), (&mut Vec::new(), None))
}

#[test]
fn a_buffer_is_released_with_the_last_reader_of_its_value_and_not_with_its_record() {
    let mut queue = Queue::new(3, 1);
    let epochs = Epochs::new();
    let table = RecordTable::with_seed(TableConfig::default(), Arc::clone(&epochs), 1);
    let mut participant = epochs.register();
    let put = |queue: &mut Queue, participant: &Participant| {
        let put = |packet: &ZeroCopyPacket<'_>, bytes: &[u8]| {
            run(&table, participant, (OpKind::Put, &bytes[..VALUE]), Some(*packet))
        };
        assert_eq!(queue.packet(0, put), RpcStatus::Ok);
    };
    put(&mut queue, &participant);
    let record = |participant: &Participant| {
        let guard = participant.guard();
        table.get(&guard, table.hash(b"key"), b"key", 1).and_then(|record| record.share())
    };
    let answer = record(&participant).expect("it is large");
    put(&mut queue, &participant);
    assert_eq!((queue.usage(), queue.budget()), ((vec![2], 2), 2), "one is replaced");
    // The tenant's limit includes a value whose record is gone: further values are copied, and take no buffer.
    put(&mut queue, &participant);
    assert_eq!((queue.usage(), queue.tenants[0].worker(0).rx_copied.get()), ((vec![2], 2), 1));
    let settle = |participant: &mut Participant| (0..100).for_each(|_| participant.quiescent());
    settle(&mut participant);
    assert_eq!((queue.usage(), queue.budget()), ((vec![1], 1), 1), "an answer is sent from there");
    put(&mut queue, &participant);
    assert_eq!(queue.usage(), (vec![2], 2));
    assert_eq!(run(&table, &participant, (OpKind::Delete, &[]), None), RpcStatus::Ok);
    settle(&mut participant);
    assert_eq!(queue.usage(), (vec![1], 1));
    std::thread::spawn(move || drop(answer)).join().expect("on any thread");
    assert_eq!((queue.usage(), queue.budget()), ((vec![0], 0), 0));
}
