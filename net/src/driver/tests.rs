use super::*;
use crate::limits::{BURST, GSO_SEGMENTS, MAX_DATAGRAM, OUTBOX_PINNED_BYTES, SHARED_SLICE_BYTES};
use crate::r2p2::{ClientEndpoint, DatagramSink, ServerEndpoint};
use crate::rpc::{MAX_VALUE_LEN, MessageHeader, OpKind, Operation, encode_message};
use crate::seal::{MAGIC, session_peer};
use crate::shared_bytes::SharedBytes;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn bind(address: &str, options: UdpOptions) -> UdpDriver {
    UdpDriver::bind(address.parse().unwrap(), options).unwrap()
}

const PLAIN: UdpOptions = UdpOptions {
    gro: false,
    gso: false,
    socket_buffer: crate::limits::SOCKET_BUFFER,
    shared: false,
    receive_times: false,
};

/// Both loopbacks (the second if this machine has it), offload on and off at each end.
fn pairs() -> Vec<(UdpDriver, UdpDriver)> {
    let mut pairs = Vec::new();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        if UdpDriver::bind(address.parse().unwrap(), PLAIN).is_err() {
            continue;
        }
        for (one, other) in [(PLAIN, PLAIN), (UdpOptions::default(), PLAIN), (PLAIN, UdpOptions::default())] {
            pairs.push((bind(address, one), bind(address, other)));
        }
        pairs.push((bind(address, UdpOptions::default()), bind(address, UdpOptions::default())));
    }
    pairs
}

/// Receives until `count` datagrams have come.
fn collect(driver: &mut UdpDriver, count: usize) -> Vec<(PeerAddr, Vec<u8>)> {
    let (mut burst, mut all, waiter) = (Burst::default(), Vec::new(), driver.waiter());
    let end = Instant::now() + Duration::from_secs(20);
    while all.len() < count && Instant::now() < end {
        if driver.receive(&mut burst) == 0 {
            waiter.wait(Some(100_000), false).unwrap();
        }
        all.extend(burst.iter().map(|(peer, datagram)| (peer, datagram.to_vec())));
    }
    all
}

#[test]
fn datagrams_of_all_lengths_arrive_whole_with_and_without_offload_each_length_in_its_order() {
    for (mut from, mut to) in pairs() {
        let mut outbox = Outbox::default();
        let mut expected = Vec::new();
        let lengths = [64; 100].into_iter().chain([64, 64, 63, 64, 0, 1, 1472, 1472, 9, 1400, 1472]).chain(1..60);
        for (number, len) in lengths.enumerate() {
            let datagram = vec![number as u8; len];
            let (head, tail) = datagram.split_at(len / 3);
            outbox.send(to.local(), &[head, tail]);
            expected.push((from.local(), datagram));
        }
        assert_eq!(from.transmit(&mut outbox), expected.len());
        assert!(outbox.is_empty());
        let mut arrived = collect(&mut to, expected.len());
        if from.offload().1 {
            arrived.sort_by_key(|(_, datagram)| datagram.len());
            expected.sort_by_key(|(_, datagram)| datagram.len());
        }
        assert!(arrived == expected);
        assert_eq!((from.counters().sent, to.counters().received), (expected.len() as u64, expected.len() as u64));
        if from.offload().1 {
            assert!(from.counters().sent_messages * 2 < expected.len() as u64, "equal neighbours leave together");
        }
    }
}

#[test]
fn datagrams_to_several_peers_reach_each_its_own() {
    let mut from = bind("127.0.0.1:0", UdpOptions::default());
    let mut peers: Vec<_> = (0..3).map(|_| bind("127.0.0.1:0", UdpOptions::default())).collect();
    let mut outbox = Outbox::default();
    for number in 0..90u8 {
        outbox.send(peers[usize::from(number / 7) % 3].local(), &[&[number; 30]]);
    }
    from.transmit(&mut outbox);
    for (index, peer) in peers.iter_mut().enumerate() {
        let mine: Vec<u8> = (0..90).filter(|number| usize::from(number / 7) % 3 == index).collect();
        let got: Vec<u8> = collect(peer, mine.len()).iter().map(|(_, datagram)| datagram[0]).collect();
        assert_eq!(got, mine);
    }
}

