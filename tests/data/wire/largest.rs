//! The largest legal form of every operation, many at a time, while a neighbour uses the same worker. No piece is
//! longer than a slice and one operation, and each answer is right. One step beyond each bound is refused by the
//! bound's name. A new operation needs its forms here.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{Answer, Stop, eventually, library_of};
use sandstorm_api::limits::RANGE_LIMIT;
use sandstorm_catalog::NewTable;
use sandstorm_dialects::limits::MULTIGET_KEYS;
use sandstorm_dialects::limits::protocols::PIECE_WORK;
use sandstorm_extension::limits::ARENA_MAX_BYTES;
use sandstorm_net::rpc::{
    COMMIT_BYTES, COMMIT_READS, COMMIT_ROWS, COMMIT_WRITES, CommitRow, CommitRows, CommitStep, MAX_BODY_LEN,
    MAX_KEY_LEN, MAX_MESSAGE_LEN, MAX_VALUE_LEN, OP_FLAG_SNAPSHOT, RangeEntries, encode_operation, push_commit_row,
    push_commit_step, ttl_prefix,
};
use sandstorm_server::limits::COPY_BYTES_PER_GET;

use super::*;

/// The largest work of one operation, in plain requests: a thousand keys, and a largest message in and out.
const ONE_OPERATION: u64 = MULTIGET_KEYS + 2 * (MAX_MESSAGE_LEN / COPY_BYTES_PER_GET) as u64;
/// The most work without a break.
const ONE_PIECE: u64 = PIECE_WORK as u64 + ONE_OPERATION;
/// Tables of the tenant with the large requests: hashed, and ordered.
const TABLE: u64 = 1;
const ORDERED: u64 = 2;
/// Messages of a form that are in flight at once.
const AT_ONCE: usize = 8;
/// Bytes of each of a thousand values that fill an answer, and of each of as many as a message has operations.
const THOUSANDTH: usize = 8_000;
const ONE_OF_256: usize = 32_000;

/// Its replies: the length and the sum of all bytes of its arguments; or as many bytes as their first eight say.
const SOURCE: &str = r#"#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let Some((len, _)) = args.split_first_chunk::<8>() else { return Err(Error::invalid("a length")) };
    let len = u64::from_le_bytes(*len) as usize;
    if len == 0 {
        let sum: u64 = args.iter().map(|byte| u64::from(*byte)).sum();
        db.reply(&(args.len() as u64).to_le_bytes())?;
        return db.reply(&sum.to_le_bytes());
    }
    let zeros = [0; 4096];
    for _ in 0..len / 4096 {
        db.reply(&zeros)?;
    }
    db.reply(&zeros[..len % 4096])
}
"#;

/// An operation that owns its bytes.
#[derive(Clone)]
struct Asked {
    head: Operation<'static>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Asked {
    fn new(op: OpKind, key: &[u8], value: Vec<u8>) -> Asked {
        Asked { head: Operation { table: TABLE, ..Operation::new(op) }, key: key.to_vec(), value }
    }

    fn numbered(mut self, number: u64) -> Asked {
        self.head.number = number;
        self
    }

    fn flagged(mut self, flags: u8) -> Asked {
        self.head.flags = flags;
        self
    }

    fn ordered(mut self) -> Asked {
        self.head.table = ORDERED;
        self
    }
}

/// A message, and the checks of its answers.
struct Form {
    what: &'static str,
    operations: Vec<Asked>,
    is_right: fn(&[Answer]) -> bool,
}

fn form(what: &'static str, operations: Vec<Asked>, is_right: fn(&[Answer]) -> bool) -> Form {
    Form { what, operations, is_right }
}

fn long_key() -> Vec<u8> {
    vec![b'k'; MAX_KEY_LEN]
}

fn numbered_key(prefix: &str, number: usize) -> Vec<u8> {
    format!("{prefix}:{number:04}").into_bytes()
}

