//! Commands in pieces answer as they would in one go, and end well if their tables disappear in between.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::hostile::turn;
use super::*;
use crate::redis::session_state::ScanWait;
use sandstorm_catalog::GrantAccess;

/// A server in which sessions yield after each step, or never.
fn world(budget: u32) -> World {
    let mut world = World { budget, ..World::new() };
    world.now_ms = Some(1_000_000);
    world
}

fn keys(random: &mut StdRng, most: usize) -> Vec<Vec<u8>> {
    let count = random.random_range(1..most);
    (0..count).map(|_| format!("k{}", random.random_range(0..500)).into_bytes()).collect()
}

/// A random command, mostly one that is cut.
fn command(random: &mut StdRng) -> Vec<Vec<u8>> {
    let words = |line: &str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    let most = if random.random_range(0..3) == 0 { 5 } else { 400 };
    match random.random_range(0..14) {
        name @ 0..=6 => {
            let name = ["MGET", "DEL", "EXISTS", "TOUCH", "UNLINK", "MGET", "EXISTS"][name];
            [vec![name.as_bytes().to_vec()], keys(random, if name == "DEL" { most / 4 + 2 } else { most })].concat()
        }
        7 | 8 => {
            let pairs = keys(random, most).into_iter().flat_map(|key| [key.clone(), [key, b"=v".to_vec()].concat()]);
            [vec![b"MSET".to_vec()], pairs.collect()].concat()
        }
        9 => vec![b"SET".to_vec(), keys(random, 3).remove(0), vec![b'v'; random.random_range(0..100_000)]],
        // Of several, the order is the table's own.
        10 => words(["KEYS k1", "KEYS k12", "KEYS x", "KEYS k*x"][random.random_range(0..4)]),
        11 => words(["CLIENT REPLY SKIP", "CLIENT REPLY OFF", "CLIENT REPLY ON"][random.random_range(0..3)]),
        12 => words(["MULTI", "EXEC", "DISCARD"][random.random_range(0..3)]),
        _ => words(
            ["PING", "DBSIZE", "FLUSHALL", "SELECT other", "SELECT 0", "NOSUCH", "MGET", "DEL"]
                [random.random_range(0..8)],
        ),
    }
}

#[test]
fn commands_in_pieces_answer_what_they_do_in_one_go() {
    for seed in 0..30 {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut cut, mut whole) = (world(1), world(u32::MAX));
        let (mut one, mut other) = (cut.client(Some("shop")), whole.client(Some("shop")));
        let mut sent = Vec::new();
        for _ in 0..60 {
            let args = command(&mut random);
            sent.extend(encoded(&args.iter().map(Vec::as_slice).collect::<Vec<_>>()));
            if random.random_range(0..3) == 0 {
                continue;
            }
            // The cut command gets its bytes in parts, too.
            let at = random.random_range(0..=sent.len());
            let mut answer = cut.send(&mut one, &sent[..at]).0;
            let (rest, next) = cut.send(&mut one, &sent[at..]);
            answer.extend(rest);
            let expected = whole.send(&mut other, &sent);
            assert!((&answer, &next) == (&expected.0, &expected.1), "seed {seed}: {}", String::from_utf8_lossy(&sent));
            sent.clear();
        }
    }
}

#[test]
fn keys_are_listed_once_each_however_they_are_cut() {
    for budget in [1, PIECE_WORK, u32::MAX] {
        let mut world = world(budget);
        let mut client = world.client(Some("shop"));
        let names: Vec<Vec<u8>> = (0..1_900).map(|n| format!("k{n}").into_bytes()).collect();
        let pairs = names.iter().flat_map(|key| [&key[..], b"v"]);
        world.send(&mut client, &encoded(&[&b"MSET"[..]].into_iter().chain(pairs).collect::<Vec<_>>()));
        for (pattern, expected) in [("*", 1_900), ("k1?", 10), ("k*9", 190), ("x", 0)] {
            let alone = world.typed(&mut client, &format!("KEYS {pattern}"));
            let listed = |text: &str| {
                let mut keys: Vec<_> = text.lines().filter(|line| line.starts_with('k')).map(str::to_owned).collect();
                keys.sort();
                keys
            };
            assert!(alone.starts_with(&format!("*{expected}\r\n")), "{pattern}: {}", &alone[..alone.len().min(80)]);
            // In a transaction it is not cut.
            let whole = world.typed(&mut client, &format!("MULTI\nKEYS {pattern}\nEXEC"));
            assert_eq!(listed(&alone), listed(&whole), "{pattern}");
            assert_eq!(listed(&alone).len(), expected);
        }
    }
}

/// Begins a command with some thousand keys and runs a few pieces of it; then something happens; then it runs to its
/// end. Returns all answers, and the last action.
fn disturbed(command: &[u8], happens: impl FnOnce(&World)) -> (Vec<u8>, NextAction) {
    let mut world = world(1);
    let (mut filler, mut client) = (world.client(Some("shop")), world.client(None));
    let names: Vec<Vec<u8>> = (0..1_500).map(|n| format!("k{n}").into_bytes()).collect();
    let pairs: Vec<&[u8]> = [&b"MSET"[..]].into_iter().chain(names.iter().flat_map(|key| [&key[..], b"v"])).collect();
    assert_eq!(world.send(&mut filler, &encoded(&pairs)).0, b"+OK\r\n");
    world.typed(&mut client, &format!("AUTH shop {TOKEN}"));
    let all: Vec<&[u8]> = [command].into_iter().chain(names.iter().map(Vec::as_slice)).collect();
    let input = [encoded(&all), b"PING\r\n".to_vec()].concat();
    let mut answer = Vec::new();
    for _ in 0..4 {
        let (used, next, out) = turn(&world, &mut client, &input);
        assert_eq!((used, next), (0, NextAction::Yield), "it is under way");
        assert!(client.session.used_bytes() > 0);
        answer.extend(out);
    }
    happens(&world);
    let mut used = 0;
    loop {
        let (bytes, next, out) = turn(&world, &mut client, &input[used..]);
        used += bytes;
        answer.extend(out);
        if next != NextAction::Yield {
            return (answer, next);
        }
    }
}

