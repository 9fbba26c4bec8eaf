//! A move of slots, as its target tells of it.

use std::time::{Duration, Instant};

use sandstorm_client::control::{Control, SlotMoveSpec};
use sandstorm_client::load::LoadPeriod;
use sandstorm_terminal::output::CliError;

/// Interval at which the target is asked: a tenth of the time lines' periods.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// Longest time of a move. One that writers outrun is cancelled then.
pub(super) const MOVE_PATIENCE: Duration = Duration::from_secs(30);

/// A move from the command until the target owned the slots.
pub(super) struct ObservedMove {
    pub(super) begun: Instant,
    pub(super) ended: Instant,
    /// Whether it came to its end in time.
    pub(super) is_done: bool,
    /// Bytes that were copied by then.
    looks: Vec<(Instant, f64)>,
}

/// One period of a time line.
pub(super) struct MovePoint {
    /// Seconds from the move's begin to the period's.
    pub(super) at_s: f64,
    pub(super) gets: LoadPeriod,
    pub(super) moved_mb_per_s: f64,
}

impl ObservedMove {
    /// Begins a move, by a command to its target, and looks until that owns the slots.
    pub(super) fn watch(target: &Control, spec: &SlotMoveSpec) -> Result<ObservedMove, CliError> {
        let begun = Instant::now();
        target.move_slots(spec)?;
        let mut looks = Vec::new();
        loop {
            let status = target.cluster()?;
            let now = Instant::now();
            let owned = status.servers.iter().find(|one| one.id == spec.to).map_or(&[][..], |one| &one.slots);
            let owns = |wanted: &[u16; 2]| owned.iter().any(|has| has[0] <= wanted[0] && wanted[1] <= has[1]);
            if spec.slots.iter().all(owns) {
                return Ok(ObservedMove { begun, ended: now, is_done: true, looks });
            }
            if begun.elapsed() > MOVE_PATIENCE {
                target.cancel_moves(&spec.slots)?;
                return Ok(ObservedMove { begun, ended: now, is_done: false, looks });
            }
            let of_target = status.moves.iter().filter(|one| one.to == spec.to && !one.handed_over);
            looks.push((now, of_target.filter_map(|one| one.bytes).sum::<u64>() as f64));
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// The time that it took; NaN if it has not ended.
    pub(super) fn seconds(&self) -> f64 {
        if self.is_done { (self.ended - self.begun).as_secs_f64() } else { f64::NAN }
    }

    /// The bytes that were copied by then.
    fn bytes_by(&self, at: Instant) -> f64 {
        let known = self.looks.partition_point(|(look, _)| *look <= at);
        known.checked_sub(1).and_then(|last| self.looks.get(last)).map_or(0.0, |(_, bytes)| *bytes)
    }

    /// What was found in each period of a load, and what was moved in it.
    pub(super) fn points(&self, periods: &[LoadPeriod], length: Duration) -> Vec<MovePoint> {
        let point = |gets: &LoadPeriod| {
            let since = gets.begun.saturating_duration_since(self.begun).as_secs_f64();
            let before = self.begun.saturating_duration_since(gets.begun).as_secs_f64();
            // A copy that begins again has fewer bytes than before.
            let bytes = (self.bytes_by(gets.begun + length) - self.bytes_by(gets.begun)).max(0.0);
            let moved_mb_per_s = bytes / 1e6 / length.as_secs_f64();
            MovePoint { at_s: since - before, gets: *gets, moved_mb_per_s }
        };
        periods.iter().map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandstorm_client::load::TimeLine;

    #[test]
    fn each_period_has_the_bytes_that_were_copied_in_it() {
        let begun = Instant::now();
        let ms = Duration::from_millis;
        let looks = vec![(begun + ms(50), 1e6), (begun + ms(150), 4e6), (begun + ms(250), 3e6)];
        let moved = ObservedMove { begun, ended: begun + ms(260), is_done: true, looks };
        assert_eq!(moved.seconds(), 0.26);
        assert!(ObservedMove { is_done: false, looks: Vec::new(), ..moved }.seconds().is_nan());
        let empty = TimeLine::new(ms(100), None).between(begun, begun);
        let at = |begun: Instant| LoadPeriod { begun, ..empty };
        let periods = [at(begun), at(begun + ms(100)), at(begun + ms(200))];
        let points = moved.points(&periods, ms(100));
        let found: Vec<(f64, f64)> =
            points.iter().map(|point| ((point.at_s * 10.0).round(), point.moved_mb_per_s.round())).collect();
        assert_eq!(found, [(0.0, 10.0), (1.0, 30.0), (2.0, 0.0)]);
        let later = ObservedMove { begun: begun + ms(100), ..moved };
        assert_eq!((later.points(&periods, ms(100))[0].at_s * 10.0).round(), -1.0);
    }
}
