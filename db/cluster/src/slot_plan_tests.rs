//! Tests of plans for whole servers.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use std::collections::{BTreeMap, BTreeSet};

use sandstorm_net::slots::SLOTS;
use sandstorm_store::slots::SlotSpan;

use crate::slot_plans::{KnownServers, ServerChange, count};
use crate::state::{ServerState, StoredMove, StoredSlots};
use crate::stream_copies::STREAM_HOLDER;

const IDS: [&str; 5] = ["a", "b", "c", "d", "e"];

fn servers() -> BTreeMap<String, ServerState> {
    IDS.into_iter().map(|id| (id.to_owned(), ServerState::example())).collect()
}

/// Numbers for moves, one after the other.
fn numbers() -> impl FnMut() -> u64 {
    let mut last = 0;
    move || {
        last += 1;
        last
    }
}

fn ids(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|id| (*id).to_owned()).collect()
}

fn divided(of: &[&str]) -> StoredSlots {
    StoredSlots::divided(&of.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>())
}

fn counts(map: &StoredSlots) -> Vec<usize> {
    IDS.iter().map(|id| count(map.spans_of(id))).collect()
}

const FAST: u64 = 0;

#[test]
fn a_drained_server_is_left_with_nothing_and_the_others_with_equal_parts() {
    let (all, live) = (servers(), ids(&["a", "b", "c", "d"]));
    let known = KnownServers { all: &all, live: &live };
    let map = divided(&["a", "b", "c"]);
    let mut new_id = numbers();
    let (drained, begun) = map.change_server("a", ServerChange::Drain { mib_per_s: 7 }, known, &mut new_id).unwrap();
    assert_eq!((drained.check(), begun > 0, &drained.ranges), (Ok(()), true, &map.ranges));
    assert!(drained.moves.iter().all(|one| one.source == "a" && one.mib_per_s == 7));
    // Server d had none, and gets all of them; e is silent, and gets none.
    assert_eq!(counts(&drained.after_moves()), [0, 5_461, 5_462, 5_461, 0]);
    assert_eq!(map.planned(&drained).len(), begun);
    // It gets none back, and what it owns besides follows.
    assert_eq!(drained.drain_on("a", known, &mut new_id), None);
    let fewer = StoredSlots { moves: vec![], ..drained.clone() };
    assert_eq!(counts(&fewer.drain_on("a", known, &mut new_id).unwrap().after_moves())[0], 0);
    let none = BTreeSet::new();
    let alone = KnownServers { all: &all, live: &none };
    assert!(map.change_server("a", ServerChange::Drain { mib_per_s: 0 }, alone, &mut new_id).is_err());
    // Added again, it keeps what it has.
    let (again, begun) = drained.change_server("a", ServerChange::Add { mib_per_s: FAST }, known, &mut new_id).unwrap();
    assert_eq!((begun, again.moves.len(), again.draining.len(), again.ranges), (0, 0, 0, map.ranges));
}

#[test]
fn an_added_server_gets_its_share_from_those_with_the_most() {
    let (all, live) = (servers(), ids(&["a", "b", "c", "d"]));
    let known = KnownServers { all: &all, live: &live };
    let map = divided(&["a", "b", "c"]);
    let mut new_id = numbers();
    let add = ServerChange::Add { mib_per_s: FAST };
    let (added, begun) = map.change_server("d", add, known, &mut new_id).unwrap();
    assert_eq!((added.check(), begun), (Ok(()), 3));
    assert_eq!(counts(&added.after_moves()), [4_096, 4_096, 4_096, 4_096, 0]);
    // Once more changes nothing, and a silent one cannot be added.
    assert_eq!(added.change_server("d", add, known, &mut new_id).unwrap().1, 0);
    assert!(map.change_server("e", add, known, &mut new_id).unwrap_err().contains("silent"));
    assert!(map.change_server("x", add, known, &mut new_id).unwrap_err().contains("no server"));
}

#[test]
fn a_server_is_removed_once_it_owns_nothing_or_its_records_are_given_up() {
    let (all, live) = (servers(), ids(&["b", "c"]));
    let known = KnownServers { all: &all, live: &live };
    let map = divided(&["a", "b", "c"]);
    let remove = |map: &StoredSlots, server, gives_up_records| {
        let change = ServerChange::Remove { gives_up_records };
        map.change_server(server, change, known, || 0).map(|(map, _)| map)
    };
    assert!(remove(&map, "b", true).unwrap_err().contains("lives"));
    assert!(remove(&map, "a", false).unwrap_err().contains("owns 5461 slots"));
    let removed = remove(&map, "d", false).unwrap();
    assert_eq!((&removed.ranges, &removed.removed[..]), (&map.ranges, &["d".to_owned()][..]));
    let lost = remove(&map, "a", true).unwrap();
    assert_eq!((lost.check(), counts(&lost)), (Ok(()), vec![0, 8_192, 8_192, 0, 0]));
    let planned = map.planned(&lost);
    assert!(planned.iter().all(|one| one.source == "a") && count(planned.iter().map(|one| one.span)) == 5_461);
    // Each taker removes what it has of them before it serves them.
    let cleared = lost.moves.iter().filter(|one| one.is_clearing()).map(|one| one.span());
    assert_eq!((count(cleared), lost.moves.len()), (5_461, 2));
    // Not while anything moves: its records may be on the way.
    let span = SlotSpan { first: 0, last: 9 };
    let mut moving = map.clone();
    moving.push_move(span, "a", "b", 0, 1);
    assert!(remove(&moving, "a", true).unwrap_err().contains("slots 0-9 are moving"));
    moving.moves[0].handed_over = true;
    moving.assign(span, "b");
    let lost = remove(&moving, "a", true).unwrap();
    assert!(lost.moves.iter().all(StoredMove::is_clearing) && lost.owns("b", 0) && !lost.owns("a", 10));
    assert!(remove(&moving, "a", false).is_err());
    // What it has handed over is the other's: nothing has to be given up for it.
    moving.assign(SlotSpan { first: 0, last: 16_383 }, "b");
    assert!(remove(&moving, "a", false).unwrap().moves.is_empty());
}

