//! The functions of the host that a module may import: their names, types and numbers.

/// The types of WebAssembly that the host's functions use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberType {
    /// 32 bits: addresses, lengths, status codes.
    I32,
    /// 64 bits: table ids, hashes, versions, times.
    I64,
}

/// The name of the module that a module imports the host's functions from.
pub const IMPORT_MODULE: &str = "sandstorm";
/// Parameters that a function of the host has at most: as many as travel in registers.
pub const MAX_HOST_PARAMETERS: usize = 7;
/// Bytes that one call of [`HostFunction::MemoryCopy`] or [`HostFunction::MemoryFill`] treats: a switch to another
/// invocation waits for its end.
pub const MEMORY_PIECE_BYTES: u32 = 64 << 10;

macro_rules! host_functions {
    ($($(#[$doc:meta])* $variant:ident $name:literal ($($named:ident: $parameter:ident),*) $(-> $result:ident)?;)*) => {
        /// A function of the host.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum HostFunction {
            $($(#[$doc])* $variant,)*
        }

        impl HostFunction {
            /// All of them, by number.
            pub const ALL: &[HostFunction] = &[$(HostFunction::$variant),*];

            /// The name to import it by.
            pub fn name(self) -> &'static str {
                match self {
                    $(HostFunction::$variant => $name,)*
                }
            }

            /// The types of its parameters.
            pub fn parameters(self) -> &'static [NumberType] {
                match self {
                    $(HostFunction::$variant => &[$(NumberType::$parameter),*],)*
                }
            }

            /// The names of its parameters.
            pub fn parameter_names(self) -> &'static [&'static str] {
                match self {
                    $(HostFunction::$variant => &[$(stringify!($named)),*],)*
                }
            }

            /// The type of its result.
            pub fn result(self) -> Option<NumberType> {
                match self {
                    $(HostFunction::$variant => host_functions!(@result $($result)?),)*
                }
            }
        }
    };
    (@result) => { None };
    (@result $result:ident) => { Some(NumberType::$result) };
}

