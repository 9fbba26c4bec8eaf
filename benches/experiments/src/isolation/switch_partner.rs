//! The partner process of the switch measurement: this program again, on the same processor. It answers over a futex in
//! shared memory or over a socket pair. A round trip is two switches.
//!
//! Guarantee: the only unsafe code maps one page of an in-memory file, shared and writable, for as long as the process
//! lives. This module made the file, or received it from itself as standard input. It accesses the page only as
//! atomics.
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
use sandstorm_terminal::output::CliError;

/// The mechanism of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SwitchPartner {
    Futex,
    Socket,
}

/// Bytes of the shared page.
const PAGE: usize = 4096;
/// The word's values: which process runs next.
const TURN_MINE: u32 = 0;
const TURN_PARTNER: u32 = 1;
const TURN_DONE: u32 = 2;
/// Time that a process waits for its partner before it counts it as gone.
const PARTNER_TIMEOUT: Duration = Duration::from_secs(20);
/// Round trips before the clock starts.
const WARM_UP: u32 = 100;

/// The first word of a page that both processes see. It stays mapped: the process ends soon.
fn map_shared_word(file: BorrowedFd<'_>) -> Result<&'static AtomicU32, CliError> {
    // SAFETY: a new mapping where the kernel finds room, of a file that is at least a page long (`ftruncate` below,
    // before the partner is started) and never shortened.
    let at = unsafe { mmap(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0) };
    let at = at.map_err(|error| CliError::new(format!("cannot map shared memory: {error}")))?;
    // SAFETY: page-aligned, mapped until the process ends, zero at first, and never looked at but as an atomic.
    Ok(unsafe { &*at.cast::<AtomicU32>() })
}

/// Sleeps until the word is no longer `value`; fails if that takes too long.
fn wait_while(word: &AtomicU32, value: u32) -> Result<(), CliError> {
    let begun = Instant::now();
    while word.load(SeqCst) == value {
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        // The word tells whether it was woken, too late, or timed out.
        let _woken = futex::wait(word, futex::Flags::empty(), value, Some(&second));
        if begun.elapsed() > PARTNER_TIMEOUT {
            return Err(CliError::new("the other process does not answer"));
        }
    }
    Ok(())
}

fn set_turn(word: &AtomicU32, to: u32) {
    word.store(to, SeqCst);
    // The other process may not be asleep yet.
    let _woken = futex::wake(word, futex::Flags::empty(), 1);
}

/// The partner process; ended when dropped.
struct PartnerProcess(Child);

impl PartnerProcess {
    fn start(partner: SwitchPartner, stdin: OwnedFd) -> Result<PartnerProcess, CliError> {
        let name = match partner {
            SwitchPartner::Futex => "futex",
            SwitchPartner::Socket => "socket",
        };
        let mut command = Command::new(std::env::current_exe()?);
        Ok(PartnerProcess(command.args(["bench", "--partner", name]).stdin(Stdio::from(stdin)).spawn()?))
    }
}

impl Drop for PartnerProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

impl SwitchPartner {
    /// Nanoseconds of one switch between processes on the first processor.
    pub(super) fn switch_ns(self, switches: u32) -> Result<f64, CliError> {
        on_first(move || match self {
            SwitchPartner::Futex => by_futex(switches / 2),
            SwitchPartner::Socket => by_socket(switches / 2),
        })?
    }

    /// Runs the partner's side until the measurement is over.
    pub(crate) fn serve(self) -> Result<(), CliError> {
        let stdin = std::io::stdin();
        if self == SwitchPartner::Futex {
            let word = map_shared_word(stdin.as_fd())?;
            loop {
                wait_while(word, TURN_MINE)?;
                if word.load(SeqCst) == TURN_DONE {
                    return Ok(());
                }
                set_turn(word, TURN_MINE);
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
fn time_switches(round_trips: u32, mut trip: impl FnMut() -> Result<(), CliError>) -> Result<f64, CliError> {
    for _ in 0..WARM_UP {
        trip()?;
    }
    let begun = Instant::now();
    for _ in 0..round_trips.max(1) {
        trip()?;
    }
    Ok(begun.elapsed().as_nanos() as f64 / f64::from(round_trips.max(1)) / 2.0)
}

fn by_futex(round_trips: u32) -> Result<f64, CliError> {
    let failed = |error| CliError::new(format!("cannot make shared memory: {error}"));
    let file = memfd_create("sandstorm-bench", MemfdFlags::CLOEXEC).map_err(failed)?;
    ftruncate(&file, PAGE as u64).map_err(failed)?;
    let word = map_shared_word(file.as_fd())?;
    let _other = PartnerProcess::start(SwitchPartner::Futex, file)?;
    let took = time_switches(round_trips, || {
        set_turn(word, TURN_PARTNER);
        wait_while(word, TURN_PARTNER)
    });
    set_turn(word, TURN_DONE);
    took
}

fn by_socket(round_trips: u32) -> Result<f64, CliError> {
    let (mut mine, yours) = UnixStream::pair()?;
    mine.set_read_timeout(Some(PARTNER_TIMEOUT))?;
    let _other = PartnerProcess::start(SwitchPartner::Socket, yours.into())?;
    let mut byte = [0];
    time_switches(round_trips, || {
        mine.write_all(&byte)?;
        Ok(mine.read_exact(&mut byte)?)
    })
}
