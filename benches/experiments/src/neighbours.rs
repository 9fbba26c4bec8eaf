//! `sandstorm bench neighbours`: the effect of a hostile tenant on another one. There is one worker. The victim sends
//! plain gets and calls in turn at a fixed rate. Short quiet rounds and rounds with an attack alternate, so that other
//! work of the machine meets both sides alike. All samples of a side are evaluated together.
//!
//! One thread drives the victim and the attackers in turn, so that the result does not depend on how the kernel
//! schedules the second core. An attacker's turn takes about ten microseconds.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use sandstorm_client::PutOptions;
use sandstorm_client::control::{TableMode, TableSpec, TenantSpec};
use sandstorm_client::raw::Connection;
use sandstorm_dialects::{PortService, Protocol};
use sandstorm_extension::limits::SLICE_US;
use sandstorm_net::rpc::RpcStatus;
use sandstorm_server::workers::{ListenerConfig, PortAddress};

use self::attackers::{AttackDriver, AttackKind, push_continuously};
use self::redis_attack::RedisCommand;
use self::samples::{StallClock, VictimSamples, stolen_ms};
use super::report::{ExperimentFindings, RatioResult, RatioTarget, ReportTable, RoundSpread};
use super::{BenchArgs, bench_server};
use crate::local_server::{BAD, GET, LONG, LocalServer, LocalTenant};
use sandstorm_terminal::output::CliError;

mod attackers;
mod redis_attack;
mod samples;

/// Records of each tenant.
const RECORDS: u64 = 1_000;
/// The victim's requests a second.
const VICTIM_RATE_PER_S: u64 = 5_000;
/// The victim's requests of this first part of each round do not count. The attack is beginning, or the last one has
/// just ended.
const SETTLE_TIME: Duration = Duration::from_millis(40);
/// Time to wait for requests that an attack has left in flight.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

const ATTACKS: [(&str, &[AttackKind]); 18] = [
    ("endless loops", &[AttackKind::Calls("loop")]),
    ("recursion", &[AttackKind::Calls("recursion")]),
    ("allocation", &[AttackKind::Calls("allocation")]),
    ("copying memory", &[AttackKind::Calls("memcpy")]),
    ("scans without a yield", &[AttackKind::Calls("loop-scans")]),
    ("gets without end", &[AttackKind::Calls("loop-gets")]),
    ("long honest calls", &[AttackKind::LongCalls]),
    ("large reads", &[AttackKind::LargeReads]),
    ("large writes", &[AttackKind::LargeWrites]),
    ("DEL of a million keys", &[AttackKind::Redis(RedisCommand::Del)]),
    ("MGET of a million keys", &[AttackKind::Redis(RedisCommand::MGet)]),
    ("EXISTS of a million keys", &[AttackKind::Redis(RedisCommand::Exists)]),
    ("EXEC of 9 x 100,000 keys", &[AttackKind::Redis(RedisCommand::Exec)]),
    ("flood of gets", &[AttackKind::FloodGets]),
    ("flood of calls", &[AttackKind::FloodCalls]),
    ("junk and forged packets", &[AttackKind::Junk]),
    ("pushes", &[AttackKind::Pushes]),
    (
        "all at once",
        &[
            AttackKind::Calls("loop"),
            AttackKind::Calls("recursion"),
            AttackKind::Calls("allocation"),
            AttackKind::Calls("loop-scans"),
            AttackKind::LargeReads,
            AttackKind::FloodGets,
            AttackKind::FloodCalls,
            AttackKind::Junk,
            AttackKind::Pushes,
        ],
    ),
];

/// The victim's latencies under one attack, and in the quiet rounds between.
struct AttackResult {
    attack: &'static str,
    quiet: VictimSamples,
    attacked: VictimSamples,
    /// p99 under attack over the quiet p99, round by round.
    ratios: RoundSpread,
    /// Thousand packets a second that the attack sent, and of those the packets shed by the worker and dropped by the
    /// kernel (in its messages).
    sent: f64,
    shed: f64,
    dropped_early: f64,
}

impl AttackResult {
    fn lost(&self) -> u64 {
        self.quiet.lost + self.attacked.lost
    }