fn all_ok(answers: &[Answer]) -> bool {
    answers.iter().all(|answer| answer.status == RpcStatus::Ok)
}

fn multiget(keys: impl Iterator<Item = Vec<u8>>) -> Asked {
    let (mut body, mut count) = (Vec::new(), 0);
    keys.for_each(|key| {
        push_key(&mut body, &key);
        count += 1;
    });
    Asked::new(OpKind::MultiGet, b"", body).numbered(count)
}

/// The most operations of a message, on keys with this prefix.
fn of_256(op: OpKind, prefix: &str, value: impl Fn() -> Vec<u8>) -> Vec<Asked> {
    (0..MAX_OPERATIONS).map(|number| Asked::new(op, &numbered_key(prefix, number), value())).collect()
}

/// The largest forms of an operation.
fn largest(op: OpKind) -> Vec<Form> {
    let whole = || vec![7; MAX_VALUE_LEN];
    let plain = |key: &[u8], value: Vec<u8>| vec![Asked::new(op, key, value)];
    match op {
        OpKind::Ping => vec![
            form("the largest echo", plain(b"", whole()), |answers| answers[0].value.len() == MAX_VALUE_LEN),
            form("256 echoes", of_256(op, "", || vec![1; ONE_OF_256]), all_ok),
        ],
        OpKind::Hello => vec![
            form("the longest token", plain(b"", whole()), all_ok),
            form("256 hellos", of_256(op, "", || vec![1; 1_000]), all_ok),
        ],
        OpKind::Get => vec![
            form("the largest value", plain(b"large", vec![]), |answers| answers[0].value.len() == MAX_VALUE_LEN),
            form("the longest key", plain(&long_key(), vec![]), |answers| answers[0].text() == "long"),
            form("256 values that fill the answer", of_256(op, "q", Vec::new), |answers| {
                answers.iter().all(|answer| answer.value.len() == ONE_OF_256)
            }),
            form("256 values of which seven fill the answer", vec![Asked::new(op, b"mega", vec![]); 256], |answers| {
                let whole = answers.iter().filter(|answer| answer.status == RpcStatus::Ok).count();
                whole == 7 && answers[7..].iter().all(|answer| answer.status == RpcStatus::TooLarge)
            }),
        ],
        OpKind::MultiGet => {
            let thousand = || multiget((0..MULTIGET_KEYS as usize).map(|number| numbered_key("k", number)));
            let found = |answers: &[Answer]| answers[0].number == MULTIGET_KEYS && all_ok(answers);
            let long = multiget((0..120).map(|_| long_key()));
            vec![
                form("a thousand values that fill the answer", vec![thousand()], found),
                form("a thousand at one moment", vec![thousand().flagged(OP_FLAG_SNAPSHOT)], found),
                form("keys that fill the message", vec![long], |answers| answers[0].number == 120),
                form("the largest value among many", vec![multiget([b"large".to_vec()].into_iter())], all_ok),
            ]
        }
        OpKind::Put | OpKind::Delete | OpKind::Increment => largest_writes(op),
        OpKind::Invoke | OpKind::Range => largest_of_others(op),
        OpKind::Commit => largest_commits(),
        OpKind::Count | OpKind::Rank | OpKind::Nth => largest_positions(op),
        OpKind::Ttl => vec![
            form("the longest key", plain(&long_key(), vec![]), all_ok),
            form("256 of large values", of_256(op, "q", Vec::new), all_ok),
        ],
        OpKind::Touch => vec![
            form("the largest value", vec![Asked::new(op, b"large", vec![]).numbered(1_000_000)], all_ok),
            form("256 of large values", of_256(op, "q", Vec::new), all_ok),
        ],
    }
}

