//! The load generator's promises, tested against the server of the client's tests.

use super::keys::{RECORD, write_key, write_value};
use super::*;
use crate::fake_server::{self, FakeServer, TABLE, TENANT, TOKEN};
use crate::{Error, PutOptions, blocking, limits, raw};

fn config(fake: &FakeServer) -> Config {
    Config::new(fake.address, TENANT).token(TOKEN).deadline(Duration::from_secs(30))
}

fn short(tenants: Vec<TenantLoad>, millis: u64) -> Options {
    let options = Options::new(tenants);
    Options { warm_up: Duration::ZERO, duration: Duration::from_millis(millis), verify_every: 1, ..options }
}

/// Runs a load of so many milliseconds, and longer ones until every class of every tenant was answered. The machine may
/// take the processor away for the whole of a short one.
fn run_until_answered(tenants: &[TenantLoad], classes: usize, mut millis: u64) -> Report {
    loop {
        let report = run(&short(tenants.to_vec(), millis), &mut quiet()).unwrap();
        let answered =
            |tenant: &TenantReport| tenant.rows.len() == classes && tenant.rows.iter().all(|row| row.count > 0);
        if report.tenants.iter().all(answered) {
            return report;
        }
        millis *= 2;
        assert!(millis < 30_000, "{report}");
    }
}

fn quiet() -> impl FnMut(&LoadProgress) {
    |_| {}
}

/// Every class that the fake server can answer.
const EVERY_CLASS: &str = "get=1,put=1,insert=1,read-modify-write=1,multi-get=1,increment=1,invoke-get=1,scan=1,chain=1,\
                           chain-gets=1,aggregate-gets=1,long=1,aggregate=1,checksum=1,\
                           checksum-gets=1,analysis-gets=1,auth-gets=1,long-gets=1";
const CLASSES: usize = 18;

#[test]
fn every_class_is_asked_answered_and_checked_in_either_loop() {
    let fake = FakeServer::start(fake_server::FakeServerOptions::default());
    let mut load = TenantLoad::new("t", config(&fake), Data::new(TABLE, 500), EVERY_CLASS.parse().unwrap());
    (load.data.lists, load.data.rows, load.data.row_lists, load.data.users) = (20, 30, 10, 5);
    (load.data.auth_rounds, load.data.rounds, load.data.long_gets) = (3, 7, 21);
    let filled = fill(&load.config, &load.data, &mut |_, _| {}).unwrap();
    assert_eq!((filled.records, fake.records()), (1066, 1066));
    let paces = [Pace::Closed { depth: 4 }, Pace::per_second(2000.0)];
    for (pace, batch) in paces.into_iter().zip([1, 5]) {
        let report = run_until_answered(&[load.clone().pace(pace).batch(batch)], CLASSES, 300);
        assert_eq!(report.wrong, 0, "{report}");
        assert_eq!(report.tenants[0].rows.len(), CLASSES, "{report}");
        for row in &report.tenants[0].rows {
            assert!(row.ok > 0 && row.ok == row.count && row.verified == row.ok && row.errors.is_empty(), "{report}");
            assert!(row.p50_us <= row.p99_us && row.p99_us <= row.max_us * 1.01, "{report}");
            // When the generator looked at an answer, the kernel had received it; the two differ in digits.
            assert!(row.p50_us <= row.seen_p50_us * 1.02 && row.p99_us <= row.seen_p99_us * 1.02, "{report}");
        }
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap().tenants[0].rows.len(), CLASSES);
        assert!(json.contains("\"class\":\"multi-get\""), "{json}");
    }
}

