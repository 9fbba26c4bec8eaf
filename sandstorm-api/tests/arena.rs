//! The promises of the arena's allocator: blocks of the asked size and alignment, disjoint while they live, inside of
//! the quota. Released blocks are used again.

use std::alloc::Layout;
use std::ops::Range;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use sandstorm_api::abi::{ARENA_CLASSES, InvocationArena};
use sandstorm_api::rt::{allocate, release};

const QUOTA: usize = 64 << 10;

/// An arena over memory of its own, which only its pointers refer to.
struct Owned {
    memory: *mut [u128],
    arena: InvocationArena,
}

impl Owned {
    fn new() -> Owned {
        let memory = Box::into_raw(vec![0u128; QUOTA / 16].into_boxed_slice());
        let start = memory.cast::<u8>();
        let end = start.wrapping_add(QUOTA);
        Owned {
            memory,
            arena: InvocationArena { next: start, end, limit: end, free: [std::ptr::null_mut(); ARENA_CLASSES] },
        }
    }

    fn bounds(&self) -> Range<usize> {
        let start = self.memory.cast::<u8>().addr();
        start..start + QUOTA
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the memory came from `Box::into_raw`, and no block of it is used any more.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { size: usize, align_log2: u32 },
    Release { which: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (prop_oneof![0usize..64, 0usize..5000], 0u32..9).prop_map(|(size, align_log2)| Step::Allocate { size, align_log2 }),
        2 => any::<usize>().prop_map(|which| Step::Release { which }),
    ];
    proptest::collection::vec(step, 0..200)
}

/// A block that lives: where it is and the byte that it was filled with.
struct Block {
    at: *mut u8,
    layout: Layout,
    fill: u8,
}

impl Block {
    fn range(&self) -> Range<usize> {
        self.at.addr()..self.at.addr() + self.layout.size()
    }

    fn is_intact(&self) -> bool {
        // SAFETY: the block lives and was filled over its whole size.
        unsafe { std::slice::from_raw_parts(self.at, self.layout.size()) }.iter().all(|byte| *byte == self.fill)
    }
}

fn config() -> Config {
    let cases = if cfg!(miri) { 8 } else { 256 };
    Config { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..Config::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn blocks_are_disjoint_aligned_and_inside_the_quota(steps in steps()) {
        let mut owned = Owned::new();
        let bounds = owned.bounds();
        let mut live: Vec<Block> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Allocate { size, align_log2 } => {
                    let layout = Layout::from_size_align(size, 1 << align_log2).unwrap();
                    // SAFETY: the arena lives and this thread alone uses it.
                    let at = unsafe { allocate(&raw mut owned.arena, layout) };
                    if at.is_null() {
                        continue;
                    }
                    let block = Block { at, layout, fill: number as u8 };
                    let range = block.range();
                    prop_assert_eq!(range.start % layout.align(), 0);
                    prop_assert!(bounds.start <= range.start && range.end <= bounds.end);
                    for other in &live {
                        let (one, two) = (block.range(), other.range());
                        prop_assert!(one.end <= two.start || two.end <= one.start || one.is_empty() || two.is_empty());
                    }
                    // SAFETY: the block is ours, `size` bytes long.
                    unsafe { at.write_bytes(block.fill, size) };
                    live.push(block);
                }
                Step::Release { which } if !live.is_empty() => {
                    let block = live.swap_remove(which % live.len());
                    prop_assert!(block.is_intact());
                    // SAFETY: the block came from `allocate` with this layout and is not used any more.
                    unsafe { release(&raw mut owned.arena, block.at, block.layout) };
                }
                Step::Release { .. } => {}
            }
        }
        prop_assert!(live.iter().all(Block::is_intact));
    }
}

#[test]
fn allocating_and_releasing_in_a_loop_stays_within_the_quota() {
    let mut owned = Owned::new();
    let layout = Layout::from_size_align(1000, 8).unwrap();
    let rounds = if cfg!(miri) { 200 } else { 100_000 };
    for _ in 0..rounds {
        // SAFETY: the arena lives; the block is released once, with its layout.
        unsafe {
            let at = allocate(&raw mut owned.arena, layout);
            assert!(!at.is_null(), "a released block is used again");
            release(&raw mut owned.arena, at, layout);
        }
    }
}

#[test]
fn a_full_arena_and_a_monstrous_layout_answer_null() {
    let mut owned = Owned::new();
    let layout = Layout::from_size_align(1024, 16).unwrap();
    // SAFETY: the arena lives; the blocks are never used.
    unsafe {
        for _ in 0..QUOTA / 1024 {
            assert!(!allocate(&raw mut owned.arena, layout).is_null());
        }
        assert!(allocate(&raw mut owned.arena, Layout::from_size_align(1, 1).unwrap()).is_null());
        for size in [1 << 27, 1 << 40, isize::MAX as usize - 15] {
            assert!(allocate(&raw mut owned.arena, Layout::from_size_align(size, 16).unwrap()).is_null());
        }
    }
}
