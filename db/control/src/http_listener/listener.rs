//! A listener that limits its connections, and the time that one may keep its slot without a request. Otherwise a few
//! hundred connections with half a header, or half a handshake, would lock out all clients.

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

/// The end of a request's header.
const HEADER_END: &[u8] = b"\r\n\r\n";
/// The beginning of the answer to a client that asks whether it should send its body.
const CONTINUE_RESPONSE: &[u8] = b"HTTP/1.1 100";

/// Accepts connections up to the limit; waits while all of them are being served.
pub(crate) struct LimitedListener {
    listener: TcpListener,
    /// Spare file descriptors for the moment when no others are left.
    spare: Vec<File>,
    limiter: Arc<ConnectionLimiter>,
    tls: Option<TlsAcceptor>,
    timeouts: ConnectionTimeouts,
}

/// The timeouts of a connection.
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

/// The address of the client, and the slot of the connection.
#[derive(Clone, Debug)]
pub(crate) struct HttpPeer(pub(crate) SocketAddr, pub(crate) PermitHandle);

impl Connected<IncomingStream<'_, LimitedListener>> for HttpPeer {
    fn connect_info(stream: IncomingStream<'_, LimitedListener>) -> HttpPeer {
        HttpPeer(*stream.remote_addr(), stream.io().place.visit())
    }
}

/// A connection that releases its slot when it is closed.
pub(crate) struct HttpConnection {
    stream: MaybeTlsStream,
    limiter: Arc<ConnectionLimiter>,
    place: ConnectionPermit,
    timeouts: ConnectionTimeouts,
    /// The deadline of the current step: the handshake, the next request's header, its answer.
    deadline: Pin<Box<Sleep>>,
    /// Whether a header is whole and its answer has not begun.
    response_pending: bool,
    /// Bytes of the header that has begun. Blank lines before it do not count: a server skips them.
    header: usize,
    /// The number of bytes of [`HEADER_END`] with which the bytes read so far end.
    header_end_matched: usize,
}

impl HttpConnection {
    /// Its bytes and its slot, for a connection whose requests are over: no deadline holds any more.
    pub(crate) fn into_parts(self) -> (MaybeTlsStream, ConnectionPermit) {
        (self.stream, self.place)
    }

    /// Looks for the end of a header in received bytes.
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

    /// Sets the deadline of the next step.
    fn allow(&mut self, timeouts: Duration) {
        self.deadline.as_mut().reset(Instant::now() + timeouts);
    }

    /// Ready with an error at the deadline, or when the connection is evicted.
    fn overdue(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.place.poll_evicted(cx).is_ready() {
            return Poll::Ready(io::ErrorKind::ConnectionAborted.into());
        }
        ready!(self.deadline.as_mut().poll(cx));
        self.limiter.counts().too_slow.fetch_add(1, Relaxed);
        Poll::Ready(io::ErrorKind::TimedOut.into())
    }

    /// The result of a write. Progress extends the deadline for the rest of the answer, or the next request; without
    /// any it passes.
    fn written<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match polled {
            Poll::Pending => self.overdue(cx).map(Err),
            ready => {
                self.allow(self.timeouts.header);
                ready
            }
        }
    }

    /// Notes that an answer leaves, unless it only says "go on": the next request gets its full time again.
    fn answer(&mut self, bytes: &[u8]) {
        if !bytes.starts_with(CONTINUE_RESPONSE) && std::mem::take(&mut self.response_pending) {
            self.place.answered();
            self.allow(self.timeouts.header);
        }
    }

    /// Continues the handshake, if there is one.
    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.stream.is_ready() {
            return Poll::Ready(Ok(()));
        }
        match self.stream.poll_handshake(cx) {
            Poll::Pending => self.overdue(cx).map(Err),
            Poll::Ready(Err(why)) => {
                self.limiter.broken(why);
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
    /// A listener, with TLS if there is an acceptor.
    pub(crate) fn new(
        listener: TcpListener,
        limiter: Arc<ConnectionLimiter>,
        tls: Option<TlsAcceptor>,
    ) -> LimitedListener {
        let mut limited =
            LimitedListener { listener, spare: Vec::new(), limiter, tls, timeouts: ConnectionTimeouts::default() };
        limited.spare();
        limited
    }

    /// Opens the spare file descriptors, as far as possible.
    fn spare(&mut self) {
        while self.spare.len() < SPARE_FILES
            && let Ok(file) = File::open("/dev/null")
        {
            self.spare.push(file);
        }
    }

    /// Accepts the next connection. If the process may open no more files, the spare ones are closed, and the
    /// connection that has waited longest is evicted.
    async fn next(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            let error = match self.listener.accept().await {
                Ok(accepted) => return accepted,
                Err(error) => error,
            };
            let no_files =
                [Errno::MFILE, Errno::NFILE].iter().any(|none| error.raw_os_error() == Some(none.raw_os_error()));
            // An error of the client's own connection is no reason to wait.
            if !no_files
                && !matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::NOBUFS | Errno::NOMEM))
            {
                continue;
            }
            self.limiter.no_files(&error);
            self.limiter.evict_one();
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
            self.limiter.wait().await;
            let (stream, address) = self.next().await;
            self.spare();
            // A connection without a slot is closed at once: it would only delay others.
            let Some(place) = self.limiter.place(address.ip()) else { continue };
            let first = if self.tls.is_some() { self.timeouts.handshake } else { self.timeouts.header };
            let connection = HttpConnection {
                stream: MaybeTlsStream::new(stream, self.tls.as_ref()),
                limiter: self.limiter.clone(),
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
        if matches!(polled, Poll::Ready(Ok(1..))) {
            self.place.note_written();
        }
        self.written(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_flush(cx) {
            Poll::Pending => self.overdue(cx).map(Err),
            Poll::Ready(Ok(())) => {
                self.place.note_flushed();
                Poll::Ready(Ok(()))
            }
            failed => failed,
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
