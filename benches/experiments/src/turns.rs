//! Two sides that are measured by turns, in slices of some milliseconds: whatever else the machine does meets both
//! alike, and the median over many pairs leaves out the slices that it has met.

use sandstorm_terminal::output::CliError;

use super::report::{RoundSpread, median};

/// Pairs of slices in a round. A round's value is a median over them.
pub(super) const PAIRS: usize = 20;

/// What two sides cost, and the ratio of the first to the second, over all rounds.
#[derive(Debug)]
pub(super) struct PairedSides {
    pub(super) sides: [RoundSpread; 2],
    /// Of each round the median of its pairs' ratios: its spread is what is left of noise.
    pub(super) ratio: RoundSpread,
}

/// Measures both sides by turns; `slice` gives what a slice of one of them costs. The side that begins changes with
/// each pair.
pub(super) fn measure_by_turns(
    rounds: usize,
    mut slice: impl FnMut(usize) -> Result<f64, CliError>,
) -> Result<PairedSides, CliError> {
    let (mut costs, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    for _ in 0..rounds.max(1) {
        let (mut of_round, mut ratio_of_pair) = ([Vec::new(), Vec::new()], Vec::new());
        for pair in 0..PAIRS {
            let mut found = [0.0; 2];
            for side in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
                found[side] = slice(side)?;
            }
            of_round.iter_mut().zip(found).for_each(|(costs, cost)| costs.push(cost));
            ratio_of_pair.push(found[0] / found[1]);
        }
        costs.iter_mut().zip(&mut of_round).for_each(|(costs, of_round)| costs.push(median(of_round)));
        ratios.push(median(&mut ratio_of_pair));
    }
    Ok(PairedSides { sides: costs.map(RoundSpread::of), ratio: RoundSpread::of(ratios) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_that_meets_something_else_changes_nothing() {
        let mut slices = 0;
        let found = measure_by_turns(3, |side| {
            slices += 1;
            // Both sides become slower, and one slice of nine takes a thousand times as long.
            let drift = 1.0 + f64::from(slices) / 100_000.0;
            let disturbed = if slices % 9 == 0 { 1_000.0 } else { 1.0 };
            Ok([110.0, 100.0][side] * drift * disturbed)
        });
        let found = found.expect("nothing fails");
        assert_eq!(slices as usize, 3 * 2 * PAIRS);
        assert!((1.099..1.101).contains(&found.ratio.median), "{found:?}");
        assert!((found.ratio.most - found.ratio.least).abs() < 0.001, "{found:?}");
        assert!((100.0..101.0).contains(&found.sides[1].median), "{found:?}");
    }

    #[test]
    fn what_fails_ends_it() {
        assert!(measure_by_turns(3, |_| Err(CliError::new("as asked"))).is_err());
    }
}