/// The largest forms of counts, ranks and nths.
fn largest_positions(op: OpKind) -> Vec<Form> {
    let all = || match op {
        OpKind::Nth => Asked::new(op, b"", vec![]).numbered(MULTIGET_KEYS - 1).ordered(),
        OpKind::Rank => Asked::new(op, &long_key(), vec![]).ordered(),
        _ => Asked::new(op, &long_key(), vec![b'p'; MAX_KEY_LEN + 1]).ordered(),
    };
    let of_a_message = MAX_OPERATIONS.min(MAX_VALUE_LEN / (3 * MAX_KEY_LEN));
    vec![
        form("the longest keys", vec![all()], all_ok),
        form("keys that fill the message", vec![all(); of_a_message], all_ok),
        form("256 of the first", vec![Asked::new(op, b"", vec![]).ordered(); MAX_OPERATIONS], all_ok),
    ]
}

/// A commit of these steps.
fn commit(steps: impl Iterator<Item = CommitStep<'static>>) -> Asked {
    let (mut body, mut count) = (Vec::new(), 0);
    steps.for_each(|step| {
        push_commit_step(&mut body, &step);
        count += 1;
    });
    Asked::new(OpKind::Commit, b"", body).numbered(count)
}

/// A name that lives as long as the test.
fn kept_key(prefix: &str, number: usize) -> &'static [u8] {
    numbered_key(prefix, number).leak()
}

fn absent(number: usize) -> CommitStep<'static> {
    CommitStep::Read { table: TABLE, key: kept_key("absent", number), version: 0 }
}

fn written(number: usize, value: &'static [u8]) -> CommitStep<'static> {
    CommitStep::Put { table: TABLE, key: kept_key("c", number), value, user_flags: 0, ttl_ms: 0 }
}

/// A range that has met so many records.
fn met(records: usize) -> CommitStep<'static> {
    let mut rows = Vec::new();
    (0..records).for_each(|number| push_commit_row(&mut rows, &CommitRow { key: kept_key("o", number), version: 1 }));
    let rows = CommitRows::new(records as u32, rows.leak());
    CommitStep::Range { table: ORDERED, from: b"", to: b"", backward: false, rows }
}

fn largest_commits() -> Vec<Form> {
    static VALUE: [u8; COMMIT_BYTES / COMMIT_WRITES - 16] = [7; COMMIT_BYTES / COMMIT_WRITES - 16];
    let whole = (0..COMMIT_READS).map(absent).chain((0..COMMIT_WRITES).map(|number| written(number, &VALUE)));
    let small = || commit((0..4).map(absent).chain((0..4).map(|number| written(number, b"1"))));
    vec![
        form("all reads and writes", vec![commit(whole)], all_ok),
        form("all records of ranges", vec![commit(std::iter::once(met(COMMIT_ROWS)))], |answers| {
            answers[0].status == RpcStatus::Conflict
        }),
        form("256 commits", (0..MAX_OPERATIONS).map(|_| small()).collect(), all_ok),
    ]
}

fn beyond_commits() -> Vec<(Asked, RpcStatus, String)> {
    static VALUE: [u8; COMMIT_BYTES] = [7; COMMIT_BYTES];
    let refused = |steps: Vec<CommitStep<'static>>, most: usize| {
        (commit(steps.into_iter()), RpcStatus::TooLarge, format!("at most {most}"))
    };
    vec![
        refused(vec![written(0, &VALUE)], COMMIT_BYTES),
        refused((0..=COMMIT_READS).map(absent).collect(), COMMIT_READS),
        refused((0..=COMMIT_WRITES).map(|number| written(number, b"")).collect(), COMMIT_READS),
        refused(vec![met(COMMIT_ROWS + 1)], COMMIT_ROWS),
    ]
}