#[test]
fn what_clients_compute_is_checked_and_waited_for_where_they_have_cores_of_their_own() {
    let fake = FakeServer::start(fake_server::FakeServerOptions::default());
    let mix = "aggregate-gets,checksum-gets,analysis-gets".parse().unwrap();
    let load = TenantLoad::new("t", config(&fake), Data::new(TABLE, 100), mix).pace(Pace::Closed { depth: 4 });
    fill(&load.config, &load.data, &mut |_, _| {}).unwrap();
    let takes = Duration::from_millis(20);
    let report = run_until_answered(&[load.clone().client_takes(takes)], 3, 300);
    assert_eq!(report.wrong, 0, "{report}");
    for row in &report.classes {
        assert!(row.ok == row.count && row.verified == row.ok, "{report}");
        assert!(row.p50_us >= 19_900.0, "its clients take 20 ms: {report}");
    }
    let most = 4.0 / takes.as_secs_f64();
    assert!(report.per_s <= most * 1.2, "four at a time, for 20 ms each: {report}");
    for class in [Class::AggregateGets, Class::ChecksumGets, Class::AnalysisGets] {
        assert!(load.data.measure_compute_time(class).unwrap() > Duration::ZERO);
    }
    assert!(load.data.measure_compute_time(Class::Get).is_err());
    // Each record takes another value that it may have: only results computed from them are wrong.
    let client = blocking::Client::connect(config(&fake)).unwrap();
    let (mut key, mut value) = (Vec::new(), Vec::new());
    for id in 0..100 {
        write_key(RECORD, id, load.data.key_len, &mut key);
        write_value(id, 7, 100, &mut value);
        client.put(TABLE, &key, &value, &PutOptions::default()).unwrap();
    }
    let report = run_until_answered(std::slice::from_ref(&load), 3, 100);
    for row in &report.classes {
        let wrong = if row.class == Class::AnalysisGets { 0 } else { row.count };
        assert_eq!((row.wrong, row.verified), (wrong, row.count), "{report}");
    }
}

#[test]
fn sums_are_checked_without_writers() {
    let fake = FakeServer::start(fake_server::FakeServerOptions::default());
    let mix = "aggregate,checksum".parse().unwrap();
    let load = TenantLoad::new("t", config(&fake), Data::new(TABLE, 100), mix);
    fill(&load.config, &load.data, &mut |_, _| {}).unwrap();
    let report = run_until_answered(std::slice::from_ref(&load), 2, 100);
    assert!(report.wrong == 0 && report.row("t", Class::Aggregate).unwrap().verified > 0, "{report}");
    assert!(report.row("t", Class::Checksum).unwrap().verified > 0, "{report}");
    // Any record of every list takes another value: the sums differ, and a plain get sees it too.
    let client = blocking::Client::connect(config(&fake)).unwrap();
    let mut key = Vec::new();
    for id in 0..100 {
        write_key(RECORD, id, load.data.key_len, &mut key);
        client.put(TABLE, &key, &[0; 100], &PutOptions::default()).unwrap();
    }
    let report = run_until_answered(std::slice::from_ref(&load), 2, 100);
    for row in &report.classes {
        assert_eq!((row.wrong, row.verified), (row.count, row.count), "{report}");
    }
    let gets = TenantLoad { mix: Mix::only(Class::Get), ..load };
    let report = run_until_answered(&[gets], 1, 100);
    assert!(report.wrong > 0, "{report}");
}

#[test]
fn a_server_that_lies_is_found_out_on_a_sample() {
    let fake = FakeServer::start(fake_server::FakeServerOptions::default());
    let load = TenantLoad::new("t", config(&fake), Data::new(TABLE, 100), Mix::only(Class::Get));
    fill(&load.config, &load.data, &mut |_, _| {}).unwrap();
    fake.corrupt_every(3);
    let load = load.pace(Pace::Closed { depth: 8 });
    for verify_every in [1, 7] {
        // On a sample it may take a while.
        let found_out = (0..8).any(|doublings| {
            let options = Options { verify_every, ..short(vec![load.clone()], 100 << doublings) };
            let before = fake.corrupted_gets();
            let report = run(&options, &mut quiet()).unwrap();
            let Some(row) = report.row("t", Class::Get) else { return false };
            assert!(row.verified.abs_diff(row.count / verify_every) <= 1, "{report}");
            assert!(row.wrong <= row.verified && row.wrong <= fake.corrupted_gets() - before, "{report}");
            assert!(report.to_string().ends_with(&format!("{} wrong", row.wrong)), "{report}");
            row.wrong > 0
        });
        assert!(found_out, "of one in {verify_every}");
    }
}

