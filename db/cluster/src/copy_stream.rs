//! A connection for the questions about one copy: a request to the control port asks for another protocol, and from
//! then on there is a question and its answer by turns. A put with copies waits for such a question, so each end is one
//! thread that reads, works and writes.
//!
//! A question is its length (four bytes, little endian) and its bytes; an answer a byte that says what it is, its
//! length and its bytes.

use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use sandstorm_net::trust::{PinnedStream, Trust};
use ureq::http::Uri;

use crate::limits::{REPLICA_ANSWER_BYTES, REPLICA_QUESTION_BYTES, REPLICA_TIMEOUT, UPGRADE_HEAD_BYTES};
use crate::peer_link::{PEER_KEY_HEADER, PeerRefusal};
use crate::state::ServerState;

/// The path of the request that begins one.
pub const COPY_STREAM_PATH: &str = "/v1/cluster/copy-stream";
/// The name of the protocol, in the header `upgrade`.
pub const COPY_STREAM_PROTOCOL: &str = "sandstorm-copies";

/// The first byte of an answer to a question that was understood.
const ANSWERED: u8 = 0;
/// The first byte of a refusal, which is one line.
const REFUSED: u8 = 1;

/// A socket of which no read or write ends much later than a question may take.
struct TimedSocket {
    socket: TcpStream,
    deadline: Instant,
    /// The time that its reads and writes have, as the system knows it.
    patience: Duration,
}

impl TimedSocket {
    fn new(socket: TcpStream) -> io::Result<TimedSocket> {
        let mut timed = TimedSocket { socket, deadline: Instant::now(), patience: Duration::ZERO };
        timed.begin()?;
        Ok(timed)
    }

    /// A question begins now.
    fn begin(&mut self) -> io::Result<()> {
        self.deadline = Instant::now() + REPLICA_TIMEOUT;
        self.allow(REPLICA_TIMEOUT)
    }

    fn allow(&mut self, patience: Duration) -> io::Result<()> {
        if self.patience != patience {
            self.socket.set_read_timeout(Some(patience))?;
            self.socket.set_write_timeout(Some(patience))?;
            self.patience = patience;
        }
        Ok(())
    }

    /// Before each read and write. The system is told of what is left only once that is a good deal less.
    fn go_on(&mut self) -> io::Result<()> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left if left < self.patience / 2 => self.allow(left),
            _ => Ok(()),
        }
    }
}

impl Read for TimedSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.go_on()?;
        self.socket.read(into)
    }
}

impl Write for TimedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.go_on()?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// The bytes of a connection.
enum StreamBytes {
    Plain(TimedSocket),
    Tls(Box<PinnedStream<TimedSocket>>),
}

impl StreamBytes {
    fn socket(&mut self) -> &mut TimedSocket {
        match self {
            StreamBytes::Plain(socket) => socket,
            StreamBytes::Tls(stream) => &mut stream.sock,
        }
    }
}

impl Read for StreamBytes {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            StreamBytes::Plain(socket) => socket.read(into),
            StreamBytes::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for StreamBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            StreamBytes::Plain(socket) => socket.write(bytes),
            StreamBytes::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            StreamBytes::Plain(socket) => socket.flush(),
            StreamBytes::Tls(stream) => stream.flush(),
        }
    }
}

/// The end of it that asks.
pub(crate) struct CopyStream {
    bytes: BufReader<StreamBytes>,
    /// The server's control port, for errors.
    control: String,
}

/// What has gone wrong, in words of an operator's.
fn told(control: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("{control}: no answer within {} s", REPLICA_TIMEOUT.as_secs())
        }
        io::ErrorKind::UnexpectedEof => format!("{control}: the connection was closed"),
        _ => format!("{control}: {error}"),
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads a length and so many bytes.
fn read_message(from: &mut impl Read, most_bytes: u64, into: &mut Vec<u8>) -> io::Result<()> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if u64::from(length) > most_bytes {
        return Err(invalid("a message about a copy is too long"));
    }
    into.clear();
    from.take(u64::from(length)).read_to_end(into)?;
    match into.len() == length as usize {
        true => Ok(()),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Connects to the first of a host's addresses that takes a connection; one that is silent has its part of the time.
fn connect_any(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let (until, mut failed) = (Instant::now() + REPLICA_TIMEOUT, invalid("its host has no address"));
    let mut left = addresses.len() as u32;
    for address in addresses {
        let patience = until.saturating_duration_since(Instant::now()) / left.max(1);
        if patience.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&address, patience) {
            Ok(socket) => return Ok(socket),
            Err(error) => failed = error,
        }
        left -= 1;
    }
    Err(failed)
}

