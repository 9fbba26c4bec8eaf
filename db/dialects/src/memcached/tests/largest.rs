//! The largest legal form of every request. Another tenant waits for one piece of it at most.

use rustix::time::{ClockId, clock_gettime};
use sandstorm_net::memcached::{TextParse, TextRequest, parse};

use super::*;
use crate::limits::REQUEST_NS;
use crate::limits::protocols::RECEIVE_BYTES;
use crate::limits::protocols::{BYTES_PER_REQUEST, PIECE_WORK, REWRITTEN_PER_REQUEST_BYTES};
use sandstorm_store::limits::MAX_VALUE_BYTES;

/// Kinds of requests, so that each has a form here.
const KINDS: usize = 16;

fn kind(request: &TextRequest<'_>) -> usize {
    match request {
        TextRequest::Get { .. } => 0,
        TextRequest::GetMany { .. } => 1,
        TextRequest::Store(_) => 2,
        TextRequest::TooLarge { .. } => 3,
        TextRequest::Delete { .. } => 4,
        TextRequest::Arithmetic { .. } => 5,
        TextRequest::Touch { .. } => 6,
        TextRequest::FlushAll { .. } => 7,
        TextRequest::Stats(_) => 8,
        TextRequest::Version => 9,
        TextRequest::Noop { .. } => 10,
        TextRequest::Quit => 11,
        TextRequest::MetaTooLarge { .. } => 12,
        TextRequest::Meta(_) => 13,
        TextRequest::MetaNoop => 14,
        TextRequest::Invalid { .. } => 15,
        // A new kind gets the next number, and a form below.
    }
}

/// The requests. Short ones fill a whole packet.
fn forms() -> Vec<Vec<u8>> {
    let len = MAX_VALUE_BYTES;
    let valued = |line: String, len: usize| [line.as_bytes(), b"\r\n", &vec![b'v'; len], b"\r\n"].concat();
    let mut forms = vec![
        [&b"get"[..], &b" large"[..].repeat(20), b"\r\n"].concat(),
        [&b"get"[..], &b" a".repeat(1_000_000), b"\r\n"].concat(),
        [&b"get"[..], &b" ".repeat(1_000_000), b"a\r\n"].concat(),
        [&b"gat 100"[..], &b" large".repeat(300), b"\r\n"].concat(),
        valued(format!("set big 0 0 {len}"), len),
        valued("append large 0 0 1".into(), 1).repeat(10),
        valued(format!("set big 0 0 {}", len + 1), len + 1),
        valued(format!("ms big {}", len + 1), len + 1),
        valued(format!("ms big {len}"), len),
    ];
    for short in [
        "get large",
        "get a",
        "delete a",
        "incr n 1",
        "touch large 100",
        "touch a 1",
        "flush_all",
        "stats",
        "stats items",
        "version",
        "verbosity 1",
        "mg a v t s k",
        "mg large T100 v",
        "md large I",
        "me a",
        "ma n",
        "mn",
        "nosuch",
        "get",
        "set a 0 0 1\r\nv",
        "mg a v\r\nmn",
    ] {
        let line = format!("{short}\r\n");
        forms.push(line.repeat(RECEIVE_BYTES / line.len()).into_bytes());
    }
    // Last, since nothing may follow it.
    forms.push(b"quit\r\n".to_vec());
    forms
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Runs a client's bytes, as they come from its connection. Returns the most work of one piece, and the longest CPU
/// time.
fn watched(world: &World, client: &mut Client, mut sent: &[u8]) -> (u32, u64) {
    let (mut input, mut needed, mut most, mut longest_ns) = (Vec::new(), 1, 0, 0);
    let snapshot = world.directory.snapshot();
    loop {
        while input.len() < needed && !sent.is_empty() {
            let (now, later) = sent.split_at(sent.len().min(RECEIVE_BYTES));
            input.extend_from_slice(now);
            sent = later;
        }
        if input.len() < needed {
            return (most, longest_ns);
        }
        let (mut out, before) = (Vec::new(), cpu_ns());
        let context = CommandContext {
            participant: &world.participant,
            snapshot: &snapshot,
            now_ms: world.now_ms,
            now_us: world.now_ms * 1000,
            worker: 0,
            counters: world.facts.metrics.worker(0).expect("a worker"),
            facts: &world.facts,
            requests: Default::default(),
            retired: world.participant.retired(),
            budget: PIECE_WORK,
        };
        let (used, next) = client.session.run(&context, &input, &mut out);
        longest_ns = longest_ns.max(cpu_ns() - before);
        most = most.max(context.work_done());
        input.drain(..used);
        needed = match next {
            NextAction::NeedMore(needed) => needed,
            NextAction::Close => return (most, longest_ns),
            _ => 1,
        };
    }
}

#[test]
fn the_largest_form_of_every_request_is_run_in_pieces_of_a_slice_or_one_value() {
    let mut covered = [false; KINDS];
    // One value that is read, and written again.
    let value = (MAX_VALUE_BYTES / BYTES_PER_REQUEST + MAX_VALUE_BYTES / REWRITTEN_PER_REQUEST_BYTES) as u32;
    for form in forms() {
        if let TextParse::Request { request, .. } = parse(&form, MAX_VALUE_BYTES) {
            covered[kind(&request)] = true;
        }
        let shown = String::from_utf8_lossy(&form[..form.len().min(30)]).replace("\r\n", " ");
        // Interference of other processes appears once, and hardly three times.
        let (mut most, mut longest_ns) = (0, u64::MAX);
        for _ in 0..3 {
            let mut world = World::new(GrantAccess::Read);
            world.now_ms += 1;
            let mut client = world.client("shop", "t");
            let large = [
                format!("set large 0 0 {}\r\n", MAX_VALUE_BYTES - 20).as_bytes(),
                &vec![b'v'; MAX_VALUE_BYTES - 20],
                b"\r\n",
            ]
            .concat();
            world.send_bytes(&mut client, &large);
            world.send_text(&mut client, "set a 0 0 1\r\nv\r\nset n 0 0 1\r\n1\r\n");
            let (work, took_ns) = watched(&world, &mut client, &form);
            (most, longest_ns) = (most.max(work), longest_ns.min(took_ns));
            if longest_ns < 20 * REQUEST_NS * u64::from(PIECE_WORK) {
                break;
            }
        }
        println!("{most:>6} requests' work, {longest_ns:>9} ns: {shown}");
        let most_allowed = PIECE_WORK + 64 + value;
        assert!(most <= most_allowed, "{most} in one go: {shown}");
        assert!(longest_ns < 20 * REQUEST_NS * u64::from(most.max(PIECE_WORK)), "{longest_ns} ns in one go: {shown}");
        assert!(most <= PIECE_WORK + 64 || form.len() > MAX_VALUE_BYTES || shown.contains("large"), "{most}: {shown}");
    }
    let without: Vec<_> = (0..KINDS).filter(|kind| !covered[*kind]).collect();
    assert!(without.is_empty(), "kinds of requests without a largest form: {without:?}");
}
