//! A generator of the same kind for servers that speak memcached's or Redis' protocol: a closed loop on many
//! connections, from one thread that never sleeps. It uses the keys, values and skew of the other loads, and checks a
//! sample of the replies.
//!
//! Latency counts from the moment at which a connection's batch of requests was handed to the kernel to the moment at
//! which the reply was read.

mod protocol;
#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use rand::{SeedableRng, rngs::SmallRng};
use rustix::event::epoll;
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};

pub use protocol::{PeerProtocol, PeerWorkload};
use protocol::{PeerReply, PeerRequest};

use super::keys::{self, KeyChooser};
use super::report::latency_histogram;
use super::{Data, Skew};
use crate::limits::{PEER_DATAGRAM_TIMEOUT, PEER_FILL_BYTES, PEER_REPLY_TIMEOUT};

/// The load on a server.
#[derive(Clone, Debug)]
pub struct PeerLoad {
    /// The server's address.
    pub address: SocketAddr,
    /// The protocol that it speaks.
    pub speech: PeerProtocol,
    /// The kind of requests.
    pub workload: PeerWorkload,
    /// Connections (or, over UDP, sockets), each with its own requests under way; default 16.
    pub connections: usize,
    /// Requests that are sent on a connection before their replies are awaited; default 1. Over UDP always 1.
    pub pipeline: usize,
    /// The records.
    pub data: Data,
    /// The distribution of the records that are asked for.
    pub skew: Skew,
    /// Sent on each connection before anything else, and answered by one reply: the client's credentials.
    pub login_command: Vec<u8>,
    /// Time before anything counts.
    pub warm_up: Duration,
    /// Time that counts.
    pub duration: Duration,
    /// One reply in this number is checked.
    pub verify_every: u64,
    /// Seed of all that is drawn.
    pub seed: u64,
}

impl PeerLoad {
    /// One request at a time on each of 16 connections, Zipf 0.99, for two seconds after half a second.
    pub fn new(address: SocketAddr, speech: PeerProtocol, workload: PeerWorkload, data: Data) -> PeerLoad {
        PeerLoad {
            address,
            speech,
            workload,
            connections: 16,
            pipeline: 1,
            data,
            skew: Skew::default(),
            login_command: Vec::new(),
            warm_up: Duration::from_millis(500),
            duration: Duration::from_secs(2),
            verify_every: 64,
            seed: 1,
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    /// Requests answered in a second.
    pub per_s: f64,
    /// Keys asked for in the requests answered in a second.
    pub keys_per_s: f64,
    /// Requests answered.
    pub count: u64,
    /// Replies that were errors.
    pub errors: u64,
    /// The text of the first of them.
    pub first_error: Option<String>,
    /// Replies that were not what they should be.
    pub wrong: u64,
    /// Records that were not there, where the data may lack some ([`Data::may_lack`]).
    pub missed: u64,
    /// Datagrams that were not answered.
    pub lost: u64,
    /// Median latency, microseconds.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Longest.
    pub max_us: f64,
}

/// A connection or a socket.
enum PeerSocket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl PeerSocket {
    fn open(load: &PeerLoad) -> io::Result<PeerSocket> {
        if load.speech.is_datagram() {
            let local: SocketAddr = if load.address.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
            let socket = UdpSocket::bind(local)?;
            socket.connect(load.address)?;
            socket.set_nonblocking(true)?;
            return Ok(PeerSocket::Udp(socket));
        }
        let stream = TcpStream::connect(load.address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(PeerSocket::Tcp(stream))
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            PeerSocket::Tcp(stream) => stream.read(buffer),
            PeerSocket::Udp(socket) => socket.recv(buffer),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            PeerSocket::Tcp(stream) => stream.write(bytes),
            PeerSocket::Udp(socket) => socket.send(bytes),
        }
    }
}

/// A connection and its requests under way.
struct PeerConnection {
    line: PeerSocket,
    /// Bytes to be sent, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// Bytes that came and make no whole reply yet.
    come: Vec<u8>,
    under_way: std::collections::VecDeque<PeerRequest>,
    sent_ns: u64,
    datagram: u16,
}

/// Counts of a run under way.
struct PeerTally {
    latency_ns: hdrhistogram::Histogram<u64>,
    replies: u64,
    keys: u64,
    errors: u64,
    first_error: Option<String>,
    wrong: u64,
    missed: u64,
    lost: u64,
    seen: u64,
}

struct PeerRun<'l> {
    load: &'l PeerLoad,
    chooser: KeyChooser,
    rng: SmallRng,
    count: PeerTally,
    measure_from_ns: u64,
    end_ns: u64,
    begun: Instant,
    scratch: protocol::PeerBuffers,
}

impl PeerRun<'_> {
    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Writes the next batch of a connection and sends what the kernel takes.
    fn send_batch(&mut self, connection: &mut PeerConnection) -> io::Result<()> {
        let pipeline = if self.load.speech.is_datagram() { 1 } else { self.load.pipeline.max(1) };
        connection.out.clear();
        connection.sent = 0;
        if self.load.speech.is_datagram() {
            connection.datagram = connection.datagram.wrapping_add(1);
            connection.out.extend_from_slice(&protocol::datagram_header(connection.datagram));
        }
        for _ in 0..pipeline {
            let request = self.load.workload.draw(&self.load.data, &self.chooser, &mut self.rng);
            self.load.workload.write(
                self.load.speech,
                &self.load.data,
                &request,
                &mut connection.out,
                &mut self.scratch,
            );
            connection.under_way.push_back(request);
        }
        connection.sent_ns = self.now_ns();
        connection.flush()
    }

