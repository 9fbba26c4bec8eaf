//! What a call waited for between its turns, and within them.

/// How often something was waited for, and for how long together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitSum {
    /// How often.
    pub count: u32,
    /// Nanoseconds of all of them.
    pub ns: u64,
}

impl WaitSum {
    /// Of so many waits.
    pub fn new(count: u32, ns: u64) -> WaitSum {
        WaitSum { count, ns }
    }
}

/// What a call waited for. The first six are the times from the end of a turn to the beginning of its next one, by why
/// that turn ended; so each of them has the wait for the next turn in it. Calls of other extensions count as their
/// callers' own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallPauses {
    /// It had computed past its slice.
    pub switched: WaitSum,
    /// Records that it reads came from memory, or others had their turn between two parts of a range.
    pub reads: WaitSum,
    /// It yielded by itself.
    pub yields: WaitSum,
    /// Records were not in memory: they were on the disk, or behind their table.
    pub cold: WaitSum,
    /// A call of another extension was to begin, or had ended.
    pub calls: WaitSum,
    /// It was to begin anew: others wrote what its transaction had read.
    pub retries: WaitSum,
    /// Within its turns: its writes and commits waited for a lock that another thread had.
    pub locks: WaitSum,
    /// Within its turns: its reads waited until another thread's commit had made all of its changes.
    pub commits: WaitSum,
    /// From the beginning of its first turn until it began anew for the last time: what it did until then was in vain.
    /// It is no wait of its own: turns and waits of that time are in it.
    pub vain_ns: u64,
}