/// The largest forms of writes.
fn largest_writes(op: OpKind) -> Vec<Form> {
    let whole = || vec![7; MAX_VALUE_LEN];
    let plain = |key: &[u8], value: Vec<u8>| vec![Asked::new(op, key, value)];
    match op {
        OpKind::Put => vec![
            form("the largest value", plain(b"new", whole()), all_ok),
            form(
                "the longest key and a time",
                {
                    let value = [&ttl_prefix(100_000)[..], &whole()].concat();
                    vec![Asked::new(op, &long_key()[1..], value).flagged(sandstorm_net::rpc::OP_FLAG_TTL)]
                },
                all_ok,
            ),
            form("256 values that fill the message", of_256(op, "p", || vec![9; ONE_OF_256]), all_ok),
        ],
        OpKind::Delete => vec![
            form("256 of large values", of_256(op, "p", Vec::new), |answers| {
                answers.iter().all(|answer| matches!(answer.status, RpcStatus::Ok | RpcStatus::NotFound))
            }),
            form("the largest value", plain(b"new", vec![]), |answers| answers.len() == 1),
        ],
        OpKind::Increment => vec![
            form("256 numbers", of_256(op, "n", Vec::new), all_ok),
            form("a largest value", plain(b"large", vec![]), |answers| answers[0].status == RpcStatus::NotANumber),
        ],
        _ => Vec::new(),
    }
}

/// The largest forms of calls and ranges.
fn largest_of_others(op: OpKind) -> Vec<Form> {
    let plain = |key: &[u8], value: Vec<u8>| vec![Asked::new(op, key, value)];
    match op {
        OpKind::Invoke => {
            let args = |len: usize| [&[0; 8][..], &vec![1; len - 8]].concat();
            vec![
                form("the largest arguments", plain(b"sums", args(MAX_VALUE_LEN)), |answers| {
                    answers[0].value[..8] == (MAX_VALUE_LEN as u64).to_le_bytes()
                }),
                form("the largest answer", plain(b"sums", (MAX_VALUE_LEN as u64).to_le_bytes().to_vec()), |answers| {
                    answers[0].value.len() == MAX_VALUE_LEN
                }),
                form("256 calls", vec![Asked::new(op, b"sums", args(ONE_OF_256)); MAX_OPERATIONS], |answers| {
                    let quota = |answer: &Answer| matches!(answer.status, RpcStatus::OverQuota | RpcStatus::Overloaded);
                    answers.iter().all(|answer| answer.status == RpcStatus::Ok || quota(answer))
                }),
            ]
        }
        OpKind::Range => {
            let range = |limit: u64| Asked::new(op, b"", vec![]).numbered(limit).ordered();
            let whole = |answers: &[Answer]| {
                let entries = RangeEntries::new(&answers[0].value).filter(Result::is_ok).count();
                entries as u64 == answers[0].number & u64::from(u32::MAX) && entries == MULTIGET_KEYS as usize
            };
            vec![
                form("a thousand records", vec![range(RANGE_LIMIT as u64)], whole),
                form("a thousand at one moment", vec![range(RANGE_LIMIT as u64).flagged(OP_FLAG_SNAPSHOT)], whole),
                form("256 ranges", vec![range(3); MAX_OPERATIONS], all_ok),
            ]
        }
        _ => Vec::new(),
    }
}

