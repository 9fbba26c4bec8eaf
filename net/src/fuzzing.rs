//! The checks of the fuzz targets, as plain functions over bytes, shared with the property tests of the normal run.
//! Each panics if its property does not hold.

use crate::limits::{ClientLimits, ReplyCacheLimits, ServerLimits};
use crate::r2p2::header::{self, AckReport, MessageFragment, MtuProbePacket, MtuProbeStep, R2p2Kind};
use crate::r2p2::{ClientEndpoint, PeerAddr, ServerEndpoint};
use crate::reply_cache::{ReplyCache, RequestAdmission};
use crate::rpc::{self, MessageHeader, MultiGetEntries, MultiGetKeys};
use std::collections::{BTreeMap, HashMap};

/// Reads decisions from fuzz input; zeros when it is used up.
struct FuzzInput<'i>(&'i [u8]);

impl<'i> FuzzInput<'i> {
    fn bytes(&mut self, len: usize) -> &'i [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn number(&mut self, len: usize) -> u64 {
        self.bytes(len).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn byte(&mut self) -> u8 {
        self.number(1) as u8
    }

    fn done(&self) -> bool {
        self.0.is_empty()
    }
}

/// RPC messages: any that decodes encodes to the same bytes; bodies never panic.
pub fn rpc(message: &[u8]) {
    let Ok((header, operations)) = MessageHeader::decode(message) else { return };
    for operation in operations.clone().flatten() {
        let _ = rpc::split_ttl(&operation);
        let _ = rpc::HelloResponse::decode(operation.value);
        let keys: usize = MultiGetKeys::new(operation.number, operation.value).flatten().map(|key| key.len() + 4).sum();
        let answers: usize = MultiGetEntries::new(operation.value).flatten().map(|answer| answer.encoded_len()).sum();
        let rows: usize = rpc::RangeEntries::new(operation.value).flatten().map(|row| row.encoded_len()).sum();
        assert!(keys.max(answers).max(rows) <= operation.value.len(), "a body's entries are longer than the body");
        commit(operation.number, operation.value);
    }
    let Ok(operations) = operations.collect::<Result<Vec<_>, _>>() else { return };
    let mut again = Vec::new();
    rpc::encode_message(&header, &operations, &mut again);
    assert_eq!(again, message, "decode then encode must give the same bytes");
}

/// The steps of a commit: those that decode, encode to steps that decode to the same.
pub fn commit(count: u64, body: &[u8]) {
    let steps: Vec<_> = rpc::CommitStepIter::new(count, body).collect();
    assert!(steps.len() <= rpc::COMMIT_STEPS + 1, "a commit's steps have no end");
    let Ok(steps) = steps.into_iter().collect::<Result<Vec<_>, _>>() else { return };
    for step in &steps {
        if let rpc::CommitStep::Range { rows, .. } = step {
            assert_eq!(rows.count(), rows.len(), "a range's records are fewer than it says");
        }
    }
    let mut again = Vec::new();
    steps.iter().for_each(|step| rpc::push_commit_step(&mut again, step));
    let read: Result<Vec<_>, _> = rpc::CommitStepIter::new(steps.len() as u64, &again).collect();
    assert_eq!(read.as_ref(), Ok(&steps), "encode then decode must give the same steps");
}

fn peer(number: u8) -> PeerAddr {
    PeerAddr::from(([10, 0, 0, number], 1000 + u16::from(number)))
}

/// A datagram: raw, or with a header whose fields are well-formed more often than random ones.
fn datagram(input: &mut FuzzInput<'_>, payload: &[u8], message_len: Option<u32>) -> Vec<u8> {
    let (choice, id) = (input.byte(), u16::from(input.byte() % 4));
    let kind = [R2p2Kind::Request, R2p2Kind::Response, R2p2Kind::Ack, R2p2Kind::Drop][usize::from(choice >> 6)];
    match choice % 4 {
        0 => input.bytes(usize::from(choice)).to_vec(),
        1 => [&header::single_header(kind, id), payload].concat(),
        2 => {
            let chunk_len = 232 + u16::from(input.byte() % 4);
            let message_len = message_len.unwrap_or(input.number(2) as u32);
            let count = message_len.div_ceil(u32::from(chunk_len)) as u16;
            let index = input.byte().into();
            let left = message_len.saturating_sub(u32::from(index) * u32::from(chunk_len));
            let chunk = vec![7; if index == 0 && choice & 4 != 0 { 0 } else { left.min(chunk_len.into()) as usize }];
            let (ident, incarnation) = (input.byte() as u32 % 2, input.byte() as u32 % 4);
            let part = MessageFragment { ident, incarnation, message_len, chunk_len, index, count, chunk: &chunk };
            [&header::fragment_header(kind, id, &part)[..], &chunk].concat()
        }
        _ if choice & 8 != 0 => {
            let step = [MtuProbeStep::Probe, MtuProbeStep::Echo, MtuProbeStep::Confirm][usize::from(input.byte() % 3)];
            let size =
                MtuProbePacket { step, number: input.byte() as u32 % 4, bytes: 200 + input.number(2) as u32 % 2000 };
            let fill = if step == MtuProbeStep::Confirm { 0 } else { size.bytes as usize - header::LONG_HEADER_LEN };
            [&header::mtu_probe_header(&size)[..], &vec![0; fill]].concat()
        }
        _ => {
            let (ident, incarnation) = (input.byte() as u32 % 2, input.byte() as u32 % 4);
            let report = AckReport { ident, incarnation, next: input.number(2) as u16 % 80, map: input.number(8) };
            header::report_packet(kind, id, &report).to_vec()
        }
    }
}