/// Connects to the control port of a server, with TLS if it has any.
fn connect(server: &ServerState, uri: &Uri) -> io::Result<StreamBytes> {
    let host = uri.host().ok_or_else(|| invalid("its address has no host"))?;
    let is_tls = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let socket = connect_any((bare, port).to_socket_addrs()?.collect())?;
    socket.set_nodelay(true)?;
    let socket = TimedSocket::new(socket)?;
    if !is_tls {
        return Ok(StreamBytes::Plain(socket));
    }
    let trust = Trust::pin(&server.fingerprint).ok_or_else(|| invalid("it has told no fingerprint"))?;
    Ok(StreamBytes::Tls(Box::new(trust.pinned_stream(host, socket)?)))
}

/// Reads the head of the answer to the request; returns whether it begins the other protocol.
fn is_upgraded(bytes: &mut impl Read) -> io::Result<bool> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match bytes.read_exact(&mut byte) {
            Ok(()) => head.push(byte[0]),
            // Something between the servers may allow requests alone.
            Err(error) if [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset].contains(&error.kind()) => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        if head.len() > UPGRADE_HEAD_BYTES {
            return Err(invalid("the head of its answer is too long"));
        }
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let names = head.lines().any(|line| line == format!("upgrade: {COPY_STREAM_PROTOCOL}"));
    Ok(head.starts_with("http/1.1 101 ") && names)
}

impl CopyStream {
    /// One to a server as it has told of itself. `None`: it answers requests only, as earlier versions do and one with
    /// too many connections.
    ///
    /// # Errors
    /// One line: it cannot be reached, or does not answer.
    pub(crate) fn begin(server: &ServerState, key: &str) -> Result<Option<CopyStream>, String> {
        CopyStream::upgrade(server, key).map_err(|error| told(&server.control, &error))
    }

    fn upgrade(server: &ServerState, key: &str) -> io::Result<Option<CopyStream>> {
        let uri: Uri = server.control.parse().map_err(|_| invalid("its address is none"))?;
        let authority = uri.authority().ok_or_else(|| invalid("its address has no host"))?;
        let mut bytes = BufReader::new(connect(server, &uri)?);
        let request = format!(
            "POST {COPY_STREAM_PATH} HTTP/1.1\r\nhost: {authority}\r\nconnection: upgrade\r\nupgrade: \
             {COPY_STREAM_PROTOCOL}\r\n{PEER_KEY_HEADER}: {key}\r\ncontent-length: 0\r\n\r\n"
        );
        bytes.get_mut().write_all(request.as_bytes())?;
        bytes.get_mut().flush()?;
        let is_there = is_upgraded(&mut bytes)?;
        Ok(is_there.then(|| CopyStream { bytes, control: server.control.clone() }))
    }

    /// Asks, and waits for the answer. After an error nothing is asked any more.
    pub(crate) fn ask(&mut self, question: &[u8]) -> Result<Vec<u8>, PeerRefusal> {
        let (kind, answer) =
            self.exchange(question).map_err(|error| PeerRefusal::Failed(told(&self.control, &error)))?;
        match kind {
            ANSWERED => Ok(answer),
            REFUSED => Err(PeerRefusal::Said(String::from_utf8_lossy(&answer).into_owned())),
            _ => Err(PeerRefusal::Failed(format!("{}: an answer about a copy is none", self.control))),
        }
    }

    fn exchange(&mut self, question: &[u8]) -> io::Result<(u8, Vec<u8>)> {
        let mut sent = Vec::with_capacity(4 + question.len());
        sent.extend_from_slice(&(question.len() as u32).to_le_bytes());
        sent.extend_from_slice(question);
        let bytes = self.bytes.get_mut();
        bytes.socket().begin()?;
        bytes.write_all(&sent)?;
        bytes.flush()?;
        let (mut kind, mut answer) = ([0], Vec::new());
        self.bytes.read_exact(&mut kind)?;
        read_message(&mut self.bytes, REPLICA_ANSWER_BYTES, &mut answer)?;
        Ok((kind[0], answer))
    }
}

/// Answers what comes over a connection that has changed its protocol, until it ends. `answer` returns `None` when this
/// server stops.
///
/// # Errors
/// The connection has broken off, was idle for too long, or does not keep to the protocol.
pub fn serve_copy_stream(
    stream: impl Read + Write,
    mut answer: impl FnMut(&[u8]) -> Option<Result<Vec<u8>, String>>,
) -> io::Result<()> {
    let mut bytes = BufReader::new(stream);
    let (mut question, mut sent) = (Vec::new(), Vec::new());
    loop {
        read_message(&mut bytes, REPLICA_QUESTION_BYTES as u64, &mut question)?;
        let Some(answered) = answer(&question) else { return Ok(()) };
        let (kind, body) = match answered {
            Ok(body) => (ANSWERED, body),
            Err(why) => (REFUSED, why.into_bytes()),
        };
        sent.clear();
        sent.push(kind);
        sent.extend_from_slice(&(body.len() as u32).to_le_bytes());
        sent.extend_from_slice(&body);
        bytes.get_mut().write_all(&sent)?;
        bytes.get_mut().flush()?;
        // One that is large leaves no memory behind.
        question.shrink_to(KEPT_BYTES);
        sent.shrink_to(KEPT_BYTES);
    }
}