#[test]
fn a_port_that_is_taken_is_an_error_that_says_what_to_do() {
    let first = bind("127.0.0.1:0", UdpOptions::default());
    let error = UdpDriver::bind(first.local(), UdpOptions::default()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&first.local().to_string()) && text.contains("another server runs there?"), "{text}");
    let elsewhere = UdpDriver::bind("192.0.2.1:7000".parse().unwrap(), UdpOptions::default()).unwrap_err();
    assert!(elsewhere.to_string().contains("does not belong to this machine"), "{elsewhere}");
}

#[test]
fn a_peer_that_has_gone_does_not_stop_the_driver() {
    let mut from = bind("127.0.0.1:0", UdpOptions::default());
    let gone = bind("127.0.0.1:0", UdpOptions::default()).local();
    let mut to = bind("127.0.0.1:0", UdpOptions::default());
    let (mut outbox, mut burst) = (Outbox::default(), Burst::default());
    for round in 0..20u8 {
        outbox.send(gone, &[b"nobody"]);
        outbox.send(to.local(), &[&[round]]);
        from.transmit(&mut outbox);
        from.receive(&mut burst);
    }
    assert_eq!(collect(&mut to, 20).len(), 20);
}

#[test]
fn a_datagram_that_cannot_be_sent_is_counted_and_the_next_goes_out() {
    let mut from = bind("127.0.0.1:0", UdpOptions::default());
    let mut to = bind("127.0.0.1:0", UdpOptions::default());
    let mut outbox = Outbox::default();
    outbox.send("127.0.0.1:0".parse().unwrap(), &[b"port zero"]);
    outbox.send("[::1]:9".parse().unwrap(), &[b"another family"]);
    outbox.send(to.local(), &[b"fine"]);
    from.transmit(&mut outbox);
    assert_eq!(collect(&mut to, 1), [(from.local(), b"fine".to_vec())]);
    assert_eq!(from.counters().send_errors, 2);
}

#[test]
fn a_peer_without_segmentation_does_not_disable_it_for_others() {
    let mut from = bind("127.0.0.1:0", UdpOptions::default());
    if !from.offload().1 {
        eprintln!("this kernel does not segment: nothing to see");
        return;
    }
    let mut to = bind("127.0.0.1:0", UdpOptions::default());
    let mut outbox = Outbox::default();
    for round in 0..20u64 {
        let before = from.counters();
        (0..2).for_each(|_| outbox.send("127.0.0.1:0".parse().unwrap(), &[b"port zero"]));
        (0..40).for_each(|_| outbox.send(to.local(), &[b"together"]));
        assert_eq!(from.transmit(&mut outbox), 42);
        assert_eq!(collect(&mut to, 40).len(), 40);
        let now = from.counters();
        assert!(from.offload().1);
        assert_eq!((now.send_errors, now.unsegmented), (2 * (round + 1), 2 * (round + 1)));
        assert!(now.sent_messages - before.sent_messages <= 2, "they left together: {now:?}");
    }
}

#[test]
fn without_any_segmenting_peer_few_attempts_fail() {
    let mut from = bind("127.0.0.1:0", UdpOptions::default());
    let mut outbox = Outbox::default();
    (0..4000).for_each(|_| outbox.send("127.0.0.1:0".parse().unwrap(), &[b"port zero"]));
    assert_eq!(from.transmit(&mut outbox), 4000);
    let counters = from.counters();
    assert_eq!(counters.send_errors, 4000);
    // Four groups of up to 64 are tried until the pauses are at their longest, and then one in eight.
    assert!(counters.unsegmented <= 4000 / 8 + 4 * 64, "{counters:?}");
}

/// A datagram from port 0 to `to`, which only a raw socket can send. False if this process may not have one.
fn send_from_port_0(to: PeerAddr, payload: &[u8]) -> bool {
    use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
    let Ok(raw) = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::UDP)) else { return false };
    let mut datagram = vec![0; 8];
    datagram[2..4].copy_from_slice(&to.port().to_be_bytes());
    datagram[4..6].copy_from_slice(&(8 + payload.len() as u16).to_be_bytes());
    datagram.extend_from_slice(payload);
    sendto(&raw, &datagram, SendFlags::empty(), &to).unwrap();
    true
}

