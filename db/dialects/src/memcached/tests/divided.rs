//! Clients of a cluster are answered as those of one server are, but for the numbers of records: whichever server they
//! ask, with keys of all servers in one line or pipeline. The servers are sessions without sockets; what carries their
//! commands asks the wrong one at times.

mod datagrams;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use sandstorm_net::forwarding::{ForwardedAnswer, ForwardedBatch, ForwardedCommand, ForwardedHead, ForwardedOutcome};
use sandstorm_net::memcached::text::push_base64;
use sandstorm_store::slots::{ClusterServer, SlotMap, SlotOwnership, SlotRange};
use sandstorm_store::spill::SpillReadError;

use super::*;
use crate::memcached::peer::PeerSession;

const SERVERS: usize = 3;
const SLOTS: u16 = 16_384;

/// The server that has a slot: neighbours differ.
fn owner(slot: u16) -> usize {
    usize::from(slot) % SERVERS
}

/// Some servers, with one that has all keys beside them.
struct DividedWorld {
    servers: Vec<World>,
    alone: World,
    /// Whether commands are sent to servers that do not have their keys, at times.
    errs: bool,
}

/// Runs what a client has sent until there is something to do for its server.
fn next_action(server: &World, client: &mut Client, out: &mut Vec<u8>) -> NextAction {
    loop {
        let mut ran = None;
        server.context(|context| ran = Some(client.session.run(context, &client.input, out)));
        let (used, next) = ran.expect("it has run");
        client.input.drain(..used);
        if !matches!(next, NextAction::Yield | NextAction::HandOver(_)) {
            return next;
        }
    }
}

impl DividedWorld {
    fn new(errs: bool) -> DividedWorld {
        let id = |server: usize| format!("{server:040x}");
        let members = (0..SERVERS).map(|server| ClusterServer::example(&id(server)));
        let members: Vec<_> = members.collect();
        let ranges = (0..SLOTS).map(|slot| SlotRange { first: slot, last: slot, server: Some(owner(slot)) });
        let ranges: Vec<_> = ranges.collect();
        let new = |server: usize| {
            let slots = Arc::new(SlotOwnership::new(id(server)));
            slots.set_owned(|slot| owner(slot) == server);
            slots.set_map(SlotMap::new(1, members.clone(), &ranges));
            World::in_cluster(GrantAccess::Read, DirectoryOptions::default(), Some(&slots))
        };
        DividedWorld { servers: (0..SERVERS).map(new).collect(), alone: World::new(GrantAccess::Read), errs }
    }

    /// The answers to a client's bytes at a server.
    fn talk(&self, at: usize, client: &mut Client, sent: &[u8], random: &mut StdRng) -> Vec<u8> {
        client.input.extend_from_slice(sent);
        let mut out = Vec::new();
        loop {
            match next_action(&self.servers[at], client, &mut out) {
                NextAction::Forward(batch) => {
                    let answers = self.carry(at, &batch, random);
                    assert_eq!(answers.len(), batch.commands.len());
                    client.session.forwarded(answers, &mut out);
                }
                _ => return out,
            }
        }
    }

