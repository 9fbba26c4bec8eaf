//! `sandstorm bench neighbours`: what a tenant feels of another that does its worst. One worker; a victim that asks at a fixed rate,
//! plain gets and calls by turns; short rounds in which it is quiet and in which an attack runs, by turns, so that what else the machine does
//! meets both sides alike. All samples of a side are looked at together.
//!
//! Victim and attackers are turned by one thread, one after the other, so that what is measured does not hang on how the kernel
//! shares the second core between them; an attacker's turn is about ten microseconds long.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use sandstorm_client::PutOptions;
use sandstorm_client::control::{CreateTable, CreateTenant, TableMode};
use sandstorm_client::raw::Connection;
use sandstorm_db::limits::SLICE_US;
use sandstorm_net::rpc::Status;
use serde::Serialize;

use self::attackers::{Attack, Attacker, push_for_ever};
use self::samples::{Clock, Seen, stolen_ms};
use crate::cli::local::{BAD, GET, LONG, LocalServer, LocalTenant};
use crate::cli::output::{Failure, Out};

mod attackers;
mod samples;

/// Records of either tenant.
const RECORDS: u64 = 1_000;
/// The victim's requests a second.
const RATE: u64 = 5_000;
/// Of each round, what the victim asks in so much time is not counted: the attack is beginning, or the last one has just ended.
const SETTLE: Duration = Duration::from_millis(40);
/// How long to wait for what an attack has left under way.
const DRAIN: Duration = Duration::from_secs(2);

const ATTACKS: [(&str, &[Attack]); 14] = [
    ("endless loops", &[Attack::Calls("loop")]),
    ("recursion", &[Attack::Calls("recursion")]),
    ("allocation", &[Attack::Calls("allocation")]),
    ("copying memory", &[Attack::Calls("memcpy")]),
    ("scans without a yield", &[Attack::Calls("loop-scans")]),
    ("gets without end", &[Attack::Calls("loop-gets")]),
    ("long honest calls", &[Attack::LongCalls]),
    ("large reads", &[Attack::LargeReads]),
    ("large writes", &[Attack::LargeWrites]),
    ("flood of gets", &[Attack::FloodGets]),
    ("flood of calls", &[Attack::FloodCalls]),
    ("junk and forged packets", &[Attack::Junk]),
    ("pushes", &[Attack::Pushes]),
    (
        "all at once",
        &[
            Attack::Calls("loop"),
            Attack::Calls("recursion"),
            Attack::Calls("allocation"),
            Attack::Calls("loop-scans"),
            Attack::LargeReads,
            Attack::FloodGets,
            Attack::FloodCalls,
            Attack::Junk,
            Attack::Pushes,
        ],
    ),
];

/// The victim's latencies of one side, over all rounds.
#[derive(Debug, Serialize)]
struct Side {
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    /// p99 of the samples during which the measuring thread was there all the time.
    attended_p99_us: f64,
    samples: usize,
    /// Samples during which it was not, and how often it was gone.
    unattended: usize,
    gaps: u64,
    /// Time that the hypervisor took from all processors, milliseconds.
    stolen_ms: u64,
}

impl Side {
    fn of(seen: &mut Seen) -> Side {
        Side {
            p50_us: seen.us(0.5),
            p99_us: seen.us(0.99),
            p999_us: seen.us(0.999),
            attended_p99_us: seen.attended_us(0.99),
            samples: seen.count(),
            unattended: seen.unattended(),
            gaps: seen.gaps,
            stolen_ms: seen.stolen_ms,
        }
    }
}

/// The victim's latencies under one attack, and in the quiet rounds between.
#[derive(Debug, Serialize)]
struct Row {
    attack: &'static str,
    quiet: Side,
    attacked: Side,
    /// p99 under attack over the quiet one: of all samples, and the lower and upper quartile of the rounds.
    ratio: [f64; 3],
    /// The same of the samples that the measuring thread attended.
    attended_ratio: f64,
    bound_us: f64,
    reached: bool,
    /// The same of the samples that the measuring thread attended.
    attended_bound_us: f64,
    attended_reached: bool,
    /// Requests that were not answered within a second, or wrongly.
    lost: u64,
    wrong: u64,
    /// Thousand packets a second that the attack sent, and of them shed by the worker and dropped by the kernel (in its messages).
    sent: f64,
    shed: f64,
    dropped_early: f64,
}

