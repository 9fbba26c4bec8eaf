//! Promise: once warmed up, a server allocates nothing for a request of one packet, from the datagram to the response
//! in the outbox. Neither does the client.

use sandstorm_net::driver::{Burst, Outbox};
use sandstorm_net::limits::{ClientLimits, ReplyCacheLimits, ServerLimits};
use sandstorm_net::r2p2::{ClientEndpoint, PeerAddr, ServerEndpoint};
use sandstorm_net::reply_cache::{ReplyCache, RequestAdmission};
use sandstorm_net::rpc::{
    MessageHeader, OpKind, Operation, RpcStatus, encode_message, encode_operation, set_operation_count,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// Allocations of this thread only: the test runner's thread allocates at any time.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

// SAFETY: every call goes to the system's allocator with its arguments unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Client, server, window and the buffers between them.
struct Pair {
    client: ClientEndpoint,
    server: ServerEndpoint,
    once: ReplyCache,
    burst: Burst,
    outbox: Outbox,
    back: Burst,
    message: Vec<u8>,
    answer: Vec<u8>,
    sequence: u64,
}

const FROM: ([u8; 4], u16) = ([127, 0, 0, 1], 9000);
const AT_ONCE: u64 = 16;

impl Pair {
    /// Sixteen puts reach the server, and their answers come back.
    fn turn(&mut self, now_us: u64) {
        let peer = PeerAddr::from(FROM);
        let acked = self.sequence;
        for _request in 0..AT_ONCE {
            self.sequence += 1;
            let header =
                MessageHeader { flags: 0, operations: 1, tenant: 1, session: 77, sequence: self.sequence, acked };
            self.message.clear();
            encode_message(&header, &[Operation::put(1, b"some key", &[7; 100])], &mut self.message);
            self.client.request(now_us, &self.message, &mut self.outbox).unwrap();
        }
        self.outbox.iter().for_each(|datagram| assert!(self.burst.push(peer, datagram.parts()[0])));
        self.outbox.clear();
        for (peer, datagram) in self.burst.iter() {
            let request = self.server.receive(now_us, peer, datagram, &mut self.outbox).unwrap();
            let (header, operations) = MessageHeader::decode(&request.message).unwrap();
            let admitted = self.once.admit(now_us, peer, header.tenant, header.session, header.sequence, header.acked);
            assert_eq!(admitted, RequestAdmission::Execute);
            header.response(0).begin(&mut self.answer);
            for operation in operations {
                encode_operation(&operation.unwrap().answer(RpcStatus::Ok), &mut self.answer);
            }
            set_operation_count(&mut self.answer, 1);
            self.once.complete(peer, header.tenant, header.session, header.sequence, &self.answer);
            self.server.respond(now_us, peer, request.request_id, &self.answer, &mut self.outbox);
        }
        self.server.poll_timers(now_us, &mut self.outbox);
        self.burst.clear();
        self.outbox.iter().for_each(|datagram| assert!(self.back.push(datagram.peer, datagram.parts()[0])));
        self.outbox.clear();
        let mut answers = 0;
        for (_, datagram) in self.back.iter() {
            let response = self.client.receive(now_us, datagram, &mut self.outbox).unwrap();
            let (_, mut operations) = MessageHeader::decode(&response.message).unwrap();
            assert_eq!(operations.next().unwrap().unwrap().op, OpKind::Put);
            self.client.reuse(response.request);
            answers += 1;
        }
        assert_eq!(answers, AT_ONCE);
        self.back.clear();
        self.client.poll_timers(now_us, &mut self.outbox, &mut |ended| panic!("{ended:?}"));
    }
}

#[test]
fn a_request_of_one_packet_allocates_nothing() {
    let mut pair = Pair {
        client: ClientEndpoint::new(PeerAddr::from(FROM), ClientLimits { in_flight: 64, ..ClientLimits::default() }),
        server: ServerEndpoint::new(ServerLimits::default()),
        once: ReplyCache::new(ReplyCacheLimits::default()),
        burst: Burst::default(),
        outbox: Outbox::default(),
        back: Burst::default(),
        message: Vec::new(),
        answer: Vec::new(),
        sequence: 0,
    };
    (0..200).for_each(|turn| pair.turn(turn * 100));
    let before = ALLOCATIONS.get();
    (200..1200).for_each(|turn| pair.turn(turn * 100));
    assert_eq!(ALLOCATIONS.get() - before, 0, "allocations in 16,000 requests");
}