/// Datagrams into a server: no panic, memory within its limits, none left when time has passed.
pub fn server(bytes: &[u8]) {
    let input = &mut FuzzInput(bytes);
    let limits = ServerLimits {
        max_datagram: 256,
        largest_datagram: 1024,
        max_message: 20_000,
        partial_bytes: 60_000,
        partial_bytes_per_peer: 30_000,
        partials: 8,
        partials_per_peer: 4,
        outgoing_bytes: 60_000,
        outgoing_bytes_per_peer: 30_000,
        completed: 4,
        ..ServerLimits::default()
    };
    let mut endpoint = ServerEndpoint::new(limits);
    let (mut now_us, mut out): (u64, Vec<(PeerAddr, Vec<u8>)>) = (0, Vec::new());
    while !input.done() {
        let sender = peer(input.byte() % 3);
        match input.byte() % 4 {
            0 => now_us += input.number(3),
            1 => {
                // The session and sequence are zero, so that the fuzzer's acks can name the response.
                let message = vec![0; input.number(2) as usize % 24_000];
                endpoint.respond(now_us, sender, u16::from(input.byte() % 4), &message, &mut out);
            }
            _ => {
                let packet = datagram(input, b"payload", None);
                if let Some(request) = endpoint.receive_for_owner(now_us, sender, &packet, &mut out, || 1) {
                    assert_eq!(request.peer, sender);
                    assert!(request.message.len() <= limits.max_message.max(packet.len()));
                    endpoint.recycle(request.message);
                }
            }
        }
        endpoint.poll_timers(now_us, &mut out);
        let usage = endpoint.usage();
        assert!(usage.partial_bytes <= limits.partial_bytes && usage.partials <= limits.partials);
        assert!(usage.outgoing_bytes <= limits.outgoing_bytes && usage.completed <= limits.completed);
        assert!(out.iter().all(|(_, datagram)| datagram.len() <= limits.largest_datagram));
        out.clear();
    }
    let mut turns = 0;
    while let Some(due_us) = endpoint.poll_timers(now_us, &mut out) {
        now_us = due_us.max(now_us);
        turns += 1;
        assert!(turns < 10_000, "timers must come to an end");
    }
    assert_eq!(endpoint.usage(), Default::default(), "memory is left when time has passed");
}