#[test]
fn a_command_ends_well_when_its_table_goes_away_midway() {
    for command in ["DEL", "EXISTS"] {
        let (answer, next) = disturbed(command.as_bytes(), |world| {
            world.directory.drop_table("shop", "items").expect("dropped");
        });
        assert!(answer.starts_with(b"-ERR there is no table to use"), "{}", String::from_utf8_lossy(&answer));
        assert!(answer.ends_with(b"+PONG\r\n") && matches!(next, NextAction::NeedMore(_)));
    }
    // A part of this answer has left: no error can replace it.
    let (answer, next) = disturbed(b"MGET", |world| {
        world.directory.drop_table("shop", "items").expect("dropped");
    });
    assert!(answer.starts_with(b"*1500\r\n$1\r\nv\r\n") && next == NextAction::Close && !answer.ends_with(b"PONG\r\n"));
}

#[test]
fn a_command_ends_well_when_its_tenant_or_its_right_goes_away_midway() {
    let deleted = |world: &World| world.directory.delete_tenant("shop").map(drop).expect("deleted");
    for command in ["DEL", "EXISTS", "MGET"] {
        let (answer, next) = disturbed(command.as_bytes(), deleted);
        assert_eq!(next, NextAction::Close, "{command}");
        assert!(!answer.ends_with(b"PONG\r\n"), "nothing further is run");
        assert_eq!(answer.starts_with(b"-NOAUTH"), command != "MGET", "{}", String::from_utf8_lossy(&answer));
    }
}

#[test]
fn what_others_write_meanwhile_is_seen_and_each_key_is_deleted_once() {
    let (answer, _) = disturbed(b"DEL", |world| {
        let snapshot = world.directory.snapshot();
        let entry = snapshot.by_name("shop").and_then(|view| view.reach(1, true).ok()).expect("the table");
        entry.table.clear(&world.participant).expect("no log");
    });
    let counted: usize = String::from_utf8_lossy(&answer[1..]).lines().next().expect("a number").parse().expect("one");
    assert!((64..1_500).contains(&counted), "{counted} were there when their turn came");
    let (answer, _) = disturbed(b"EXISTS", |_| {});
    assert!(answer.starts_with(b":1500\r\n"));
}

#[test]
fn a_grant_that_ends_midway_ends_a_command_that_writes() {
    let mut world = world(1);
    world.directory.create_tenant(NewTenant { open: true, ..NewTenant::named("guest") }).expect("a tenant");
    let grant = |world: &World, access| {
        world
            .directory
            .grant("shop", "items", "guest", access, sandstorm_catalog::GrantIssuer::Operator)
            .expect("granted");
    };
    grant(&world, GrantAccess::ReadWrite);
    let mut client = world.client(Some("guest"));
    assert_eq!(world.typed(&mut client, "SELECT shop/items"), "+OK\r\n");
    let names: Vec<Vec<u8>> = (0..1_000).map(|n| format!("k{n}").into_bytes()).collect();
    let input = encoded(&[&b"DEL"[..]].into_iter().chain(names.iter().map(Vec::as_slice)).collect::<Vec<_>>());
    assert_eq!(turn(&world, &mut client, &input).1, NextAction::Yield);
    grant(&world, GrantAccess::Read);
    let (used, _, answer) = turn(&world, &mut client, &input);
    assert!(answer.starts_with(b"-NOPERM") && used == input.len(), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn a_long_command_is_read_in_pieces_and_its_tenant_pays_for_each() {
    let mut world = World::new();
    let mut client = world.client(Some("shop"));
    world.typed(&mut client, "PING");
    let input = encoded(&[vec![&b"EXISTS"[..]], vec![&b"k"[..]; 1_000_000]].concat());
    let (snapshot, mut used, mut pieces, mut send_counted) = (world.directory.snapshot(), 0, 0, 0u64);
    while used < input.len() {
        let mut out = Vec::new();
        let context = world.context(&snapshot);
        used += client.session.run(&context, &input[used..], &mut out).0;
        assert!((1..=PIECE_WORK + 64).contains(&context.work_done()), "{} in one go", context.work_done());
        (pieces, send_counted) = (pieces + 1, send_counted + u64::from(context.work_done()));
    }
    assert!(pieces > 1_000_000 / (PIECE_WORK + 64), "{pieces} pieces");
    assert!((1_000_000..1_200_000).contains(&send_counted), "{send_counted} requests for a million keys");
}

/// A SCAN that waits for the disk is answered without a look at its table where its tenant's token has changed.
#[test]
fn a_scan_that_waited_and_is_refused_leaves_nothing_to_the_next_command() {
    let mut world = World::new();
    let mut client = world.client(None);
    assert_eq!(world.typed(&mut client, &format!("AUTH {TOKEN}")), "+OK\r\n");
    client.session.state.scan_wait = Some(ScanWait { behind: 7, is_alone: false });
    world.directory.rotate_token("shop").expect("a token");
    let refused = world.typed(&mut client, "SCAN 0");
    assert!(refused.starts_with("-NOAUTH"), "{refused}");
    assert!(client.session.state.scan_wait.is_none(), "an error of another command would be taken for its own");
}