    fn wrong(&self) -> u64 {
        self.quiet.wrong + self.attacked.wrong
    }

    /// The victim's latencies, pooled.
    fn latencies(&mut self) -> Vec<RoundSpread> {
        let mut cells = Vec::new();
        for share in [0.5, 0.99, 0.999] {
            cells.extend([self.quiet.us(share), self.attacked.us(share)]);
        }
        cells.extend([self.quiet.attended_quantile_us(0.99), self.attacked.attended_quantile_us(0.99)]);
        let mut cells: Vec<RoundSpread> = cells.into_iter().map(RoundSpread::once).collect();
        cells.push(self.ratios.clone());
        cells
    }

    fn counts(&self) -> Vec<RoundSpread> {
        let sides = [&self.quiet, &self.attacked];
        let mut counts: Vec<f64> = sides.map(|side| side.count() as f64).into();
        counts.extend(sides.map(|side| side.unattended() as f64));
        counts.extend(sides.map(|side| side.gaps as f64));
        counts.extend(sides.map(|side| side.stolen_ms as f64));
        counts.extend([self.lost() as f64, self.wrong() as f64, self.sent, self.shed, self.dropped_early]);
        counts.into_iter().map(RoundSpread::once).collect()
    }

    /// p99 under attack over the quiet p99: of all samples, and of those during which the measuring thread ran.
    fn verdicts(&mut self) -> [RatioResult; 2] {
        let answered = self.lost() + self.wrong() == 0;
        let attack = self.attack;
        let verdict = |what: String, quiet_us: f64, attacked_us: f64| {
            let bound_us = (2.0 * quiet_us).max(SLICE_US as f64 + 100.0);
            RatioResult {
                what,
                ratio: RoundSpread::once(attacked_us / quiet_us),
                sides: [attacked_us, quiet_us],
                unit: "us",
                target: Some(RatioTarget::AtMost(bound_us / quiet_us)),
                reached: Some(attacked_us <= bound_us && answered),
            }
        };
        [
            verdict(format!("p99 beside {attack} / quiet"), self.quiet.us(0.99), self.attacked.us(0.99)),
            verdict(
                format!("p99 beside {attack} / quiet, attended samples alone"),
                self.quiet.attended_quantile_us(0.99),
                self.attacked.attended_quantile_us(0.99),
            ),
        ]
    }
}

const LATENCIES: [&str; 9] = [
    "quiet p50",
    "p50",
    "quiet p99",
    "p99",
    "quiet p99.9",
    "p99.9",
    "quiet attended p99",
    "attended p99",
    "p99 / quiet, by rounds",
];
const COUNTS: [&str; 13] = [
    "quiet samples",
    "samples",
    "quiet unattended",
    "unattended",
    "quiet gaps",
    "gaps",
    "quiet ms stolen",
    "ms stolen",
    "lost",
    "wrong",
    "thousand/s sent",
    "thousand/s shed",
    "thousand/s dropped early",
];

/// Seconds of one side of one round. Rounds are short and many: other work of the machine comes and goes within
/// seconds, and must meet both sides alike.
const SECONDS: f64 = 0.2;
const ROUNDS: usize = 15;

pub(super) fn neighbours(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let server = bench_server::start_bench_server(1, |overrides| overrides.listen = vec![redis_port()])?;
    let about = format!(
        "One worker, a victim that asks {VICTIM_RATE_PER_S} times a second (gets and calls by turns), a tenant that does its worst: short \
         rounds, quiet and under attack by turns. p99 is to be at most twice the quiet one, or a slice and 100 us, whichever is larger, \
         and every request answered rightly."
    );
    let mut findings = ExperimentFindings::new("neighbours", about);
    let mut bench = NeighboursSetup::new(&server, args.seconds(SECONDS))?;
    let mut latencies =
        ReportTable::new("The victim's latency, us; all samples of all rounds together", "attack", LATENCIES);
    let mut counts = ReportTable::new("What was counted", "attack", COUNTS);
    let only = args.attack.as_deref().unwrap_or("");
    for (name, attacks) in ATTACKS.into_iter().filter(|(name, _)| name.contains(only)) {
        let mut found = bench.attack(name, attacks, args.rounds(ROUNDS))?;
        latencies.row(name, found.latencies());
        counts.row(name, found.counts());
        findings.ratios.extend(found.verdicts());
    }
    if latencies.rows.is_empty() {
        let names = ATTACKS.map(|(name, _)| name).join(", ");
        return Err(CliError::new(format!("no attack has {only:?} in its name")).hint(format!("there are: {names}")));
    }
    findings.tables.extend([latencies, counts]);
    findings
        .notes
        .push("Attended samples are those during which the measuring thread itself was not gone for 100 us.".into());
    Ok(findings)
}