/// Datagrams into a client: no panic, an answer only to what was asked, every request ends, and all memory is freed.
pub fn client(bytes: &[u8]) {
    let input = &mut FuzzInput(bytes);
    let limits = ClientLimits {
        max_datagram: 256,
        largest_datagram: 1024,
        max_message: 20_000,
        in_flight: 4,
        request_bytes: 40_000,
        response_bytes: 30_000,
        ..ClientLimits::default()
    };
    let mut endpoint = ClientEndpoint::new(peer(9), limits);
    endpoint.start_mtu_probing(0);
    let (mut now_us, mut out): (u64, Vec<(PeerAddr, Vec<u8>)>) = (0, Vec::new());
    let mut open: HashMap<u16, Vec<u8>> = HashMap::new();
    while !input.done() {
        match input.byte() % 5 {
            0 => now_us += input.number(3),
            1 => {
                let mut message = vec![0; 32 + input.number(2) as usize % 20_000];
                message[8] = input.byte() % 2;
                if let Ok(id) = endpoint.request(now_us, &message, &mut out) {
                    assert!(open.insert(id, message).is_none(), "an id in flight was used again");
                }
            }
            2 => {
                let id = input.number(2) as u16;
                assert_eq!(endpoint.cancel(id).is_some(), open.remove(&id).is_some());
            }
            _ => {
                let mut packet = datagram(input, &[0; 32], Some(4000));
                patch_ident(&mut packet, &open);
                if let Some(response) = endpoint.receive(now_us, &packet, &mut out) {
                    let requested = open.remove(&response.request_id).expect("an answer to what was not asked");
                    assert_eq!(requested[8..24], response.message[8..24], "an answer to another request");
                    endpoint.recycle(response.message);
                }
            }
        }
        endpoint.poll_timers(now_us, &mut out, &mut |ended| assert!(open.remove(&ended.request_id).is_some()));
        let usage = endpoint.usage();
        assert!(usage.response_bytes <= limits.response_bytes && usage.requests == open.len());
        out.clear();
    }
    let mut turns = 0;
    while let Some(due_us) =
        endpoint.poll_timers(now_us, &mut out, &mut |ended| assert!(open.remove(&ended.request_id).is_some()))
    {
        now_us = due_us.max(now_us);
        turns += 1;
        assert!(turns < 10_000, "timers must come to an end");
    }
    assert!(open.is_empty(), "a request did not end");
    assert_eq!(endpoint.usage(), Default::default(), "memory is left when time has passed");
}

/// Gives a packet the request id (and for long ones the digest) of a request in flight, which the fuzzer cannot guess.
fn patch_ident(packet: &mut [u8], open: &HashMap<u16, Vec<u8>>) {
    let Some(id_bytes) = packet.get(4..6) else { return };
    let pick = usize::from(id_bytes[1]);
    let mut ids: Vec<&u16> = open.keys().collect();
    ids.sort_unstable();
    let Some(id) = ids.get(pick % ids.len().max(1)) else { return };
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    if packet.len() >= header::LONG_HEADER_LEN && packet[1] == header::LONG_HEADER_LEN as u8 {
        let ident = crate::r2p2::ident_of(&open[*id]);
        packet[8..12].copy_from_slice(&ident.to_be_bytes());
    }
}

/// The tenant of the sessions under test.
const TENANT: u32 = 1;

/// A slow model's memory of a session.
#[derive(Default)]
struct ModelSession {
    low: u64,
    requests: BTreeMap<u64, Option<Vec<u8>>>,
}

/// Window operations against a slow model, with room for everything: every answer is the same.
pub fn once_exact(bytes: &[u8]) {
    let input = &mut FuzzInput(bytes);
    let limits = ReplyCacheLimits { replies_per_session: 32, ..ReplyCacheLimits::default() };
    let mut window = ReplyCache::new(limits);
    let mut model: HashMap<(u8, u64), ModelSession> = HashMap::new();
    while !input.done() {
        let (choice, sender, session) = (input.byte(), input.byte() % 2, u64::from(input.byte() % 3));
        let sequence = u64::from(input.byte() % 64);
        match choice % 4 {
            0 | 1 => {
                let acked = if choice & 4 == 0 { sequence.saturating_sub(40) } else { u64::from(input.byte() % 64) };
                let expected = model_admit(&mut model, (sender, session), sequence, acked, 32);
                assert_eq!(window.admit(0, peer(sender), TENANT, session, sequence, acked), expected.as_admission());
            }
            2 => {
                let answer = vec![choice; usize::from(input.byte())];
                window.complete(peer(sender), TENANT, session, sequence, &answer);
                if let Some(slow) = model.get_mut(&(sender, session))
                    && let Some(entry @ None) = slow.requests.get_mut(&sequence)
                {
                    *entry = Some(answer);
                }
            }
            _ => {
                window.cancel(peer(sender), TENANT, session, sequence);
                if let Some(slow) = model.get_mut(&(sender, session))
                    && slow.requests.get(&sequence) == Some(&None)
                {
                    slow.requests.remove(&sequence);
                }
            }
        }
    }
}

#[derive(Debug)]
enum ModelAdmission {
    Execute,
    InProgress,
    Replay(Vec<u8>),
    Stale,
}

impl ModelAdmission {
    fn as_admission(&self) -> RequestAdmission<'_> {
        match self {
            ModelAdmission::Execute => RequestAdmission::Execute,
            ModelAdmission::InProgress => RequestAdmission::InProgress,
            ModelAdmission::Replay(answer) => RequestAdmission::Replay(answer),
            ModelAdmission::Stale => RequestAdmission::Stale,
        }
    }
}