/// Servers that are added one after the other have their shares in the end, while the first one's slots still move.
#[test]
fn a_server_that_is_added_meanwhile_gets_what_was_on_its_way_to_others() {
    let (all, live) = (servers(), ids(&["a", "b", "c", "d"]));
    let known = KnownServers { all: &all, live: &live };
    let mut new_id = numbers();
    let mut map = divided(&["a"]);
    let add = ServerChange::Add { mib_per_s: 3 };
    let mut shares = vec![usize::from(SLOTS)];
    for (place, server) in ["b", "c", "d"].into_iter().enumerate() {
        let servers = place + 2;
        let live = ids(&IDS[..servers]);
        let (changed, begun) =
            map.change_server(server, add, KnownServers { all: &all, live: &live }, &mut new_id).unwrap();
        assert_eq!((changed.check(), begun > 0, map.planned(&changed).len()), (Ok(()), true, begun));
        shares = counts(&changed.after_moves());
        let (least, most) = (shares[..servers].iter().min().unwrap(), shares[..servers].iter().max().unwrap());
        assert!(most - least <= servers, "{server}: {shares:?}");
        map = changed;
    }
    assert!(map.moves.iter().all(|one| one.source == "a" && one.mib_per_s == 3) && map.moves.len() >= 3, "{map:?}");
    // What was handed over stays with the target, and what is drained comes back before it has left.
    let handed = map.hand_over(map.moves[0].id).unwrap();
    let owner = handed.moves[0].target.clone();
    let drained = handed.change_server("a", ServerChange::Drain { mib_per_s: 0 }, known, &mut new_id).unwrap().0;
    let back = drained.change_server("a", add, known, &mut new_id).unwrap().0;
    assert_eq!((back.check(), back.owns(&owner, handed.moves[0].first)), (Ok(()), true));
    assert_eq!(shares.iter().sum::<usize>(), usize::from(SLOTS));
}

/// Two servers that were killed one after the other are removed one after the other, whatever each had to do yet.
#[test]
fn what_others_move_keeps_no_lost_server() {
    let (all, live) = (servers(), ids(&["b", "c", "d"]));
    let (span, other) = (SlotSpan { first: 0, last: 9 }, SlotSpan { first: 12_000, last: 12_009 });
    let mut map = divided(&["a", "b", "c"]);
    map.push_move(span, "a", "b", 0, 1);
    map.push_move(other, "c", "b", 0, 2);
    map = map.hand_over(1).and_then(|map| map.hand_over(2)).unwrap();
    let gone = ServerChange::Remove { gives_up_records: true };
    let remove = |map: &StoredSlots, server, silent: &str| {
        let live: BTreeSet<String> = live.iter().filter(|id| *id != silent).cloned().collect();
        let known = KnownServers { all: &all, live: &live };
        map.change_server(server, gone, known, || 0).map(|(map, _)| map)
    };
    let without = remove(&map, "a", "c").unwrap();
    let moves = |map: &StoredSlots| map.moves.iter().filter(|one| !one.is_clearing()).map(|one| one.id).collect();
    assert_eq!((without.check(), moves(&without)), (Ok(()), vec![2]));
    let without = remove(&without, "c", "c").unwrap();
    assert_eq!((without.check(), moves(&without)), (Ok(()), vec![]));
    assert!([0, 5_000, 12_000, 16_383].iter().all(|slot| without.owns("b", *slot) || without.owns("d", *slot)));
    // The records of what a server has given to the lost one are there until it has removed them.
    let refused = remove(&map, "b", "b").unwrap_err();
    assert!(refused.contains("has removed its records"), "{refused}");
}

