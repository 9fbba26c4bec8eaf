//! The computations that clients do in place of an extension over what they got: the same arithmetic, digests and
//! decisions.

use super::load_request::LoadRequest;
use super::multi_get::multi_get_values;
use super::{Class, Data, rows};
use crate::Error;
use std::time::{Duration, Instant};

/// Number of timed computations of one answer.
const COMPUTE_SAMPLES: u32 = 64;

/// Returns the number that a value starts with; a shorter value counts as if it ended in zeros.
fn leading_u64(value: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(value).for_each(|(to, from)| *to = *from);
    u64::from_le_bytes(bytes)
}

impl Data {
    /// Writes what the extension that `request` stands for would have replied, from the answer to its last get.
    pub(super) fn compute(&self, request: &LoadRequest, reply: &[u8], out: &mut Vec<u8>) {
        out.clear();
        match request.class {
            Class::AggregateGets => {
                let (mut sum, mut counted, mut missing) = (0u64, 0u32, 0u32);
                for value in multi_get_values(reply) {
                    match value {
                        Some(value) => {
                            sum = sum.wrapping_add(rows::lcg_rounds(leading_u64(value), self.rounds));
                            counted += 1;
                        }
                        None => missing += 1,
                    }
                }
                out.extend_from_slice(&sum.to_le_bytes());
                out.extend_from_slice(&counted.to_le_bytes());
                out.extend_from_slice(&missing.to_le_bytes());
            }
            Class::ChecksumGets => {
                let mut digest = hmac_sha256::Hash::new();
                multi_get_values(reply).flatten().for_each(|value| digest.update(value));
                out.extend_from_slice(&digest.finalize());
            }
            Class::AnalysisGets => {
                out.extend_from_slice(&rows::encode_analysis(multi_get_values(reply).flatten().map(rows::classify)));
            }
            Class::AuthGets => {
                let password = rows::password(request.id, request.twist == 0);
                out.push(u8::from(rows::verify_password(reply, password.as_bytes())));
            }
            // The last batch decides; all that counts is whether its records are there.
            Class::LongGets => out.extend_from_slice(&self.long_gets.to_le_bytes()),
            _ => {}
        }
    }

    /// Measures the time that this machine takes to compute the answer of a class that is asked by gets: the median of
    /// many.
    ///
    /// # Errors
    /// The class is not one that clients compute anything for.
    pub fn measure_compute_time(&self, class: Class) -> Result<Duration, Error> {
        let called = class.called().filter(|_| !matches!(class, Class::ChainGets | Class::LongGets | Class::AuthGets));
        if called.is_none() {
            return Err(Error::Protocol { text: format!("{} is nothing that clients compute", class.name()) });
        }
        let (mut reply, mut key, mut value, mut out) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for at in 0..self.list_len {
            self.write_member(class, 0, at, &mut key, &mut value);
            reply.extend_from_slice(&[0; 13]);
            reply.extend_from_slice(&(value.len() as u32).to_le_bytes());
            reply.extend_from_slice(&value);
        }
        let request = LoadRequest { class, id: 0, step: 1, twist: 0, intended_ns: 0, verify: false, hops: 0 };
        let mut times: Vec<Duration> = (0..COMPUTE_SAMPLES)
            .map(|_| {
                let begun = Instant::now();
                self.compute(&request, std::hint::black_box(&reply), &mut out);
                std::hint::black_box(&out);
                begun.elapsed()
            })
            .collect();
        times.sort_unstable();
        Ok(times.get(times.len() / 2).copied().unwrap_or_default())
    }
}