#[test]
fn a_pool_asks_for_what_is_not_there_as_often_as_published() {
    let fake = FakeServer::start(fake_server::FakeServerOptions::default());
    let plan: Plan = "etc".parse().unwrap();
    let load = TenantLoad::new("t", config(&fake), plan.data(TABLE, 1000), plan.mix).skew(plan.skew);
    fill(&load.config, &load.data, &mut |_, _| {}).unwrap();
    assert_eq!(fake.records(), 1000);
    let mut options = short(vec![load.pace(Pace::Closed { depth: 8 })], 200);
    for _ in 0..8 {
        let report = run(&options, &mut quiet()).unwrap();
        assert_eq!(report.wrong, 0, "{report}");
        let rows = [Class::Get, Class::Put, Class::Delete].map(|class| report.row("t", class));
        if let [Some(gets), Some(puts), Some(deletes)] = rows
            && gets.count > 3000
        {
            let missed = gets.missed as f64 / gets.ok as f64;
            assert!((0.13..0.24).contains(&missed), "{missed}: {report}");
            assert!(puts.missed == 0 && deletes.missed == deletes.ok, "{report}");
            assert_eq!(fake.records(), 1000, "its deletes take nothing away, its puts add nothing");
            return;
        }
        options.duration *= 2;
    }
    panic!("too few were answered");
}

#[test]
fn what_is_inserted_is_asked_for_and_all_of_it_is_there() {
    let fake = FakeServer::start(fake_server::FakeServerOptions {
        loss: 0.02,
        duplication: 0.02,
        ..fake_server::FakeServerOptions::default()
    });
    let plan: Plan = "ycsb-d".parse().unwrap();
    let mut load = TenantLoad::new("t", config(&fake), plan.data(TABLE, 50), plan.mix).skew(plan.skew);
    load.connections = 2;
    fill(&load.config, &load.data, &mut |_, _| {}).unwrap();
    let report = run_until_answered(&[load.pace(Pace::Closed { depth: 4 })], 2, 500);
    let (gets, inserts) = (report.row("t", Class::Get).unwrap(), report.row("t", Class::Insert).unwrap());
    assert!(report.wrong == 0 && gets.missed == 0 && inserts.errors.is_empty(), "{report}");
    // A shorter run before may have come further than this one.
    assert!(fake.records() as u64 >= 50 + inserts.ok, "{report}");
    let mut key = Vec::new();
    for id in 0..fake.records() as u64 {
        write_key(RECORD, id, 30, &mut key);
        assert!(fake.value(&key).is_some(), "record {id} of {}", fake.records());
    }
}

#[test]
fn gaps_have_the_mean_and_the_spread_that_they_should() {
    use rand::{SeedableRng, rngs::SmallRng};
    const GAPS: usize = 200_000;
    // Quantiles of 10, 50 and 99 % in parts of the mean.
    let pareto = |share: f64| (1.0 - ETC_GAP_SHAPE) / ETC_GAP_SHAPE * ((1.0 - share).powf(-ETC_GAP_SHAPE) - 1.0);
    let poisson = |share: f64| -(1.0 - share).ln();
    for (arrivals, expected) in [
        (Arrivals::Poisson, [0.1, 0.5, 0.99].map(poisson)),
        (Arrivals::Pareto, [0.1, 0.5, 0.99].map(pareto)),
        (Arrivals::Fixed, [1.0; 3]),
    ] {
        let mut rng = SmallRng::seed_from_u64(3);
        let mut gaps: Vec<f64> = (0..GAPS).map(|_| arrivals.sample_gap(&mut rng)).collect();
        let mean = gaps.iter().sum::<f64>() / GAPS as f64;
        assert!((mean - 1.0).abs() < 0.02, "{arrivals:?}: {mean}");
        gaps.sort_by(f64::total_cmp);
        let found = [GAPS / 10, GAPS / 2, GAPS / 100 * 99].map(|at| gaps[at]);
        for (found, expected) in found.iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 0.05, "{arrivals:?}: {found} for {expected}");
        }
    }
}