#[test]
fn a_datagram_that_cannot_be_answered_is_counted_and_thrown_away() {
    let mut to = bind("127.0.0.1:0", UdpOptions::default());
    if !send_from_port_0(to.local(), b"nobody's") {
        eprintln!("raw sockets are not permitted here: nothing to see");
        return;
    }
    let mut outbox = Outbox::default();
    let mut from = bind("127.0.0.1:0", UdpOptions::default());
    outbox.send(to.local(), &[b"mine"]);
    from.transmit(&mut outbox);
    assert_eq!(collect(&mut to, 1), [(from.local(), b"mine".to_vec())]);
    assert_eq!((to.counters().received, to.counters().truncated), (1, 1));
}

#[test]
fn a_datagram_longer_than_its_buffer_is_counted_and_thrown_away() {
    let mut from = bind("127.0.0.1:0", PLAIN);
    let mut to = bind("127.0.0.1:0", PLAIN);
    let mut outbox = Outbox::default();
    outbox.send(to.local(), &[&[1; 2000]]);
    outbox.send(to.local(), &[&[2; 100]]);
    from.transmit(&mut outbox);
    let mut burst = Burst::new(BURST, MAX_DATAGRAM);
    let waiter = to.waiter();
    while to.counters().received_messages < 2 {
        waiter.wait(Some(100_000), false).unwrap();
        if to.receive(&mut burst) > 0 {
            assert_eq!(burst.get(0), Some((from.local(), &[2; 100][..])));
        }
    }
    assert_eq!(to.counters().truncated, 1);
}

#[test]
fn a_full_outbox_drops_and_counts_and_has_room_again() {
    let mut outbox = Outbox::new(1000, 5);
    let peer = "127.0.0.1:9".parse().unwrap();
    (0..7).for_each(|_| outbox.send(peer, &[&[0; 100]]));
    assert_eq!((outbox.len(), outbox.dropped()), (5, 2));
    outbox.advance(2);
    outbox.compact();
    assert_eq!(outbox.len(), 3);
    outbox.send(peer, &[&[9; 300]]);
    assert_eq!((outbox.len(), outbox.dropped()), (4, 2));
    assert_eq!(outbox.iter().last().unwrap().to_vec(), [9; 300]);
    outbox.advance(4);
    assert!(outbox.is_empty() && outbox.iter().next().is_none());
}

#[test]
fn groups_hold_equal_neighbours_of_one_peer_and_one_shorter_last() {
    let (one, two): (PeerAddr, PeerAddr) = ("10.0.0.1:1".parse().unwrap(), "10.0.0.1:2".parse().unwrap());
    let mut outbox = Outbox::default();
    for (peer, len) in [(one, 50), (one, 50), (one, 40), (one, 40), (two, 40), (two, 0), (two, 8), (two, 9)] {
        outbox.send(peer, &[&vec![0; len]]);
    }
    let mut groups = Vec::new();
    outbox.groups(true, &mut groups);
    let shapes: Vec<_> = groups.iter().map(|group| (group.count, group.segment, group.len)).collect();
    assert_eq!(shapes, [(3, 50, 140), (1, 40, 40), (1, 40, 40), (1, 0, 0), (1, 8, 8), (1, 9, 9)]);
    outbox.groups(false, &mut groups);
    assert!(groups.len() == 8 && groups.iter().all(|group| group.count == 1));
}

/// Sizes of the datagrams in groups, and whether each group is of one peer, in the queue's order.
fn sizes(outbox: &Outbox) -> Vec<Vec<u32>> {
    let mut groups = Vec::new();
    outbox.groups(true, &mut groups);
    let datagrams = |group: &super::sys::GsoMessage| {
        let datagrams = &outbox.queue()[group.first..group.first + group.count as usize];
        assert!(datagrams.iter().all(|queued| queued.peer == group.peer));
        datagrams.iter().map(|queued| queued.len).collect()
    };
    groups.iter().map(datagrams).collect()
}