    /// Takes what has come on a connection; sends its next batch once all is answered.
    fn receive(&mut self, connection: &mut PeerConnection, buffer: &mut [u8]) -> io::Result<()> {
        loop {
            let len = match connection.line.read(buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let now_ns = self.now_ns();
            if self.load.speech.is_datagram() {
                if !connection.take_datagram(buffer.get(..len).unwrap_or_default()) {
                    continue;
                }
            } else {
                connection.come.extend_from_slice(buffer.get(..len).unwrap_or_default());
            }
            self.take_replies(connection, now_ns)?;
            if connection.under_way.is_empty() {
                if now_ns < self.end_ns {
                    self.send_batch(connection)?;
                }
                return Ok(());
            }
            if len < buffer.len() {
                return Ok(());
            }
        }
    }

    fn take_replies(&mut self, connection: &mut PeerConnection, now_ns: u64) -> io::Result<()> {
        let mut used = 0;
        while let Some(request) = connection.under_way.front() {
            let rest = connection.come.get(used..).unwrap_or_default();
            let Some((reply, bytes)) = self.load.workload.read(self.load.speech, request, rest)? else { break };
            self.count.seen += 1;
            let counts = (self.measure_from_ns..self.end_ns).contains(&now_ns);
            self.count.replies += u64::from(counts);
            self.count.keys += if counts { self.load.workload.keys() as u64 } else { 0 };
            if counts {
                self.count.latency_ns.saturating_record(now_ns - connection.sent_ns);
            }
            let verify = self.load.verify_every > 0 && self.count.seen.is_multiple_of(self.load.verify_every);
            match reply {
                PeerReply::Error(text) => {
                    self.count.errors += 1;
                    self.count.first_error.get_or_insert_with(|| String::from_utf8_lossy(text).into_owned());
                }
                PeerReply::Value(body) if self.load.data.may_lack && protocol::is_miss(self.load.speech, body) => {
                    self.count.missed += u64::from(counts);
                }
                PeerReply::Value(body) if verify => {
                    let right = self.load.workload.is_right(
                        self.load.speech,
                        &self.load.data,
                        request,
                        body,
                        &mut self.scratch,
                    );
                    self.count.wrong += u64::from(!right);
                }
                PeerReply::Value(_) => {}
            }
            used += bytes;
            connection.under_way.pop_front();
        }
        connection.come.drain(..used);
        Ok(())
    }

    /// Asks again where a datagram was lost.
    fn resend_lost(&mut self, connections: &mut [PeerConnection]) -> io::Result<()> {
        let now_ns = self.now_ns();
        for connection in connections {
            if !connection.under_way.is_empty()
                && now_ns.saturating_sub(connection.sent_ns) > PEER_DATAGRAM_TIMEOUT.as_nanos() as u64
            {
                self.count.lost += connection.under_way.len() as u64;
                connection.under_way.clear();
                connection.come.clear();
                if now_ns < self.end_ns {
                    self.send_batch(connection)?;
                }
            }
        }
        Ok(())
    }

    fn report(self) -> PeerReport {
        let (count, seconds) = (self.count, self.load.duration.as_secs_f64().max(1e-9));
        let us = |quantile| count.latency_ns.value_at_quantile(quantile) as f64 / 1000.0;
        PeerReport {
            per_s: count.replies as f64 / seconds,
            keys_per_s: count.keys as f64 / seconds,
            count: count.replies,
            errors: count.errors,
            wrong: count.wrong,
            missed: count.missed,
            lost: count.lost,
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: count.latency_ns.max() as f64 / 1000.0,
            first_error: count.first_error,
        }
    }
}

impl PeerConnection {
    fn open(load: &PeerLoad) -> io::Result<PeerConnection> {
        let mut connection = PeerConnection {
            line: PeerSocket::open(load)?,
            out: Vec::new(),
            sent: 0,
            come: Vec::new(),
            under_way: std::collections::VecDeque::new(),
            sent_ns: 0,
            datagram: 0,
        };
        if !load.login_command.is_empty() {
            connection.out.extend_from_slice(&load.login_command);
            connection.flush()?;
            connection.await_login(load)?;
        }
        Ok(connection)
    }

