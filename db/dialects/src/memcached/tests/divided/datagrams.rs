//! Datagrams at a server of a cluster are answered as by one server alone, one answer each, while those of other
//! senders are answered in between.

use sandstorm_net::memcached::binary;

use super::*;
use crate::memcached::{ForwardedDatagram, MemcachedSession, NOT_FORWARDED};

const TOO_MUCH: &[u8] = b"SERVER_ERROR out of memory writing get response\r\n";

/// Runs a datagram until it is answered, or waits for other servers.
fn begin(world: &World, client: &mut Client, sent: &[u8], out: &mut Vec<u8>) -> Option<ForwardedDatagram> {
    let mut forwarded = None;
    world.context(|context| forwarded = client.session.run_datagram(context, sent, out));
    forwarded
}

/// Goes on with one that has waited.
fn go_on(
    world: &World,
    client: &mut Client,
    (waiting, answers): (ForwardedDatagram, Vec<ForwardedAnswer>),
    out: &mut Vec<u8>,
) -> Option<ForwardedDatagram> {
    let mut forwarded = None;
    world.context(|context| {
        forwarded = client.session.resume_datagram(context, waiting.suspended, answers, out);
    });
    forwarded
}

fn answer_of(world: &World, client: &mut Client, sent: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(begin(world, client, sent, &mut out).is_none());
    out
}

impl DividedWorld {
    /// The answer to a datagram at a server, and how often others were asked for it. All the time others are answered.
    fn send(&self, at: usize, client: &mut Client, sent: &[u8], random: &mut StdRng) -> (Vec<u8>, usize) {
        let (world, mut out, mut asked) = (&self.servers[at], Vec::new(), 0);
        let mut waiting = begin(world, client, sent, &mut out);
        while let Some(forwarded) = waiting {
            asked += 1;
            assert!(forwarded.batch.is_datagram && out.is_empty(), "it has one answer, once it is whole");
            assert_eq!(answer_of(world, client, b"version\r\n"), b"VERSION 1.6.18\r\n");
            let answers = self.carry(at, &forwarded.batch, random);
            waiting = go_on(world, client, (forwarded, answers), &mut out);
        }
        (out, asked)
    }
}

fn compare_datagrams(seed: u64, command: impl Fn(&mut StdRng) -> Vec<u8>, comparable: impl Fn(&[u8]) -> String) {
    let mut random = StdRng::seed_from_u64(seed);
    let world = DividedWorld::new(false);
    let mut clients: Vec<Client> = world.servers.iter().map(|server| server.client("shop", "t")).collect();
    let mut alone = world.alone.client("shop", "t");
    let mut asked = 0;
    for round in 0..500 {
        let (sent, at) = (command(&mut random), random.random_range(0..SERVERS));
        let (answer, times) = world.send(at, &mut clients[at], &sent, &mut random);
        let expected = answer_of(&world.alone, &mut alone, &sent);
        asked += times;
        assert!(comparable(&answer) == comparable(&expected), "seed {seed}, round {round}: {:?}", sent.get(..100));
    }
    assert!(asked > 100, "{asked}");
}

/// A command that asks others as often as a datagram may. A `gat` changes its records one after the other.
fn short_command(random: &mut StdRng) -> Vec<u8> {
    loop {
        let command = command(random);
        if !command.starts_with("gat ") || command.split(' ').count() < 11 {
            return command.into_bytes();
        }
    }
}

#[test]
fn a_cluster_answers_datagrams_as_one_server_whichever_is_asked() {
    for seed in 0..4 {
        compare_datagrams(seed, short_command, without_numbers);
        compare_datagrams(seed, frame, frames_without_numbers);
    }
}