pub(super) struct Neighbours<'s> {
    server: &'s LocalServer,
    victim: LocalTenant,
    mallory: LocalTenant,
    connection: Connection,
    seconds: f64,
}

impl<'s> Neighbours<'s> {
    /// Makes the two tenants, their records and extensions.
    pub(super) fn new(server: &'s LocalServer, seconds: f64) -> Result<Neighbours<'s>, Failure> {
        let victim = server.tenant("victim", "t", TableMode::Store)?;
        // Neither slowed down nor suspended: what is measured is what holds while that has not happened yet.
        let quotas = [("slow_after_kills", 0), ("suspend_after_kills", 0), ("pushes_per_hour", 100_000)];
        let quotas = quotas.map(|(name, value)| (name.to_owned(), value)).into();
        let control = server.control();
        let created =
            control.create_tenant(&CreateTenant { name: "attacker".into(), quotas, ..CreateTenant::default() })?;
        let table = CreateTable { name: "t".into(), mode: TableMode::Store, ..CreateTable::default() };
        let table = control.create_table("attacker", &table)?.id;
        let mallory = LocalTenant { id: created.tenant.id, token: created.token, table };
        server.push("victim", &GET)?;
        for example in [&GET, &BAD, &LONG] {
            server.push("attacker", example)?;
        }
        let mut connection = Connection::connect(&server.client(&victim))?;
        fill(&mut connection, victim.table)?;
        fill(&mut Connection::connect(&server.client(&mallory))?, mallory.table)?;
        Ok(Neighbours { server, victim, mallory, connection, seconds })
    }

    /// Runs all rounds of the attacks that have `only` in their names, and prints each result as it comes.
    pub(super) fn run(mut self, out: &Out, rounds: usize, only: &str) -> Result<(), Failure> {
        if !out.json {
            out.line(
                "the worker has the first core; victim, attackers, control plane, builder and compilers share the others",
            )?;
        }
        let mut rows = Vec::new();
        for (name, attacks) in ATTACKS.into_iter().filter(|(name, _)| name.contains(only)) {
            let row = self.attack(name, attacks, rounds.max(1))?;
            if out.json {
                rows.push(row);
            } else {
                out.line(&line(&row))?;
            }
        }
        if out.json { out.json(&rows) } else { Ok(()) }
    }

    fn attack(&mut self, name: &'static str, attacks: &[Attack], rounds: usize) -> Result<Row, Failure> {
        let mut attackers = Vec::new();
        for attack in attacks {
            attackers.extend(Attacker::new(self.server, &self.mallory, &self.victim, *attack)?);
        }
        let (mut quiet, mut attacked, mut ratios) = (Seen::default(), Seen::default(), Vec::new());
        let before = self.server.counters();
        for round in 0..rounds {
            // By turns, too, which of the two comes first.
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
        ratios.sort_by(f64::total_cmp);
        let quartile = |quarters: usize| ratios.get(ratios.len() * quarters / 4).copied().unwrap_or(f64::NAN);
        let after = self.server.counters();
        let thousands = |count: u64| count as f64 / 1000.0 / (self.seconds * rounds as f64);
        let (lost, wrong, sent) = (quiet.lost + attacked.lost, quiet.wrong + attacked.wrong, attacked.sent);
        let (quiet, attacked) = (Side::of(&mut quiet), Side::of(&mut attacked));
        let bound = |quiet_us: f64| (2.0 * quiet_us).max(SLICE_US as f64 + 100.0);
        let (bound_us, attended_bound_us) = (bound(quiet.p99_us), bound(quiet.attended_p99_us));
        Ok(Row {
            attack: name,
            ratio: [attacked.p99_us / quiet.p99_us, quartile(1), quartile(3)],
            attended_ratio: attacked.attended_p99_us / quiet.attended_p99_us,
            bound_us,
            reached: attacked.p99_us <= bound_us && lost + wrong == 0,
            attended_bound_us,
            attended_reached: attacked.attended_p99_us <= attended_bound_us && lost + wrong == 0,
            quiet,
            attacked,
            lost,
            wrong,
            sent: thousands(sent),
            shed: thousands(after.0 - before.0),
            dropped_early: thousands(after.1 - before.1),
        })
    }

    /// Measures the victim while the attacks run; returns when nothing of them is under way any more.
    fn measure(&mut self, attacks: &[Attack], attackers: &mut [Attacker]) -> Result<Seen, Failure> {
        let stop = AtomicBool::new(false);
        let pushed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            if attacks.contains(&Attack::Pushes) {
                let (server, stop, pushed) = (self.server, &stop, &pushed);
                scope.spawn(move || push_for_ever(server, stop, pushed));
            }
            let seen = self.measure_beside(attackers);
            stop.store(true, Relaxed);
            let mut seen = seen?;
            seen.sent += pushed.load(Relaxed);
            Ok(seen)
        })
    }