#[test]
fn an_open_loop_charges_a_stall_to_all_that_would_have_come_meanwhile() {
    let fake = FakeServer::start(fake_server::FakeServerOptions::default());
    let pace = Pace::Open { per_s: 1000.0, arrivals: Arrivals::Fixed };
    let load = TenantLoad::new("t", config(&fake), Data::new(TABLE, 100), Mix::only(Class::Get)).pace(pace);
    fill(&load.config, &load.data, &mut |_, _| {}).unwrap();
    let before = fake.requests(0);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            while fake.requests(0) < before + 100 {
                std::thread::sleep(Duration::from_millis(1));
            }
            fake.stall(true);
            std::thread::sleep(Duration::from_millis(1000));
            fake.stall(false);
        });
        run(&short(vec![load], 2000), &mut quiet()).unwrap()
    });
    let row = report.row("t", Class::Get).unwrap();
    assert!((1999..=2001).contains(&row.count), "as many as were meant to be sent: {report}");
    assert_eq!(row.ok, row.count, "{report}");
    // Half of the requests fell into the stall: a closed loop would have seen one slow request.
    assert!(row.p90_us > 500_000.0 && row.max_us > 900_000.0, "{report}");
}

#[test]
fn a_load_that_dozes_asks_as_much_and_takes_little_of_a_processor() {
    let fake =
        FakeServer::start(fake_server::FakeServerOptions { loss: 0.02, ..fake_server::FakeServerOptions::default() });
    let pace = Pace::Open { per_s: 100.0, arrivals: Arrivals::Fixed };
    let load = TenantLoad::new("t", config(&fake), Data::new(TABLE, 100), Mix::only(Class::Get)).pace(pace);
    fill(&load.config, &load.data, &mut |_, _| {}).unwrap();
    let report = run(&Options { doze: true, ..short(vec![load], 1000) }, &mut quiet()).unwrap();
    let row = report.row("t", Class::Get).unwrap();
    assert!((99..=101).contains(&row.count) && row.ok == row.count && report.wrong == 0, "{report}");
    // One that polls takes as much as it gets.
    assert!(report.sender_cpu_s > 0.0 && report.sender_cpu_s < 0.5 * report.seconds, "{} s", report.sender_cpu_s);
}

#[test]
fn a_server_that_stays_away_leaves_nothing_unaccounted() {
    let fake = FakeServer::start(fake_server::FakeServerOptions::default());
    let hasty = config(&fake).deadline(Duration::from_secs(2)).window(16);
    let pace = Pace::Open { per_s: 1000.0, arrivals: Arrivals::Fixed };
    let load = TenantLoad::new("t", hasty, Data::new(TABLE, 100), Mix::only(Class::Get)).pace(pace);
    let options = Options { duration: Duration::from_millis(300), ..short(vec![load], 0) };
    fake.stall_after(20);
    let report = run(&options, &mut quiet()).unwrap();
    let row = report.row("t", Class::Get).unwrap();
    let errors: u64 = row.errors.values().sum();
    assert!((299..=301).contains(&row.count) && row.ok + errors == row.count, "{report}");
    assert!(row.errors.contains_key("timeout"), "{report}");
}

#[test]
fn one_call_in_n_is_bad_and_tenants_are_told_apart() {
    let fake = FakeServer::start(fake_server::FakeServerOptions {
        loss: 0.05,
        duplication: 0.05,
        ..fake_server::FakeServerOptions::default()
    });
    let data = Data::new(TABLE, 100);
    let pace = Pace::Open { per_s: 1000.0, arrivals: Arrivals::Fixed };
    let good = TenantLoad::new("good", config(&fake), data.clone(), "ycsb-b".parse().unwrap()).pace(pace);
    let bad = TenantLoad::new("bad", config(&fake), data, Mix::only(Class::InvokeGet)).pace(pace).bad_every(10);
    fill(&good.config, &good.data, &mut |_, _| {}).unwrap();
    let options = Options { threads: 2, ..short(vec![good, bad], 400) };
    let report = run(&options, &mut quiet()).unwrap();
    let killed = report.row("bad", Class::Bad).unwrap();
    let calls = report.row("bad", Class::InvokeGet).unwrap();
    assert_eq!(killed.errors.get("killed"), Some(&killed.count), "{report}");
    assert_eq!((killed.count + calls.count) / 10, killed.count, "{report}");
    assert!(report.row("good", Class::Bad).is_none() && report.row("good", Class::Get).unwrap().ok > 0, "{report}");
    assert_eq!(report.wrong, 0);
    let text = report.to_string();
    assert!(text.contains("killed") && text.contains("p99.9") && text.contains("all 2 tenants"), "{text}");
    let of_class = |class| report.classes.iter().find(|row| row.class == class).unwrap();
    assert_eq!(of_class(Class::Bad).count, killed.count, "{report}");
    let gets = report.row("good", Class::Get).unwrap();
    assert_eq!((of_class(Class::Get).count, of_class(Class::Get).max_us), (gets.count, gets.max_us), "{report}");
}

