use super::*;
use crate::limits::NEIGHBOURS;
use crate::sim::SeededRng;
use std::net::Ipv4Addr;

const SECOND: u64 = 1_000_000;
const START: u64 = 100 * SECOND;

fn ip(number: u32) -> IpAddr {
    Ipv4Addr::from(0x0A00_0000 + number).into()
}

fn mac(number: u32) -> MacAddress {
    let [a, b, c, d] = number.to_be_bytes();
    MacAddress([2, 0, a, b, c, d])
}

fn table() -> NeighbourTable {
    NeighbourTable::new(NEIGHBOURS, &[])
}

/// Asks for a neighbour, which answers.
fn learn(table: &NeighbourTable, now_us: u64, number: u32) {
    assert_eq!(table.probe(now_us, ip(number)), ProbeAction::Broadcast);
    table.observe(now_us, ip(number), mac(number), NeighbourEvidence::Reply);
}

#[test]
fn an_answer_is_believed_only_to_a_question() {
    let table = table();
    table.observe(START, ip(1), mac(1), NeighbourEvidence::Reply);
    table.observe(START, ip(1), mac(1), NeighbourEvidence::Announcement);
    assert_eq!(table.find(START, ip(1)), NeighbourLookup::Unknown);
    learn(&table, START, 1);
    assert_eq!(table.find(START, ip(1)), NeighbourLookup::Reachable(mac(1)));
    assert_eq!(table.list(), [(ip(1), mac(1), START)]);
}

#[test]
fn who_asks_for_us_is_used_at_once_and_everybody_asked() {
    let table = table();
    table.observe(START, ip(1), mac(1), NeighbourEvidence::Request);
    assert_eq!(table.find(START, ip(1)), NeighbourLookup::Stale(mac(1)));
    assert_eq!(table.probe(START, ip(1)), ProbeAction::Broadcast);
    assert_eq!(table.find(START, ip(1)), NeighbourLookup::Reachable(mac(1)), "until it should have answered");
    table.observe(START + 100, ip(1), mac(1), NeighbourEvidence::Reply);
    assert_eq!(table.find(START + SECOND, ip(1)), NeighbourLookup::Reachable(mac(1)));
}

/// A forger speaks first, by a question or during our question, and goes on. The neighbour that answers our question is
/// believed.
#[test]
fn who_speaks_first_does_not_own_an_address() {
    for while_probing in [false, true] {
        for claim in [NeighbourEvidence::Request, NeighbourEvidence::Announcement] {
            let (table, mut now) = (table(), START);
            if while_probing {
                assert_eq!(table.probe(now, ip(1)), ProbeAction::Broadcast);
            } else {
                table.observe(now, ip(1), mac(66), NeighbourEvidence::Request);
            }
            table.observe(now, ip(1), mac(66), claim);
            if !while_probing {
                // An answer without a question.
                table.observe(now, ip(1), mac(66), NeighbourEvidence::Reply);
                assert_eq!(table.list(), [(ip(1), mac(66), 0)], "nobody was asked");
                assert_eq!(table.find(now, ip(1)), NeighbourLookup::Stale(mac(66)));
                assert_eq!(table.probe(now, ip(1)), ProbeAction::Broadcast);
                table.observe(now, ip(1), mac(66), claim);
            }
            now += 1000;
            table.observe(now, ip(1), mac(1), NeighbourEvidence::Reply);
            assert_eq!(table.find(now, ip(1)), NeighbourLookup::Reachable(mac(1)), "{while_probing} {claim:?}");
            // From now on the neighbour is asked alone, whatever the forger says.
            table.observe(now, ip(1), mac(66), NeighbourEvidence::Reply);
            now += NEIGHBOUR_DISPUTE_US;
            assert_eq!(table.probe(now, ip(1)), ProbeAction::Unicast(mac(1)));
        }
    }
}

#[test]
fn who_has_said_where_it_is_and_is_silent_then_is_given_up() {
    for while_probing in [false, true] {
        let (table, mut now, mut probed) = (table(), START, 0);
        if while_probing {
            assert_eq!(table.probe(now, ip(1)), ProbeAction::Broadcast);
            probed += 1;
        }
        table.observe(now, ip(1), mac(66), NeighbourEvidence::Request);
        while table.find(now, ip(1)) != NeighbourLookup::Unreachable {
            match table.probe(now, ip(1)) {
                ProbeAction::Broadcast => probed += 1,
                other => assert_eq!(other, ProbeAction::Skip),
            }
            now += 10_000;
            assert!(now < START + 60 * SECOND);
        }
        assert_eq!(probed, 3);
    }
}

