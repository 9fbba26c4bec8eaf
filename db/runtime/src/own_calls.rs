//! The host's functions that reach no table: random numbers and the clock.
//!
//! Guarantees: as `host.rs`. A generator belongs to one invocation: it is seeded by the kernel for it, and gone before
//! the next one begins.
#![allow(unsafe_code)]

use std::time::{SystemTime, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use sandstorm_api::abi::{self, MAX_RANDOM_BYTES};

use super::host::{call, status_code};
use super::invocation::InvocationState;

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

pub(super) unsafe extern "C" fn random(invocation: *mut abi::InvocationHeader, bytes: *mut u8, len: usize) -> u32 {
    let fill = |body: &mut InvocationState| {
        if len > MAX_RANDOM_BYTES || bytes.is_null() {
            return Err(abi::STATUS_INVALID);
        }
        // SAFETY: the library's buffer outlives the call. It may be uninitialised, so it is written before it is a slice.
        let bytes = unsafe {
            bytes.write_bytes(0, len);
            std::slice::from_raw_parts_mut(bytes, len)
        };
        body.random.fill(bytes)
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, _| status_code(fill(body))) }
}

pub(super) unsafe extern "C" fn now_us(invocation: *mut abi::InvocationHeader) -> u64 {
    let mut now_us = 0;
    let read = |_: &mut InvocationState, _: &sandstorm_store::Participant| {
        now_us = clock_us();
        abi::STATUS_OK
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, read) };
    now_us
}

/// Returns the microseconds since the Unix epoch, now.
pub(super) fn clock_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
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
