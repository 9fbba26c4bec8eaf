//! Memcached clients' commands that one server of a cluster forwards to the owner of their keys: the messages between
//! the servers, as bytes, and what a forwarding server needs. No sockets.
//!
//! A request is a head ([`HEAD_BYTES`]) and the commands, each with its length in four bytes before it. The answer has
//! for each command, in their order, a byte with its outcome ([`ForwardedOutcome`]), a length in four bytes, and the
//! bytes for the client, or a text. Numbers are little endian. An answer that ends early says nothing of the commands
//! that are missing.

/// Bytes of the head of a request.
pub const HEAD_BYTES: usize = 25;
/// Bytes before a command: its length.
pub const COMMAND_HEADER_BYTES: usize = 4;
/// Bytes before an answer: what became of the command, and a length.
pub const ANSWER_HEADER_BYTES: usize = 5;

/// In a head: the commands are frames of the binary protocol.
const BINARY_FLAG: u8 = 1;
/// In a head: the commands are run one after the other, and none behind one that was not run.
const ORDERED_FLAG: u8 = 2;

/// What the commands of a request have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedHead {
    /// The tenant's id.
    pub tenant: u32,
    /// The table's id.
    pub table: u64,
    /// By which servers tell the table from another one that had its id.
    pub serial: u64,
    /// Whether they are frames of the binary protocol.
    pub is_binary: bool,
    /// Whether none is run behind one that was not.
    pub is_ordered: bool,
    /// How many there are.
    pub commands: u32,
}

impl ForwardedHead {
    /// Appends the head.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.tenant.to_le_bytes());
        out.extend_from_slice(&self.table.to_le_bytes());
        out.extend_from_slice(&self.serial.to_le_bytes());
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        out.push(flag(self.is_binary, BINARY_FLAG) | flag(self.is_ordered, ORDERED_FLAG));
        out.extend_from_slice(&self.commands.to_le_bytes());
    }

    /// The head of a request, and the commands behind it. `None`: it is malformed.
    pub fn decode(request: &[u8]) -> Option<(ForwardedHead, &[u8])> {
        let (tenant, rest) = request.split_first_chunk()?;
        let (table, rest) = rest.split_first_chunk()?;
        let (serial, rest) = rest.split_first_chunk()?;
        let (flags, rest) = rest.split_first()?;
        let (commands, rest) = rest.split_first_chunk()?;
        if *flags & !(BINARY_FLAG | ORDERED_FLAG) != 0 {
            return None;
        }
        let head = ForwardedHead {
            tenant: u32::from_le_bytes(*tenant),
            table: u64::from_le_bytes(*table),
            serial: u64::from_le_bytes(*serial),
            is_binary: flags & BINARY_FLAG != 0,
            is_ordered: flags & ORDERED_FLAG != 0,
            commands: u32::from_le_bytes(*commands),
        };
        Some((head, rest))
    }
}

/// Appends a command.
pub fn push_command(command: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(command.len() as u32).to_le_bytes());
    out.extend_from_slice(command);
}

/// The command at the front of some bytes. `Err`: the bytes that it takes at least, with its length.
///
/// # Errors
/// Some of it is missing.
pub fn next_command(bytes: &[u8]) -> Result<&[u8], usize> {
    let (len, rest) = bytes.split_first_chunk().ok_or(COMMAND_HEADER_BYTES)?;
    let len = u32::from_le_bytes(*len) as usize;
    rest.get(..len).ok_or(COMMAND_HEADER_BYTES + len)
}

/// What became of a command at the server that it was sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ForwardedOutcome {
    /// It was run. The bytes are for the client; none, where it wants no answer.
    Answered = 0,
    /// It was not run: the server does not own its key.
    NotOwned = 1,
    /// It was not run: the server does not know the tenant or the table yet.
    NotReady = 2,
    /// It was not run: the answers to those before it are long enough.
    Full = 3,
    /// It was run, as may have been all behind it, and whether that stands is not known. The bytes are a text.
    Uncertain = 4,
    /// It was not run, nor were those behind it: the server stops.
    Stopping = 5,
    /// It was not run, and will not be. The bytes are a text.
    Refused = 6,
}

impl ForwardedOutcome {
    fn of(byte: u8) -> Option<ForwardedOutcome> {
        use ForwardedOutcome::{Answered, Full, NotOwned, NotReady, Refused, Stopping, Uncertain};
        let all = [Answered, NotOwned, NotReady, Full, Uncertain, Stopping, Refused];
        all.into_iter().find(|outcome| *outcome as u8 == byte)
    }
}

/// Appends the answer to a command.
pub fn push_answer(outcome: ForwardedOutcome, bytes: &[u8], out: &mut Vec<u8>) {
    let start = begin_answer(out);
    out.extend_from_slice(bytes);
    end_answer(start, outcome, out);
}

/// Appends room for the header of an answer; the bytes come behind it, then [`end_answer`].
pub fn begin_answer(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[0; ANSWER_HEADER_BYTES]);
    out.len() - ANSWER_HEADER_BYTES
}

/// Writes the header of the answer that was begun at `start`.
pub fn end_answer(start: usize, outcome: ForwardedOutcome, out: &mut [u8]) {
    let len = (out.len() - start - ANSWER_HEADER_BYTES) as u32;
    out[start] = outcome as u8;
    out[start + 1..start + ANSWER_HEADER_BYTES].copy_from_slice(&len.to_le_bytes());
}