/// Forms that are one step too large, and the text of their refusal; empty where only the format itself has a bound.
fn beyond(op: OpKind) -> Vec<(Asked, RpcStatus, String)> {
    let over = MAX_VALUE_LEN + 1;
    let refused = |request, status, says: &str| (request, status, says.to_owned());
    let body = |request: Asked| refused(request, RpcStatus::Malformed, &MAX_BODY_LEN.to_string());
    let long_key = Asked::new(op, &vec![b'k'; MAX_KEY_LEN + 1], vec![]);
    let key = refused(long_key, RpcStatus::Malformed, &MAX_KEY_LEN.to_string());
    match op {
        OpKind::Ping | OpKind::Hello => vec![body(Asked::new(op, b"", vec![0; MAX_BODY_LEN + 1]))],
        OpKind::Get | OpKind::Delete | OpKind::Increment => vec![key],
        OpKind::MultiGet => {
            let one_more = multiget((0..=MULTIGET_KEYS).map(|number: u64| number.to_le_bytes().to_vec()));
            vec![refused(one_more, RpcStatus::TooLarge, "at most 1000 keys")]
        }
        OpKind::Put => {
            let value = Asked::new(op, b"k", vec![0; over]);
            vec![refused(value, RpcStatus::TooLarge, &MAX_VALUE_LEN.to_string()), key]
        }
        OpKind::Invoke => {
            let reply = (over as u64).to_le_bytes().to_vec();
            vec![
                body(Asked::new(op, b"sums", vec![0; MAX_BODY_LEN + 1])),
                refused(Asked::new(op, b"sums", reply), RpcStatus::Failed, "reply is longer than its limit"),
            ]
        }
        OpKind::Range => {
            let limit = Asked::new(op, b"", vec![]).numbered(RANGE_LIMIT as u64 + 1).ordered();
            let end = Asked::new(op, b"", vec![b'k'; MAX_KEY_LEN + 2]).numbered(1).ordered();
            vec![
                refused(limit, RpcStatus::Malformed, &RANGE_LIMIT.to_string()),
                refused(end, RpcStatus::TooLarge, &MAX_KEY_LEN.to_string()),
                key,
            ]
        }
        OpKind::Commit => beyond_commits(),
        OpKind::Count => {
            let end = Asked::new(op, b"", vec![b'k'; MAX_KEY_LEN + 2]).ordered();
            vec![refused(end, RpcStatus::TooLarge, &MAX_KEY_LEN.to_string()), key]
        }
        OpKind::Nth => vec![body(Asked::new(op, b"", vec![0; MAX_BODY_LEN + 1]).ordered())],
        OpKind::Rank | OpKind::Ttl | OpKind::Touch => vec![key],
    }
}

/// A client with messages of any size in flight.
struct LargeClient {
    wire: Wire,
    endpoint: ClientEndpoint,
    begun: Instant,
}

impl LargeClient {
    fn new(plane: &DataPlane, tenant: u32) -> LargeClient {
        let wire = Wire::new(plane, 0, tenant);
        wire.socket.set_read_timeout(Some(Duration::from_millis(2))).expect("a timeout");
        let limits = ClientLimits {
            request_bytes: 1 << 30,
            response_bytes: 1 << 30,
            max_message: MAX_MESSAGE_LEN + (1 << 20),
            timeout_us: 60_000_000,
            ..ClientLimits::default()
        };
        let endpoint = ClientEndpoint::new(([127, 0, 0, 1], 7400).into(), limits);
        LargeClient { wire, endpoint, begun: Instant::now() }
    }

    fn message(&mut self, operations: &[Asked]) -> Vec<u8> {
        // Running it again does no harm, so the server need not remember these answers.
        let header = MessageHeader { flags: MESSAGE_FLAG_IDEMPOTENT, ..self.wire.header(operations.len()) };
        let mut message = header.encode().to_vec();
        // By hand: the codec does not encode anything that is too large.
        for request in operations {
            let begun = message.len();
            encode_operation(&request.head, &mut message);
            message[begun + 4..begun + 8].copy_from_slice(&(request.key.len() as u32).to_le_bytes());
            message[begun + 8..begun + 12].copy_from_slice(&(request.value.len() as u32).to_le_bytes());
            message.extend_from_slice(&request.key);
            message.extend_from_slice(&request.value);
        }
        message
    }

