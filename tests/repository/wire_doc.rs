//! Checks that the hex examples of docs/wire.md are what the code sends, byte for byte.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;

use sandstorm_net::r2p2::header::{self, R2p2Body, R2p2Kind, R2p2Packet};
use sandstorm_net::rpc::{self, Condition, MessageHeader, OP_FLAG_TTL, OpKind, Operation, RpcStatus};
use sandstorm_net::seal::{ClientSeal, SealLimits, ServerSeal, TokenKeys, TokenSource, TokenVerifier};

const REQUEST_ID: u16 = 0x0102;
/// The secrets of the page's sealed session.
const TOKEN: &[u8] = b"the token of tenant seven";
const SEALED_SESSION: u64 = 0x8877_6655_4433_2211;
const CLOCK_MS: u64 = 1_700_000_000_000;

/// A datagram of one message with one operation.
fn datagram(kind: R2p2Kind, sequence: u64, operation: &Operation<'_>) -> Vec<u8> {
    let flags = match (kind, operation.op) {
        (R2p2Kind::Response, _) => rpc::MESSAGE_FLAG_RESPONSE,
        (_, op) if op.only_reads() => rpc::MESSAGE_FLAG_IDEMPOTENT,
        _ => 0,
    };
    let head = MessageHeader {
        flags,
        operations: 1,
        tenant: 7,
        session: 0x1122_3344_5566_7788,
        sequence,
        acked: sequence - 1,
    };
    let mut bytes = header::single_header(kind, REQUEST_ID).to_vec();
    rpc::encode_message(&head, &[*operation], &mut bytes);
    bytes
}

/// The examples by name, as on the page.
fn examples() -> BTreeMap<&'static str, Vec<u8>> {
    let get = Operation { table: 3, key: b"color", ..Operation::new(OpKind::Get) };
    let got = Operation { value: b"blue", number: 41, user_flags: 9, ..get.answer(RpcStatus::Ok) };
    let lived = [&60_000u64.to_le_bytes()[..], b"green"].concat();
    let put = Operation {
        flags: OP_FLAG_TTL,
        condition: Condition::Version,
        number: 41,
        value: &lived,
        ..Operation { op: OpKind::Put, ..get }
    };
    let stored = Operation { number: 42, ..put.answer(RpcStatus::Ok) };
    let args = [&3u64.to_le_bytes()[..], b"color"].concat();
    let invoke = Operation { key: b"get", value: &args, ..Operation::new(OpKind::Invoke) };
    let replied = Operation { value: b"green", number: 1, ..invoke.answer(RpcStatus::Ok) };
    let killed =
        Operation { status: RpcStatus::Killed, number: rpc::KillCause::Panic as u64, value: b"panicked", ..replied };
    let mut steps = Vec::new();
    rpc::push_commit_step(&mut steps, &rpc::CommitStep::Read { table: 3, key: b"color", version: 42 });
    let write = rpc::CommitStep::Put { table: 3, key: b"color", value: b"red", user_flags: 0, ttl_ms: 0 };
    rpc::push_commit_step(&mut steps, &write);
    let commit = Operation::commit(2, &steps);
    let conflict = Operation { table: 3, key: b"color", ..commit.answer(RpcStatus::Conflict) };
    let mut counting = Vec::new();
    rpc::push_commit_step(&mut counting, &rpc::CommitStep::Count { table: 3, from: b"a", to: b"b", keys: 7 });
    let write = rpc::CommitStep::Put { table: 3, key: b"az", value: b"", user_flags: 0, ttl_ms: 0 };
    rpc::push_commit_step(&mut counting, &write);
    let count = Operation::count(3, b"a", b"b");
    let counted = Operation { number: 7, ..count.answer(RpcStatus::Ok) };
    let touch = Operation::touch(3, b"color", 60_000);
    let touched = Operation { number: 43, ..touch.answer(RpcStatus::Ok) };
    BTreeMap::from([
        ("commit-count-request", datagram(R2p2Kind::Request, 7, &Operation::commit(2, &counting))),
        ("count-request", datagram(R2p2Kind::Request, 5, &count)),
        ("count-response", datagram(R2p2Kind::Response, 5, &counted)),
        ("touch-request", datagram(R2p2Kind::Request, 6, &touch)),
        ("touch-response", datagram(R2p2Kind::Response, 6, &touched)),
        ("commit-request", datagram(R2p2Kind::Request, 4, &commit)),
        ("commit-response", datagram(R2p2Kind::Response, 4, &commit.answer(RpcStatus::Ok))),
        ("commit-conflict", datagram(R2p2Kind::Response, 4, &conflict)),
        ("get-request", datagram(R2p2Kind::Request, 1, &get)),
        ("get-response", datagram(R2p2Kind::Response, 1, &got)),
        ("put-request", datagram(R2p2Kind::Request, 2, &put)),
        ("put-response", datagram(R2p2Kind::Response, 2, &stored)),
        ("invoke-request", datagram(R2p2Kind::Request, 3, &invoke)),
        ("invoke-response", datagram(R2p2Kind::Response, 3, &replied)),
        ("invoke-killed", datagram(R2p2Kind::Response, 3, &killed)),
    ])
}