    /// Carries a batch to the owners of its keys, as the cluster's forwarder does.
    fn carry(&self, from: usize, batch: &ForwardedBatch, random: &mut StdRng) -> Vec<ForwardedAnswer> {
        assert!(batch.is_ordered || batch.commands.iter().all(|command| !command.changes));
        let mut answers: Vec<Option<ForwardedAnswer>> = vec![None; batch.commands.len()];
        while let Some(first) = answers.iter().position(Option::is_none) {
            let wanted = owner(batch.commands[first].slot);
            assert_ne!(wanted, from, "its own keys a server has itself");
            let open = (first..answers.len()).filter(|number| answers[*number].is_none());
            let is_its = |number: &usize| owner(batch.commands[*number].slot) == wanted;
            let numbers: Vec<usize> = match batch.is_ordered {
                true => open.take_while(is_its).collect(),
                false => open.filter(is_its).collect(),
            };
            let asked = if self.errs && random.random_bool(0.2) { (wanted + 1) % SERVERS } else { wanted };
            for (number, (outcome, bytes)) in numbers.into_iter().zip(self.run_at(asked, batch, first, is_its)) {
                answers[number] = match outcome {
                    ForwardedOutcome::Answered => Some(ForwardedAnswer::Answered(bytes)),
                    ForwardedOutcome::Full => Some(ForwardedAnswer::Later),
                    ForwardedOutcome::NotOwned => None,
                    other => panic!("{other:?}"),
                };
                assert_eq!(answers[number].is_some(), asked == wanted);
            }
        }
        // What only reads may have to be asked for anew, with all behind it.
        if self.errs && !batch.is_ordered && random.random_bool(0.2) {
            let later = random.random_range(0..answers.len());
            answers[later] = Some(ForwardedAnswer::Later);
        }
        answers.into_iter().flatten().collect()
    }

    fn run_at(
        &self,
        server: usize,
        batch: &ForwardedBatch,
        first: usize,
        is_its: impl Fn(&usize) -> bool,
    ) -> Vec<(ForwardedOutcome, Vec<u8>)> {
        let open = first..batch.commands.len();
        let numbers: Vec<usize> = match batch.is_ordered {
            true => open.take_while(is_its).collect(),
            false => open.filter(is_its).collect(),
        };
        let world = &self.servers[server];
        let snapshot = world.directory.snapshot();
        // Servers agree on the serial numbers of tables.
        let serial = snapshot.tenant(batch.tenant).unwrap().table(batch.table).unwrap().serial();
        let request = ForwardedBatch { serial, ..batch.clone() }.request(&numbers);
        let (head, mut input) = ForwardedHead::decode(&request).unwrap();
        let (mut session, mut out) = (PeerSession::new(&snapshot, &head).unwrap(), Vec::new());
        loop {
            let mut ran = None;
            world.context(|context| ran = Some(session.run(context, input, &mut out)));
            let (used, next) = ran.expect("it has run");
            input = &input[used..];
            match next {
                NextAction::Yield => {}
                NextAction::Close => break,
                other => panic!("{other:?}"),
            }
        }
        sandstorm_net::forwarding::answers(&out).map(|(outcome, bytes)| (outcome, bytes.to_vec())).collect()
    }
}

/// Takes out the numbers of records, in which servers differ.
fn without_numbers(answers: &[u8]) -> String {
    let text = String::from_utf8_lossy(answers).into_owned();
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let is_number = |word: &str| word.len() > 1 && word[1..].bytes().all(|byte| byte.is_ascii_digit());
        let shown = words.iter().enumerate().map(|(at, word)| match words[0] {
            "VALUE" if at == 4 => "N",
            "HD" | "VA" if at > 0 && word.starts_with('c') && is_number(word) && *word != "c0" => "cN",
            "ME" if word.starts_with("cas=") => "cas=N",
            _ => word,
        });
        shown.collect::<Vec<_>>().join(" ")
    };
    text.split("\r\n").map(line).collect::<Vec<_>>().join("\r\n")
}

fn key(random: &mut StdRng) -> String {
    format!("k{}", random.random_range(0..30))
}

fn keys(random: &mut StdRng) -> String {
    let count = if random.random_bool(0.1) { random.random_range(60..200) } else { random.random_range(2..12) };
    (0..count).map(|_| key(random)).collect::<Vec<_>>().join(" ")
}

fn value(random: &mut StdRng) -> String {
    match random.random_range(0..20) {
        0 => "x".repeat(300_000),
        1..8 => random.random_range(0..1000).to_string(),
        _ => "x".repeat(random.random_range(0..30)),
    }
}