#[test]
fn datagrams_of_one_size_to_one_peer_leave_together_and_nothing_gets_before_what_waits() {
    let (one, two): (PeerAddr, PeerAddr) = ("10.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap());
    let mut outbox = Outbox::default();
    for len in [40, 50, 40, 7, 50, 40] {
        outbox.send(one, &[&vec![1; len]]);
        outbox.send(two, &[&vec![2; len]]);
    }
    outbox.sort_for_segmentation();
    let sorted_until = sizes(&outbox);
    let each = [vec![50, 50, 40], vec![40, 40, 7]];
    assert_eq!(sorted_until.len(), 4, "{sorted_until:?}");
    assert!(
        each.iter().all(|each| sorted_until.iter().filter(|group| *group == each).count() == 2),
        "{sorted_until:?}"
    );
    // Datagrams that could not leave stay in front.
    outbox.advance(3);
    outbox.compact();
    outbox.send(one, &[&[1; 60]]);
    outbox.sort_for_segmentation();
    let waiting: Vec<usize> = outbox.iter().map(|datagram| datagram.len()).collect();
    assert_eq!(waiting, [40, 40, 7, 50, 50, 40, 40, 40, 7, 60]);
    let of = |peer| if peer == one { 1 } else { 2 };
    assert!(outbox.iter().all(|datagram| datagram.to_vec().iter().all(|byte| *byte == of(datagram.peer))));
}

#[test]
fn what_has_left_makes_room_whatever_was_queued_first() {
    let peer = "10.0.0.1:1".parse().unwrap();
    let mut outbox = Outbox::new(91_000, 1000);
    outbox.send(peer, &[b"short"]);
    for number in 0..90u8 {
        outbox.send(peer, &[&[number; 1000]]);
    }
    outbox.sort_for_segmentation();
    outbox.advance(45);
    outbox.compact();
    outbox.send(peer, &[&[200; 40_000]]);
    assert_eq!((outbox.len(), outbox.dropped()), (47, 0));
    let waiting: Vec<(usize, u8)> = outbox.iter().map(|datagram| (datagram.len(), datagram.to_vec()[0])).collect();
    let expected = (45..90u8).map(|number| (1000, number)).chain([(5, b's'), (40_000, 200)]);
    assert!(waiting.into_iter().eq(expected));
    let mut waiting = outbox.iter().map(|datagram| datagram.to_vec());
    assert!(waiting.all(|bytes| bytes.len() == 5 || bytes.iter().all(|byte| *byte == bytes[0])));
}

#[test]
fn no_datagram_leaves_so_late_that_a_sealed_session_refuses_it() {
    let peer = "10.0.0.1:1".parse().unwrap();
    let mut outbox = Outbox::default();
    for number in 0..10_000u32 {
        let len = [8, 30, 9, 10][number as usize % 4];
        outbox.send(peer, &[&number.to_le_bytes(), &vec![0; len - 4]]);
    }
    outbox.sort_for_segmentation();
    let mut newest = 0;
    for bytes in outbox.iter().map(|datagram| datagram.to_vec()) {
        let number = u64::from(u32::from_le_bytes(bytes[..4].try_into().unwrap()));
        assert!(number + crate::seal::limits::REPLAY_WINDOW > newest, "{number} leaves behind {newest}");
        newest = newest.max(number);
    }
    assert_eq!((sizes(&outbox)[0].len(), outbox.len()), (GSO_SEGMENTS, 10_000), "those of one size are together");
}

#[test]
fn peers_whose_digests_are_equal_have_their_datagrams_together() {
    let peers: [PeerAddr; 2] = ["[2001:db8::1:0]:7".parse().unwrap(), "[2001:db8::20]:7".parse().unwrap()];
    let mut outbox = Outbox::default();
    for number in 0..40u8 {
        peers.iter().for_each(|peer| outbox.send(*peer, &[&[number; 20]]));
    }
    outbox.sort_for_segmentation();
    assert_eq!(sizes(&outbox), [vec![20; 40], vec![20; 40]]);
}

#[test]
fn mixed_sizes_arrive_whole_each_size_in_its_order() {
    let mut from = bind("127.0.0.1:0", UdpOptions::default());
    let mut to = bind("127.0.0.1:0", UdpOptions::default());
    let mut outbox = Outbox::default();
    let mut sent: std::collections::BTreeMap<usize, Vec<u8>> = Default::default();
    for number in 0..200u8 {
        let len = [64, 900, 17][number as usize * 7 % 3];
        outbox.send(to.local(), &[&[number; 8], &vec![number; len - 8]]);
        sent.entry(len).or_default().push(number);
    }
    assert_eq!(from.transmit(&mut outbox), 200);
    assert!(from.counters().sent == 200 && (!from.offload().1 || from.counters().sent_messages < 20));
    let (mut burst, mut got) = (to.burst(), std::collections::BTreeMap::<usize, Vec<u8>>::new());
    while got.values().map(Vec::len).sum::<usize>() < 200 {
        to.waiter().wait(Some(100_000), false).unwrap();
        to.receive(&mut burst);
        for (_, bytes) in burst.iter() {
            assert!(bytes.iter().all(|byte| *byte == bytes[0]));
            got.entry(bytes.len()).or_default().push(bytes[0]);
        }
        burst.clear();
    }
    assert_eq!(got, sent);
}

#[test]
fn a_sleeper_is_woken_by_a_datagram_by_a_signal_and_by_time() {
    let mut from = bind("127.0.0.1:0", UdpOptions::default());
    let to = bind("127.0.0.1:0", UdpOptions::default());
    let waiter = to.waiter();
    assert_eq!(waiter.wait(Some(1000), false).unwrap(), WakeReason::default());
    let waker = to.waker();
    waker.wake();
    waker.wake();
    assert_eq!(waiter.wait(None, false).unwrap(), WakeReason { signal: true, ..WakeReason::default() });
    assert_eq!(waiter.wait(Some(0), false).unwrap(), WakeReason::default(), "a signal wakes once");
    let sleeper = std::thread::spawn(move || waiter.wait(None, false).unwrap());
    waker.wake();
    assert!(sleeper.join().unwrap().signal);
    let mut outbox = Outbox::default();
    outbox.send(to.local(), &[b"x"]);
    from.transmit(&mut outbox);
    assert!(to.waiter().wait(None, false).unwrap().readable);
    assert!(to.waiter().wait(None, true).unwrap().writable);
}

#[test]
fn a_neighbour_receives_and_answers_through_the_same_socket() {
    let home = std::sync::Arc::new(std::sync::Mutex::new(bind("127.0.0.1:0", UdpOptions::default())));
    let (address, waiter) = {
        let home = home.lock().unwrap();
        (home.local(), home.waiter())
    };
    let mut client = bind("127.0.0.1:0", UdpOptions::default());
    let mut outbox = Outbox::default();
    outbox.send(address, &[b"stolen"]);
    client.transmit(&mut outbox);
    assert!(waiter.wait(None, false).unwrap().readable);
    let thief = std::thread::spawn(move || {
        let (mut burst, mut outbox) = (Burst::default(), Outbox::default());
        home.lock().unwrap().receive(&mut burst);
        for (peer, datagram) in burst.iter() {
            outbox.send(peer, &[b"answered: ", datagram]);
        }
        home.lock().unwrap().transmit(&mut outbox)
    });
    assert_eq!(thief.join().unwrap(), 1);
    assert_eq!(
        collect(&mut client, 1),
        [(address, b"answered: stolen".to_vec())],
        "it comes from the port that was asked"
    );
}

#[test]
fn a_burst_takes_what_a_test_puts_in() {
    let peer = "10.0.0.1:1".parse().unwrap();
    let mut burst = Burst::new(2, 100);
    assert!(burst.push(peer, b"one") && burst.push(peer, b"") && !burst.push(peer, b"full"));
    assert_eq!(burst.iter().collect::<Vec<_>>(), [(peer, &b"one"[..]), (peer, &b""[..])]);
    burst.clear();
    assert!(burst.is_empty() && !burst.push(peer, &[0; 101]));
}

/// The longest value goes to a server and comes back, over small kernel buffers that overflow.
#[test]
fn the_longest_value_survives_small_socket_buffers() {
    let small = UdpOptions { socket_buffer: 32 << 10, ..UdpOptions::default() };
    let (server, mut client) = (bind("127.0.0.1:0", small), bind("127.0.0.1:0", small));
    let address = server.local();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let echo = std::thread::spawn({
        let stop = stop.clone();
        move || echo_until(server, &stop)
    });
    let header = MessageHeader { flags: 0, operations: 1, tenant: 1, session: 5, sequence: 1, acked: 0 };
    let value: Vec<u8> = (0..MAX_VALUE_LEN).map(|at| (at / 7) as u8).collect();
    let mut message = Vec::new();
    encode_message(&header, &[Operation { value: &value, ..Operation::new(OpKind::Ping) }], &mut message);
    let (begin, waiter) = (Instant::now(), client.waiter());
    let mut endpoint = ClientEndpoint::new(address, Default::default());
    let (mut burst, mut outbox, mut got) = (Burst::default(), Outbox::default(), None);
    let now = || begin.elapsed().as_micros() as u64;
    let id = endpoint.request_with_timeout(now(), 60_000_000, &message, &mut outbox).unwrap();
    while got.is_none() {
        client.transmit(&mut outbox);
        let due_us = endpoint.poll_timers(now(), &mut outbox, &mut |ended| panic!("{ended:?}")).unwrap();
        client.transmit(&mut outbox);
        if client.receive(&mut burst) == 0 {
            waiter.wait(Some(due_us.saturating_sub(now()).min(10_000)), !outbox.is_empty()).unwrap();
        }
        for (_, datagram) in burst.iter() {
            if let Some(response) = endpoint.receive(now(), datagram, &mut outbox) {
                got = Some((response.request_id, response.message.into_vec()));
            }
        }
    }
    client.transmit(&mut outbox);
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    echo.join().unwrap();
    assert!(got == Some((id, message)), "the value came back with other bytes");
}

fn echo_until(mut driver: UdpDriver, stop: &std::sync::atomic::AtomicBool) {
    let (begin, waiter) = (Instant::now(), driver.waiter());
    let (mut endpoint, mut burst, mut outbox) =
        (ServerEndpoint::new(Default::default()), Burst::default(), Outbox::default());
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        let now_us = begin.elapsed().as_micros() as u64;
        driver.receive(&mut burst);
        for (peer, datagram) in burst.iter() {
            if let Some(request) = endpoint.receive(now_us, peer, datagram, &mut outbox) {
                endpoint.respond(now_us, peer, request.request_id, &request.message, &mut outbox);
                endpoint.recycle(request.message);
            }
        }
        endpoint.poll_timers(now_us, &mut outbox);
        driver.transmit(&mut outbox);
        if burst.is_empty() {
            waiter.wait(Some(2000), !outbox.is_empty()).unwrap();
        }
    }
}