struct Door;

impl TokenSource for Door {
    fn verifier(&self, tenant: u32, which: usize) -> Option<(TokenVerifier, u64)> {
        (tenant == 7 && which == 0).then(|| (TokenKeys::of(TOKEN).verifier(), 1))
    }
}

/// The same get and its answer in a sealed session, and the handshake before, with publicly known ephemeral keys.
fn sealed_examples() -> BTreeMap<&'static str, Vec<u8>> {
    let (at, from) = (([192, 0, 2, 1], 7400).into(), ([192, 0, 2, 2], 40_000).into());
    let mut client = ClientSeal::new(at, 7, TOKEN, SEALED_SESSION, CLOCK_MS);
    client = client.with_ephemeral_for_documentation_only([0x11; 32]);
    let mut server = ServerSeal::new(SealLimits::default(), CLOCK_MS);
    server = server.with_ephemeral_for_documentation_only([0x22; 32]);
    let (mut sent, mut opened) = (Vec::<(SocketAddr, Vec<u8>)>::new(), Vec::new());
    client.begin(0, &mut sent);
    let hello = sent.remove(0).1;
    assert!(server.receive(0, from, &mut hello.clone(), &Door, &mut sent).is_none());
    server.work(0, &mut sent);
    let welcome = sent.remove(0).1;
    assert!(client.receive(0, &welcome, &mut opened, &mut sent).is_none() && client.is_ready());
    let plain = examples();
    client.send(&[&plain["get-request"]], &mut sent);
    let request = sent.remove(0).1;
    let mut taken = request.clone();
    let (peer, part) = server.receive(0, from, &mut taken, &Door, &mut sent).expect("a genuine packet");
    assert!(taken[part] == plain["get-request"]);
    server.send(peer, &[&plain["get-response"]], &mut sent);
    let response = sent.remove(0).1;
    let part = client.receive(0, &response, &mut opened, &mut sent).expect("a genuine packet");
    assert!(opened[part] == plain["get-response"]);
    // Another server does not know the session.
    let mut other = ServerSeal::new(SealLimits::default(), CLOCK_MS);
    assert!(other.receive(0, from, &mut request.clone(), &Door, &mut sent).is_none());
    let reject = sent.remove(0).1;
    BTreeMap::from([
        ("sealed-hello", hello),
        ("sealed-welcome", welcome),
        ("sealed-request", request),
        ("sealed-response", response),
        ("sealed-reject", reject),
    ])
}

/// The blocks of the page: name and bytes. A line's bytes end at `|`; the text after it explains them.
fn blocks(page: &str) -> BTreeMap<&str, Vec<u8>> {
    let mut blocks = BTreeMap::new();
    for block in page.split("```hex ").skip(1) {
        let (name, rest) = block.split_once('\n').expect("a name, then lines");
        let (body, _) = rest.split_once("```").expect("an end of the block");
        let hex = body.lines().flat_map(|line| line.split('|').next().unwrap_or_default().split_whitespace());
        let bytes = hex.map(|two| u8::from_str_radix(two, 16).unwrap_or_else(|_| panic!("{name}: {two} is no byte")));
        blocks.insert(name.trim(), bytes.collect());
    }
    blocks
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, byte) in bytes.iter().enumerate() {
        let end = if at % 8 == 7 { "\n" } else { " " };
        write!(text, "{byte:02x}{end}").expect("a string takes all");
    }
    text
}

#[test]
fn the_page_shows_what_the_code_sends() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/wire.md");
    let page = std::fs::read_to_string(path).expect("docs/wire.md");
    let shown = blocks(&page);
    let mut sent = examples();
    sent.extend(sealed_examples());
    assert!(shown.keys().eq(sent.keys()), "blocks {:?}, examples {:?}", shown.keys(), sent.keys());
    for (name, bytes) in &sent {
        assert!(shown[name] == *bytes, "{name} should be\n{}", hex(bytes));
    }
}

#[test]
fn the_examples_parse() {
    for (name, bytes) in examples() {
        let packet = R2p2Packet::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(packet.request_id, REQUEST_ID);
        let R2p2Body::Single(message) = packet.body else { panic!("{name}: one packet") };
        let (head, operations) = MessageHeader::decode(message).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((head.operations, head.acked + 1), (1, head.sequence));
        assert!(operations.collect::<Result<Vec<_>, _>>().is_ok_and(|all| all.len() == 1), "{name}");
    }
}
