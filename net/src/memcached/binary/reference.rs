//! The same parser once more, slow and simple: a table of the permitted parts of each command, and the fields of the
//! header by their offsets. For comparison.

use super::{BinaryCommand, BinaryFrame, BinaryParse, BinaryStatus, SaslMessage, parse};

/// Longest value of these readings.
pub const MAX_VALUE: usize = 300;

/// The slow parser's result for a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BinaryReferenceParse {
    /// Not all of it has come: so many bytes are needed.
    Incomplete(usize),
    /// Bytes of the request, bytes to be skipped, and the request as text.
    Complete(usize, u64, String),
    /// No request.
    Fatal,
}

/// The permitted parts of a command.
type CommandSpec = (u8, &'static str, &'static [usize], u8, bool, bool);

/// All commands: each one's number, its name, the lengths of its extras, and three marks. These tell whether it has a
/// key (or may have one: 2), whether it has a value, and whether it is quiet.
const COMMANDS: &[CommandSpec] = &[
    (0x00, "get", &[0], 1, false, false),
    (0x01, "set", &[8], 1, true, false),
    (0x02, "add", &[8], 1, true, false),
    (0x03, "replace", &[8], 1, true, false),
    (0x04, "delete", &[0], 1, false, false),
    (0x05, "incr", &[20], 1, false, false),
    (0x06, "decr", &[20], 1, false, false),
    (0x07, "quit", &[0], 0, false, false),
    (0x08, "flush", &[0, 4], 0, false, false),
    (0x09, "get", &[0], 1, false, true),
    (0x0a, "nothing", &[0], 0, false, false),
    (0x0b, "version", &[0], 0, false, false),
    (0x0c, "getk", &[0], 1, false, false),
    (0x0d, "getk", &[0], 1, false, true),
    (0x0e, "append", &[0], 1, true, false),
    (0x0f, "prepend", &[0], 1, true, false),
    (0x10, "stat", &[0], 2, false, false),
    (0x11, "set", &[8], 1, true, true),
    (0x12, "add", &[8], 1, true, true),
    (0x13, "replace", &[8], 1, true, true),
    (0x14, "delete", &[0], 1, false, true),
    (0x15, "incr", &[20], 1, false, true),
    (0x16, "decr", &[20], 1, false, true),
    (0x17, "quit", &[0], 0, false, true),
    (0x18, "flush", &[0, 4], 0, false, true),
    (0x19, "append", &[0], 1, true, true),
    (0x1a, "prepend", &[0], 1, true, true),
    (0x1b, "nothing", &[4], 0, false, false),
    (0x1c, "touch", &[4], 1, false, false),
    (0x1d, "gat", &[4], 1, false, false),
    (0x1e, "gat", &[4], 1, false, true),
    (0x20, "sasl-list", &[0], 0, false, false),
    (0x21, "sasl-auth", &[0], 1, true, false),
    (0x22, "sasl-step", &[0], 1, true, false),
    (0x23, "gatk", &[4], 1, false, false),
    (0x24, "gatk", &[4], 1, false, true),
];

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number * 256 + u64::from(*byte))
}

/// Parses the front of `input`.
pub fn parse_reference(input: &[u8], max_value: usize) -> BinaryReferenceParse {
    if input.first().is_some_and(|first| *first != 0x80) {
        return BinaryReferenceParse::Fatal;
    }
    if input.len() < 24 {
        return BinaryReferenceParse::Incomplete(24);
    }
    let [key_len, extras_len] = [number(&input[2..4]) as usize, number(&input[4..5]) as usize];
    let body_len = number(&input[8..12]) as usize;
    let (opaque, cas) = (number(&input[12..16]), number(&input[16..24]));
    let row = COMMANDS.iter().find(|row| row.0 == input[1]);
    let quiet = row.is_some_and(|row| row.5);
    let took = |taken, skip, what: String| {
        BinaryReferenceParse::Complete(24 + taken, skip as u64, format!("{what} ({:#x} {opaque} {quiet})", input[1]))
    };
    if key_len + extras_len > body_len {
        return took(0, 0, "ends 0x81".into());
    }
    if body_len > 1 << 30 || key_len > 250 {
        return took(0, 0, "ends 0x4".into());
    }
    let Some((_, name, extras, key, has_value, _)) = row else { return took(0, body_len, "unknown".into()) };
    let value_len = body_len - key_len - extras_len;
    let key_fits = match key {
        0 => key_len == 0,
        1 => key_len > 0,
        _ => true,
    };
    if !extras.contains(&extras_len) || !key_fits || (value_len > 0 && !has_value) {
        return took(0, 0, "ends 0x4".into());
    }
    let is_sasl = name.starts_with("sasl-");
    if is_sasl && key_len > 32 {
        return took(0, body_len, "refused 0x4".into());
    }
    if is_sasl && value_len > 1024 {
        return took(0, body_len, "refused 0x82".into());
    }
    let too_large = !is_sasl && value_len > max_value;
    let taken = if too_large { body_len - value_len } else { body_len };
    if input.len() < 24 + taken {
        return BinaryReferenceParse::Incomplete(24 + taken);
    }
    let body = &input[24..24 + taken];
    let (extras, key) = (&body[..extras_len], &body[extras_len..extras_len + key_len]);
    if too_large {
        return took(taken, value_len, format!("too large {key:?} {}", *name == "set"));
    }
    let value = &body[extras_len + key_len..];
    took(taken, 0, describe_command(name, [extras, key, value], cas))
}