/// The answers of a server, in their order, as far as they are whole.
pub fn answers(mut bytes: &[u8]) -> impl Iterator<Item = (ForwardedOutcome, &[u8])> {
    std::iter::from_fn(move || {
        let (outcome, rest) = bytes.split_first()?;
        let outcome = ForwardedOutcome::of(*outcome)?;
        let answer = next_command(rest).ok()?;
        bytes = &rest[COMMAND_HEADER_BYTES + answer.len()..];
        Some((outcome, answer))
    })
}

/// A command for a key of another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardedCommand {
    /// The key's slot.
    pub slot: u16,
    /// Whether it may change something.
    pub changes: bool,
    /// The command, as a client would send it.
    pub bytes: Vec<u8>,
}

/// Commands of one connection, or of a datagram, that go to other servers at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardedBatch {
    /// The tenant's id.
    pub tenant: u32,
    /// The table's id.
    pub table: u64,
    /// See [`ForwardedHead::serial`].
    pub serial: u64,
    /// Whether they are frames of the binary protocol.
    pub is_binary: bool,
    /// Whether they are to be run one after the other. Else they only read.
    pub is_ordered: bool,
    /// Whether a datagram has brought them, and no connection waits for them: they are dropped where too many wait.
    pub is_datagram: bool,
    /// The commands.
    pub commands: Vec<ForwardedCommand>,
}

impl ForwardedBatch {
    /// A request with some of its commands, by their numbers.
    pub fn request(&self, numbers: &[usize]) -> Vec<u8> {
        let commands = || numbers.iter().filter_map(|number| self.commands.get(*number));
        let bytes: usize = commands().map(|command| COMMAND_HEADER_BYTES + command.bytes.len()).sum();
        let mut request = Vec::with_capacity(HEAD_BYTES + bytes);
        let ForwardedBatch { tenant, table, serial, is_binary, is_ordered, .. } = *self;
        let commands_len = commands().count() as u32;
        ForwardedHead { tenant, table, serial, is_binary, is_ordered, commands: commands_len }.encode(&mut request);
        commands().for_each(|command| push_command(&command.bytes, &mut request));
        request
    }
}

/// What becomes of a command that was to be forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardedAnswer {
    /// It was run. The bytes are for the client.
    Answered(Vec<u8>),
    /// It was not run, and is to be tried anew: the key may be this server's by now.
    Later,
    /// What the client is told: that it was not run, or that this is unknown.
    Refused(String),
    /// It was not run, and its client, which has sent a datagram, is told nothing: too many commands wait.
    Dropped,
}

/// Takes the answers to the commands of a batch, in their order, on any thread: it must not block.
pub type ForwardDone = Box<dyn FnOnce(Vec<ForwardedAnswer>) + Send>;

/// Something that sends commands to the servers that have their keys.
pub trait CommandForwarder: Send + Sync + std::fmt::Debug {
    /// Sends them, and returns at once. `done` is called exactly once, within a time.
    fn forward(&self, batch: ForwardedBatch, done: ForwardDone);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn command(bytes: &[u8]) -> ForwardedCommand {
        ForwardedCommand { slot: 7, changes: true, bytes: bytes.to_vec() }
    }

    #[test]
    fn a_request_and_its_answer_are_read_back() {
        let commands = [&b"get a\r\n"[..], b"", b"set b 0 0 1\r\nx\r\n"].map(command).to_vec();
        let (tenant, table) = (3, 1 << 40);
        let batch = ForwardedBatch { tenant, table, serial: 5, is_ordered: true, commands, ..Default::default() };
        let request = batch.request(&[2, 0, 9]);
        let (head, mut rest) = ForwardedHead::decode(&request).unwrap();
        assert_eq!((head.tenant, head.table, head.serial, head.commands), (3, 1 << 40, 5, 2));
        assert!(!head.is_binary && head.is_ordered);
        for expected in [&b"set b 0 0 1\r\nx\r\n"[..], b"get a\r\n"] {
            let found = next_command(rest).unwrap();
            assert_eq!(found, expected);
            rest = &rest[COMMAND_HEADER_BYTES + found.len()..];
        }
        assert_eq!(next_command(rest), Err(COMMAND_HEADER_BYTES));
        assert_eq!(next_command(&[9, 0, 0, 0, 1]), Err(13));
        let mut out = Vec::new();
        push_answer(ForwardedOutcome::Answered, b"END\r\n", &mut out);
        push_answer(ForwardedOutcome::NotOwned, b"", &mut out);
        let whole = out.len();
        push_answer(ForwardedOutcome::Uncertain, b"why", &mut out);
        let read: Vec<_> = answers(&out).collect();
        assert_eq!(read[0], (ForwardedOutcome::Answered, &b"END\r\n"[..]));
        assert_eq!(read[1..], [(ForwardedOutcome::NotOwned, &b""[..]), (ForwardedOutcome::Uncertain, &b"why"[..])]);
        // What ends early says nothing of what is missing.
        for end in whole..out.len() {
            assert_eq!(answers(&out[..end]).count(), 2);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_read_beyond_their_end(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _maybe_a_head = ForwardedHead::decode(&bytes);
            let _maybe_a_command = next_command(&bytes);
            prop_assert!(answers(&bytes).count() <= bytes.len());
        }
    }
}
