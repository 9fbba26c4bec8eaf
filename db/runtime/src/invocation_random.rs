//! Random numbers of an invocation. A generator belongs to one invocation: it is seeded by the kernel for it, and gone
//! before the next one begins.

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use sandstorm_api::abi;

/// The random numbers of an invocation, which are seeded at the first use.
#[derive(Debug, Default)]
pub(super) struct InvocationRandom(Option<Box<StdRng>>);

impl InvocationRandom {
    /// Fills bytes with random ones.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> Result<(), u32> {
        let generator = match &mut self.0 {
            Some(generator) => generator,
            none => {
                // The kernel refuses only before it has gathered randomness after its own start.
                let seeded = StdRng::try_from_os_rng().map_err(|_| abi::STATUS_INVALID)?;
                none.insert(Box::new(seeded))
            }
        };
        generator.fill_bytes(bytes);
        Ok(())
    }

    /// Forgets the generator: its numbers are one invocation's alone.
    #[inline]
    pub(super) fn forget(&mut self) {
        if self.0.is_some() {
            self.0 = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_an_invocations_own() {
        let (mut random, mut bytes) = (InvocationRandom::default(), [[0; 16]; 3]);
        random.fill(&mut bytes[0]).expect("random numbers");
        random.fill(&mut bytes[1]).expect("random numbers");
        random.forget();
        assert!(random.0.is_none());
        random.fill(&mut bytes[2]).expect("random numbers");
        assert!(bytes[0] != bytes[1] && bytes[1] != bytes[2] && bytes[0] != bytes[2]);
    }
}
