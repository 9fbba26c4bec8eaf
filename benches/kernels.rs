//! Computations without reads, for the comparison of the tiers: the argument's first byte says which.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

use alloc::collections::BTreeMap;
use core::fmt::Write;

use sandstorm_api::prelude::*;

/// Runs one of them and replies with its result.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let result = match args.first() {
        Some(0) => hash_loop(200_000),
        Some(1) => dependent_walk(200_000),
        Some(2) => matrix_product(64),
        Some(3) => parsed_numbers(5_000),
        _ => sorted_map(5_000),
    };
    db.reply(&result.to_le_bytes())
}

fn hash_loop(rounds: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for round in 0..rounds {
        hash = (hash ^ (round & 255)).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^= hash >> 29;
    }
    hash
}

fn dependent_walk(steps: usize) -> u64 {
    let next: Vec<u32> = (0..4096_u32).map(|index| index.wrapping_mul(2_654_435_761) >> 7).collect();
    let mut at = 0_usize;
    for _ in 0..steps {
        at = next[at % next.len()] as usize;
    }
    at as u64
}

fn matrix_product(size: usize) -> u64 {
    let left: Vec<f64> = (0..size * size).map(|index| index as f64 * 0.5).collect();
    let right = left.clone();
    let mut sum = 0.0;
    for row in 0..size {
        for column in 0..size {
            let mut cell = 0.0;
            for index in 0..size {
                cell += left[row * size + index] * right[index * size + column];
            }
            sum += cell;
        }
    }
    sum as u64
}

fn parsed_numbers(count: u32) -> u64 {
    let mut text = String::new();
    for number in 0..count {
        let _ = write!(text, "{number} ");
    }
    text.split(' ').filter_map(|word| word.parse::<u64>().ok()).sum()
}

fn sorted_map(count: u32) -> u64 {
    let mut map = BTreeMap::new();
    for number in 0..count {
        map.insert(number.wrapping_mul(2_654_435_761), number);
    }
    map.iter().take(100).fold(0, |sum, (key, value)| sum ^ u64::from(*key) ^ u64::from(*value))
}
