//! Senders whose address is not verified, and clients that lose the server's answers.

use super::*;

/// A message in several packets, as a client sends it: the announcement, and then all packets.
fn in_packets(message: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (limits, server) =
        (ClientLimits { max_datagram: 1000, ..ClientLimits::default() }, ([10, 0, 0, 1], 7400).into());
    let mut sent: Vec<(PeerAddr, Vec<u8>)> = Vec::new();
    ClientEndpoint::new(server, limits).request(0, message, &mut sent).expect("there is room");
    let (_, announcement) = sent.remove(0);
    let Ok(R2p2Packet { kind, request_id, body: R2p2Body::Fragment(announced) }) = R2p2Packet::parse(&announcement)
    else {
        panic!("{announcement:?} announces nothing");
    };
    let chunks = message.chunks(announced.chunk_len.into()).zip(0..);
    let packets = chunks.map(|(chunk, index)| {
        let head = fragment_header(kind, request_id, &MessageFragment { index, chunk, ..announced });
        [&head[..], chunk].concat()
    });
    (announcement.clone(), packets.collect())
}

#[test]
fn a_forged_sender_address_receives_no_more_than_was_sent() {
    const ANNOUNCEMENTS: usize = 1000;
    let plane = data_plane(1);
    let (closed, _) = tenant(&plane, "closed", false);
    let questions = [
        (0, Operation { value: &[1; 1300], ..Operation::new(OpKind::Ping) }),
        (0, Operation { value: &[1; 2900], ..Operation::new(OpKind::Ping) }),
        (999, Operation::invoke(b"x", &[7; 1000])),
        (closed, Operation::invoke(b"x", &[7; 1000])),
        (closed, Operation::hello(&[7; 1000])),
    ];
    for (tenant, question) in questions {
        let mut wire = Wire::new(&plane, 0, tenant);
        let header = wire.header(1);
        let mut message = Vec::new();
        encode_message(&header, &[question], &mut message);
        let (announcement, packets) = in_packets(&message);
        let (mut out, mut back, mut answers) = (0, 0, 0);
        let mut buffer = vec![0; 65_536];
        for (number, packet) in packets.iter().chain(std::iter::repeat_n(&announcement, ANNOUNCEMENTS)).enumerate() {
            wire.socket.send(packet).expect("sent");
            out += packet.len();
            // Slowly enough that none is dropped unread.
            if number + 1 >= packets.len() {
                let len = wire.socket.recv(&mut buffer).expect("an ack, or an answer");
                (back, answers) = (back + len, answers + usize::from(buffer[2] >> 4 == 1));
            }
        }
        wire.socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        while let Ok(len) = wire.socket.recv(&mut buffer) {
            (back, answers) = (back + len, answers + usize::from(buffer[2] >> 4 == 1));
        }
        assert_eq!(answers, 1, "tenant {tenant}, {} bytes: only one was asked for", message.len());
        assert!(back <= out, "tenant {tenant}, {} bytes: {back} bytes for {out}", message.len());
    }
}

#[test]
fn a_client_that_lost_its_refusal_asks_again_and_is_told() {
    let plane = data_plane(1);
    let wire = Wire::new(&plane, 0, 999);
    wire.socket.set_read_timeout(Some(Duration::from_millis(5))).expect("a timeout");
    let small = ClientLimits { max_datagram: 1000, ..ClientLimits::default() };
    let (mut client, clock) = (ClientEndpoint::new(plane.address(), small), Instant::now());
    let header = MessageHeader { flags: 0, operations: 1, tenant: 999, session: 1, sequence: 1, acked: 0 };
    let (mut message, mut sent): (_, Vec<(PeerAddr, Vec<u8>)>) = (Vec::new(), Vec::new());
    encode_message(&header, &[Operation::invoke(b"x", &[7; 5000])], &mut message);
    client.request(0, &message, &mut sent).expect("there is room");
    let (mut lost, mut buffer) = (0, vec![0; 65_536]);
    loop {
        sent.drain(..).for_each(|(_, datagram)| wire.socket.send(&datagram).map(drop).expect("sent"));
        let now_us = clock.elapsed().as_micros() as u64;
        client.poll_timers(now_us, &mut sent, &mut |end| panic!("{end:?}"));
        let Ok(len) = wire.socket.recv(&mut buffer) else { continue };
        let is_answer = buffer[2] >> 4 == 1;
        if is_answer && lost < 2 {
            lost += 1;
        } else if client.receive(now_us, &buffer[..len], &mut sent).is_some() {
            break;
        }
    }
    let (_, mut answers) = MessageHeader::decode(&buffer[8..]).expect("a response");
    assert_eq!(answers.next().expect("an answer").expect("a well-formed one").status, RpcStatus::Unauthenticated);
}
