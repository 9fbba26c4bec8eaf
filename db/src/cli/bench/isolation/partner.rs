//! Another process to switch to: this program again, on the same processor, that answers over a futex in shared memory or over a
//! socket pair. A round trip is two switches.
//!
//! Guarantee: the only unsafe code maps one page of a file in memory that this module made (or was handed as standard input by itself),
//! shared and writable, for as long as the process lives, and looks at it as atomics alone.
#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::thread::futex;
use rustix::time::Timespec;

use super::on_first;
use crate::cli::output::Failure;

/// How to switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli::bench) enum Partner {
    Futex,
    Socket,
}

/// Bytes of the shared page.
const PAGE: usize = 4096;
/// Whose turn it is.
const MINE: u32 = 0;
const YOURS: u32 = 1;
const OVER: u32 = 2;
/// How long a process waits for the other one before it takes it for gone.
const PATIENCE: Duration = Duration::from_secs(20);
/// Round trips before the clock starts.
const WARM_UP: u32 = 100;

/// The first word of a page that both processes see. It stays mapped: the process ends soon.
fn word(file: BorrowedFd<'_>) -> Result<&'static AtomicU32, Failure> {
    // SAFETY: a new mapping where the kernel finds room, of a file that is at least a page long (`ftruncate` below, before the partner
    // is started) and never shortened.
    let at = unsafe { mmap(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0) };
    let at = at.map_err(|error| Failure::new(format!("cannot map shared memory: {error}")))?;
    // SAFETY: page-aligned, mapped until the process ends, zero at first, and never looked at but as an atomic.
    Ok(unsafe { &*at.cast::<AtomicU32>() })
}

/// Sleeps until the word is no longer `value`; fails if that takes too long.
fn wait_while(word: &AtomicU32, value: u32) -> Result<(), Failure> {
    let begun = Instant::now();
    while word.load(SeqCst) == value {
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        // Woken, too late, or out of time: the word says which.
        let _woken = futex::wait(word, futex::Flags::empty(), value, Some(&second));
        if begun.elapsed() > PATIENCE {
            return Err(Failure::new("the other process does not answer"));
        }
    }
    Ok(())
}

fn hand_over(word: &AtomicU32, to: u32) {
    word.store(to, SeqCst);
    // Nobody may be asleep yet.
    let _woken = futex::wake(word, futex::Flags::empty(), 1);
}

/// The other process; ended with this value.
struct Other(Child);

impl Other {
    fn start(partner: Partner, stdin: OwnedFd) -> Result<Other, Failure> {
        let name = match partner {
            Partner::Futex => "futex",
            Partner::Socket => "socket",
        };
        let mut command = Command::new(std::env::current_exe()?);
        Ok(Other(command.args(["bench", "--partner", name]).stdin(Stdio::from(stdin)).spawn()?))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

impl Partner {
    /// Nanoseconds of one switch from a process to another on the first processor.
    pub(super) fn switch_ns(self, switches: u32) -> Result<f64, Failure> {
        on_first(move || match self {
            Partner::Futex => by_futex(switches / 2),
            Partner::Socket => by_socket(switches / 2),
        })?
    }

    /// The other end, in a process of its own: until it is over.
    pub(in crate::cli::bench) fn serve(self) -> Result<(), Failure> {
        let stdin = std::io::stdin();
        if self == Partner::Futex {
            let word = word(stdin.as_fd())?;
            loop {
                wait_while(word, MINE)?;
                if word.load(SeqCst) == OVER {
                    return Ok(());
                }
                hand_over(word, MINE);
            }
        }
        let mut stream = UnixStream::from(stdin.as_fd().try_clone_to_owned()?);
        let mut byte = [0];
        while stream.read(&mut byte)? > 0 {
            stream.write_all(&byte)?;
        }
        Ok(())
    }
}

/// Times round trips.
fn time(round_trips: u32, mut trip: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    for _ in 0..WARM_UP {
        trip()?;
    }
    let begun = Instant::now();
    for _ in 0..round_trips.max(1) {
        trip()?;
    }
    Ok(begun.elapsed().as_nanos() as f64 / f64::from(round_trips.max(1)) / 2.0)
}

fn by_futex(round_trips: u32) -> Result<f64, Failure> {
    let failed = |error| Failure::new(format!("cannot make shared memory: {error}"));
    let file = memfd_create("sandstorm-bench", MemfdFlags::CLOEXEC).map_err(failed)?;
    ftruncate(&file, PAGE as u64).map_err(failed)?;
    let word = word(file.as_fd())?;
    let _other = Other::start(Partner::Futex, file)?;
    let took = time(round_trips, || {
        hand_over(word, YOURS);
        wait_while(word, YOURS)
    });
    hand_over(word, OVER);
    took
}

fn by_socket(round_trips: u32) -> Result<f64, Failure> {
    let (mut mine, yours) = UnixStream::pair()?;
    mine.set_read_timeout(Some(PATIENCE))?;
    let _other = Other::start(Partner::Socket, yours.into())?;
    let mut byte = [0];
    time(round_trips, || {
        mine.write_all(&byte)?;
        Ok(mine.read_exact(&mut byte)?)
    })
}
