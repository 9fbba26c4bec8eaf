//! A checker of what transactions have read and written: whether there is an order of all of them, in which those that
//! ended before others began come first, and in which each reads what those before it have written.
#![allow(dead_code, unreachable_pub)]

use std::collections::{HashMap, HashSet};

/// A transaction that was committed. Each writes its own id, and has read every key that it writes.
#[derive(Clone, Debug)]
pub struct CommittedTransaction {
    /// From 1; 0 is the state at the beginning.
    pub id: u64,
    /// Keys, and the ids that it has read there.
    pub reads: Vec<(u8, u64)>,
    pub writes: Vec<u8>,
    /// Moments before and after it.
    pub begun: u64,
    pub ended: u64,
}

/// Whether there is an order of all of them, in which those that ended before others began come first, and in which
/// each reads what those before it have written.
pub fn check_serialisable(history: &[CommittedTransaction]) -> Result<(), String> {
    let mut next: HashMap<(u8, u64), u64> = HashMap::new();
    for happened in history {
        for key in &happened.writes {
            let Some((_, old)) = happened.reads.iter().find(|(read, _)| read == key) else {
                return Err(format!("{} writes {key} unread", happened.id));
            };
            if let Some(other) = next.insert((*key, *old), happened.id) {
                return Err(format!("{other} and {} have both replaced {old} of key {key}", happened.id));
            }
        }
    }
    let mut edges: HashMap<u64, HashSet<u64>> = HashMap::new();
    let mut add = |from: u64, to: u64| {
        if from != to {
            edges.entry(from).or_default().insert(to);
        }
    };
    for happened in history {
        for (key, old) in &happened.reads {
            add(*old, happened.id);
            next.get(&(*key, *old)).into_iter().for_each(|writer| add(happened.id, *writer));
        }
        history.iter().filter(|earlier| earlier.ended < happened.begun).for_each(|earlier| {
            add(earlier.id, happened.id);
        });
    }
    // Those that nothing has to come before go first, until none is left.
    let mut before: HashMap<u64, usize> = history.iter().map(|happened| (happened.id, 0)).collect();
    before.insert(0, 0);
    for to in edges.values().flatten() {
        *before.get_mut(to).ok_or_else(|| format!("{to} was read and never committed"))? += 1;
    }
    let mut ready: Vec<u64> = before.iter().filter(|(_, count)| **count == 0).map(|(id, _)| *id).collect();
    let mut placed = 0;
    while let Some(id) = ready.pop() {
        placed += 1;
        for to in edges.get(&id).into_iter().flatten() {
            let count = before.get_mut(to).ok_or("an edge to nowhere")?;
            *count -= 1;
            if *count == 0 {
                ready.push(*to);
            }
        }
    }
    if placed == before.len() {
        return Ok(());
    }
    let mut stuck: Vec<_> = before.into_iter().filter(|(_, count)| *count > 0).map(|(id, _)| id).collect();
    stuck.sort_unstable();
    Err(format!("no order of these: {stuck:?}"))
}
