//! Keys in a random order.

/// A sequence that visits keys without a pattern that the processor could predict.
pub(crate) struct Shuffle(pub(crate) u64);

impl Shuffle {
    pub(crate) fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0 ^ self.0 >> 29) * u128::from(below)) >> 64) as u64
    }
}