#[test]
fn commands_of_one_datagram_are_run_in_their_order_whoever_has_their_keys() {
    let (world, mut random) = (DividedWorld::new(true), StdRng::seed_from_u64(3));
    let mut client = world.servers[0].client("shop", "t");
    let (near, far, farther) = (key_of(0), key_of(1), key_of(2));
    let sent = format!(
        "set {far} 0 0 1\r\n1\r\nset {near} 0 0 1 noreply\r\n5\r\nincr {far} 2\r\n\
         get {farther} {near} {far}\r\nincr {near} 1\r\n"
    );
    let (answer, asked) = world.send(0, &mut client, sent.as_bytes(), &mut random);
    let expected = format!("STORED\r\n3\r\nVALUE {near} 0 1\r\n5\r\nVALUE {far} 0 1\r\n3\r\nEND\r\n6\r\n");
    assert_eq!(String::from_utf8_lossy(&answer), expected);
    assert!(asked >= 3);
}

#[test]
fn datagrams_wait_side_by_side_and_each_has_its_own_answer() {
    let (world, mut random) = (DividedWorld::new(false), StdRng::seed_from_u64(4));
    let (server, mut client) = (&world.servers[0], world.servers[0].client("shop", "t"));
    let (mut waiting, mut answered) = (Vec::new(), 0);
    for number in 0..60 {
        let value = format!("of {number}");
        let sent = format!("set k{number} 0 0 {}\r\n{value}\r\nget k{number}\r\n", value.len());
        let mut out = Vec::new();
        match begin(server, &mut client, sent.as_bytes(), &mut out) {
            Some(forwarded) => waiting.push((number, forwarded)),
            None => answered += 1,
        }
    }
    assert!(waiting.len() > 20 && answered > 5);
    while !waiting.is_empty() {
        let (number, forwarded) = waiting.swap_remove(random.random_range(0..waiting.len()));
        let (answers, mut out) = (world.carry(0, &forwarded.batch, &mut random), Vec::new());
        match go_on(server, &mut client, (forwarded, answers), &mut out) {
            Some(forwarded) => waiting.push((number, forwarded)),
            None => {
                let value = format!("of {number}");
                let expected = format!("STORED\r\nVALUE k{number} 0 {}\r\n{value}\r\nEND\r\n", value.len());
                assert_eq!(String::from_utf8_lossy(&out), expected);
            }
        }
    }
}

#[test]
fn a_datagram_asks_others_a_bounded_number_of_times_and_keeps_a_bounded_answer() {
    let (world, mut random) = (DividedWorld::new(false), StdRng::seed_from_u64(5));
    let mut client = world.servers[0].client("shop", "t");
    let (near, far) = (key_of(0), key_of(1));
    let turns = format!("incr {near} 1\r\nincr {far} 1\r\n");
    let few = world.send(0, &mut client, turns.repeat(9).as_bytes(), &mut random);
    assert_eq!(few, ("NOT_FOUND\r\n".repeat(18).into_bytes(), 9));
    let (answer, asked) = world.send(0, &mut client, turns.repeat(500).as_bytes(), &mut random);
    assert!(answer == TOO_MUCH && asked <= 10, "{asked}");
    let set = format!("set {far} 0 0 400000\r\n{}\r\n", "v".repeat(400_000));
    assert_eq!(world.send(0, &mut client, set.as_bytes(), &mut random).0, b"STORED\r\n");
    let (answer, _) = world.send(0, &mut client, format!("get {far}\r\n").repeat(2).as_bytes(), &mut random);
    assert!(answer.len() > 800_000);
    let (answer, _) = world.send(0, &mut client, format!("get {far}\r\n").repeat(3).as_bytes(), &mut random);
    assert_eq!(String::from_utf8_lossy(&answer), String::from_utf8_lossy(TOO_MUCH));
    assert_eq!(answer_of(&world.servers[0], &mut client, b"mn\r\n"), b"MN\r\n", "the next one begins anew");
}

#[test]
fn a_server_that_stops_gives_the_answers_that_have_come_and_runs_nothing_more() {
    let (world, mut random) = (DividedWorld::new(false), StdRng::seed_from_u64(6));
    let (server, mut client) = (&world.servers[0], world.servers[0].client("shop", "t"));
    let (near, far) = (key_of(0), key_of(1));
    let mut stopped = |sent: &str| {
        let mut out = Vec::new();
        let forwarded = begin(server, &mut client, sent.as_bytes(), &mut out).expect("it waits");
        let answers = world.carry(0, &forwarded.batch, &mut random);
        client.session.stop_datagram(forwarded.suspended, answers, &mut out);
        String::from_utf8(out).unwrap()
    };
    let set = |key: &str| format!("set {key} 0 0 1\r\nx\r\n");
    assert_eq!(stopped(&set(&far)), "STORED\r\n");
    assert_eq!(stopped(&(set(&far) + &set(&near))), "STORED\r\nSERVER_ERROR shutting down\r\n");
    assert_eq!(answer_of(server, &mut client, format!("get {near}\r\n").as_bytes()), b"END\r\n");
}

