//! The reasons for which an invocation cannot begin.

use std::io;

use sandstorm_accounts::MEMORY_TEXT;

/// The reason why an invocation cannot begin; nothing of it has run.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// Arguments and future do not fit into the memory quota.
    #[error("arguments and future take {needed} bytes, more than the invocation's memory quota of {quota} bytes")]
    TooLarge {
        /// The bytes of both.
        needed: usize,
        /// The quota.
        quota: usize,
    },
    /// The tenant's invocations together have as much memory as they may.
    #[error("{}", MEMORY_TEXT)]
    OverQuota,
    /// There are as many memories of sandboxed code as there may be, and the tenant has its share of them.
    #[error("the tenant's sandboxed invocations have its share of the memories that there are; try again later")]
    NoMemoryLeft,
    /// The operating system gives no memory.
    #[error("no memory for an invocation: {0}")]
    Memory(#[from] io::Error),
}
