//! Unix sockets to listen on: the file, its access mode, and the removal of one that a server has left behind.

use super::socket_file::{SocketFile, stat_path};
use super::stream::{ListenError, ListenerAddress, StreamListener};
use crate::limits::ACCEPT_BACKLOG;
use rustix::fs::{self, FileType, Mode};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

fn new_socket() -> Result<OwnedFd, Errno> {
    net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

impl StreamListener {
    /// Makes `count` listeners on one Unix socket; each may accept each connection. Only users that the file's `mode`
    /// lets write to it may connect. A socket that a server has left there is replaced if no server listens on it.
    ///
    /// # Errors
    /// [`ListenError::Unix`] names the reason.
    pub fn bind_unix(path: &Path, mode: u32, count: usize) -> Result<Vec<StreamListener>, ListenError> {
        let failed = |what: String| ListenError::Unix { path: path.to_owned(), what };
        let explain = |error: Errno| {
            failed(match error {
                Errno::NOENT => "its folder is not there: make it first".to_owned(),
                Errno::ACCESS | Errno::PERM => "no permission: let the server's user write to its folder".to_owned(),
                error => error.to_string(),
            })
        };
        let address = SocketAddrUnix::new(path)
            .map_err(|_| failed("a socket's path has 107 bytes at most: choose a shorter one".to_owned()))?;
        let mode = Mode::from_raw_mode(mode & 0o777);
        let socket = new_socket().map_err(explain)?;
        // The file is made with the mode that the socket has, less what the process' mask takes away. So it is never
        // open to more users than it should be.
        fs::fchmod(&socket, mode).map_err(explain)?;
        match net::bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                remove_stale_socket(path, &address).map_err(failed)?;
                net::bind(&socket, &address).map_err(explain)?;
            }
            bound => bound.map_err(explain)?,
        }
        let (identity, _) = stat_path(path).map_err(explain)?;
        let file = Arc::new(SocketFile { path: path.to_owned(), identity });
        fs::chmod(path, mode).map_err(explain)?;
        net::listen(&socket, ACCEPT_BACKLOG).map_err(explain)?;
        let mut listeners = Vec::new();
        for _ in 1..count {
            let socket = rustix::io::fcntl_dupfd_cloexec(&socket, 0).map_err(explain)?;
            listeners.push(StreamListener { socket, local: ListenerAddress::Unix { _file: Arc::clone(&file) } });
        }
        listeners.push(StreamListener { socket, local: ListenerAddress::Unix { _file: file } });
        Ok(listeners)
    }
}

/// Removes a socket that no server listens on any more.
fn remove_stale_socket(path: &Path, address: &SocketAddrUnix) -> Result<(), String> {
    let (_, kind) = stat_path(path).map_err(|error| error.to_string())?;
    if kind != FileType::Socket {
        return Err("another file is there, and no socket: move it away, or choose another path".to_owned());
    }
    match new_socket().and_then(|socket| net::connect(&socket, address)) {
        Err(Errno::CONNREFUSED) => {
            fs::unlink(path).map_err(|error| format!("an old socket cannot be removed: {error}"))
        }
        // A full queue means that a server listens, too.
        Ok(()) | Err(Errno::AGAIN) => Err("another server listens there: stop it, or choose another path".to_owned()),
        Err(error) => Err(format!("a socket is there, and whether anybody listens on it cannot be told: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::StreamProgress;
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::PathBuf;

    fn mode_of(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// A folder of this test's own.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("sandstorm-unix-{}-{name}", std::process::id()));
        let _there_from_before = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn all_listeners_accept_and_bytes_go_both_ways() {
        let path = folder("all").join("s");
        let listeners = StreamListener::bind_unix(&path, 0o660, 3).unwrap();
        assert_eq!((mode_of(&path), listeners.len()), (0o660, 3));
        for listener in &listeners {
            assert!(listener.local().is_none() && listener.accept().unwrap().is_none());
            let mut client = UnixStream::connect(&path).unwrap();
            let stream = listener.accept().unwrap().unwrap();
            assert!(stream.peer().is_none());
            let mut buffer = [0; 8];
            assert_eq!(stream.receive(&mut buffer), StreamProgress::WouldBlock);
            client.write_all(b"ping").unwrap();
            assert_eq!((stream.receive(&mut buffer), &buffer[..4]), (StreamProgress::Bytes(4), &b"ping"[..]));
            assert_eq!(stream.send(b"pong!"), StreamProgress::Bytes(5));
            client.read_exact(&mut buffer[..5]).unwrap();
            drop(client);
            assert_eq!(stream.receive(&mut buffer), StreamProgress::Closed);
        }
        drop(listeners);
        assert!(!path.exists(), "the file goes with its listeners");
    }

    #[test]
    fn a_stale_socket_is_replaced_and_nothing_else_is() {
        let folder = folder("stale");
        let path = folder.join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the standard library leaves it behind");
        let listeners = StreamListener::bind_unix(&path, 0o700, 1).unwrap();
        assert_eq!(mode_of(&path), 0o700);
        let error = StreamListener::bind_unix(&path, 0o700, 1).unwrap_err().to_string();
        assert!(error.contains("another server listens there"), "{error}");
        // Another one's, that came to stand there, stays.
        std::fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(listeners);
        assert!(path.exists());
        drop(other);
        let file = folder.join("file");
        std::fs::write(&file, "words").unwrap();
        let link = folder.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for (path, explain) in [
            (file.clone(), "no socket"),
            (link, "no socket"),
            (folder.join("nowhere/s"), "its folder is not there"),
            (folder.join("x".repeat(200)), "107 bytes at most"),
        ] {
            let error = StreamListener::bind_unix(&path, 0o700, 1).unwrap_err().to_string();
            assert!(error.contains(explain), "{error}");
        }
        assert_eq!(std::fs::read_to_string(file).unwrap(), "words");
    }
}