#[test]
fn a_datagram_is_refused_in_the_words_of_its_protocol() {
    let world = DividedWorld::new(false);
    let (server, mut client) = (&world.servers[0], world.servers[0].client("shop", "t"));
    let far = key_of(1);
    let mut refused = |sent: &[u8]| {
        let mut out = Vec::new();
        let forwarded = begin(server, &mut client, sent, &mut out).expect("it waits");
        let refusals = vec![ForwardedAnswer::Refused("SERVER_ERROR away".to_owned()); forwarded.batch.commands.len()];
        assert!(go_on(server, &mut client, (forwarded, refusals), &mut out).is_none());
        out
    };
    assert_eq!(refused(format!("get {far}\r\n").as_bytes()), b"SERVER_ERROR away\r\n");
    assert_eq!(refused(format!("set {far} 0 0 9437184\r\n").as_bytes()), b"SERVER_ERROR away\r\n");
    let frame = refused(&get_frame(&far));
    assert_eq!((frame[0], &frame[6..8], &frame[24..]), (0x81, &[0, 0x82][..], &b"away"[..]));
    assert_eq!(get_frame(&far)[0], binary::MAGIC);
}

/// The line that says that a command was not sent, or not run.
fn not_run() -> String {
    format!("{NOT_FORWARDED}\r\n")
}

#[test]
fn a_datagram_whose_slots_do_not_come_to_rest_asks_others_a_bounded_number_of_times() {
    let world = DividedWorld::new(false);
    let (server, mut client) = (&world.servers[0], world.servers[0].client("shop", "t"));
    let (near, far) = (key_of(0), key_of(1));
    let (mut out, mut asked) = (Vec::new(), 0);
    let sent = format!("set {near} 0 0 1\r\nx\r\ngets {far} {near}\r\nget {near}\r\n");
    let mut waiting = begin(server, &mut client, sent.as_bytes(), &mut out);
    while let Some(forwarded) = waiting {
        asked += 1;
        assert!(asked < 100, "it goes round and round");
        let later = vec![ForwardedAnswer::Later; forwarded.batch.commands.len()];
        waiting = go_on(server, &mut client, (forwarded, later), &mut out);
    }
    assert_eq!(asked, 10);
    // What has run keeps its answer, and there is one line for each other command.
    assert_eq!(String::from_utf8_lossy(&out), format!("STORED\r\n{}", not_run().repeat(2)));
    assert_eq!(answer_of(server, &mut client, b"mn\r\n"), b"MN\r\n", "the next one begins anew");
}