/// Whatever is asked for, in whatever order: the map stays sound, only what is given up changes its owner at once,
/// and the parts of a plan are disjoint.
#[test]
fn a_succession_ends_where_one_of_the_two_servers_is_removed() {
    let all = servers();
    let mut map = divided(&["a", "b", "c"]);
    let copies = vec![("b".to_owned(), 5), ("c".to_owned(), 6)];
    map = map.set_copies("a", 1, &copies).unwrap();
    let live = ids(&["b", "c"]);
    let known = KnownServers { all: &all, live: &live };
    let taken = map.fail_over("a", Some("b"), known).unwrap();
    let removes = |gives_up_records| ServerChange::Remove { gives_up_records };
    // Another server's part does not change meanwhile, nor does a server go that lives.
    let change = |server: &str, change, live: &[&str]| {
        let live = ids(live);
        taken.change_server(server, change, KnownServers { all: &all, live: &live }, rand::random).map(|(map, _)| map)
    };
    assert!(change("c", removes(true), &["b"]).unwrap_err().contains("takes the place"));
    assert!(change("b", ServerChange::Drain { mib_per_s: 0 }, &["b", "c"]).unwrap_err().contains("takes the place"));
    assert!(change("b", removes(true), &["b", "c"]).unwrap_err().contains("lives"));
    // The owner: its slots go to the others, without their records.
    let ended = change("a", removes(true), &["b", "c"]).unwrap();
    assert_eq!((ended.succession(), counts(&ended)[0], ended.check()), (None, 0, Ok(())));
    assert!(ended.succeed("a", "b", rand::random).is_none());
    // The successor: the owner goes on, or another one takes its place.
    let ended = change("b", removes(true), &["a", "c"]).unwrap();
    assert_eq!((ended.succession(), counts(&ended)[1], ended.check()), (None, 0, Ok(())));
    assert!(ended.generations["a"].number > taken.generations["a"].number);
    assert!(ended.succeed("a", "b", rand::random).is_none() && ended.owns("a", 0));
    let live = ids(&["c"]);
    let again = ended.fail_over("a", None, KnownServers { all: &all, live: &live }).unwrap();
    assert_eq!(again.succession(), Some(("a", "c")));
}

#[test]
fn the_place_of_a_server_whose_log_is_in_a_stream_goes_to_one_that_reads_streams() {
    let mut all = servers();
    let map = divided(&["a", "b", "c"]).set_copies("a", 1, &[(STREAM_HOLDER.to_owned(), 5)]).unwrap();
    let live = ids(&["b", "c"]);
    let fail_over = |all: &BTreeMap<String, ServerState>, to| {
        map.fail_over("a", to, KnownServers { all, live: &live })
            .map(|map| map.succession().map(|(_, to)| to.to_owned()))
    };
    assert!(fail_over(&all, None).unwrap_err().contains("--cluster-streams"));
    all.get_mut("a").unwrap().reads_streams = true;
    assert!(fail_over(&all, None).unwrap_err().contains("--cluster-streams"), "it is the one that is gone");
    all.get_mut("c").unwrap().reads_streams = true;
    assert_eq!(fail_over(&all, None), Ok(Some("c".to_owned())));
    let refused = fail_over(&all, Some("b")).unwrap_err();
    assert!(refused.contains("these can: c"), "{refused}");
}

#[test]
fn plans_of_any_order_keep_the_map_sound() {
    let all = servers();
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut map = divided(&["a", "b", "c"]);
        for _ in 0..40 {
            let live: BTreeSet<String> =
                IDS.iter().filter(|_| random.random_ratio(3, 4)).map(|id| (*id).to_owned()).collect();
            let known = KnownServers { all: &all, live: &live };
            let server = IDS[random.random_range(0..IDS.len())];
            let (before, ids) = (map.clone(), random.random());
            let mut next = ids;
            let mut new_id = || {
                next = u64::wrapping_add(next, 1);
                next
            };
            let change = match random.random_range(0..8) {
                0..3 => ServerChange::Drain { mib_per_s: 1 },
                3..6 => ServerChange::Add { mib_per_s: 1 },
                6 => ServerChange::Remove { gives_up_records: random.random() },
                _ => {
                    // Moves come to their ends.
                    for one in before.moves.iter().filter(|_| random.random_ratio(2, 3)) {
                        let over = map.hand_over(one.id);
                        map = over.unwrap_or(map);
                    }
                    map = map.end(&before.moves.iter().map(|one| one.id).collect::<Vec<_>>()).unwrap_or(map);
                    assert_eq!(map.check(), Ok(()), "seed {seed}");
                    continue;
                }
            };
            let Ok((changed, begun)) = map.change_server(server, change, known, &mut new_id) else { continue };
            assert_eq!(changed.check(), Ok(()), "seed {seed}: {change:?} of {server}");
            assert_eq!(
                count(changed.ranges.iter().map(|(first, last, _)| SlotSpan { first: *first, last: *last })),
                usize::from(SLOTS)
            );
            assert!(changed.moves.iter().all(|one| one.handed_over || one.source != one.target), "seed {seed}");
            match change {
                ServerChange::Remove { .. } => {
                    assert_eq!(counts(&changed)[IDS.iter().position(|id| *id == server).unwrap()], 0)
                }
                _ => {
                    assert_eq!((&changed.ranges, map.planned(&changed).len()), (&map.ranges, begun), "seed {seed}")
                }
            }
            map = changed;
        }
    }
}
