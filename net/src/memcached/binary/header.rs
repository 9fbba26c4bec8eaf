//! The numbers of the protocol: commands, statuses, and an answer's header.

use super::RESPONSE_MAGIC;

/// Bytes of a header.
pub const HEADER_LEN: usize = 24;

/// Names the protocol's numbers.
macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal $(quiet of $plain:ident)?,)+) => {
        /// A command's number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Opcode {
            $($(#[$doc])* $name = $number,)+
        }

        impl Opcode {
            /// All of them.
            pub const ALL: &[Opcode] = &[$(Opcode::$name,)+];

            /// The command of that number.
            #[inline]
            pub fn of(number: u8) -> Option<Opcode> {
                match number {
                    $($number => Some(Opcode::$name),)+
                    _ => None,
                }
            }

            /// The command that a quiet one is the quiet form of; any other one is its own.
            #[inline]
            pub fn plain(self) -> Opcode {
                match self {
                    $($(Opcode::$name => Opcode::$plain,)?)+
                    other => other,
                }
            }
        }
    };
}

opcodes! {
    /// get
    Get = 0x00,
    /// set
    Set = 0x01,
    /// add
    Add = 0x02,
    /// replace
    Replace = 0x03,
    /// delete
    Delete = 0x04,
    /// increment
    Increment = 0x05,
    /// decrement
    Decrement = 0x06,
    /// quit
    Quit = 0x07,
    /// flush
    Flush = 0x08,
    /// get, quiet where there is nothing
    GetQ = 0x09 quiet of Get,
    /// no operation
    Noop = 0x0a,
    /// version
    Version = 0x0b,
    /// get, with the key
    GetK = 0x0c,
    /// the same, quiet where there is nothing
    GetKQ = 0x0d quiet of GetK,
    /// append
    Append = 0x0e,
    /// prepend
    Prepend = 0x0f,
    /// statistics
    Stat = 0x10,
    /// quiet set
    SetQ = 0x11 quiet of Set,
    /// quiet add
    AddQ = 0x12 quiet of Add,
    /// quiet replace
    ReplaceQ = 0x13 quiet of Replace,
    /// quiet delete
    DeleteQ = 0x14 quiet of Delete,
    /// quiet increment
    IncrementQ = 0x15 quiet of Increment,
    /// quiet decrement
    DecrementQ = 0x16 quiet of Decrement,
    /// quiet quit
    QuitQ = 0x17 quiet of Quit,
    /// quiet flush
    FlushQ = 0x18 quiet of Flush,
    /// quiet append
    AppendQ = 0x19 quiet of Append,
    /// quiet prepend
    PrependQ = 0x1a quiet of Prepend,
    /// verbosity
    Verbosity = 0x1b,
    /// touch
    Touch = 0x1c,
    /// get and touch
    Gat = 0x1d,
    /// the same, quiet where there is nothing
    GatQ = 0x1e quiet of Gat,
    /// the mechanisms of SASL
    SaslList = 0x20,
    /// SASL begins
    SaslAuth = 0x21,
    /// SASL goes on
    SaslStep = 0x22,
    /// get and touch, with the key
    GatK = 0x23,
    /// the same, quiet where there is nothing
    GatKQ = 0x24 quiet of GatK,
}

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum BinaryStatus {
    /// Well.
    Done = 0x00,
    /// There is no such key.
    NotFound = 0x01,
    /// There is such a key, or its number is another one.
    Exists = 0x02,
    /// The value is too long.
    TooLarge = 0x03,
    /// The arguments are wrong.
    Invalid = 0x04,
    /// Nothing was stored.
    NotStored = 0x05,
    /// The value is no number.
    NotANumber = 0x06,
    /// The sender is not authenticated, or may not do that.
    Unauthorized = 0x20,
    /// SASL needs a further step.
    Continue = 0x21,
    /// There is no such command.
    UnknownCommand = 0x81,
    /// There is no room.
    OutOfMemory = 0x82,
}

impl BinaryStatus {
    /// Returns memcached's text for it.
    pub fn text(self) -> &'static str {
        match self {
            BinaryStatus::Done | BinaryStatus::Continue => "",
            BinaryStatus::NotFound => "Not found",
            BinaryStatus::Exists => "Data exists for key.",
            BinaryStatus::TooLarge => "Too large.",
            BinaryStatus::Invalid => "Invalid arguments",
            BinaryStatus::NotStored => "Not stored.",
            BinaryStatus::NotANumber => "Non-numeric server-side value for incr or decr",
            BinaryStatus::Unauthorized => "Auth failure.",
            BinaryStatus::UnknownCommand => "Unknown command",
            BinaryStatus::OutOfMemory => "Out of memory",
        }
    }
}

/// An answer but for its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BinaryResponseHeader<'a> {
    /// The command's number.
    pub opcode: u8,
    /// The client's number of the request.
    pub opaque: u32,
    /// The outcome.
    pub status: BinaryStatus,
    /// The record's number, or 0.
    pub cas: u64,
    /// The extras, which stand before the key.
    pub extras: &'a [u8],
    /// The key, if it is named.
    pub key: &'a [u8],
}

impl BinaryResponseHeader<'_> {
    /// Appends the answer with its value.
    #[inline]
    pub fn push(&self, value: &[u8], out: &mut Vec<u8>) {
        let front = self.extras.len() + self.key.len();
        out.reserve(HEADER_LEN + front + value.len());
        out.extend_from_slice(&[RESPONSE_MAGIC, self.opcode]);
        out.extend_from_slice(&(self.key.len() as u16).to_be_bytes());
        out.extend_from_slice(&[self.extras.len() as u8, 0]);
        out.extend_from_slice(&(self.status as u16).to_be_bytes());
        out.extend_from_slice(&((front + value.len()) as u32).to_be_bytes());
        out.extend_from_slice(&self.opaque.to_be_bytes());
        out.extend_from_slice(&self.cas.to_be_bytes());
        out.extend_from_slice(self.extras);
        out.extend_from_slice(self.key);
        out.extend_from_slice(value);
    }
}