/// A command in words.
fn describe_command(name: &str, [extras, key, value]: [&[u8]; 3], cas: u64) -> String {
    match name {
        "set" | "add" | "replace" => {
            let name = if cas == 0 { name.to_owned() } else { format!("cas({cas})") };
            format!("{name} {key:?} {} {} {value:?} {cas}", number(&extras[..4]), number(&extras[4..]))
        }
        "append" | "prepend" => format!("{name} {key:?} 0 0 {value:?} {cas}"),
        "delete" => format!("delete {key:?} {cas}"),
        "incr" | "decr" => {
            let [delta, initial] = [number(&extras[..8]), number(&extras[8..16])];
            format!("{name} {key:?} {delta} {initial} {} {cas}", number(&extras[16..]))
        }
        "get" | "getk" | "stat" => format!("{name} {key:?}"),
        "gat" | "gatk" | "touch" => format!("{name} {key:?} {}", number(extras)),
        "flush" => format!("flush {}", number(extras)),
        "sasl-auth" => format!("{name} {key:?} {value:?}"),
        "sasl-step" => format!("{name} {value:?}"),
        _ => name.to_owned(),
    }
}

/// The fast parser's result in the slow one's terms.
fn parse_fast(input: &[u8]) -> BinaryReferenceParse {
    let (frame, used, skip) = match parse(input, MAX_VALUE) {
        BinaryParse::Incomplete(needed) => {
            assert!(needed > input.len(), "more has to be more");
            return BinaryReferenceParse::Incomplete(needed);
        }
        BinaryParse::Fatal => return BinaryReferenceParse::Fatal,
        BinaryParse::Frame { frame, used, skip } => (frame, used, skip),
    };
    let BinaryFrame { command, opcode, opaque, quiet } = frame;
    let k = |with_key: bool| if with_key { "k" } else { "" };
    let what = match command {
        BinaryCommand::Get { key, exptime: None, with_key } => format!("get{} {key:?}", k(with_key)),
        BinaryCommand::Get { key, exptime: Some(exptime), with_key } => format!("gat{} {key:?} {exptime}", k(with_key)),
        BinaryCommand::Touch { key, exptime } => format!("touch {key:?} {exptime}"),
        BinaryCommand::Store { store, cas } => {
            let verb = format!("{:?}", store.verb).to_lowercase();
            format!("{verb} {:?} {} {} {:?} {cas}", store.key, store.flags, store.exptime, store.value)
        }
        BinaryCommand::TooLarge { key, set } => format!("too large {key:?} {set}"),
        BinaryCommand::Delete { key, cas } => format!("delete {key:?} {cas}"),
        BinaryCommand::Arithmetic { key, delta, initial, exptime, up, cas } => {
            format!("{} {key:?} {delta} {initial} {exptime} {cas}", if up { "incr" } else { "decr" })
        }
        BinaryCommand::Flush { delay } => format!("flush {delay}"),
        BinaryCommand::Stat { name } => format!("stat {name:?}"),
        BinaryCommand::Noop => "nothing".into(),
        BinaryCommand::Version => "version".into(),
        BinaryCommand::Quit => "quit".into(),
        BinaryCommand::Sasl(SaslMessage::List) => "sasl-list".into(),
        BinaryCommand::Sasl(SaslMessage::Begin { mechanism, data }) => format!("sasl-auth {mechanism:?} {data:?}"),
        BinaryCommand::Sasl(SaslMessage::Step { data }) => format!("sasl-step {data:?}"),
        BinaryCommand::Unknown => "unknown".into(),
        BinaryCommand::Malformed(status) => format!("ends {:#x}", status as u16),
        BinaryCommand::Refused(status) => format!("refused {:#x}", status as u16),
    };
    assert!(
        !matches!(command, BinaryCommand::Malformed(BinaryStatus::Done) | BinaryCommand::Refused(BinaryStatus::Done)),
        "an error is one"
    );
    BinaryReferenceParse::Complete(used, skip, format!("{what} ({opcode:#x} {opaque} {quiet})"))
}

/// Holds the fast reading to the slow one.
///
/// # Panics
/// When they differ.
pub fn assert_agrees(input: &[u8]) {
    assert_eq!(parse_fast(input), parse_reference(input, MAX_VALUE), "of {input:?}");
}

/// Fuzzing: both readings of a stream, frame by frame.
///
/// # Panics
/// When they differ.
pub fn fuzz(mut stream: &[u8]) {
    loop {
        assert_agrees(stream);
        match parse(stream, MAX_VALUE) {
            BinaryParse::Frame { used, skip, .. } => {
                let skip = usize::try_from(skip).unwrap_or(usize::MAX).saturating_add(used);
                stream = stream.get(skip..).unwrap_or_default();
            }
            _ => return,
        }
    }
}