/// Every connection to this port acts for the attacker.
fn redis_port() -> ListenerConfig {
    let (tenant, table) = (Some("attacker".to_owned()), Some("t".to_owned()));
    let service = PortService { protocol: Protocol::Redis, tenant, table, public: false };
    ListenerConfig { address: PortAddress::Tcp(([127, 0, 0, 1], 0).into()), udp: false, service }
}

struct NeighboursSetup<'s> {
    server: &'s LocalServer,
    victim: LocalTenant,
    mallory: LocalTenant,
    connection: Connection,
    seconds: f64,
}

impl<'s> NeighboursSetup<'s> {
    /// Makes the two tenants, their records and extensions.
    fn new(server: &'s LocalServer, seconds: f64) -> Result<NeighboursSetup<'s>, CliError> {
        let victim = server.tenant("victim", "t", TableMode::Store)?;
        // The attacker is neither slowed down nor suspended: the experiment measures the time before that happens.
        let quotas = [("slow_after_kills", 0), ("suspend_after_kills", 0), ("pushes_per_hour", 100_000)];
        let quotas = quotas.map(|(name, value)| (name.to_owned(), value)).into();
        let control = server.control();
        let created =
            control.create_tenant(&TenantSpec { name: "attacker".into(), quotas, ..TenantSpec::default() })?;
        let table = TableSpec { name: "t".into(), mode: TableMode::Store, ..TableSpec::default() };
        let table = control.create_table("attacker", &table)?.id;
        let mallory = LocalTenant { id: created.tenant.id, token: created.token, table };
        server.push("victim", &GET)?;
        for example in [&GET, &BAD, &LONG] {
            server.push("attacker", example)?;
        }
        let mut connection = Connection::connect(&server.client(&victim))?;
        fill(&mut connection, victim.table)?;
        fill(&mut Connection::connect(&server.client(&mallory))?, mallory.table)?;
        Ok(NeighboursSetup { server, victim, mallory, connection, seconds })
    }

    fn attack(&mut self, name: &'static str, attacks: &[AttackKind], rounds: usize) -> Result<AttackResult, CliError> {
        let mut attackers = Vec::new();
        for attack in attacks {
            attackers.extend(AttackDriver::new(self.server, &self.mallory, &self.victim, *attack)?);
        }
        let (mut quiet, mut attacked, mut ratios) = (VictimSamples::default(), VictimSamples::default(), Vec::new());
        let before = self.server.counters();
        for round in 0..rounds {
            // The order of the two sides alternates, too.
            let early = if round % 2 == 0 { Some(self.measure(&[], &mut [])?) } else { None };
            let mut hit = self.measure(attacks, &mut attackers)?;
            let mut calm = match early {
                Some(calm) => calm,
                None => self.measure(&[], &mut [])?,
            };
            ratios.push(hit.us(0.99) / calm.us(0.99));
            quiet.append(&mut calm);
            attacked.append(&mut hit);
        }
        let after = self.server.counters();
        let thousands = |count: u64| count as f64 / 1000.0 / (self.seconds * rounds as f64);
        Ok(AttackResult {
            attack: name,
            sent: thousands(attacked.sent),
            quiet,
            attacked,
            ratios: RoundSpread::of(ratios),
            shed: thousands(after.0 - before.0),
            dropped_early: thousands(after.1 - before.1),
        })
    }

    /// Measures the victim while the attacks run. Returns when no request of an attack is in flight any more.
    fn measure(&mut self, attacks: &[AttackKind], attackers: &mut [AttackDriver]) -> Result<VictimSamples, CliError> {
        let stop = AtomicBool::new(false);
        let pushed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            if attacks.contains(&AttackKind::Pushes) {
                let (server, stop, pushed) = (self.server, &stop, &pushed);
                scope.spawn(move || push_continuously(server, stop, pushed));
            }
            let seen = self.measure_beside(attackers);
            stop.store(true, Relaxed);
            let mut seen = seen?;
            seen.sent += pushed.load(Relaxed);
            Ok(seen)
        })
    }

    fn measure_beside(&mut self, attackers: &mut [AttackDriver]) -> Result<VictimSamples, CliError> {
        let mut seen = VictimSamples::default();
        self.drive_victim(attackers, SETTLE_TIME, &mut VictimSamples::default())?;
        let (stolen, sent) =
            (stolen_ms(), |attackers: &[AttackDriver]| attackers.iter().map(|one| one.sent).sum::<u64>());
        let sent_before = sent(attackers);
        self.drive_victim(attackers, Duration::from_secs_f64(self.seconds), &mut seen)?;
        (seen.stolen_ms, seen.sent) = (stolen_ms() - stolen, sent(attackers) - sent_before);
        let begun = Instant::now();
        // Drives all of them each time: an answer that is not received is sent again.
        while attackers.iter_mut().map(AttackDriver::has_ended).filter(|ended| !ended).count() > 0 {
            if begun.elapsed() > DRAIN_TIMEOUT {
                return Err(CliError::new("what an attack has left under way does not end"));
            }
            std::thread::yield_now();
        }
        Ok(seen)
    }

    /// Sends the victim's requests at their times, and drives the attackers in between.
    fn drive_victim(
        &mut self,
        attackers: &mut [AttackDriver],
        time: Duration,
        seen: &mut VictimSamples,
    ) -> Result<(), CliError> {
        let gap = Duration::from_nanos(1_000_000_000 / VICTIM_RATE_PER_S);
        let (mut clock, mut next, mut number) = (StallClock::new(), Duration::ZERO, 0u64);
        let mut under_way = std::collections::HashMap::new();
        let mut turn = 0;
        while next < time || !under_way.is_empty() {
            let now = clock.now();
            while next <= now && next < time {
                let mut message = self.connection.message();
                let key = key(number % RECORDS);
                if number.is_multiple_of(2) {
                    message.get(self.victim.table, &key);
                } else {
                    message.invoke("get", 0, &[&self.victim.table.to_le_bytes()[..], &key].concat());
                }
                self.connection.send(number, message)?;
                under_way.insert(number, next);
                (next, number) = (next + gap, number + 1);
            }
            self.connection.poll(|tag, answer| {
                let Some(due) = under_way.remove(&tag) else { return };
                seen.answered(&mut clock, due);
                let Ok(answer) = answer else { return seen.lost += 1 };
                let right = answer.operations().next().is_some_and(|operation| {
                    operation.is_ok_and(|o| o.status == RpcStatus::Ok && o.value == value(tag % RECORDS))
                });
                seen.wrong += u64::from(!right);
            });
            if now > time + Duration::from_secs(6) {
                seen.lost += under_way.len() as u64;
                break;
            }
            turn += 1;
            if next < time && !attackers.is_empty() {
                let attackers_turn = turn % attackers.len();
                attackers[attackers_turn].turn()?;
            } else {
                std::thread::yield_now();
            }
        }
        seen.end(&clock);
        Ok(())
    }
}

fn key(number: u64) -> [u8; 16] {
    let mut key = *b"record--________";
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

fn value(number: u64) -> [u8; 100] {
    [number as u8; 100]
}

fn fill(connection: &mut Connection, table: u64) -> Result<(), CliError> {
    for number in 0..RECORDS {
        let mut message = connection.message();
        message.put(table, &key(number), &value(number), &PutOptions::default());
        connection.send(number, message)?;
        let mut failed = None;
        while connection.in_flight() > 0 {
            connection.poll(|_, answer| failed = answer.err());
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
    }
    // The argument of `long`: a list of one key.
    let mut message = connection.message();
    let list = [&16u16.to_le_bytes()[..], &key(1)].concat();
    message.put(table, b"list", &list, &PutOptions::default());
    connection.send(0, message)?;
    while connection.in_flight() > 0 {
        connection.poll(|_, _| {});
    }
    Ok(())
}