fn model_admit(
    model: &mut HashMap<(u8, u64), ModelSession>,
    name: (u8, u64),
    sequence: u64,
    acked: u64,
    answers: u64,
) -> ModelAdmission {
    if !model.contains_key(&name) && acked >= sequence {
        return ModelAdmission::Stale;
    }
    let slow = model.entry(name).or_default();
    slow.low = slow.low.max(acked);
    slow.requests.retain(|number, _| *number > slow.low);
    if sequence <= slow.low {
        return ModelAdmission::Stale;
    }
    slow.low = slow.low.max(sequence.saturating_sub(answers));
    slow.requests.retain(|number, _| *number > slow.low);
    match slow.requests.get(&sequence) {
        Some(Some(answer)) => ModelAdmission::Replay(answer.clone()),
        Some(None) => ModelAdmission::InProgress,
        None => {
            slow.requests.insert(sequence, None);
            ModelAdmission::Execute
        }
    }
}

/// The time at which a request was last admitted to run, and its answer.
type LastExecution = (u64, Option<Vec<u8>>);

/// Window operations with hardly any room: bounds hold, and an answer is the right one. Nothing runs twice within the
/// time for which a client repeats it.
pub fn once_tight(bytes: &[u8]) {
    const LIFE_US: u64 = 1000;
    let input = &mut FuzzInput(bytes);
    let limits = ReplyCacheLimits {
        replies_per_session: 16,
        bytes: 16_000,
        sessions: 3,
        tombstones: 8,
        retry_lifetime_us: LIFE_US,
        reusable_buffer_bytes: 16,
    };
    let mut window = ReplyCache::new(limits);
    let mut ran: HashMap<(u8, u64, u64), LastExecution> = HashMap::new();
    let mut now_us = 0;
    while !input.done() {
        let (choice, sender, session) = (input.byte(), input.byte() % 4, u64::from(input.byte() % 3));
        let sequence = u64::from(input.byte() % 40) + 1;
        let name = (sender, session, sequence);
        match choice % 8 {
            0 => now_us += input.number(2) % (LIFE_US / 2),
            1 | 2 => {
                let answer = vec![sequence as u8; input.number(2) as usize % 6000];
                window.complete(peer(sender), u32::from(sender), session, sequence, &answer);
                if let Some((_, slot @ None)) = ran.get_mut(&name) {
                    *slot = Some(answer);
                }
            }
            3 => window.cancel(peer(sender), u32::from(sender), session, u64::MAX - sequence),
            _ => {
                let acked = if choice & 8 == 0 { 0 } else { sequence.saturating_sub(10) };
                match window.admit(now_us, peer(sender), u32::from(sender), session, sequence, acked) {
                    RequestAdmission::Execute => {
                        if let Some((at_us, _)) = ran.insert(name, (now_us, None)) {
                            assert!(now_us - at_us >= LIFE_US, "{name:?} ran at {at_us} us and again at {now_us} us");
                        }
                    }
                    RequestAdmission::Replay(answer) => {
                        assert_eq!(ran.get(&name).and_then(|(_, answer)| answer.as_deref()), Some(answer));
                    }
                    RequestAdmission::InProgress => assert!(matches!(ran.get(&name), Some((_, None)))),
                    RequestAdmission::Stale => {}
                    RequestAdmission::PreviousStart => panic!("no message is bound to a start"),
                }
            }
        }
        assert!(window.bytes() <= limits.bytes && window.sessions() <= limits.sessions);
    }
}

/// Both once checks.
pub fn once(bytes: &[u8]) {
    once_exact(bytes);
    once_tight(bytes);
}

