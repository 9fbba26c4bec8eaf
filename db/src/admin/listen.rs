//! A listener with a bound on its connections, and on how long one may keep its place without asking for anything: else
//! a few hundred connections that send half a header would lock everybody out.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// What ends a request's header.
const HEADER_END: &[u8] = b"\r\n\r\n";

/// Accepts no further connection while there are as many as allowed.
pub(crate) struct Limited {
    listener: TcpListener,
    places: Arc<Semaphore>,
    patience: Duration,
}

/// A connection that gives its place back when it is closed.
pub(crate) struct Connection {
    stream: TcpStream,
    _place: Option<OwnedSemaphorePermit>,
    patience: Duration,
    /// When the next request's header must be whole. Not looked at while a request is being answered.
    deadline: Pin<Box<Sleep>>,
    answering: bool,
    /// Bytes of [`HEADER_END`] that the last bytes read are.
    matched: usize,
}

impl Connection {
    /// Looks for the end of a header in what has come.
    fn look_at(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let expected = HEADER_END.get(self.matched) == Some(byte);
            self.matched = if expected { self.matched + 1 } else { usize::from(*byte == b'\r') };
            if self.matched == HEADER_END.len() {
                (self.answering, self.matched) = (true, 0);
            }
        }
    }

    /// An answer goes out: the next request may take its time again.
    fn answered(&mut self) {
        self.answering = false;
        let next = Instant::now() + self.patience;
        self.deadline.as_mut().reset(next);
    }
}

impl Limited {
    /// At most `connections` at a time; one that has not sent a whole header within `patience` is closed.
    pub(super) fn new(listener: TcpListener, connections: usize, patience: Duration) -> Limited {
        Limited { listener, places: Arc::new(Semaphore::new(connections)), patience }
    }
}

impl Listener for Limited {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // The semaphore is never closed; without a place the connection would only be uncounted.
        let place = self.places.clone().acquire_owned().await.ok();
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let (patience, deadline) = (self.patience, Box::pin(sleep(self.patience)));
        (Connection { stream, _place: place, patience, deadline, answering: false, matched: 0 }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let held = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if polled.is_ready() {
            let connection = &mut *self;
            connection.look_at(&buf.filled()[held..]);
        }
        if !self.answering && self.deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.answered();
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.answered();
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Reads what comes next; 64 bytes at most.
    async fn read(connection: &mut Connection) -> io::Result<usize> {
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
    async fn connection(patience_ms: u64) -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut limited = Limited::new(listener, 1, Duration::from_millis(patience_ms));
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
}