/// A neighbour that answers at its address keeps it, whatever is claimed and however often.
#[test]
fn no_claim_takes_a_living_neighbours_address() {
    for seed in 0..200 {
        let (table, mut dice, mut now) = (table(), SeededRng::new(seed), START);
        learn(&table, now, 1);
        let mut questions = 0;
        for _ in 0..500 {
            now += dice.below(SECOND / 4);
            let how = [NeighbourEvidence::Reply, NeighbourEvidence::Request, NeighbourEvidence::Announcement]
                [dice.below(3) as usize];
            table.observe(now, ip(1), mac(66), how);
            match table.find(now, ip(1)) {
                NeighbourLookup::Reachable(found) => assert_eq!(found, mac(1)),
                NeighbourLookup::Stale(found) => {
                    assert_eq!(found, mac(1));
                    match table.probe(now, ip(1)) {
                        // The neighbour answers, but the forger is faster.
                        ProbeAction::Unicast(probed) => {
                            assert_eq!(probed, mac(1));
                            questions += 1;
                            table.observe(now, ip(1), mac(66), NeighbourEvidence::Reply);
                            table.observe(now, ip(1), mac(1), NeighbourEvidence::Reply);
                        }
                        other => panic!("{other:?}"),
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(questions <= 1 + (now - START) / SECOND, "a forger causes a question a second at most");
        assert!(table.counters().contradictions >= 500);
    }
}

#[test]
fn an_address_that_moves_is_resolved_anew() {
    let (table, mut now) = (table(), START);
    learn(&table, now, 1);
    now += 2 * SECOND;
    // The new owner announces itself; the old one is gone.
    table.observe(now, ip(1), mac(2), NeighbourEvidence::Announcement);
    let mut probed = Vec::new();
    while now < START + 10 * SECOND {
        if matches!(table.find(now, ip(1)), NeighbourLookup::Stale(_) | NeighbourLookup::Unknown) {
            probed.push(table.probe(now, ip(1)));
            if probed.last() == Some(&ProbeAction::Broadcast) {
                table.observe(now, ip(1), mac(2), NeighbourEvidence::Reply);
                break;
            }
        }
        now += 10_000;
    }
    assert_eq!(probed, [ProbeAction::Unicast(mac(1)), ProbeAction::Unicast(mac(1)), ProbeAction::Broadcast]);
    assert_eq!(table.find(now, ip(1)), NeighbourLookup::Reachable(mac(2)));
    assert!(now < START + 4 * SECOND);
}

#[test]
fn a_silent_neighbour_is_probed_with_growing_waits_and_given_up_for_a_while() {
    let (table, mut probed) = (table(), Vec::new());
    let mut now = START;
    while table.find(now, ip(1)) != NeighbourLookup::Unreachable {
        if table.probe(now, ip(1)) == ProbeAction::Broadcast {
            probed.push(now - START);
        }
        now += 10_000;
        assert!(now < START + 60 * SECOND);
    }
    assert_eq!(probed, [0, 250_000, 750_000]);
    assert_eq!(table.probe(now, ip(1)), ProbeAction::Skip);
    assert_eq!(table.find(now + NEIGHBOUR_FAILED_US, ip(1)), NeighbourLookup::Unknown);
    assert_eq!(table.probe(now + NEIGHBOUR_FAILED_US, ip(1)), ProbeAction::Broadcast);
}

/// Hosts ask for us from a million forged addresses, and datagrams seem to come from as many.
#[test]
fn a_flood_of_forged_neighbours_evicts_no_confirmed_one() {
    let (table, mut now) = (table(), START);
    (0..100).for_each(|number| learn(&table, now, number));
    for number in 1000..200_000 {
        now += 20;
        table.observe(now, ip(number), mac(number), NeighbourEvidence::Request);
        if number % 3 == 0 {
            table.probe(now, ip(number + 1_000_000));
        }
    }
    for number in 0..100 {
        assert_eq!(table.find(now, ip(number)), NeighbourLookup::Reachable(mac(number)));
    }
    // A newcomer still gets in.
    let mut tries = 0;
    while table.find(now, ip(500)) != NeighbourLookup::Reachable(mac(500)) {
        table.observe(now, ip(500), mac(500), NeighbourEvidence::Request);
        if table.probe(now, ip(500)) != ProbeAction::Skip {
            table.observe(now, ip(500), mac(500), NeighbourEvidence::Reply);
        }
        now += SECOND / 10;
        tries += 1;
        assert!(tries < 30);
    }
    let counters = table.counters();
    assert!(counters.questions <= NEIGHBOUR_PROBES_PER_S * (2 + (now - START) / SECOND), "{counters:?}");
    assert!(counters.probes_limited > 0);
}

/// The same, but each forged sender is sent an answer, so that it is asked for and stays silent.
#[test]
fn forged_neighbours_that_are_asked_and_silent_give_way() {
    let (table, mut now) = (table(), START);
    (0..100).for_each(|number| learn(&table, now, number));
    for number in 1000..21_000 {
        now += 500;
        table.observe(now, ip(number), mac(number), NeighbourEvidence::Request);
        table.probe(now, ip(number));
    }
    for number in 0..100 {
        assert_eq!(table.find(now, ip(number)), NeighbourLookup::Reachable(mac(number)));
    }
    // Where the flood has filled a bucket, the neighbours asked longest ago give way to a wanted one.
    let (begin, failed) = (now, table.counters().no_room);
    for number in 0..1000 {
        now += 2000;
        assert_eq!(table.probe(now, ip(500_000 + number)), ProbeAction::Broadcast, "newcomer {number}");
    }
    assert!(now - begin < NEIGHBOUR_REACHABLE_US && table.counters().no_room == failed);
}

#[test]
fn routers_are_asked_whatever_the_rate() {
    let table = NeighbourTable::new(NEIGHBOURS, &[ip(7)]);
    (1000..4000).for_each(|number| {
        table.probe(START, ip(number));
    });
    assert!(table.counters().probes_limited > 1000, "no question is left for others");
    assert_eq!(table.probe(START, ip(7)), ProbeAction::Broadcast);
}

#[test]
fn a_router_keeps_its_slot_whatever_is_resolved() {
    let table = NeighbourTable::new(64, &[ip(7)]);
    (1000..1900).for_each(|number| {
        table.probe(START, ip(number));
    });
    // Nothing is known of the router, and no claim believed, before it was asked or has asked itself.
    table.observe(START, ip(7), mac(66), NeighbourEvidence::Announcement);
    table.observe(START, ip(7), mac(66), NeighbourEvidence::Reply);
    assert_eq!((table.find(START, ip(7)), table.list()), (NeighbourLookup::Unknown, Vec::new()));
    learn(&table, START, 7);
    // Long after that, although no datagram needed it, the router still has its slot.
    let now = START + 10 * NEIGHBOUR_REACHABLE_US;
    (2000..2900).for_each(|number| {
        table.probe(now, ip(number));
    });
    assert_eq!(table.find(now, ip(7)), NeighbourLookup::Stale(mac(7)));
    let table = NeighbourTable::new(64, &[ip(7)]);
    table.observe(START, ip(7), mac(7), NeighbourEvidence::Request);
    assert_eq!(table.find(START, ip(7)), NeighbourLookup::Stale(mac(7)));
}

/// Readers without a lock run beside a writer: they find one entry, not halves of two.
#[test]
fn readers_never_see_a_mixture_of_two_entries() {
    let slot = NeighbourSlot::default();
    // Every word of the entry encodes which of the two was written.
    let entry = |which: u64| NeighbourEntry {
        ip: u128::from(which % 2),
        mac: mac(which as u32),
        state: NeighbourState::Known,
        probed: which as u8,
        confirmed_us: which,
        next_action_us: which,
    };
    std::thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                let mut found = 0;
                // Runs as long as it takes to find many entries while the writer runs.
                while found < 1_000_000 {
                    if let Some(one) = slot.find(1) {
                        assert_eq!(one, entry(one.confirmed_us), "a mixture");
                        found += 1;
                    }
                }
            })
        });
        let mut which = 1;
        while !readers.iter().all(|reader| reader.is_finished()) {
            (0..100).for_each(|step| slot.store(&entry(which + step)));
            which += 101;
        }
    });
}