    /// Sends messages at once; returns their answers in the messages' order.
    fn exchange(&mut self, messages: &[Vec<u8>]) -> Vec<Vec<Answer>> {
        let mut sent: Vec<(PeerAddr, Vec<u8>)> = Vec::new();
        let now_us = |begun: Instant| begun.elapsed().as_micros() as u64;
        let ids: Vec<u16> = messages
            .iter()
            .map(|message| self.endpoint.request(now_us(self.begun), message, &mut sent).expect("there is room"))
            .collect();
        let (mut answers, mut buffer) = (HashMap::new(), vec![0; 65_536]);
        while answers.len() < ids.len() {
            sent.drain(..).for_each(|(_, datagram)| {
                self.wire.socket.send(&datagram).expect("sent");
            });
            if let Ok(len) = self.wire.socket.recv(&mut buffer) {
                let answer = self.endpoint.receive(now_us(self.begun), &buffer[..len], &mut sent);
                if let Some(answer) = answer {
                    answers.insert(answer.request_id, response_of(&answer.message));
                }
            }
            self.endpoint.poll_timers(now_us(self.begun), &mut sent, &mut |failed| {
                panic!("{:?} after {} answers of {}", failed.failure, answers.len(), ids.len());
            });
        }
        ids.iter().map(|id| answers.remove(id).expect("an answer")).collect()
    }
}

fn response_of(message: &[u8]) -> Vec<Answer> {
    let (_, operations) = MessageHeader::decode(message).expect("a well-formed response");
    let answer = |o: Operation<'_>| Answer {
        op: o.op,
        status: o.status,
        number: o.number,
        flags: o.flags,
        user_flags: o.user_flags,
        key: o.key.to_vec(),
        value: o.value.to_vec(),
    };
    operations.map(|operation| answer(operation.expect("a well-formed answer"))).collect()
}

fn counted_at(plane: &DataPlane, name: &str) -> u64 {
    flat(&plane.metrics.read_worker(0)).find(|(known, _)| known == name).map_or(0, |(_, count)| count)
}

/// Creates the tenant with the large requests, with records of all sizes, and its neighbour.
fn tenants(plane: &DataPlane) -> (u32, u32) {
    let quotas = QuotaChanges { slow_after_kills: Some(0), suspend_after_kills: Some(0), ..QuotaChanges::default() };
    let (mallory, _) = tenant_with(plane, "mallory", true, quotas);
    let ordered = NewTable { id: Some(ORDERED), ordered: true, ..NewTable::named("ordered") };
    plane.directory.create_table("mallory", ordered).expect("a table");
    let memory_bytes = Some(ARENA_MAX_BYTES);
    let budget = BudgetOverride { total_us: Some(5_000_000), memory_bytes, ..BudgetOverride::default() };
    let extension = crate::common::loaded("sums", 1, library_of("sums", SOURCE), budget);
    plane.directory.put_extension("mallory", std::sync::Arc::new(extension)).expect("an extension is loaded");
    let (alice, _) = tenant(plane, "alice", true);
    client(plane, alice).put(TABLE, b"key", b"alice's", &PutOptions::default()).expect("a put");
    let client = client(plane, mallory);
    let put = |table, key: &[u8], value: &[u8]| {
        client.put(table, key, value, &PutOptions::default()).expect("a put");
    };
    put(TABLE, b"large", &vec![b'x'; MAX_VALUE_LEN]);
    put(TABLE, b"mega", &vec![b'x'; (1 << 20) + 50_000]);
    put(TABLE, &long_key(), b"long");
    (0..MAX_OPERATIONS).for_each(|number| put(TABLE, &numbered_key("q", number), &vec![1; ONE_OF_256]));
    for number in 0..MULTIGET_KEYS as usize {
        put(TABLE, &numbered_key("k", number), &vec![2; THOUSANDTH]);
        put(ORDERED, &numbered_key("o", number), &vec![3; THOUSANDTH]);
    }
    (mallory, alice)
}

