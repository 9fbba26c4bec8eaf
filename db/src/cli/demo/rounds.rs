//! Interleaved measurements, alone and beside runaways, and their display: medians of the rounds, with the machine's
//! own activity. A disturbance of the machine then affects one round, and does not look like the server's fault.

use sandstorm_client::load::ClassReport;

use super::machine_activity::MachineActivity;

/// Part of the processors that other programs may use before the output says that they affect the figures.
const QUIET_SHARE: f64 = 0.05;

/// One measurement, and the machine's activity during it.
#[derive(Clone, Debug)]
pub(super) struct MeasuredRound {
    pub(super) row: ClassReport,
    pub(super) machine: MachineActivity,
}

/// The median; for an even number the upper of the two middle values. 0 if there is none.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn longest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, f64::max)
}

/// Two lines: the latency of Alice's calls, and the machine's activity.
pub(super) fn render_rounds(when: &str, rounds: &[MeasuredRound]) -> String {
    let of = |value: fn(&MeasuredRound) -> f64| rounds.iter().map(value);
    let sum = |value: fn(&ClassReport) -> u64| rounds.iter().map(|round| value(&round.row)).sum::<u64>();
    let (p99, p99_most) = (median(of(|round| round.row.p99_us)), longest(of(|round| round.row.p99_us)));
    format!(
        "{when:>15}: {:>7.0} calls/s, each over 30 records; p50 {:.0} us, p99 {p99:.0} us (worst round {p99_most:.0}), longest {:.0} us; \
         {} failed, {} of {} checked were wrong\n{:>15}  {}",
        median(of(|round| round.row.per_s)),
        median(of(|round| round.row.p50_us)),
        longest(of(|round| round.row.max_us)),
        sum(|row| row.count - row.ok),
        sum(|row| row.wrong),
        sum(|row| row.verified),
        "",
        machine(rounds)
    )
}

fn machine(rounds: &[MeasuredRound]) -> String {
    let of = |value: fn(&MachineActivity) -> f64| rounds.iter().map(move |round| value(&round.machine));
    format!(
        "the machine meanwhile: an idle thread was woken {:.0} us late at p99, {:.0} us at most; other programs took {:.2} of {} \
         processors, the hypervisor {:.2}",
        median(of(|machine| machine.late_p99_us)),
        longest(of(|machine| machine.late_max_us)),
        median(of(|machine| machine.others)),
        rounds.first().map_or(0, |round| round.machine.processors),
        median(of(|machine| machine.stolen)),
    )
}

/// A remark on figures that were taken while the machine was busy with other work, if it was.
pub(super) fn remark<'a>(rounds: impl Iterator<Item = &'a MeasuredRound> + Clone) -> Option<String> {
    let processors = rounds.clone().next()?.machine.processors.max(1) as f64;
    let taken = median(rounds.map(|round| round.machine.others + round.machine.stolen));
    (taken / processors > QUIET_SHARE).then(|| {
        format!(
            "note: others took {:.0} % of this machine, so these latencies are the machine's as much as the server's; a quiet \
             machine shows what the server does",
            100.0 * taken / processors
        )
    })
}

#[cfg(test)]
mod tests {
    use sandstorm_client::load::Class;

    use super::*;

    fn round(per_s: f64, p99_us: f64, others: f64) -> MeasuredRound {
        let row = ClassReport {
            class: Class::Aggregate,
            count: 100,
            ok: 99,
            per_s,
            errors: Default::default(),
            missed: 0,
            verified: 10,
            wrong: 0,
            mean_us: 1.0,
            p50_us: p99_us / 10.0,
            p90_us: 2.0,
            p99_us,
            p999_us: 3.0,
            max_us: p99_us * 2.0,
            seen_p50_us: p99_us / 10.0,
            seen_p99_us: p99_us,
            seen_p999_us: 3.0,
        };
        let machine =
            MachineActivity { late_p99_us: p99_us + 1.0, late_max_us: 9_000.0, others, stolen: 0.0, processors: 4 };
        MeasuredRound { row, machine }
    }

    #[test]
    fn one_bad_round_of_the_machine_is_shown_as_one() {
        let rounds = [round(900.0, 100.0, 0.0), round(50.0, 30_000.0, 3.0), round(1000.0, 120.0, 0.02)];
        assert_eq!(
            render_rounds("beside runaways", &rounds),
            "beside runaways:     900 calls/s, each over 30 records; p50 12 us, p99 120 us (worst round 30000), longest 60000 us; \
             3 failed, 0 of 30 checked were wrong\n                 the machine meanwhile: an idle thread was woken 121 us late at \
             p99, 9000 us at most; other programs took 0.02 of 4 processors, the hypervisor 0.00"
        );
        assert_eq!(remark(rounds.iter()), None, "most of the time it was quiet");
    }

    #[test]
    fn a_busy_machine_is_named_beside_the_figures() {
        let rounds = [round(1.0, 1.0, 1.0), round(1.0, 1.0, 2.0), round(1.0, 1.0, 1.5)];
        let remark_text = remark(rounds.iter()).expect("busy");
        assert!(remark_text.starts_with("note: others took 38 % of this machine"), "{remark_text}");
        assert_eq!(remark([].iter()), None);
        assert_eq!((median([].into_iter()), median([3.0, 1.0].into_iter())), (0.0, 3.0));
    }
}