#[test]
fn many_tenants_are_accounted_for_each_and_told_of_in_short() {
    let fake = FakeServer::start(fake_server::FakeServerOptions::default());
    let data = Data::new(TABLE, 100);
    let even = |per_s| Pace::Open { per_s, arrivals: Arrivals::Fixed };
    let tenants: Vec<TenantLoad> = (0..80)
        .map(|tenant| {
            let load = TenantLoad::new(&format!("t{tenant}"), config(&fake), data.clone(), Mix::only(Class::Get));
            load.pace(even(if tenant == 0 { 500.0 } else { 5.0 }))
        })
        .collect();
    fill(&tenants[0].config, &data, &mut |_, _| {}).unwrap();
    let report = run(&short(tenants, 1000), &mut quiet()).unwrap();
    assert_eq!((report.tenants.len(), report.wrong), (80, 0));
    for (tenant, meant) in report.tenants.iter().zip(std::iter::once(500).chain(std::iter::repeat(5))) {
        let count = tenant.rows.iter().map(|row| row.count).sum::<u64>();
        assert!(count.abs_diff(meant) <= 1, "{}: {count} of {meant}", tenant.name);
    }
    let text = report.to_string();
    assert!(text.contains("all 80 tenants") && text.contains("operations/s of a tenant: least"), "{text}");
    assert!(text.lines().count() < 15, "{text}");
}

#[test]
fn in_a_closed_loop_too_tenants_are_asked_by_their_rank() {
    let fake = FakeServer::start(fake_server::FakeServerOptions::default());
    let data = Data::new(TABLE, 50);
    let mix: Mix = "get=1,read-modify-write=1".parse().unwrap();
    let load =
        |name: &str| TenantLoad::new(name, config(&fake), data.clone(), mix.clone()).pace(Pace::Closed { depth: 4 });
    let tenants: Vec<TenantLoad> = ["first", "second", "third"].map(load).into();
    fill(&tenants[0].config, &data, &mut |_, _| {}).unwrap();
    let mut options = Options { tenant_skew: Some(1.0), ..short(tenants, 200) };
    for _ in 0..8 {
        let report = run(&options, &mut quiet()).unwrap();
        assert_eq!(report.wrong, 0, "{report}");
        let count = |tenant: usize| report.tenants[tenant].rows.iter().map(|row| row.count).sum::<u64>() as f64;
        let all = count(0) + count(1) + count(2);
        if all > 4000.0 {
            for (tenant, share) in [6.0 / 11.0, 3.0 / 11.0, 2.0 / 11.0].into_iter().enumerate() {
                assert!((count(tenant) / all - share).abs() < 0.05, "{report}");
            }
            return;
        }
        options.duration *= 2;
    }
    panic!("too few were answered");
}

#[test]
fn progress_is_told_and_a_run_can_be_stopped() {
    let fake = FakeServer::start(fake_server::FakeServerOptions::default());
    let load = TenantLoad::new("t", config(&fake), Data::new(TABLE, 10), Mix::only(Class::Put));
    let options = short(vec![load], 3_600_000);
    let mut seconds = Vec::new();
    let report = run(&options, &mut |second| {
        seconds.push(second.second);
        options.stop.store(true, std::sync::atomic::Ordering::Relaxed);
    })
    .unwrap();
    assert_eq!(seconds[0], 1);
    assert!(report.seconds < 3000.0 && report.row("t", Class::Put).unwrap().ok > 0, "{report}");
}

#[test]
fn a_load_that_may_not_log_in_says_why() {
    let fake = FakeServer::start(fake_server::FakeServerOptions::default());
    let data = Data::new(TABLE, 10);
    let good = TenantLoad::new("good", config(&fake), data.clone(), Mix::only(Class::Get));
    let wrong = TenantLoad::new("wrong", config(&fake).token("wrong"), data, Mix::only(Class::Get));
    let options = Options { threads: 2, ..short(vec![good, wrong], 100) };
    assert_eq!(run(&options, &mut quiet()), Err(Error::Unauthenticated));
    let data = Data::new(TABLE + 1, 10);
    assert_eq!(fill(&config(&fake), &data, &mut |_, _| {}), Err(Error::UnknownTable));
}

