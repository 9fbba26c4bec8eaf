use super::*;
use crate::limits::{ReplyCacheLimits, ServerLimits};

fn checked(world: SimScenario) -> SimReport {
    world.check().unwrap_or_else(|broken| panic!("{broken}"))
}

#[test]
fn whatever_the_network_does_each_request_runs_once_and_ends() {
    let (mut answered, mut other) = (0, 0);
    let seeds = std::env::var("SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(600);
    for seed in 0..seeds {
        let world = SimScenario::drawn(seed);
        let report = checked(world);
        answered += report.answered;
        other += report.timed_out + report.stale;
    }
    assert!(answered > 100 * other, "{answered} answered, {other} not: retransmission does not do its work");
}

#[test]
fn a_run_depends_on_its_seed_alone() {
    for seed in [3, 5, 8] {
        assert_eq!(checked(SimScenario::drawn(seed)), checked(SimScenario::drawn(seed)));
    }
}

#[test]
fn on_a_perfect_network_nothing_is_sent_twice() {
    let perfect = SimScenario {
        loss: 0,
        duplication: 0,
        jitter_us: 0,
        service_us: 0,
        restarts: 0,
        longest: 8 << 20,
        requests: 60,
        clients: 2,
        in_flight: 1,
        ..SimScenario::drawn(1)
    };
    let mut run = SimRun::new(perfect, false);
    let report = run.play().unwrap();
    assert_eq!(report.answered, 120);
    assert_eq!(run.server.counters().retransmissions, 0);
    assert!(run.clients.iter().all(|client| client.endpoint.counters().retransmissions == 0));
}

#[test]
fn the_longest_messages_survive_a_bad_network() {
    for seed in 0..6 {
        let bad = SimScenario {
            loss: 8,
            duplication: 5,
            least_delay_us: 50,
            jitter_us: 400,
            service_us: 1000,
            restarts: 0,
            longest: 8 << 20,
            requests: 40,
            clients: 1,
            in_flight: 4,
            ..SimScenario::drawn(seed)
        };
        let report = checked(bad);
        assert_eq!((report.answered, report.stale), (40, 0), "seed {seed}: {report:?}");
    }
}

#[test]
fn a_server_without_room_refuses_and_recovers() {
    for seed in 0..60 {
        let drawn = SimScenario::drawn(seed);
        let server = ServerLimits {
            partial_bytes: 900_000,
            partial_bytes_per_peer: 500_000,
            partials: 4,
            partials_per_peer: 2,
            outgoing_bytes: 900_000,
            outgoing_bytes_per_peer: 500_000,
            completed: 3,
            ..drawn.server
        };
        let once = ReplyCacheLimits { bytes: 200_000, sessions: 2, tombstones: 64, ..drawn.once };
        checked(SimScenario { server, once, clients: 4, ..drawn });
    }
}

#[test]
fn a_server_that_gives_messages_up_early_mixes_nothing_and_starts_over() {
    let (mut answered, mut other) = (0, 0);
    for seed in 0..150 {
        let drawn = SimScenario::drawn(seed);
        let server = ServerLimits {
            partial_timeout_us: 15_000,
            outgoing_timeout_us: 25_000,
            completed_timeout_us: 40_000,
            ..drawn.server
        };
        let report = checked(SimScenario { server, loss: 10 + seed % 20, jitter_us: 2000, longest: 100_000, ..drawn });
        answered += report.answered;
        other += report.timed_out + report.stale;
    }
    assert!(answered > 50 * other, "{answered} answered, {other} not");
}

#[test]
fn a_slow_server_is_sent_a_long_request_once() {
    let slow = SimScenario {
        loss: 0,
        duplication: 0,
        jitter_us: 0,
        service_us: 900_000,
        restarts: 0,
        longest: 1 << 20,
        requests: 40,
        clients: 1,
        in_flight: 1,
        ..SimScenario::drawn(2)
    };
    let mut run = SimRun::new(slow, false);
    assert_eq!(run.play().unwrap().answered, 40);
    let counters = *run.server.counters();
    assert!(counters.long_requests > 3 && counters.repeated > 0, "{counters:?}");
    assert_eq!(counters.duplicates, 0, "the announcement asks for the answer; nothing goes out again");
    assert!(run.server.counters().long_requests < 40);
}

#[test]
fn requests_end_even_when_nothing_arrives() {
    for seed in 0..10 {
        let dead = SimScenario { loss: 100, timeout_us: 2_000_000, restarts: 0, ..SimScenario::drawn(seed) };
        let report = checked(dead);
        assert_eq!(report.timed_out, dead.requests * dead.clients as u64);
    }
}

#[test]
fn in_sealed_sessions_each_request_runs_once_whatever_is_forged_forgotten_or_moved() {
    let (mut answered, mut other) = (0, 0);
    let seeds = std::env::var("SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(60);
    for seed in 0..seeds {
        let drawn = SimScenario::drawn(seed);
        let (corruption, faults_permille) = ([0, 2, 10][seed as usize % 3], [0, 1, 5][seed as usize / 3 % 3]);
        let report = checked(SimScenario { sealed: true, corruption, faults_permille, longest: 20_000, ..drawn });
        answered += report.answered;
        other += report.timed_out + report.stale;
    }
    assert!(answered > 100 * other, "{answered} answered, {other} not: retransmission does not do its work");
}

#[test]
fn forged_hellos_lock_out_no_client_that_receives_at_its_address() {
    for seed in 0..20 {
        let drawn = SimScenario::drawn(seed);
        let flooded =
            SimScenario { sealed: true, flood: 40, faults_permille: seed % 3, longest: 1000, requests: 20, ..drawn };
        let mut run = SimRun::new(flooded, false);
        let report = run.play().unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        assert_eq!((report.timed_out, report.answered > 0), (0, true), "seed {seed}: {report:?}");
    }
}

#[test]
fn nothing_runs_twice_over_restarts_of_the_server_or_when_ports_change() {
    let (mut answered, mut timed_out, mut restarts) = (0, 0, 0);
    let seeds = std::env::var("SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(150);
    for seed in 0..seeds {
        let drawn = SimScenario::drawn(seed);
        let (server_restarts, faults_permille) = ([0, 1, 5][seed as usize % 3], [0, 2, 20][seed as usize / 3 % 3]);
        let late = if server_restarts > 0 { 20 } else { 5 };
        let (sealed, longest) = (seed % 4 == 3, drawn.longest.min(20_000));
        let report = checked(SimScenario { server_restarts, faults_permille, late, sealed, longest, ..drawn });
        answered += report.answered;
        timed_out += report.timed_out;
        restarts += report.server_restarts;
    }
    assert!(restarts > seeds, "{restarts} restarts in {seeds} worlds");
    assert!(
        answered > 100 * timed_out,
        "{answered} answered, {timed_out} not: who moves is found, who restarts as well"
    );
}

#[test]
fn in_worlds_without_restarts_no_request_is_stale_however_often_ports_change() {
    for seed in 0..40 {
        let drawn = SimScenario::drawn(seed);
        let moving = SimScenario { faults_permille: 50, late: 10, sealed: false, restarts: 0, longest: 2_000, ..drawn };
        let report = checked(moving);
        assert_eq!((report.stale, report.timed_out), (0, 0), "seed {seed}: {report:?}");
    }
}

#[test]
fn a_sealed_client_that_moves_all_the_time_is_answered() {
    for seed in 0..30 {
        let drawn = SimScenario::drawn(seed);
        let moving = SimScenario {
            faults_permille: 0,
            moves_permille: 1000,
            sealed: true,
            loss: 5,
            restarts: 0,
            longest: 400,
            ..drawn
        };
        let moving = SimScenario { timeout_us: 10_000_000, duplication: 5, ..moving };
        let report = checked(moving);
        assert_eq!((report.stale, report.timed_out), (0, 0), "seed {seed}: {report:?}");
    }
}
