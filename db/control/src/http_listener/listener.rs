//! A listener with a bound on its connections, and on how long one may keep its place without asking for anything: else
//! a few hundred connections that send half a header, or half a handshake, would lock everybody out.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::TlsAcceptor;

use super::connection_limit::{ConnectionLimiter, ConnectionPermit, PermitHandle};
use super::tls_stream::MaybeTlsStream;
use crate::limits::{ACCEPT_PAUSE, ANSWER_TIMEOUT, HANDSHAKE_TIMEOUT, HEADER_TIMEOUT, MAX_HEADER_BYTES, SPARE_FILES};

/// What ends a request's header.
const HEADER_END: &[u8] = b"\r\n\r\n";
/// What one says to a client that asks whether it should send its body.
const CONTINUE_RESPONSE: &[u8] = b"HTTP/1.1 100";

/// Accepts no further connection while there are as many as allowed, and all of them are being served.
pub(crate) struct LimitedListener {
    listener: TcpListener,
    /// Held open for the moment when there are no other file descriptors.
    spare: Vec<File>,
    door: Arc<ConnectionLimiter>,
    tls: Option<TlsAcceptor>,
    timeouts: ConnectionTimeouts,
}

/// How long a connection may take for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionTimeouts {
    handshake: Duration,
    header: Duration,
    answer: Duration,
}

impl Default for ConnectionTimeouts {
    fn default() -> ConnectionTimeouts {
        ConnectionTimeouts { handshake: HANDSHAKE_TIMEOUT, header: HEADER_TIMEOUT, answer: ANSWER_TIMEOUT }
    }
}

/// Who is at the other end, and the place that the connection has.
#[derive(Clone, Debug)]
pub(crate) struct HttpPeer(pub(crate) SocketAddr, pub(crate) PermitHandle);

impl Connected<IncomingStream<'_, LimitedListener>> for HttpPeer {
    fn connect_info(stream: IncomingStream<'_, LimitedListener>) -> HttpPeer {
        HttpPeer(*stream.remote_addr(), stream.io().place.visit())
    }
}

/// A connection that gives its place back when it is closed.
pub(crate) struct HttpConnection {
    stream: MaybeTlsStream,
    door: Arc<ConnectionLimiter>,
    place: ConnectionPermit,
    timeouts: ConnectionTimeouts,
    /// When what is under way must be done: the handshake, the next request's header, its answer.
    deadline: Pin<Box<Sleep>>,
    /// Whether a header is whole and its answer has not begun.
    response_pending: bool,
    /// Bytes of the header that has begun. Blank lines before it do not count: a server skips them, so they begin
    /// nothing.
    header: usize,
    /// Bytes of [`HEADER_END`] that the last bytes read are.
    header_end_matched: usize,
}

impl HttpConnection {
    /// Looks for the end of a header in what has come.
    fn scan_for_header_end(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.response_pending || (self.header == 0 && matches!(byte, b'\r' | b'\n')) {
                continue;
            }
            self.header += 1;
            let expected = HEADER_END.get(self.header_end_matched) == Some(byte);
            self.header_end_matched = if expected { self.header_end_matched + 1 } else { usize::from(*byte == b'\r') };
            if self.header_end_matched == HEADER_END.len() {
                (self.response_pending, self.header_end_matched, self.header) = (true, 0, 0);
                self.allow(self.timeouts.answer);
            }
        }
    }

    /// So long from now for what comes next.
    fn allow(&mut self, timeouts: Duration) {
        self.deadline.as_mut().reset(Instant::now() + timeouts);
    }

    /// Ready with an error when the time is over, or the place another's.
    fn overdue(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.place.poll_evicted(cx).is_ready() {
            return Poll::Ready(io::ErrorKind::ConnectionAborted.into());
        }
        ready!(self.deadline.as_mut().poll(cx));
        self.door.counts().too_slow.fetch_add(1, Relaxed);
        Poll::Ready(io::ErrorKind::TimedOut.into())
    }

    /// What a write came to: progress gives the rest of the answer, or the next request, its time; without any it runs
    /// out.
    fn written<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match polled {
            Poll::Pending => self.overdue(cx).map(Err),
            ready => {
                self.allow(self.timeouts.header);
                ready
            }
        }
    }

    /// An answer goes out, unless it only says "go on": the next request may take its time again.
    fn answer(&mut self, bytes: &[u8]) {
        if !bytes.starts_with(CONTINUE_RESPONSE) && std::mem::take(&mut self.response_pending) {
            self.place.answered();
            self.allow(self.timeouts.header);
        }
    }

    /// Goes on with the handshake, if there is one.
    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.stream.is_ready() {
            return Poll::Ready(Ok(()));
        }
        match self.stream.poll_handshake(cx) {
            Poll::Pending => self.overdue(cx).map(Err),
            Poll::Ready(Err(why)) => {
                self.door.broken(why);
                Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
            }
            Poll::Ready(Ok(())) => {
                self.allow(self.timeouts.header);
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl LimitedListener {
    /// With TLS if there is an acceptor.
    pub(crate) fn new(
        listener: TcpListener,
        door: Arc<ConnectionLimiter>,
        tls: Option<TlsAcceptor>,
    ) -> LimitedListener {
        let mut limited =
            LimitedListener { listener, spare: Vec::new(), door, tls, timeouts: ConnectionTimeouts::default() };
        limited.spare();
        limited
    }

    /// Holds as many spare file descriptors as it should, if they can be had.
    fn spare(&mut self) {
        while self.spare.len() < SPARE_FILES
            && let Ok(file) = File::open("/dev/null")
        {
            self.spare.push(file);
        }
    }

    /// The next connection. Where the process may open no more files, those that were spared for this are given up, and
    /// the connection that has waited longest is closed.
    async fn next(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            let error = match self.listener.accept().await {
                Ok(accepted) => return accepted,
                Err(error) => error,
            };
            let no_files =
                [Errno::MFILE, Errno::NFILE].iter().any(|none| error.raw_os_error() == Some(none.raw_os_error()));
            // What a client has done to its connection meanwhile is no reason to wait.
            if !no_files
                && !matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::NOBUFS | Errno::NOMEM))
            {
                continue;
            }
            self.door.no_files(&error);
            self.door.evict_one();
            if self.spare.is_empty() || !no_files {
                sleep(ACCEPT_PAUSE).await;
            }
            self.spare.clear();
        }
    }
}