/// Queues a value's bytes, each piece behind a header of its own, and other datagrams between them. Returns the
/// datagrams that are expected to arrive.
fn queue_value(outbox: &mut Outbox, to: PeerAddr, value: &Arc<Vec<u8>>) -> Vec<Vec<u8>> {
    let (share, mut expected) = (SharedBytes::of(Arc::clone(value)), Vec::new());
    for (number, start) in (0..value.len()).step_by(1300).enumerate() {
        let range = start..(start + 1300).min(value.len());
        let (head, own) = ([number as u8; 24], if number == 0 { &[9; 64][..] } else { &[] });
        outbox.send_shared(to, [&head, own], &share, range.clone());
        outbox.send(to, &[&[number as u8; 40]]);
        expected.extend([[&head, own, &value[range]].concat(), vec![number as u8; 40]]);
    }
    expected
}

fn value() -> Arc<Vec<u8>> {
    Arc::new((0..20_000u32).map(|at| (at >> 3) as u8).collect())
}

#[test]
fn shared_bytes_arrive_behind_the_own_ones_and_are_let_go_of_when_they_have_left() {
    for (mut from, mut to) in pairs() {
        let (mut outbox, value) = (Outbox::default(), value());
        let mut expected = queue_value(&mut outbox, to.local(), &value);
        assert!(Arc::strong_count(&value) > 10);
        assert!(outbox.iter().map(|datagram| datagram.to_vec()).eq(expected.iter().cloned()));
        assert_eq!((from.transmit(&mut outbox), outbox.is_empty()), (expected.len(), true));
        assert_eq!(Arc::strong_count(&value), 1);
        let mut arrived: Vec<Vec<u8>> =
            collect(&mut to, expected.len()).into_iter().map(|(_, datagram)| datagram).collect();
        arrived.sort();
        expected.sort();
        assert!(arrived == expected);
    }
}