#[test]
fn a_datagram_that_may_not_wait_again_tells_what_has_run_and_what_has_not() {
    let (world, mut random) = (DividedWorld::new(false), StdRng::seed_from_u64(7));
    let (server, mut client) = (&world.servers[0], world.servers[0].client("shop", "t"));
    let (near, far, farther) = (key_of(0), key_of(1), key_of(2));
    let mut second_given_up = |sent: &[u8]| {
        let mut out = Vec::new();
        let first = begin(server, &mut client, sent, &mut out).expect("it waits");
        let answers = world.carry(0, &first.batch, &mut random);
        let second = go_on(server, &mut client, (first, answers), &mut out).expect("it waits for another server");
        assert!(out.is_empty() && second.suspended.has_answers());
        client.session.give_up_datagram(second, &mut out);
        out
    };
    let set = |key: &str| format!("set {key} 0 0 1\r\nx\r\n");
    let text = |out: Vec<u8>| String::from_utf8(out).unwrap();
    let told = text(second_given_up((set(&far) + &set(&farther) + &set(&near)).as_bytes()));
    assert_eq!(told, format!("STORED\r\n{}", not_run().repeat(2)));
    // The rest of a line of keys belongs to the error.
    let told = text(second_given_up(format!("{}gat 0 {farther} {near} {far}\r\nmn\r\n", set(&far)).as_bytes()));
    assert_eq!(told, format!("STORED\r\n{}", not_run().repeat(2)));
    // In the binary protocol the first of those that are not run is named.
    let frames = [get_frame(&far), get_frame(&farther)].concat();
    let first = begin(server, &mut client, &frames, &mut Vec::new()).expect("it waits");
    let mut out = Vec::new();
    client.session.give_up_datagram(first, &mut out);
    assert_eq!((out[0], &out[6..8]), (binary::RESPONSE_MAGIC, &[0, 0x82][..]), "{out:?}");
    for key in [near, farther] {
        let mut client = world.servers[if key == key_of(0) { 0 } else { 2 }].client("shop", "t");
        let at = &world.servers[if key == key_of(0) { 0 } else { 2 }];
        assert_eq!(answer_of(at, &mut client, format!("get {key}\r\n").as_bytes()), b"END\r\n", "it was not run");
    }
}

#[test]
fn a_datagram_that_is_given_up_is_answered_by_no_more_than_any_other() {
    let world = DividedWorld::new(false);
    let (server, mut client) = (&world.servers[0], world.servers[0].client("shop", "t"));
    let (near, far) = (key_of(0), key_of(1));
    let value = "x".repeat(1_200 << 10);
    let set = format!("set {near} 0 0 {}\r\n{value}\r\n", value.len());
    assert_eq!(answer_of(server, &mut client, set.as_bytes()), b"STORED\r\n");
    let sent = format!("mn\r\nget {far}\r\nget {near}\r\nget {near}\r\nget {far}\r\n");
    let waiting = begin(server, &mut client, sent.as_bytes(), &mut Vec::new()).expect("it waits");
    let mut out = Vec::new();
    client.session.give_up_datagram(waiting, &mut out);
    assert!(out.len() < 1 << 20, "{} bytes to a sender whose address may be forged", out.len());
    assert_eq!(out, TOO_MUCH);
    assert_eq!(answer_of(server, &mut client, b"mn\r\n"), b"MN\r\n", "the next one begins anew");
}

#[test]
fn an_answer_that_may_not_stand_is_refused_in_the_words_of_its_protocol() {
    use crate::UncertainAnswer;
    let (mut text, mut frames) = (Vec::new(), Vec::new());
    MemcachedSession::datagram_not_durable(b"STORED\r\nSTORED\r\n", UncertainAnswer::Backing, &mut text);
    let line = format!("SERVER_ERROR {}\r\n", UncertainAnswer::Backing.text());
    assert_eq!(String::from_utf8(text).unwrap(), line);
    let mut answer = Vec::new();
    for (opcode, opaque) in [(1, 0x0102_0304), (5, 9)] {
        use binary::{BinaryResponseHeader, BinaryStatus};
        let status = BinaryStatus::Done;
        BinaryResponseHeader { opcode, opaque, status, cas: 7, extras: b"flag", key: b"k" }.push(b"value", &mut answer);
    }
    MemcachedSession::datagram_not_durable(&answer, UncertainAnswer::Backing, &mut frames);
    let said = UncertainAnswer::Backing.text().as_bytes();
    let one = |opcode: u8, opaque: [u8; 4]| {
        let body = (said.len() as u32).to_be_bytes();
        [&[0x81, opcode, 0, 0, 0, 0, 0, 0x82][..], &body, &opaque, &[0; 8], said].concat()
    };
    assert_eq!(frames, [one(1, [1, 2, 3, 4]), one(5, [0, 0, 0, 9])].concat());
    // What is no whole answer ends it.
    frames.clear();
    MemcachedSession::datagram_not_durable(&[0x81; 30], UncertainAnswer::Backing, &mut frames);
    assert_eq!(frames[..8], [0x81, 0x81, 0, 0, 0, 0, 0, 0x82]);
}