impl Listener for LimitedListener {
    type Io = HttpConnection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (HttpConnection, SocketAddr) {
        loop {
            self.door.wait().await;
            let (stream, address) = self.next().await;
            self.spare();
            // One without a place is closed at once: it would only keep others waiting.
            let Some(place) = self.door.place(address.ip()) else { continue };
            let first = if self.tls.is_some() { self.timeouts.handshake } else { self.timeouts.header };
            let connection = HttpConnection {
                stream: MaybeTlsStream::new(stream, self.tls.as_ref()),
                door: self.door.clone(),
                place,
                timeouts: self.timeouts,
                deadline: Box::pin(sleep(first)),
                response_pending: false,
                header: 0,
                header_end_matched: 0,
            };
            return (connection, address);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl AsyncRead for HttpConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let connection = &mut *self;
        ready!(connection.poll_handshake(cx))?;
        let held = buf.filled().len();
        let polled = Pin::new(&mut connection.stream).poll_read(cx, buf);
        if polled.is_ready() {
            connection.scan_for_header_end(&buf.filled()[held..]);
        }
        if connection.header > MAX_HEADER_BYTES {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        match connection.overdue(cx) {
            Poll::Ready(error) => Poll::Ready(Err(error)),
            Poll::Pending => polled,
        }
    }
}

impl AsyncWrite for HttpConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.answer(bytes);
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_flush(cx) {
            Poll::Pending => self.overdue(cx).map(Err),
            ready => ready,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_shutdown(cx) {
            Poll::Pending => self.overdue(cx).map(Err),
            ready => ready,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Reads what comes next; 64 bytes at most.
    async fn read(connection: &mut HttpConnection) -> io::Result<usize> {
        let mut bytes = [0; 64];
        let mut buffer = ReadBuf::new(&mut bytes);
        poll_fn(|cx| Pin::new(&mut *connection).poll_read(cx, &mut buffer)).await?;
        Ok(buffer.filled().len())
    }

    async fn send(client: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        client.writable().await?;
        client.try_write(bytes)
    }

    /// A connection, and its client's end.
    async fn connection(patience_ms: u64) -> (HttpConnection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut limited = LimitedListener::new(listener, ConnectionLimiter::new("port"), None);
        limited.timeouts.header = Duration::from_millis(patience_ms);
        let (accepted, client) = tokio::join!(limited.accept(), TcpStream::connect(address));
        (accepted.0, client.expect("a connection"))
    }

    fn run(future: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(future);
    }

    #[test]
    fn a_connection_that_never_ends_its_header_is_closed_although_it_goes_on_sending() {
        run(async {
            let (mut connection, client) = connection(50).await;
            let error = loop {
                send(&client, b"x: y\r\n").await.expect("sent");
                if let Err(error) = read(&mut connection).await {
                    break error;
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn a_request_may_be_worked_on_for_longer() {
        run(async {
            let (mut connection, client) = connection(50).await;
            send(&client, b"GET / HTTP/1.1\r\n\r\n").await.expect("sent");
            assert_eq!(read(&mut connection).await.expect("a header"), 18);
            let more = tokio::time::timeout(Duration::from_millis(200), read(&mut connection)).await;
            assert!(more.is_err(), "it waits for more: {more:?}");
            let answer = b"HTTP/1.1 200 OK\r\n\r\n";
            poll_fn(|cx| Pin::new(&mut connection).poll_write(cx, answer)).await.expect("answered");
            let error = read(&mut connection).await.expect_err("no further request came");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn blank_lines_begin_no_request_and_earn_no_time() {
        run(async {
            let (mut connection, client) = connection(50).await;
            let error = loop {
                send(&client, b"\r\n\r\n").await.expect("sent");
                if let Err(error) = read(&mut connection).await {
                    break error;
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn a_header_without_an_end_is_cut_off() {
        run(async {
            let (mut connection, client) = connection(600_000).await;
            let mut sent = 0;
            let error = loop {
                sent += send(&client, &[b'x'; 64]).await.expect("sent");
                if let Err(error) = read(&mut connection).await {
                    break error;
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!((MAX_HEADER_BYTES..=MAX_HEADER_BYTES + 128).contains(&sent), "{sent}");
        });
    }

    #[test]
    fn an_answer_that_nobody_reads_is_given_up() {
        run(async {
            let (mut connection, _client) = connection(50).await;
            let error = loop {
                if let Err(error) = poll_fn(|cx| Pin::new(&mut connection).poll_write(cx, &[b'x'; 65_536])).await {
                    break error;
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }
}