#[test]
fn what_waits_behind_what_has_left_keeps_its_shared_bytes() {
    let (peer, first, second) = (PeerAddr::from(([10, 0, 0, 1], 1)), value(), value());
    for left in 0..64 {
        let mut outbox = Outbox::default();
        let mut expected = queue_value(&mut outbox, peer, &first);
        let left = left.min(expected.len());
        outbox.advance(left);
        expected.drain(..left);
        outbox.compact();
        expected.extend(queue_value(&mut outbox, peer, &second));
        assert!(outbox.iter().map(|datagram| datagram.to_vec()).eq(expected.iter().cloned()), "{left}");
        let in_place_count = outbox.iter().filter(|datagram| datagram.shared().is_some()).count();
        assert_eq!(Arc::strong_count(&first) + Arc::strong_count(&second), 2 + in_place_count, "{left}");
        outbox.clear();
        assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (1, 1));
    }
}

#[test]
fn an_outbox_holds_so_many_bytes_of_values_and_copies_the_others() {
    let (peer, mut outbox) = (PeerAddr::from(([10, 0, 0, 1], 1)), Outbox::default());
    let values: Vec<_> = (0..4).map(|fill| Arc::new(vec![fill; OUTBOX_PINNED_BYTES / 3])).collect();
    for value in &values {
        let share = SharedBytes::of(Arc::clone(value));
        (0..3).for_each(|at| outbox.send_shared(peer, [b"head", &[]], &share, at * 1000..(at + 1) * 1000));
        outbox.send_shared(peer, [b"head", &[]], &share, 0..SHARED_SLICE_BYTES - 1);
    }
    let in_place_count = values.iter().map(Arc::strong_count).collect::<Vec<_>>();
    assert_eq!(in_place_count, [4, 4, 4, 1]);
    assert!(outbox.iter().zip(0..).all(|(datagram, at)| datagram.to_vec()[4..].iter().all(|byte| *byte == at / 4)));
    outbox.clear();
    let share = SharedBytes::of(Arc::clone(&values[3]));
    outbox.send_shared(peer, [b"head", &[]], &share, 0..1000);
    assert_eq!(Arc::strong_count(&values[3]), 3, "what has left counts no more");
}

