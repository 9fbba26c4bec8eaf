//! Network namespaces with pairs of virtual interfaces between them, which take root. Tests that need some print a line
//! and end without it.
#![allow(dead_code, unreachable_pub)]

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Namespaces, removed with their interfaces when dropped.
pub struct Namespaces<const N: usize> {
    pub names: [String; N],
}

impl<const N: usize> Drop for Namespaces<N> {
    fn drop(&mut self) {
        for name in &self.names {
            let _gone_already = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

impl<const N: usize> Namespaces<N> {
    /// Makes namespaces and runs the commands that `lines` makes of their names. `None` if this machine does not allow
    /// it. The kernel's own IPv6 is off at their interfaces except where it is switched on.
    pub fn new(lines: impl FnOnce(&[String; N]) -> Vec<String>) -> Option<Namespaces<N>> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let names = std::array::from_fn(|side| format!("sandstorm-{}-{number}-{side}", std::process::id()));
        let namespaces = Namespaces { names };
        let names = &namespaces.names;
        let begin = names.iter().flat_map(|name| {
            [
                format!("ip netns add {name}"),
                format!("ip netns exec {name} sysctl -qw net.ipv6.conf.default.disable_ipv6=1"),
                format!("ip -n {name} link set lo up"),
            ]
        });
        for line in begin.chain(lines(names)) {
            if let Err(why) = run(&line) {
                println!("skipped: no network namespaces here: {why}");
                return None;
            }
        }
        Some(namespaces)
    }
}

/// Two namespaces with a pair of interfaces between them.
pub struct Pair {
    /// The namespace with the kernel's addresses, on `kern0`.
    pub kernel: String,
    /// The namespace in which only the server answers, on `ours0`.
    pub ours: String,
    _gone_with_it: Namespaces<2>,
}

impl Pair {
    /// Makes a pair with these addresses of the kernel, and packets of up to so many bytes. `None` if this machine does
    /// not allow it.
    pub fn new(addresses: [&str; 2], mtu: usize) -> Option<Pair> {
        let namespaces = Namespaces::new(|[kernel, ours]| {
            vec![
                format!("ip -n {kernel} link add kern0 mtu {mtu} type veth peer name ours0 mtu {mtu} netns {ours}"),
                format!("ip netns exec {kernel} sysctl -qw net.ipv6.conf.kern0.disable_ipv6=0"),
                // Without duplicate address detection the address is usable at once.
                format!("ip netns exec {kernel} sysctl -qw net.ipv6.conf.kern0.accept_dad=0"),
                format!("ip -n {ours} link set ours0 up"),
                format!("ip -n {kernel} link set kern0 up"),
                format!("ip -n {kernel} addr add {}/24 dev kern0", addresses[0]),
                format!("ip -n {kernel} addr add {}/64 dev kern0 nodad", addresses[1]),
            ]
        })?;
        let [kernel, ours] = namespaces.names.clone();
        Some(Pair { kernel, ours, _gone_with_it: namespaces })
    }
}

/// Runs a command line; returns its output or the error.
pub fn run(line: &str) -> Result<String, String> {
    let mut words = line.split_whitespace();
    let output =
        Command::new(words.next().unwrap()).args(words).output().map_err(|error| format!("{line}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(text) } else { Err(format!("{line}: {text}{complaint}")) }
}

/// As [`run`], in a namespace.
pub fn run_in(name: &str, line: &str) -> Result<String, String> {
    run(&format!("ip netns exec {name} {line}"))
}

/// Moves this thread into a namespace.
pub fn enter(name: &str) {
    let file = File::open(Path::new("/run/netns").join(name)).unwrap();
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

/// Runs a function in a namespace.
pub fn within<T: Send>(name: &str, what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter(name);
            what()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
