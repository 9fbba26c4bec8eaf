//! Runs in a compiler's sandbox, and tries what a compiler must not do: each line is an attempt, and `refused` or
//! `DONE`. Compiled by `tests/extensions/builder.rs` alone; no part of the product.

use std::fs;
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::Command;

unsafe extern "C" {
    fn kill(process: i32, signal: i32) -> i32;
    fn ptrace(request: i64, process: i32, address: usize, data: usize) -> i64;
    fn unshare(flags: i32) -> i32;
    fn symlink(from: *const i8, to: *const i8) -> i32;
    fn setuid(user: u32) -> i32;
}

fn tried(what: &str, done: bool) {
    println!("{what}: {}", if done { "DONE" } else { "refused" });
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (port, parent, other) = (&arguments[0], &arguments[1], &arguments[2]);
    let parent: i32 = parent.parse().expect("a number");
    tried("read /etc/passwd", fs::read("/etc/passwd").is_ok());
    tried("list /", fs::read_dir("/").is_ok());
    tried("list the folder above", fs::read_dir("..").is_ok());
    tried("read another build", fs::read(format!("{other}/src.rs")).is_ok());
    tried("read the parent's environment", fs::read(format!("/proc/{parent}/environ")).is_ok());
    tried("read the parent's memory", fs::File::open(format!("/proc/{parent}/mem")).is_ok());
    tried("list /proc", fs::read_dir("/proc").is_ok());
    tried("write to /tmp", fs::write("/tmp/sandstorm-probe", "x").is_ok());
    tried("write outside", fs::write(format!("{other}/new"), "x").is_ok());
    tried("write a device", fs::write("/dev/null", "x").is_ok());
    tried("connect", TcpStream::connect(format!("127.0.0.1:{port}")).is_ok());
    tried("a datagram", UdpSocket::bind("127.0.0.1:0").is_ok());
    tried(
        "a local socket",
        UnixStream::connect("/run/systemd/private").is_ok() || UnixStream::pair().is_err() && false,
    );
    tried("run a shell", Command::new("/bin/sh").arg("-c").arg("true").status().is_ok());
    // SAFETY: calls that take numbers, or strings that live long enough.
    unsafe {
        tried("signal the parent", kill(parent, 0) == 0);
        tried("signal everybody", kill(-1, 0) == 0 && fs::read_dir("/proc").is_ok());
        tried("ptrace", ptrace(16, parent, 0, 0) == 0);
        tried("a namespace", unshare(0x1000_0000) == 0);
        tried("a link", symlink(c"/etc/passwd".as_ptr(), c"link".as_ptr()) == 0);
        tried("become root", setuid(0) == 0);
    }
    let mut memory: Vec<u8> = Vec::new();
    tried("much memory", memory.try_reserve_exact(3 << 30).is_ok());
    tried("an environment", std::env::vars().any(|(name, _)| name != "TMPDIR"));
    tried("an open file", (3..64).any(|file| fs::read_link(format!("/proc/self/fd/{file}")).is_ok()));
    let mut threads = 0;
    while threads < 500 {
        let thread = std::thread::Builder::new().stack_size(16 << 10);
        if thread.spawn(|| std::thread::sleep(std::time::Duration::from_secs(60))).is_err() {
            break;
        }
        threads += 1;
    }
    tried("five hundred threads", threads == 500);
    println!("end");
    std::process::exit(0);
}