/// A command, as text.
fn command(random: &mut StdRng) -> String {
    let (one, value) = (key(random), value(random));
    let (len, noreply) = (value.len(), if random.random_bool(0.2) { " noreply" } else { "" });
    let exptime = [0, 100, 4_000_000_000_u32, 50].choose(random).copied().unwrap();
    let verb = ["set", "add", "replace", "append", "prepend"].choose(random).copied().unwrap();
    let quiet = if random.random_bool(0.2) { " q" } else { "" };
    match random.random_range(0..26) {
        0..3 => format!("get {one}\r\n"),
        3 => format!("gets {one}\r\n"),
        4..7 => format!("get {}\r\n", keys(random)),
        7 => format!("gets {}\r\n", keys(random)),
        8 => format!("gat 100 {}\r\n", keys(random)),
        9 => format!("gats 0 {one}\r\n"),
        10..14 => format!("{verb} {one} 7 {} {len}{noreply}\r\n{value}\r\n", exptime.min(100)),
        14 => format!("cas {one} 1 0 {len} 1{noreply}\r\n{value}\r\n"),
        15 => format!("incr {one} 5{noreply}\r\n"),
        16 => format!("decr {one} 3{noreply}\r\n"),
        17 => format!("touch {one} 100{noreply}\r\n"),
        18 => format!("delete {one}{noreply}\r\n"),
        19 => format!("mg {one} t f s v k c Oab{quiet}\r\n"),
        20 => format!("mg {one} N30 v t\r\nmg {one} R50 v\r\n"),
        21 => format!("ms {one} {len} T90 F3 c{quiet}\r\n{value}\r\n"),
        22 => format!("md {one} I T30{quiet}\r\nme {one}\r\n"),
        23 => format!("ma {one} N0 J10 v t{quiet}\r\nmn\r\n"),
        24 => {
            let mut encoded = Vec::new();
            push_base64(one.as_bytes(), &mut encoded);
            format!("mg {} b v k\r\n", String::from_utf8(encoded).unwrap())
        }
        _ => {
            let wrong =
                ["version\r\n", "get\r\n", "verbosity 1\r\n", "incr k1 x\r\n", "set k1 0 0 -1\r\n", "mg k1 !\r\n"];
            let long = "y".repeat(251);
            let broken = [format!("get k1 {long} k2\r\n"), format!("get {long}\r\n")];
            let all = wrong.iter().map(|text| (*text).to_owned()).chain(broken).collect::<Vec<_>>();
            all.choose(random).unwrap().clone()
        }
    }
}

fn compare(seed: u64, command: impl Fn(&mut StdRng) -> Vec<u8>, comparable: impl Fn(&[u8]) -> String) {
    let mut random = StdRng::seed_from_u64(seed);
    let world = DividedWorld::new(true);
    let mut clients: Vec<Client> = world.servers.iter().map(|server| server.client("shop", "t")).collect();
    let mut alone = world.alone.client("shop", "t");
    for _ in 0..100 {
        let commands = random.random_range(1..25);
        let sent: Vec<u8> = (0..commands).flat_map(|_| command(&mut random)).collect();
        let (at, cut) = (random.random_range(0..SERVERS), random.random_range(0..=sent.len()));
        let mut answers = world.talk(at, &mut clients[at], &sent[..cut], &mut random);
        answers.extend(world.talk(at, &mut clients[at], &sent[cut..], &mut random));
        let mut expected = alone_says(&world.alone, &mut alone, &sent[..cut]);
        expected.extend(alone_says(&world.alone, &mut alone, &sent[cut..]));
        let (answers, expected) = (comparable(&answers), comparable(&expected));
        if answers != expected {
            let at = answers.bytes().zip(expected.bytes()).take_while(|(one, other)| one == other).count();
            let part = |text: &str| text.chars().skip(at.saturating_sub(200)).take(400).collect::<String>();
            panic!("seed {seed}: {:?}\nand alone: {:?}", part(&answers), part(&expected));
        }
    }
}

fn alone_says(world: &World, client: &mut Client, sent: &[u8]) -> Vec<u8> {
    client.input.extend_from_slice(sent);
    let (mut out, mut last) = (Vec::new(), NextAction::Yield);
    while matches!(last, NextAction::Yield | NextAction::HandOver(_)) {
        world.context(|context| {
            let (used, next) = client.session.run(context, &client.input, &mut out);
            client.input.drain(..used);
            last = next;
        });
    }
    out
}

