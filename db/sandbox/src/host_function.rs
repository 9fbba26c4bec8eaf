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
    ($($(#[$doc:meta])* $variant:ident $name:literal ($($parameter:ident),*) $(-> $result:ident)?;)*) => {
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

host_functions! {
    /// `table, key, key_len, hash`
    Prefetch "prefetch"(I64, I32, I32, I32) -> I32;
    /// `table, hash`
    PrefetchRecord "prefetch_record"(I64, I64) -> I32;
    /// `table, hash, key, key_len, record`
    Get "get"(I64, I64, I32, I32, I32) -> I32;
    /// `table, key, key_len, value, value_len, options, version`
    Put "put"(I64, I32, I32, I32, I32, I32, I32) -> I32;
    /// `table, key, key_len, options`
    Delete "delete"(I64, I32, I32, I32) -> I32;
    /// `table, key, key_len, delta, sum`
    Increment "increment"(I64, I32, I32, I64, I32) -> I32;
    /// `table, cursor, records, limit, filled`
    Scan "scan"(I64, I32, I32, I32, I32) -> I32;
    /// `name, name_len, table`
    TableByName "table_by_name"(I32, I32, I32) -> I32;
    /// `bytes, len`
    Reply "reply"(I32, I32) -> I32;
    /// `code, text, len`
    Fail "fail"(I32, I32, I32) -> I32;
    /// `cause, text, len`; does not return
    Abort "abort"(I32, I32, I32);
    /// `bytes`
    Grow "grow"(I32) -> I32;
    /// `table, keys, count, hashes`
    PrefetchMany "prefetch_many"(I64, I32, I32, I32) -> I32;
    /// `table, hashes, count`
    PrefetchRecords "prefetch_records"(I64, I32, I32) -> I32;
    /// `table, keys, hashes, count, records`
    GetMany "get_many"(I64, I32, I32, I32, I32) -> I32;
    /// `reads, reads_len, ranges, ranges_len, changes, changes_len`
    Commit "commit"(I32, I32, I32, I32, I32, I32) -> I32;
    /// `table, range, records, limit, filled`
    Range "range"(I64, I32, I32, I32, I32) -> I32;
    /// `table, range, keys`
    RangeKeys "range_keys"(I64, I32, I32) -> I32;
    /// The length of the caller's arguments, bytes.
    ArgsLen "args_len"() -> I32;
    /// `to`: copies the caller's arguments there.
    ArgsCopy "args_copy"(I32);
    /// Milliseconds since the Unix epoch, as of the last poll.
    NowMs "now_ms"() -> I64;
    /// `to, from, len`: what `memory.copy` becomes, a piece at a time. Not to be imported.
    MemoryCopy "(memory.copy)"(I32, I32, I32);
    /// `to, byte, len`: what `memory.fill` becomes, a piece at a time. Not to be imported.
    MemoryFill "(memory.fill)"(I32, I32, I32);
    /// What `memory.size` becomes. Not to be imported.
    MemorySize "(memory.size)"() -> I32;
    /// `pages`: what `memory.grow` becomes. Not to be imported.
    MemoryGrow "(memory.grow)"(I32) -> I32;
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