/// Feeds sealed packets, unchanged, changed, cut, or made up, to a server and a client. Only packets that were sealed
/// are opened, each once, and no peer is sent more than it sent.
pub fn seal(bytes: &[u8]) {
    use crate::seal::{ClientSeal, SealLimits, ServerSeal, TokenKeys, TokenSource, TokenVerifier};
    struct Tokens(TokenVerifier);
    impl TokenSource for Tokens {
        fn verifier(&self, tenant: u32, which: usize) -> Option<(TokenVerifier, u64)> {
            (tenant == 1 && which == 0).then_some((self.0, 1))
        }
    }
    let (input, tokens, at) = (&mut FuzzInput(bytes), Tokens(TokenKeys::of(b"token").verifier()), peer(1));
    // Half of the inputs find a port that looks at two hellos a second without a cookie.
    let checks_per_s = if bytes.len().is_multiple_of(2) { 3 } else { 20_000 };
    let mut server = ServerSeal::new(SealLimits { checks_per_s, ..SealLimits::default() }, 0);
    let mut client = ClientSeal::new(peer(0), 1, b"token", 7, 0);
    let (mut now_us, mut sent): (u64, Vec<(PeerAddr, Vec<u8>)>) = (0, Vec::new());
    client.begin(now_us, &mut sent);
    // The packets that either side has sent, to be delivered as the input says, and which packets were opened.
    let (mut to_server, mut to_client) = (vec![sent.remove(0).1], Vec::<Vec<u8>>::new());
    let (mut opened_here, mut opened_there) = (std::collections::HashSet::new(), std::collections::HashSet::new());
    while !input.done() {
        now_us += input.number(2);
        let choice = input.byte();
        let (queue, here) = if choice & 1 == 0 { (&to_server, true) } else { (&to_client, false) };
        let mut datagram = match queue.get(usize::from(input.byte()) % queue.len().max(1)) {
            Some(datagram) if choice & 2 == 0 => datagram.clone(),
            _ => made_up_sealed_packet(input, choice),
        };
        let genuine = queue.contains(&datagram);
        if choice & 4 != 0 && !datagram.is_empty() {
            let at = input.number(2) as usize % datagram.len();
            if choice & 8 != 0 { datagram.truncate(at) } else { datagram[at] ^= input.byte() }
        }
        let genuine = genuine && queue.contains(&datagram);
        let whole = datagram.clone();
        let mut out = Vec::new();
        let opened = if here {
            let part = server.receive(now_us, at, &mut datagram, &tokens, &mut out);
            part.map(|(_, part)| datagram[part].to_vec())
        } else {
            let mut opened = Vec::new();
            let part = client.receive(now_us, &datagram, &mut opened, &mut out);
            part.map(|part| opened[part].to_vec())
        };
        if let Some(inner) = opened {
            assert!(genuine && inner == b"a packet", "only what was sealed is opened");
            let new = if here { opened_here.insert(whole) } else { opened_there.insert(whole) };
            assert!(new, "and once");
            server.send(crate::seal::session_peer(1, 7), &[b"a packet"], &mut out);
            client.send(&[b"a packet"], &mut to_server_sink(&mut to_server));
        } else if here {
            assert!(out.iter().all(|(_, answer)| answer.len() <= whole.len()), "nobody is sent more than he sent");
        }
        server.work(now_us, &mut out);
        client.poll(now_us, true, &mut out);
        if client.is_ready() && to_server.len() < 40 {
            client.send(&[b"a packet"], &mut to_server_sink(&mut to_server));
        }
        for (to, datagram) in out {
            if to == at { to_client.push(datagram) } else { to_server.push(datagram) }
        }
    }
}

/// A packet of a sealed session of some kind, with fields from the input.
fn made_up_sealed_packet(input: &mut FuzzInput<'_>, length: u8) -> Vec<u8> {
    use crate::seal::{SealHeader, SealPacketKind as Kind};
    let to_server = [Kind::ToServer, Kind::Hello, Kind::Proof];
    let to_client = [Kind::ToClient, Kind::Welcome, Kind::Reject, Kind::Probe, Kind::Retry];
    let kind = to_server.iter().chain(&to_client).nth(usize::from(input.byte()) % 8).copied();
    let (kind, flags) = (kind.unwrap_or(Kind::Hello), input.byte());
    let head = SealHeader { kind, flags, tenant: u32::from(input.byte()) % 3, session: 7, number: input.number(1) };
    [&head.encode()[..], input.bytes(usize::from(length))].concat()
}

/// The sink of a client's datagrams.
fn to_server_sink(queue: &mut Vec<Vec<u8>>) -> impl crate::r2p2::DatagramSink {
    struct Sink<'q>(&'q mut Vec<Vec<u8>>);
    impl crate::r2p2::DatagramSink for Sink<'_> {
        fn send(&mut self, _peer: PeerAddr, parts: &[&[u8]]) {
            self.0.push(parts.concat());
        }
    }
    Sink(queue)
}

/// Commands of Redis clients, whole and in pieces, against a slow reading of the protocol.
pub fn resp(bytes: &[u8]) {
    crate::resp::reference::assert_parser_agrees(bytes);
}

/// Requests of memcached's binary protocol, against a slow reading of it.
pub fn memcached_binary(bytes: &[u8]) {
    crate::memcached::binary::reference::fuzz(bytes);
}

/// Frames into the stack of a driver that goes past the kernel.
pub fn frames(bytes: &[u8]) {
    crate::stack::fuzzing::frames(bytes);
}