#[test]
fn a_cluster_answers_as_one_server_whichever_is_asked() {
    for seed in 0..5 {
        compare(seed, |random| command(random).into_bytes(), without_numbers);
    }
}

/// A frame of the binary protocol.
fn frame(random: &mut StdRng) -> Vec<u8> {
    let opaque: u32 = random.random();
    let build = |opcode: u8, extras: &[u8], key: &str, value: &str| {
        let mut frame = vec![0x80, opcode];
        frame.extend_from_slice(&(key.len() as u16).to_be_bytes());
        frame.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
        frame.extend_from_slice(&((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
        frame.extend_from_slice(&opaque.to_be_bytes());
        frame.extend_from_slice(&[0; 8]);
        [&frame, extras, key.as_bytes(), value.as_bytes()].concat()
    };
    let (one, value) = (key(random), value(random));
    let stores = [0x01, 0x02, 0x03, 0x11, 0x12, 0x13];
    let counts = [0x05, 0x06, 0x15, 0x16];
    match random.random_range(0..16) {
        0..5 => build([0x00, 0x09, 0x0c, 0x0d].choose(random).copied().unwrap(), b"", &one, ""),
        5..9 => build(stores.choose(random).copied().unwrap(), &[0, 0, 0, 7, 0, 0, 0, 90], &one, &value),
        9 => build([0x0e, 0x0f, 0x19, 0x1a].choose(random).copied().unwrap(), b"", &one, &value),
        10 => build([0x04, 0x14].choose(random).copied().unwrap(), b"", &one, ""),
        11..13 => {
            let extras = [0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0];
            build(counts.choose(random).copied().unwrap(), &extras, &one, "")
        }
        13 => build([0x1c, 0x1d, 0x1e].choose(random).copied().unwrap(), &[0, 0, 0, 80], &one, ""),
        14 => build(0x0a, b"", "", ""),
        _ => build(0x0b, b"", "", ""),
    }
}

/// The frames of some answers, without the numbers of records.
fn frames_without_numbers(mut answers: &[u8]) -> String {
    let mut shown = String::new();
    while let Some((header, rest)) = answers.split_at_checked(24) {
        let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
        shown.push_str(&format!("{:?} {}\n", &header[..16], String::from_utf8_lossy(&rest[..body])));
        answers = &rest[body..];
    }
    assert!(answers.is_empty());
    shown
}

#[test]
fn a_cluster_answers_frames_as_one_server() {
    for seed in 0..5 {
        compare(seed, frame, frames_without_numbers);
    }
}

#[test]
fn a_value_too_long_ends_what_was_there_at_its_owner() {
    let world = DividedWorld::new(false);
    let mut random = StdRng::seed_from_u64(1);
    let mut client = world.servers[0].client("shop", "t");
    let too_long = "x".repeat(9 << 20);
    for number in 0..6 {
        let sent = format!("set k{number} 0 0 1\r\nx\r\n");
        assert_eq!(world.talk(0, &mut client, sent.as_bytes(), &mut random), b"STORED\r\n");
        let sent = format!("set k{number} 0 0 {}\r\n{too_long}\r\nget k{number}\r\n", too_long.len());
        let answers = world.talk(0, &mut client, sent.as_bytes(), &mut random);
        assert_eq!(String::from_utf8_lossy(&answers), "SERVER_ERROR object too large for cache\r\nEND\r\n");
    }
}

/// A key of the server at `owner`.
fn key_of(wanted: usize) -> String {
    let is_its = |key: &String| owner(sandstorm_net::slots::slot_of(key.as_bytes())) == wanted;
    (0..).map(|number| format!("k{number}")).find(is_its).expect("there are many keys")
}

#[test]
fn a_win_is_not_lost_where_a_read_before_it_is_asked_for_anew() {
    let world = DividedWorld::new(false);
    let mut random = StdRng::seed_from_u64(1);
    let mut client = world.servers[0].client("shop", "t");
    let (near, far) = (key_of(0), key_of(1));
    for key in [&near, &far] {
        let stale = format!("set {key} 0 0 1\r\nx\r\nmd {key} I T30\r\n");
        assert_eq!(world.talk(0, &mut client, stale.as_bytes(), &mut random), b"STORED\r\nHD\r\n");
    }
    client.input = format!("get {far}\r\nmg {near} v\r\nmg {far} v\r\n").into_bytes();
    let (mut out, mut rounds) = (Vec::new(), 0);
    while let NextAction::Forward(batch) = next_action(&world.servers[0], &mut client, &mut out) {
        let mut answers = world.carry(0, &batch, &mut random);
        if rounds == 0 {
            answers[0] = ForwardedAnswer::Later;
        }
        rounds += 1;
        client.session.forwarded(answers, &mut out);
    }
    let expected = format!("VALUE {far} 0 1\r\nx\r\nEND\r\nVA 1 X W\r\nx\r\nVA 1 X W\r\nx\r\n");
    assert_eq!((String::from_utf8_lossy(&out).into_owned(), rounds), (expected, 3));
}

#[test]
fn what_a_record_on_the_disk_was_waited_for_does_not_count_for_those_behind_it() {
    let world = DividedWorld::new(false);
    let mut random = StdRng::seed_from_u64(1);
    let (near, far) = (key_of(0), key_of(1));
    let value = |key: &str| format!("VALUE {key} 0 1\r\nx\r\n");
    let list = (format!("get {near} {far}\r\n"), format!("{}{}END\r\n", value(&near), value(&far)));
    let pipeline = format!("get {far}\r\nget {near}\r\n");
    let pipeline = (pipeline, format!("{}END\r\n{}END\r\n", value(&far), value(&near)));
    for (sent, expected) in [list, pipeline] {
        let mut client = world.servers[0].client("shop", "t");
        for key in [&near, &far] {
            world.talk(0, &mut client, format!("set {key} 0 0 1\r\nx\r\n").as_bytes(), &mut random);
        }
        // It has waited for the record near by, which another client's request has brought to memory meanwhile.
        client.session.cold.note_position(1);
        client.session.cold.set_error(SpillReadError::Device);
        let answers = world.talk(0, &mut client, sent.as_bytes(), &mut random);
        assert_eq!(String::from_utf8_lossy(&answers), expected);
        assert!(client.session.cold.is_new(), "{sent:?}");
    }
}

/// A get of a key, as a frame of the binary protocol.
fn get_frame(key: &str) -> Vec<u8> {
    let mut frame = vec![0x80, 0, 0, key.len() as u8, 0, 0, 0, 0, 0, 0, 0, key.len() as u8, 1, 2, 3, 4];
    frame.extend_from_slice(&[0; 8]);
    [&frame, key.as_bytes()].concat()
}

#[test]
fn a_command_that_is_not_whole_for_the_owner_is_refused_in_the_words_of_the_protocol() {
    let (world, key) = (DividedWorld::new(false), key_of(1));
    let command = |bytes: &[u8]| ForwardedCommand {
        slot: sandstorm_net::slots::slot_of(key.as_bytes()),
        changes: true,
        bytes: bytes.to_vec(),
    };
    let told = |is_binary: bool, commands: [&[u8]; 2]| {
        let mut client = world.servers[0].client("shop", "t");
        client.input = if is_binary { get_frame(&key) } else { format!("get {key}\r\n").into_bytes() };
        let (mut out, mut texts) = (Vec::new(), Vec::new());
        loop {
            match next_action(&world.servers[0], &mut client, &mut out) {
                NextAction::Forward(batch) => {
                    let batch = ForwardedBatch { commands: commands.map(command).to_vec(), ..*batch };
                    texts = world.run_at(1, &batch, 0, |_| true);
                    let text = format!("SERVER_ERROR {}", String::from_utf8_lossy(&texts[0].1));
                    client.session.forwarded(vec![ForwardedAnswer::Refused(text)], &mut out);
                }
                _ => return (out, texts),
            }
        }
    };
    let refusal = "the key's owner reads the command in another way, and has not run it";
    let (set, get) = (format!("set {key} 0 0 9\r\n"), format!("get {key}\r\n"));
    for cut in [set.as_bytes(), &get.as_bytes()[..get.len() - 1], b"mg"] {
        let (out, texts) = told(false, [cut, get.as_bytes()]);
        assert!(String::from_utf8_lossy(&out).starts_with(&format!("SERVER_ERROR {refusal}")));
        assert_eq!(
            texts.iter().map(|(outcome, _)| *outcome).collect::<Vec<_>>(),
            [ForwardedOutcome::Refused, ForwardedOutcome::Answered]
        );
        assert_eq!(texts[1].1, b"END\r\n");
    }
    let get = get_frame(&key);
    let (out, texts) = told(true, [&get[..get.len() - 1], &get]);
    assert_eq!(
        texts.iter().map(|(outcome, _)| *outcome).collect::<Vec<_>>(),
        [ForwardedOutcome::Refused, ForwardedOutcome::Answered]
    );
    let head = [0x81, 0, 0, 0, 0, 0, 0, 0x82];
    assert_eq!((&out[..8], &out[12..16]), (&head[..], &[1, 2, 3, 4][..]));
    assert!(String::from_utf8_lossy(&out[24..]).starts_with(refusal));
}

#[test]
fn a_refusal_is_in_the_words_of_the_protocol_and_ends_a_multiget_alone() {
    let world = DividedWorld::new(false);
    let mut client = world.servers[0].client("shop", "t");
    let mut out = Vec::new();
    let mut ask = |sent: &str, answers: &[ForwardedAnswer]| {
        client.input.extend_from_slice(sent.as_bytes());
        out.clear();
        loop {
            match next_action(&world.servers[0], &mut client, &mut out) {
                NextAction::Forward(batch) => {
                    let answers = answers.iter().cycle().take(batch.commands.len()).cloned();
                    client.session.forwarded(answers.collect(), &mut out);
                }
                _ => return String::from_utf8_lossy(&out).into_owned(),
            }
        }
    };
    let refused = [ForwardedAnswer::Refused("SERVER_ERROR away".to_owned())];
    // Of so many keys some are elsewhere, and some here.
    let (far, near) = (key_of(1), key_of(0));
    assert_eq!(ask(&format!("set {near} 0 0 1\r\nn\r\n"), &refused), "STORED\r\n");
    assert_eq!(ask(&format!("get {far}\r\nversion\r\n"), &refused), "SERVER_ERROR away\r\nVERSION 1.6.18\r\n");
    let value = format!("VALUE {near} 0 1\r\nn\r\n");
    let list = format!("get {near} {far} {near}\r\nget {near}\r\n");
    assert_eq!(ask(&list, &refused), format!("{value}SERVER_ERROR away\r\n{value}END\r\n"));
    assert_eq!(ask(&format!("set {far} 0 0 1 noreply\r\nn\r\nmn\r\n"), &refused), "MN\r\n");
    assert_eq!(ask(&format!("ms {far} 1 q\r\nn\r\nmn\r\n"), &refused), "SERVER_ERROR away\r\nMN\r\n");
    // What is said to be tried later is asked for anew.
    let mut rounds = [ForwardedAnswer::Later, ForwardedAnswer::Answered(b"STORED\r\n".to_vec())].into_iter();
    let mut out = Vec::new();
    client.input.extend_from_slice(format!("set {far} 0 0 1\r\nn\r\n").as_bytes());
    while out.is_empty() {
        let mut ran = None;
        world.servers[0].context(|context| ran = Some(client.session.run(context, &client.input, &mut out)));
        let (used, next) = ran.expect("it has run");
        client.input.drain(..used);
        if let NextAction::Forward(_) = next {
            client.session.forwarded(rounds.next().into_iter().collect(), &mut out);
        }
    }
    assert_eq!(out, b"STORED\r\n");
}
