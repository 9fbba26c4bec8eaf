//! Attacks with long commands at a Redis port: a million keys in one command, or a transaction of 900,000.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::local_server::LocalServer;
use sandstorm_terminal::output::CliError;

/// Keys of a long command: nearly the limit.
const KEYS: usize = 1_000_000;
/// Commands of a transaction, and the keys of each.
const TRANSACTION: (usize, usize) = (9, 100_000);
/// The echo that follows each command. It shows the command's end whatever the answer is.
const END: &[u8] = b"end of the long command";
/// Bytes that one turn writes to the kernel or reads from it: some tens of microseconds.
const TURN_BYTES: usize = 64 << 10;

/// A long command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RedisCommand {
    Del,
    MGet,
    Exists,
    Exec,
}

impl RedisCommand {
    /// The bytes to send: the command, and an echo.
    fn bytes(self) -> Vec<u8> {
        let mut request = Vec::new();
        match self {
            RedisCommand::Del => with_keys("DEL", KEYS, &mut request),
            RedisCommand::MGet => with_keys("MGET", KEYS, &mut request),
            RedisCommand::Exists => with_keys("EXISTS", KEYS, &mut request),
            RedisCommand::Exec => {
                command(&[b"MULTI"], &mut request);
                (0..TRANSACTION.0).for_each(|_| with_keys("EXISTS", TRANSACTION.1, &mut request));
                command(&[b"EXEC"], &mut request);
            }
        }
        command(&[b"ECHO", END], &mut request);
        request
    }
}

fn command(args: &[&[u8]], request: &mut Vec<u8>) {
    request.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
    args.iter().for_each(|arg| argument(arg, request));
}

fn argument(arg: &[u8], request: &mut Vec<u8>) {
    request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
    request.extend_from_slice(arg);
    request.extend_from_slice(b"\r\n");
}

fn with_keys(name: &str, keys: usize, request: &mut Vec<u8>) {
    request.extend_from_slice(format!("*{}\r\n", keys + 1).as_bytes());
    argument(name.as_bytes(), request);
    (0..keys).for_each(|number| argument(format!("{number:x}").as_bytes(), request));
}

/// A connection that sends one long command after another, each after the answer to the last.
pub(super) struct RedisAttack {
    stream: TcpStream,
    request: Vec<u8>,
    /// Bytes of the command that are sent.
    sent: usize,
    /// The last bytes that were received; in the end they are the echo's.
    tail: Vec<u8>,
}

impl RedisAttack {
    /// Connects to the server's first port for Redis, whose tenant is the attacker.
    pub(super) fn new(server: &LocalServer, what: RedisCommand) -> Result<RedisAttack, CliError> {
        let port = server.listening().first().ok_or_else(|| CliError::new("there is no Redis port: this is a bug"))?;
        let stream = TcpStream::connect(port).and_then(|stream| {
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        Ok(RedisAttack { stream: stream.map_err(failed)?, request: what.bytes(), sent: 0, tail: Vec::new() })
    }

    /// Continues to send and to receive. Returns whether it has begun a command.
    pub(super) fn turn(&mut self) -> Result<bool, CliError> {
        let has_begun = self.sent == 0;
        self.go_on()?;
        Ok(has_begun)
    }

    /// Begins nothing more; returns whether the last command is answered.
    pub(super) fn has_ended(&mut self) -> bool {
        if self.sent > 0 && self.go_on().is_err() {
            return true;
        }
        self.sent == 0
    }

    fn go_on(&mut self) -> Result<(), CliError> {
        let to = self.request.len().min(self.sent + TURN_BYTES);
        match self.stream.write(&self.request[self.sent..to]) {
            Ok(sent) => self.sent += sent,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(failed(error)),
        }
        let mut buffer = [0; TURN_BYTES];
        match self.stream.read(&mut buffer) {
            Ok(0) => return Err(CliError::new("the Redis port has closed the connection")),
            Ok(len) => self.count_replies(&buffer[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(failed(error)),
        }
        Ok(())
    }

    /// Takes received bytes. The next command may begin when this one is fully sent and its echo has arrived.
    fn count_replies(&mut self, bytes: &[u8]) {
        let end = [END, b"\r\n"].concat();
        self.tail.extend_from_slice(&bytes[bytes.len().saturating_sub(end.len())..]);
        let old = self.tail.len().saturating_sub(end.len());
        self.tail.drain(..old);
        if self.tail == end && self.sent == self.request.len() {
            (self.sent, self.tail) = (0, Vec::new());
        }
    }
}

fn failed(error: std::io::Error) -> CliError {
    CliError::new(format!("the Redis port does not answer: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_commands_are_as_long_as_the_protocol_takes_and_end_with_an_echo() {
        use sandstorm_net::limits::{RESP_ARGUMENTS, RESP_COMMAND_BYTES};
        for what in [RedisCommand::Del, RedisCommand::MGet, RedisCommand::Exists, RedisCommand::Exec] {
            let request = what.bytes();
            assert!(
                request.ends_with(&[END, b"\r\n"].concat()) && request.len() < RESP_COMMAND_BYTES,
                "{}",
                request.len()
            );
        }
        const { assert!(KEYS < RESP_ARGUMENTS) };
        let mut request = Vec::new();
        with_keys("DEL", 2, &mut request);
        assert_eq!(request, b"*3\r\n$3\r\nDEL\r\n$1\r\n0\r\n$1\r\n1\r\n");
    }
}