    fn await_login(&mut self, load: &PeerLoad) -> io::Result<()> {
        let begun = Instant::now();
        let mut buffer = [0; 4096];
        loop {
            match self.line.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.come.extend_from_slice(buffer.get(..len).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock && begun.elapsed() < PEER_REPLY_TIMEOUT => {
                    std::thread::yield_now();
                }
                Err(error) => return Err(error),
            }
            if let Some((reply, used)) = protocol::read_reply_frame(load.speech, &self.come)? {
                if let PeerReply::Error(text) = reply {
                    return Err(io::Error::other(String::from_utf8_lossy(text).into_owned()));
                }
                self.come.drain(..used);
                return Ok(());
            }
        }
    }

    /// Sends what the kernel takes.
    fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.out.len() {
            match self.line.write(self.out.get(self.sent..).unwrap_or_default()) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes a datagram of the present request; they come in order on loopback. Returns whether it is one.
    fn take_datagram(&mut self, datagram: &[u8]) -> bool {
        let Some((header, body)) = datagram.split_first_chunk::<8>() else { return false };
        if header[..2] != self.datagram.to_be_bytes() {
            return false;
        }
        self.come.extend_from_slice(body);
        true
    }
}

/// Runs the load from the calling thread, which spins.
///
/// # Errors
/// The system's error about a connection, or a reply that does not follow the protocol.
pub fn run(load: &PeerLoad) -> io::Result<PeerReport> {
    let chooser = KeyChooser::new(load.skew, load.workload.population(&load.data)).map_err(io::Error::other)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut connections = (0..load.connections.max(1))
        .map(|_| PeerConnection::open(load))
        .collect::<io::Result<Vec<PeerConnection>>>()?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
    for (index, connection) in (0..).zip(&connections) {
        match &connection.line {
            PeerSocket::Tcp(stream) => epoll::add(&epoll, stream, epoll::EventData::new_u64(index), flags)?,
            PeerSocket::Udp(socket) => epoll::add(&epoll, socket, epoll::EventData::new_u64(index), flags)?,
        }
    }
    let measure_from_ns = load.warm_up.as_nanos() as u64;
    let mut run = PeerRun {
        load,
        chooser,
        rng: SmallRng::seed_from_u64(keys::mix64(load.seed)),
        count: PeerTally {
            latency_ns: latency_histogram(),
            replies: 0,
            keys: 0,
            errors: 0,
            first_error: None,
            wrong: 0,
            missed: 0,
            lost: 0,
            seen: 0,
        },
        measure_from_ns,
        end_ns: measure_from_ns + load.duration.as_nanos() as u64,
        begun: Instant::now(),
        scratch: protocol::PeerBuffers::default(),
    };
    for connection in &mut connections {
        run.send_batch(connection)?;
    }
    run_until_answered(&mut run, &mut connections, &epoll)?;
    Ok(run.report())
}

/// Goes on until the time is over and all is answered.
fn run_until_answered(
    run: &mut PeerRun<'_>,
    connections: &mut [PeerConnection],
    epoll: &impl std::os::fd::AsFd,
) -> io::Result<()> {
    let mut events = Vec::with_capacity(connections.len());
    let mut buffer = vec![0; 256 << 10];
    let mut checked_ns = 0;
    loop {
        events.clear();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), Some(&now))?;
        for event in &events {
            let Some(connection) = connections.get_mut(event.data.u64() as usize) else { continue };
            connection.flush()?;
            run.receive(connection, &mut buffer)?;
        }
        let now_ns = run.now_ns();
        if run.load.speech.is_datagram() && now_ns - checked_ns > PEER_DATAGRAM_TIMEOUT.as_nanos() as u64 / 4 {
            checked_ns = now_ns;
            run.resend_lost(connections)?;
        }
        if now_ns >= run.end_ns {
            if connections.iter().all(|connection| connection.under_way.is_empty()) {
                return Ok(());
            }
            if now_ns - run.end_ns > PEER_REPLY_TIMEOUT.as_nanos() as u64 {
                return Err(io::Error::new(ErrorKind::TimedOut, "requests that were sent are not answered"));
            }
        }
    }
}

