//! Reads replies of Redis' protocol, version 2, with bounded memory.

use std::io::{self, BufRead, ErrorKind, Read};

use sandstorm_net::rpc::MAX_VALUE_LEN;

/// Bytes of a line, at most: texts of errors.
const MAX_LINE_BYTES: u64 = 64 << 10;
/// Elements of an array, at most: SCAN answers with some hundreds of keys, of a large hash slot with more.
const MAX_ELEMENTS: usize = 1 << 20;
/// Arrays within arrays, at most.
const MAX_DEPTH: usize = 2;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RespReply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    /// A bulk string of so many bytes, longer than any value here; it was passed over.
    LongBulk(u64),
    Nil,
    Array(Vec<RespReply>),
}

/// Reads a reply.
///
/// # Errors
/// Those of the connection; bytes that are no reply.
pub(super) fn read_reply(reader: &mut impl BufRead) -> io::Result<RespReply> {
    read_nested(reader, 0)
}

fn read_nested(reader: &mut impl BufRead, depth: usize) -> io::Result<RespReply> {
    let line = read_line(reader)?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed("an empty line"))?;
    let number = || rest.parse::<i64>().map_err(|_| malformed(&line));
    Ok(match kind {
        "+" => RespReply::Simple(rest.to_owned()),
        "-" => RespReply::Error(rest.to_owned()),
        ":" => RespReply::Integer(number()?),
        "$" => read_bulk(reader, number()?)?,
        "*" => {
            let count = number()?;
            if count < 0 {
                return Ok(RespReply::Nil);
            }
            if depth >= MAX_DEPTH || count as usize > MAX_ELEMENTS {
                return Err(malformed(&line));
            }
            // The memory for them comes with them.
            let mut elements = Vec::new();
            for _ in 0..count {
                elements.push(read_nested(reader, depth + 1)?);
            }
            RespReply::Array(elements)
        }
        _ => return Err(malformed(&line)),
    })
}

fn read_bulk(reader: &mut impl BufRead, length: i64) -> io::Result<RespReply> {
    let Ok(length) = u64::try_from(length) else { return Ok(RespReply::Nil) };
    let reply = if length > MAX_VALUE_LEN as u64 {
        let passed = io::copy(&mut reader.by_ref().take(length), &mut io::sink())?;
        if passed < length {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        RespReply::LongBulk(length)
    } else {
        let mut bytes = vec![0; length as usize];
        reader.read_exact(&mut bytes)?;
        RespReply::Bulk(bytes)
    };
    let mut end = [0; 2];
    reader.read_exact(&mut end)?;
    if end == *b"\r\n" { Ok(reply) } else { Err(malformed("a string without its end")) }
}

fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let text = line.strip_suffix(b"\r\n").ok_or_else(|| malformed("a line without its end"))?;
    Ok(String::from_utf8_lossy(text).into_owned())
}

fn malformed(what: &str) -> io::Error {
    let shown: String = what.chars().take(80).collect();
    io::Error::new(ErrorKind::InvalidData, format!("this is no reply of Redis' protocol: {shown:?}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(mut bytes: &[u8]) -> io::Result<RespReply> {
        read_reply(&mut bytes)
    }

    #[test]
    fn replies_are_read() {
        let bulk = |text: &str| RespReply::Bulk(text.as_bytes().to_vec());
        let scanned = RespReply::Array(vec![bulk("17"), RespReply::Array(vec![bulk("a"), bulk("")])]);
        assert_eq!(read(b"*2\r\n$2\r\n17\r\n*2\r\n$1\r\na\r\n$0\r\n\r\n").unwrap(), scanned);
        assert_eq!(read(b":-1\r\n").unwrap(), RespReply::Integer(-1));
        assert_eq!(read(b"$-1\r\n").unwrap(), RespReply::Nil);
        assert_eq!(read(b"-ERR no\r\n").unwrap(), RespReply::Error("ERR no".into()));
        let long = MAX_VALUE_LEN + 1;
        let mut bytes = format!("${long}\r\n").into_bytes();
        bytes.resize(bytes.len() + long, b'x');
        bytes.extend_from_slice(b"\r\n");
        assert_eq!(read(&bytes).unwrap(), RespReply::LongBulk(long as u64));
        for wrong in
            ["", "+OK", "$3\r\nab\r\n", "$2\r\nabc\r\n", "*1\r\n*1\r\n*1\r\n:1\r\n", "*9999999999\r\n", "?\r\n", "\r\n"]
        {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in "[$*:+\\-0-9a\r\n]{0,40}") {
            let _either = read(bytes.as_bytes());
        }
    }
}