#[test]
fn the_largest_form_of_every_operation_is_run_in_pieces_beside_a_neighbour() {
    if has_no_devices_left() {
        return;
    }
    let plane = data_plane(1);
    let (mallory, alice) = tenants(&plane);
    let (stopped, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = Stop(&stopped);
        scope.spawn(|| {
            let mut wire = Wire::new(&plane, 0, alice);
            while !stopped.load(Ordering::SeqCst) {
                assert_eq!(wire.one(Operation::get(TABLE, b"key")).text(), "alice's");
                answered.fetch_add(1, Ordering::SeqCst);
            }
        });
        let mut client = LargeClient::new(&plane, mallory);
        for op in OpKind::ALL {
            let forms = largest(*op);
            assert!(!forms.is_empty(), "{op:?} has no largest form here: add one");
            for Form { what, operations, is_right } in forms {
                let before = answered.load(Ordering::SeqCst);
                let messages: Vec<Vec<u8>> = (0..AT_ONCE).map(|_| client.message(&operations)).collect();
                for answers in client.exchange(&messages) {
                    assert_eq!(answers.len(), operations.len());
                    let seen = || answers.iter().map(|a| (a.status, a.value.len())).take(9).collect::<Vec<_>>();
                    assert!(is_right(&answers), "{op:?}, {what}: {:?}", seen());
                }
                let longest = counted_at(&plane, "longest_piece");
                println!("{op:?}, {what}: {longest} requests in the longest piece so far");
                assert!(longest <= ONE_PIECE, "{op:?}, {what}: {longest} requests' work in one go, of {ONE_PIECE}");
                assert!(eventually(|| answered.load(Ordering::SeqCst) > before), "{op:?}, {what}");
            }
        }
    });
    assert!(counted_at(&plane, "messages_postponed") > AT_ONCE as u64, "they had to wait for each other");
}

#[test]
fn a_neighbour_is_answered_between_two_large_messages() {
    const MESSAGES: usize = 16;
    if has_no_devices_left() {
        return;
    }
    let plane = data_plane(1);
    let (mallory, alice) = tenants(&plane);
    let mut client = LargeClient::new(&plane, mallory);
    let mut wire = Wire::new(&plane, 0, alice);
    let operations: Vec<Asked> = (0..40).map(|n| Asked::new(OpKind::Get, &numbered_key("q", n), vec![])).collect();
    let all = (MESSAGES * operations.len()) as u64;
    let answered_between = |client: &mut LargeClient, wire: &mut Wire| {
        let messages: Vec<Vec<u8>> = (0..MESSAGES).map(|_| client.message(&operations)).collect();
        let before = counted_at(&plane, "records_read");
        // Each is one packet, and their answers are not read yet.
        messages.iter().zip(1..).for_each(|(message, id)| client.wire.send(id, message));
        assert_eq!(wire.one(Operation::get(TABLE, b"key")).text(), "alice's");
        let read = counted_at(&plane, "records_read") - before;
        assert!(eventually(|| counted_at(&plane, "records_read") - before > all));
        read < all
    };
    // An answer that is late because the machine was busy comes after them.
    assert!(eventually(|| answered_between(&mut client, &mut wire)), "always behind all of them");
    assert!(counted_at(&plane, "longest_piece") <= ONE_PIECE);
}

#[test]
fn what_is_one_step_too_large_is_told_the_limit() {
    if has_no_devices_left() {
        return;
    }
    let plane = data_plane(1);
    let (mallory, _) = tenants(&plane);
    let mut client = LargeClient::new(&plane, mallory);
    for op in OpKind::ALL {
        for (request, status, says) in beyond(*op) {
            let message = client.message(std::slice::from_ref(&request));
            let answer = client.exchange(&[message]).remove(0).remove(0);
            let text = answer.text();
            assert!(answer.status == status && text.contains(&says), "{op:?}: {:?} {text}, not {says}", answer.status);
        }
    }
    let many = vec![Asked::new(OpKind::Get, b"k", vec![]); MAX_OPERATIONS + 1];
    let message = client.message(&many);
    let answer = client.exchange(&[message]).remove(0).remove(0);
    assert!(answer.status == RpcStatus::Malformed && answer.text().contains("1 to 256"), "{}", answer.text());
}