#[test]
fn a_claim_right_after_an_answer_is_looked_into_a_little_later() {
    let table = table();
    learn(&table, START, 1);
    table.observe(START + 1, ip(1), mac(2), NeighbourEvidence::Request);
    assert_eq!(table.find(START + NEIGHBOUR_DISPUTE_US - 1, ip(1)), NeighbourLookup::Reachable(mac(1)));
    assert_eq!(table.find(START + NEIGHBOUR_DISPUTE_US, ip(1)), NeighbourLookup::Stale(mac(1)));
    assert_eq!(table.probe(START + NEIGHBOUR_DISPUTE_US, ip(1)), ProbeAction::Unicast(mac(1)));
}

/// Two workers hear one peer by two routers, others fill slots beside it, and a third looks it up. It always finds one
/// of both routers.
#[test]
fn where_a_peer_was_seen_is_found_while_it_changes() {
    let table = NeighbourTable::new(8, &[]);
    table.seen(START, ip(1), mac(1));
    table.seen(START + SECOND, ip(1), mac(1));
    let rounds = if cfg!(miri) { 100 } else { 100_000 };
    std::thread::scope(|scope| {
        for router in [1, 2] {
            let table = &table;
            scope.spawn(move || {
                for round in 0..rounds {
                    let now_us = START + SECOND + u64::from(round);
                    table.seen(now_us, ip(1), mac(router));
                    table.seen(now_us, ip(10 + round * 2 + router), mac(9));
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..rounds {
                let at = table.source_mac(ip(1));
                assert!(at == Some(mac(1)) || at == Some(mac(2)), "{at:?}");
            }
        });
    });
    assert_eq!(table.list().len(), 8);
}