/// Bytes that a connection keeps for its next question.
const KEPT_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A server that answers the request with a head, and then as `answer` says.
    fn server(
        head: &'static str,
        answer: impl FnMut(&[u8]) -> Option<Result<Vec<u8>, String>> + Send + 'static,
    ) -> (ServerState, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let control = format!("http://{}/", listener.local_addr().unwrap());
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                asked.push(byte[0]);
            }
            stream.write_all(head.as_bytes()).unwrap();
            if head == SWITCHED {
                let _ended = serve_copy_stream(stream, answer);
            }
            String::from_utf8(asked).unwrap()
        });
        (ServerState { control, ..ServerState::example() }, served)
    }

    const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nupgrade: sandstorm-copies\r\n\r\n";

    #[test]
    fn questions_of_all_sizes_are_answered_or_refused_by_turns() {
        let (state, served) = server(SWITCHED, |question| match question.len() {
            3 => Some(Err("three are refused".to_owned())),
            5 => None,
            _ => Some(Ok(question.iter().rev().copied().collect())),
        });
        let mut stream = CopyStream::begin(&state, "a-key").unwrap().expect("it has the protocol");
        for length in [0, 1, 2, 100_000, 4, REPLICA_ANSWER_BYTES as usize, 1] {
            let question: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let answer = stream.ask(&question).map_err(|error| error.to_string()).unwrap();
            assert!(answer.iter().eq(question.iter().rev()), "{length} bytes");
        }
        assert!(matches!(stream.ask(b"abc"), Err(PeerRefusal::Said(why)) if why == "three are refused"));
        assert_eq!(stream.ask(b"ab").ok(), Some(b"ba".to_vec()), "a refusal ends nothing");
        assert!(matches!(stream.ask(b"abcde"), Err(PeerRefusal::Failed(_))), "the server has stopped");
        drop(stream);
        let asked = served.join().unwrap();
        assert!(asked.starts_with("POST /v1/cluster/copy-stream HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains("\r\nsandstorm-peer-key: a-key\r\n"), "{asked}");
    }

    #[test]
    fn a_server_without_the_protocol_is_told_from_one_that_is_not_reached() {
        for head in [
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n",
            "HTTP/1.1 101",
        ] {
            let (state, served) = server(head, |_| None);
            assert!(CopyStream::begin(&state, "").unwrap().is_none(), "{head}");
            served.join().unwrap();
        }
        let gone = ServerState { control: "http://127.0.0.1:1".to_owned(), ..ServerState::example() };
        let why = CopyStream::begin(&gone, "").err().expect("nothing listens there");
        assert!(why.starts_with("http://127.0.0.1:1: "), "{why}");
    }

    #[test]
    fn all_addresses_of_a_host_are_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        let nothing = SocketAddr::from(([127, 0, 0, 1], 1));
        let socket = connect_any(vec![nothing, there, nothing]).unwrap();
        assert_eq!(socket.peer_addr().unwrap(), there);
        assert_eq!(connect_any(vec![nothing, nothing]).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(connect_any(Vec::new()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn an_answer_that_comes_byte_by_byte_is_waited_for_no_longer_than_any() {
        let mut socket = TimedSocket::new(
            TcpStream::connect(TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()).unwrap(),
        )
        .unwrap();
        assert_eq!(socket.patience, REPLICA_TIMEOUT);
        socket.deadline = Instant::now() + REPLICA_TIMEOUT / 4;
        socket.go_on().unwrap();
        assert!(socket.patience <= REPLICA_TIMEOUT / 4, "{:?}", socket.patience);
        socket.deadline = Instant::now();
        assert_eq!(socket.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::TimedOut);
        socket.begin().unwrap();
        assert_eq!(socket.patience, REPLICA_TIMEOUT, "the next question has all of it");
    }

    #[test]
    fn what_is_too_long_is_refused_before_it_is_read() {
        let long = (REPLICA_QUESTION_BYTES as u32 + 1).to_le_bytes();
        let refused = serve_copy_stream(std::io::Cursor::new(long.to_vec()), |_| Some(Ok(Vec::new())));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