#[test]
fn a_burst_tells_whether_a_datagram_may_be_sealed_however_it_came() {
    let (plain, peer, session): (&[u8], PeerAddr, PeerAddr) =
        (&[0xCC; 40], ([10, 0, 0, 1], 7).into(), session_peer(1, 2));
    let sealed = [&[MAGIC][..], &[0; 39]].concat();
    let share = |bytes: &[u8]| SharedBytes::of(Arc::new(bytes.to_vec()));
    type Put = fn(&mut Burst, PeerAddr, &[u8]) -> bool;
    let put: [(&str, Put); 3] = [
        ("pushed", |burst, peer, datagram| burst.push(peer, datagram)),
        ("the second of two segments", |burst, peer, datagram| {
            burst.push_segments(peer, &[&[0xCC; 40], datagram].concat(), 40)
        }),
        ("packed", |burst, peer, datagram| burst.pack(peer, datagram)),
    ];
    for (how, put) in put {
        for (peer, datagram, expected) in [(peer, plain, false), (peer, &sealed[..], true), (session, plain, true)] {
            let mut burst = Burst::new(4, 100);
            assert!(put(&mut burst, peer, datagram) && burst.may_be_sealed() == expected, "{how}: {peer}");
            burst.clear();
            assert!(put(&mut burst, ([10, 0, 0, 1], 7).into(), plain) && !burst.may_be_sealed(), "{how}, after that");
        }
    }
    for (peer, datagram, expected) in [(peer, plain, false), (peer, &sealed[..], true), (session, plain, true)] {
        let (mut pushed, mut packed) = (Burst::new(4, 100), Burst::new(4, 100));
        assert!(pushed.push_shared(peer, share(datagram)) && packed.pack_shared(peer, &share(datagram)));
        assert_eq!([pushed.may_be_sealed(), packed.may_be_sealed()], [expected; 2], "{peer}");
    }
}