// Images name functions by their numbers: new ones come last.
host_functions! {
    /// Asks the processor for the bucket of a key, and writes the key's hash (u64).
    Prefetch "prefetch"(table: I64, key: I32, key_len: I32, hash: I32) -> I32;
    /// Asks for the record of a hash, once its bucket is there.
    PrefetchRecord "prefetch_record"(table: I64, hash: I64) -> I32;
    /// Reads a record: [`GuestRecord`](crate::guest_types::GuestRecord).
    Get "get"(table: I64, hash: I64, key: I32, key_len: I32, record: I32) -> I32;
    /// Writes a record, as [`GuestWrite`](crate::guest_types::GuestWrite) says unless that is 0, and its version (u64)
    /// unless that is 0.
    Put "put"(table: I64, key: I32, key_len: I32, value: I32, value_len: I32, options: I32, version: I32) -> I32;
    /// Deletes a record under the options' condition.
    Delete "delete"(table: I64, key: I32, key_len: I32, options: I32) -> I32;
    /// Adds to a decimal number, and writes the sum (i64) unless that is 0.
    Increment "increment"(table: I64, key: I32, key_len: I32, delta: I64, sum: I32) -> I32;
    /// Reads records from a cursor on, which it moves: [`GuestCursor`](crate::guest_types::GuestCursor).
    Scan "scan"(table: I64, cursor: I32, records: I32, limit: I32, filled: I32) -> I32;
    /// Finds a table's id (u64).
    TableByName "table_by_name"(name: I32, name_len: I32, table: I32) -> I32;
    /// Appends to the reply.
    Reply "reply"(bytes: I32, len: I32) -> I32;
    /// Says why the call fails.
    Fail "fail"(code: I32, text: I32, text_len: I32) -> I32;
    /// Ends the invocation; does not return.
    Abort "abort"(cause: I32, text: I32, text_len: I32);
    /// Grows the arena of a module that was made by the server's builder.
    Grow "grow"(bytes: I32) -> I32;
    /// As [`HostFunction::Prefetch`], for many keys: [`GuestKey`](crate::guest_types::GuestKey).
    PrefetchMany "prefetch_many"(table: I64, keys: I32, count: I32, hashes: I32) -> I32;
    /// As [`HostFunction::PrefetchRecord`], for many hashes.
    PrefetchRecords "prefetch_records"(table: I64, hashes: I32, count: I32) -> I32;
    /// As [`HostFunction::Get`], for many keys.
    GetMany "get_many"(table: I64, keys: I32, hashes: I32, count: I32, records: I32) -> I32;
    /// Makes a transaction's changes, or checks its reads.
    Commit "commit"(reads: I32, reads_len: I32, ranges: I32, ranges_len: I32, changes: I32, changes_len: I32) -> I32;
    /// Reads records of an ordered table: [`GuestRange`](crate::guest_types::GuestRange).
    Range "range"(table: I64, range: I32, records: I32, limit: I32, filled: I32) -> I32;
    /// Copies keys of an ordered table: [`GuestKeys`](crate::guest_types::GuestKeys).
    RangeKeys "range_keys"(table: I64, range: I32, keys: I32) -> I32;
    /// The length of the caller's arguments, bytes.
    ArgsLen "args_len"() -> I32;
    /// Copies the caller's arguments.
    ArgsCopy "args_copy"(to: I32);
    /// Milliseconds since the Unix epoch, as of the last poll.
    NowMs "now_ms"() -> I64;
    /// What `memory.copy` becomes, a piece at a time. Not to be imported.
    MemoryCopy "(memory.copy)"(to: I32, from: I32, len: I32);
    /// What `memory.fill` becomes, a piece at a time. Not to be imported.
    MemoryFill "(memory.fill)"(to: I32, byte: I32, len: I32);
    /// What `memory.size` becomes. Not to be imported.
    MemorySize "(memory.size)"() -> I32;
    /// What `memory.grow` becomes. Not to be imported.
    MemoryGrow "(memory.grow)"(pages: I32) -> I32;
    /// Copies a record's value into the module's own memory, and writes its whole length (u32) unless that is 0.
    GetCopy "get_copy"(table: I64, key: I32, key_len: I32, to: I32, capacity: I32, value_len: I32) -> I32;
    /// Counts the keys of a range of an ordered table, and writes their number (u64).
    Count "count"(table: I64, range: I32, count: I32) -> I32;
    /// Copies the key at a position of an ordered table: [`GuestKeys`](crate::guest_types::GuestKeys).
    Nth "nth"(table: I64, position: I64, keys: I32) -> I32;
    /// Writes the time at which a record expires (u64).
    Expiry "expiry"(table: I64, hash: I64, key: I32, key_len: I32, expires_at_ms: I32) -> I32;
    /// Gives a record another time to live.
    Touch "touch"(table: I64, key: I32, key_len: I32, ttl_ms: I64) -> I32;
    /// Fills a buffer with random bytes.
    Random "random"(to: I32, len: I32) -> I32;
    /// Microseconds since the Unix epoch, now.
    NowUs "now_us"() -> I64;
    /// Copies a secret of the tenant, and writes its whole length (u32) unless that is 0.
    Secret "secret"(name: I32, name_len: I32, to: I32, capacity: I32, len: I32) -> I32;
    /// Hands a line to the tenant's log.
    LogLine "log_line"(level: I32, text: I32, text_len: I32) -> I32;
    /// Asks for a call of another extension.
    CallBegin "call_begin"(name: I32, name_len: I32, args: I32, args_len: I32, notes: I32, notes_len: I32) -> I32;
    /// Writes the outcome of a call (u32), or forgets it.
    CallEnd "call_end"(code: I32) -> I32;
    /// Copies a part of a call that has ended, and writes its whole length (u32).
    CallPart "call_part"(part: I32, to: I32, capacity: I32, len: I32) -> I32;
    /// Hands a called invocation's transaction back.
    CallReturn "call_return"(notes: I32, notes_len: I32) -> I32;
}

impl HostFunction {
    /// Returns the function that may be imported by this name.
    pub fn by_name(name: &str) -> Option<HostFunction> {
        HostFunction::ALL.iter().copied().find(|function| function.name() == name && !name.starts_with('('))
    }

    /// The function of this number.
    pub fn by_number(number: usize) -> Option<HostFunction> {
        HostFunction::ALL.get(number).copied()
    }

    /// Where its address lies in the control page, relative to the base.
    pub const fn address_at(self) -> i32 {
        crate::layout::CONTROL_AT + (self as i32) * 8
    }
}
