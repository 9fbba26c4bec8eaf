//! The outcome of an operation, the cause of an invocation's failure, and enums that travel as one byte.

/// Gives an enum of one byte all its values, and the value of a byte.
macro_rules! from_byte {
    ($type:ty { $($variant:ident),* $(,)? }) => {
        impl $type {
            /// All values, in the order of their numbers.
            pub const ALL: &'static [$type] = &[$(<$type>::$variant),*];

            /// The value of that number, if there is one.
            pub const fn from_byte(byte: u8) -> Option<$type> {
                match byte {
                    $(x if x == <$type>::$variant as u8 => Some(<$type>::$variant),)*
                    _ => None,
                }
            }
        }
    };
}
pub(super) use from_byte;

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RpcStatus {
    /// Done.
    Ok = 0,
    /// No record under the key.
    NotFound = 1,
    /// The condition of the write did not hold. An invocation: its transaction met others' writes at each attempt.
    Conflict = 2,
    /// The message or operation is not well-formed; the value says where.
    Malformed = 3,
    /// The message's format version is not spoken here; the value names the one that is.
    Version = 4,
    /// The session has not presented this tenant's token.
    Unauthenticated = 5,
    /// No such tenant.
    UnknownTenant = 6,
    /// The tenant has no such table.
    UnknownTable = 7,
    /// The tenant has no such extension (or not that version of it).
    UnknownExtension = 8,
    /// Another server owns this part of the table.
    WrongServer = 9,
    /// The tenant is over a quota; the value names it.
    OverQuota = 10,
    /// The table is full (store mode).
    OutOfMemory = 11,
    /// A key, value, arguments or reply is longer than its limit; the value names it.
    TooLarge = 12,
    /// The invocation was ended; number = cause.
    Killed = 13,
    /// The extension returned an error; number = its code, value = its text.
    Failed = 14,
    /// The server has no room for the request now; it was not run.
    Overloaded = 15,
    /// The request is outside of the window of remembered answers; it may or may not have run.
    Stale = 16,
    /// Increment: the value is not a decimal number, or the sum would overflow.
    NotANumber = 17,
    /// The extension is suspended.
    Suspended = 18,
    /// The server is shutting down; the request was not run.
    ShuttingDown = 19,
    /// The table is another tenant's and was granted for reading only; nothing was written.
    ReadOnly = 20,
    /// The tenant's data are reached in a sealed session only from where this came from.
    SealRequired = 21,
    /// It was done, or read, but the server does not know that it is on the disk: a crash may take it back.
    NotDurable = 22,
    /// The record is on the server's disk, which does not read it or has damaged it; nothing was changed.
    NotRead = 23,
    /// What is behind the table does not take the change, and nothing was changed; the value says why.
    NotBacked = 24,
}

/// The reason why an invocation was ended; travels as `number` beside [`RpcStatus::Killed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum KillCause {
    /// It computed longer than its slice between two yields.
    SliceBudget = 1,
    /// It computed longer than its total budget.
    TotalBudget = 2,
    /// It panicked.
    Panic = 3,
    /// Its arena's quota was used up.
    OutOfMemory = 4,
    /// It ran off its stack.
    StackOverflow = 5,
    /// It divided by zero (the processor's own trap).
    DivisionByZero = 6,
    /// It executed an illegal instruction (an abort, or an unreachable that was reached).
    IllegalInstruction = 7,
    /// It touched memory that is not mapped.
    MemoryFault = 8,
    /// Its tenant was deleted, or the server stopped.
    Unloaded = 9,
    /// It was under way for a while when much memory of replaced records waited for its end.
    ReclaimPressure = 10,
}

from_byte!(RpcStatus {
    Ok,
    NotFound,
    Conflict,
    Malformed,
    Version,
    Unauthenticated,
    UnknownTenant,
    UnknownTable,
    UnknownExtension,
    WrongServer,
    OverQuota,
    OutOfMemory,
    TooLarge,
    Killed,
    Failed,
    Overloaded,
    Stale,
    NotANumber,
    Suspended,
    ShuttingDown,
    ReadOnly,
    SealRequired,
    NotDurable,
    NotRead,
    NotBacked,
});
from_byte!(KillCause {
    SliceBudget,
    TotalBudget,
    Panic,
    OutOfMemory,
    StackOverflow,
    DivisionByZero,
    IllegalInstruction,
    MemoryFault,
    Unloaded,
    ReclaimPressure,
});
