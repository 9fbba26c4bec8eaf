//! The questions to a worker about the calls under way there, and its answers.

use std::sync::Arc;

use sandstorm_runtime::CallLevel;

/// A question about a tenant's calls at one worker.
pub struct CallLook {
    /// The tenant's id.
    pub tenant: u32,
    /// Calls of this extension, whichever it has called meanwhile; `None`: of all.
    pub extension: Option<Arc<str>>,
    /// Whether to find out where they are.
    pub with_places: bool,
    /// Takes the answer, on the worker's thread: it must not block. If the server stops before, it is dropped.
    pub done: CallLookDone,
}

/// Takes the calls of a worker.
pub type CallLookDone = Box<dyn FnOnce(WorkerCalls) + Send>;

/// The calls of a tenant at one worker.
#[derive(Debug, Default)]
pub struct WorkerCalls {
    /// The calls, no more than [`crate::limits::CALLS_SHOWN`].
    pub calls: Vec<CallUnderWay>,
    /// Further ones, which are not listed.
    pub more: usize,
}

/// A call under way.
#[derive(Debug)]
pub struct CallUnderWay {
    /// The worker.
    pub worker: u32,
    /// Time since it arrived, nanoseconds.
    pub age_ns: u64,
    /// Time since its last turn, nanoseconds; since it arrived, if it has had none.
    pub waiting_ns: u64,
    /// Whether a record that it waits for is behind its table, in a backing: else it is on the disk.
    pub awaits_backing: bool,
    /// Its turns, and those of them that ended because it computed past its slice.
    pub turns: u32,
    /// See `turns`.
    pub switches: u32,
    /// Its CPU time, nanoseconds.
    pub cpu_ns: u64,
    /// The extensions that it is in, the one that was called last first.
    pub levels: Vec<CallLevel>,
}