/// Writes all records of the load's data by the server's own protocol, and waits until they exist.
///
/// # Errors
/// As [`run`]; also what the server answers to a write that it refuses.
pub fn fill(load: &PeerLoad) -> io::Result<Duration> {
    let begun = Instant::now();
    let speech = load.speech.over_tcp();
    let mut connection = PeerConnection::open(&PeerLoad { speech, ..load.clone() })?;
    let mut scratch = protocol::PeerBuffers::default();
    let (total, mut next, mut answered) = (PeerWorkload::items(&load.data), 0, 0);
    let mut buffer = vec![0; 64 << 10];
    while answered < total {
        connection.out.drain(..connection.sent);
        connection.sent = 0;
        while next < total && connection.out.len() < PEER_FILL_BYTES && next - answered < 10_000 {
            PeerWorkload::write_item(speech, &load.data, next, &mut connection.out, &mut scratch);
            next += 1;
        }
        connection.flush()?;
        match connection.line.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => connection.come.extend_from_slice(buffer.get(..len).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => return Err(error),
        }
        let mut used = 0;
        while let Some((reply, bytes)) =
            protocol::read_reply_frame(speech, connection.come.get(used..).unwrap_or_default())?
        {
            if let PeerReply::Error(text) = reply {
                return Err(io::Error::other(format!("a record was refused: {}", String::from_utf8_lossy(text))));
            }
            (used, answered) = (used + bytes, answered + 1);
        }
        connection.come.drain(..used);
    }
    Ok(begun.elapsed())
}