    fn measure_beside(&mut self, attackers: &mut [Attacker]) -> Result<Seen, Failure> {
        let mut seen = Seen::default();
        self.victims_turns(attackers, SETTLE, &mut Seen::default())?;
        let (stolen, sent) = (stolen_ms(), |attackers: &[Attacker]| attackers.iter().map(|one| one.sent).sum::<u64>());
        let sent_before = sent(attackers);
        self.victims_turns(attackers, Duration::from_secs_f64(self.seconds), &mut seen)?;
        (seen.stolen_ms, seen.sent) = (stolen_ms() - stolen, sent(attackers) - sent_before);
        let begun = Instant::now();
        // All of them each time: an answer that nobody takes is sent again.
        while attackers.iter_mut().map(Attacker::has_ended).filter(|ended| !ended).count() > 0 {
            if begun.elapsed() > DRAIN {
                return Err(Failure::new("what an attack has left under way does not end"));
            }
            std::thread::yield_now();
        }
        Ok(seen)
    }

    /// Sends the victim's requests at their times, and turns the attackers between them.
    fn victims_turns(&mut self, attackers: &mut [Attacker], time: Duration, seen: &mut Seen) -> Result<(), Failure> {
        let gap = Duration::from_nanos(1_000_000_000 / RATE);
        let (mut clock, mut next, mut number) = (Clock::new(), Duration::ZERO, 0u64);
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
            self.connection.poll(|mark, answer| {
                let Some(due) = under_way.remove(&mark) else { return };
                seen.answered(&mut clock, due);
                let Ok(answer) = answer else { return seen.lost += 1 };
                let right = answer.operations().next().is_some_and(|operation| {
                    operation.is_ok_and(|o| o.status == Status::Ok && o.value == value(mark % RECORDS))
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

fn fill(connection: &mut Connection, table: u64) -> Result<(), Failure> {
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
    // What `long` reads: a list of one key.
    let mut message = connection.message();
    let list = [&16u16.to_le_bytes()[..], &key(1)].concat();
    message.put(table, b"list", &list, &PutOptions::default());
    connection.send(0, message)?;
    while connection.in_flight() > 0 {
        connection.poll(|_, _| {});
    }
    Ok(())
}

fn line(row: &Row) -> String {
    let Row { attack, quiet, attacked, ratio: [ratio, low, high], attended_ratio, bound_us, attended_bound_us, .. } =
        row;
    let Row { lost, wrong, sent, shed, dropped_early, .. } = row;
    let verdict = |reached| if reached { "reached" } else { "NOT reached" };
    let side = |name: &str, side: &Side| {
        let Side { p50_us, p99_us, p999_us, attended_p99_us, samples, unattended, gaps, stolen_ms } = side;
        format!(
            "{name} p50 {p50_us:>6.1} p99 {p99_us:>7.1} p99.9 {p999_us:>7.1} us; attended p99 {attended_p99_us:>6.1} us \
             ({unattended} of {samples} not: {gaps} gaps, {stolen_ms} ms stolen)"
        )
    };
    let (quiet, attacked) = (side("quiet ", quiet), side("attack", attacked));
    let (all, attended) = (verdict(row.reached), verdict(row.attended_reached));
    format!(
        "{attack}: {lost} lost, {wrong} wrong [{sent:.0} k/s sent, {shed:.0} shed, {dropped_early:.1} dropped early]\n  {quiet}\n  {attacked}\n  \
         p99 ratio {ratio:.2} (rounds' quartiles {low:.2} to {high:.2}), at most {bound_us:.0} us: {all}; \
         attended {attended_ratio:.2}, at most {attended_bound_us:.0} us: {attended}"
    )
}