#[test]
fn a_raw_connection_pipelines_and_each_message_runs_once_on_a_bad_network() {
    let fake = FakeServer::start(fake_server::FakeServerOptions {
        workers: 2,
        home: 1,
        loss: 0.1,
        duplication: 0.1,
        silent_worker: None,
        open: false,
    });
    let mut connection = raw::Connection::connect(&config(&fake).window(100)).unwrap();
    assert_eq!(connection.server(), Some((2, 1)));
    let (mut sent, mut answered) = (0, 0);
    while answered < 2000 {
        while sent < 2000 && connection.free_slots() > 0 {
            let mut message = connection.message();
            for _ in 0..3 {
                message.increment(TABLE, b"n", 1);
            }
            connection.send(sent, message).unwrap();
            sent += 1;
        }
        answered += connection.poll(|_, answer| {
            let answer = answer.unwrap();
            assert_eq!(answer.operations().map(Result::unwrap).count(), 3);
        });
    }
    assert_eq!(fake.value(b"n").unwrap(), b"6000");
    assert_eq!((fake.runs(), connection.in_flight()), ((1, 2000), 0));
    assert!(connection.counters().retransmissions > 0);
}

#[test]
fn a_key_whose_slot_is_between_servers_is_asked_for_again_and_its_latency_goes_on() {
    let fake = FakeServer::start(fake_server::FakeServerOptions::default());
    for pace in [Pace::Closed { depth: 1 }, Pace::per_second(1_000.0)] {
        // More times than a request is sent on without a pause.
        let refused = 40;
        fake.elsewhere((0..refused).map(|_| "- slot 7 is changing its server; ask again".to_owned()));
        let load = TenantLoad::new("t", config(&fake), Data::new(TABLE, 1), Mix::only(Class::Put)).pace(pace);
        let report = run_until_answered(&[load], 1, 100);
        let row = report.row("t", Class::Put).unwrap();
        assert!(row.errors.is_empty() && row.ok == row.count, "{report}");
        let waited_us = limits::LOAD_MOVE_PAUSE_NS as f64 / 1_000.0;
        assert!(row.max_us >= waited_us, "{report}");
    }
}

#[test]
fn records_of_some_slots_alone_are_asked_for_and_found_over_time() {
    let fake = FakeServer::start(fake_server::FakeServerOptions::default());
    let line = TimeLine::new(Duration::from_millis(20), Some(Class::Put));
    let slots = 0..=8191;
    let load = TenantLoad::new("t", config(&fake), Data::new(TABLE, 400), "get=1,put=1".parse().unwrap());
    let load = load.skew(Skew::Uniform).in_slots(slots.clone()).pace(Pace::Closed { depth: 4 }).time_line(&line);
    let from = std::time::Instant::now();
    let mut report = run(&short(vec![load.clone()], 300), &mut quiet()).unwrap();
    let of = |report: &Report| report.row("t", Class::Put).map_or(0, |row| row.ok);
    let mut puts = of(&report);
    while puts < 100 {
        report = run(&short(vec![load.clone()], 300), &mut quiet()).unwrap();
        puts += of(&report);
    }
    let mut key = Vec::new();
    let mut inside = 0;
    for id in 0..400 {
        write_key(RECORD, id, load.data.key_len, &mut key);
        let is_inside = slots.contains(&sandstorm_net::slots::slot_of(&key));
        assert!(is_inside || fake.value(&key).is_none(), "record {id} is of another slot");
        inside += usize::from(is_inside);
    }
    assert!(fake.records() <= inside && fake.records() > 0);
    let of_all = |per_s: f64, seconds: f64| (per_s * seconds).round() as u64;
    let found: u64 = line.periods().iter().map(|period| of_all(period.per_s, 0.02)).sum();
    assert_eq!(found, puts, "each put counts once");
    let all = line.between(from, from + Duration::from_secs(3_600));
    let seconds = line.periods().len() as f64 * 0.02;
    assert_eq!(of_all(all.per_s, seconds), puts);
    assert!(all.errors == 0 && all.p50_us <= all.p999_us && all.longest_gap_us > 0.0);
}
