//! Supervises a compiler until it ends, or ends it at a limit. All its processes count together; the kernel's own
//! limits count each for itself.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::confined_command::{CompilerOutcome, ConfinedCommand};
use super::process_tree::{ProcessTreeUsage, disk_bytes};
use super::{BuildError, CompileLimits, priority};

/// Time between two samples of a compiler.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(25);
/// Time after which a starved compiler is raised out of `SCHED_IDLE`: it could have used a processor, and has got less
/// than a tenth of one.
const STARVATION_TIME: Duration = Duration::from_millis(750);

/// A process group that is ended whenever this goes out of scope. Its number is its leader's, and the kernel does not
/// reuse that until the leader is reaped, which is the last step.
struct ProcessGroup {
    leader: Child,
    reaped: bool,
}

impl ProcessGroup {
    fn new(leader: Child) -> ProcessGroup {
        ProcessGroup { leader, reaped: false }
    }

    fn id(&self) -> Option<Pid> {
        i32::try_from(self.leader.id()).ok().and_then(Pid::from_raw)
    }

    /// Returns whether the leader has ended, without reaping it.
    fn has_ended(&self) -> std::io::Result<bool> {
        let Some(id) = self.id().filter(|_| !self.reaped) else { return Ok(true) };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(id), options)?.is_some())
    }

    /// Ends the rest of the group; returns the leader's exit status.
    fn end(&mut self) -> std::io::Result<ExitStatus> {
        if let Some(id) = self.id().filter(|_| !self.reaped) {
            // An error means that the group has ended already: then there is nothing to end.
            let _gone_already = kill_process_group(id, Signal::KILL);
        }
        let status = self.leader.wait()?;
        self.reaped = true;
        Ok(status)
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let _nothing_more_to_do = self.end();
    }
}

/// Waits for a command and its output. `idle`: it runs under `SCHED_IDLE`, and may be raised out of it.
pub(super) fn supervise(
    mut child: Child,
    run: &ConfinedCommand<'_>,
    idle: bool,
) -> Result<CompilerOutcome, BuildError> {
    let stderr = child.stderr.take();
    let mut group = ProcessGroup::new(child);
    let Some(stderr) = stderr else { return Err(BuildError::Internal("no pipe to the compiler".to_owned())) };
    let mut watch = CompilerWatch::new(group.leader.id(), run, idle);
    let limits = run.limits;
    let room = limits.output_bytes as u64;
    let (sender, receiver) = channel();
    std::thread::Builder::new()
        .name("compiler-output".to_owned())
        .spawn(move || {
            let mut bytes = Vec::new();
            let read = stderr.take(room + 1).read_to_end(&mut bytes);
            // The receiver gives up at the deadline.
            let _receiver_gone = sender.send(read.map(|_| bytes));
        })
        .map_err(|error| BuildError::io("starting a thread", error))?;
    let bytes = watch.output(&receiver)?;
    if bytes.len() as u64 > room {
        return Err(BuildError::Limit(format!("the compiler printed more than {room} bytes")));
    }
    let status = watch.end(&mut group)?;
    let stderr = String::from_utf8_lossy(&bytes).into_owned();
    if let Some(signal) = signal_of(status) {
        return Err(BuildError::Limit(describe_signal(signal, limits)));
    }
    Ok(CompilerOutcome { success: status.success(), code: status.code(), stderr, cpu: watch.last.cpu })
}

struct CompilerWatch<'a> {
    root: u32,
    run: &'a ConfinedCommand<'a>,
    started: Instant,
    last: ProcessTreeUsage,
    looks: u32,
    /// Samples in which it was running, or waiting for a processor.
    wanted: u32,
    /// Whether it may still be raised; then the time and the CPU time at which its observation began.
    idle: bool,
    since: (Instant, Duration),
}

impl<'a> CompilerWatch<'a> {
    fn new(root: u32, run: &'a ConfinedCommand<'a>, idle: bool) -> CompilerWatch<'a> {
        let started = Instant::now();
        let since = (started, Duration::ZERO);
        CompilerWatch { root, run, started, last: ProcessTreeUsage::default(), looks: 0, wanted: 0, idle, since }
    }

    fn output(&mut self, receiver: &Receiver<std::io::Result<Vec<u8>>>) -> Result<Vec<u8>, BuildError> {
        loop {
            match receiver.recv_timeout(SAMPLE_INTERVAL) {
                Ok(Ok(bytes)) => return Ok(bytes),
                Ok(Err(error)) => return Err(BuildError::io("reading the compiler's output", error)),
                Err(RecvTimeoutError::Timeout) => self.look()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(BuildError::Internal("the compiler's output was lost".to_owned()));
                }
            }
        }
    }

    /// Waits for the end of a child that has closed its output.
    fn end(&mut self, group: &mut ProcessGroup) -> Result<ExitStatus, BuildError> {
        let failed = |error| BuildError::io("waiting for the compiler", error);
        let mut nap = Duration::from_micros(200);
        loop {
            if group.has_ended().map_err(failed)? {
                return group.end().map_err(failed);
            }
            std::thread::sleep(nap);
            nap *= 2;
            if nap >= SAMPLE_INTERVAL {
                nap = SAMPLE_INTERVAL;
                self.look()?;
            }
        }
    }

    /// Takes one sample and checks it against the limits.
    fn look(&mut self) -> Result<(), BuildError> {
        let sample = ProcessTreeUsage::of(self.root);
        self.looks += 1;
        self.wanted += u32::from(sample.runnable);
        self.lift(&sample);
        self.last = ProcessTreeUsage { cpu: sample.cpu.max(self.last.cpu), ..sample };
        let limits = self.run.limits;
        let over = |what: String| Err(BuildError::Limit(what));
        if self.last.memory > limits.memory_bytes {
            return over(format!("the compiler used more than {} MiB of memory", limits.memory_bytes >> 20));
        }
        if self.last.threads.len() as u64 > limits.processes {
            return over(format!("the compiler started more than {} processes and threads", limits.processes));
        }
        if self.last.cpu > self.run.cpu + Duration::from_secs(1) {
            return over(format!("the compiler used more than {} s of CPU time", limits.cpu.as_secs()));
        }
        if disk_bytes(self.run.folder) > limits.scratch_bytes {
            return over(format!("the compiler wrote more than {} MiB of files", limits.scratch_bytes >> 20));
        }
        if self.started.elapsed() > self.run.wall {
            return Err(self.too_slow());
        }
        Ok(())
    }

    /// Raises a compiler that wants a processor and gets next to nothing of one.
    fn lift(&mut self, sample: &ProcessTreeUsage) {
        if !self.idle {
            return;
        }
        let (since, cpu) = self.since;
        if !sample.runnable || sample.cpu.saturating_sub(cpu) > since.elapsed() / 10 {
            self.since = (Instant::now(), sample.cpu);
        } else if since.elapsed() > STARVATION_TIME {
            // Threads that were started since the sample inherit the raised priority, or are raised after the next one.
            let lifted = sample.threads.iter().filter(|thread| priority::raise_from_idle(**thread)).count();
            tracing::debug!(lifted, "no processor is idle: compilers get a small share");
        }
    }

    /// A compiler that computed, or waited, for so long is at fault; one that could not get a processor is not.
    fn too_slow(&self) -> BuildError {
        let wall = self.run.limits.wall.as_secs();
        let starved = self.wanted * 2 > self.looks && self.last.cpu < self.run.cpu / 2;
        if starved {
            let ms = self.last.cpu.as_millis();
            return BuildError::Busy(format!("in {wall} s the compiler got {ms} ms of CPU time"));
        }
        BuildError::Limit(format!("the compiler was ended after {wall} s"))
    }
}

/// The signal that ended the process; a launcher in between passes it on as 128 + signal, as shells do.
fn signal_of(status: ExitStatus) -> Option<i32> {
    status.signal().or_else(|| status.code().filter(|code| *code > 128).map(|code| code - 128))
}

fn describe_signal(signal: i32, limits: &CompileLimits) -> String {
    if signal == Signal::XCPU.as_raw() || signal == Signal::KILL.as_raw() {
        format!("the compiler used more than {} s of CPU time", limits.cpu.as_secs())
    } else if signal == Signal::XFSZ.as_raw() {
        format!("the compiler wrote a file of more than {} bytes", limits.file_bytes)
    } else if signal == Signal::ABORT.as_raw() {
        format!("the compiler gave up, most likely for want of memory ({} MiB)", limits.memory_bytes >> 20)
    } else {
        format!("the compiler died of signal {signal}: the source is too complex for it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    /// The state letter that the kernel shows for a process: `Z` for one that has ended and is not reaped. `None`:
    /// there is no such process.
    fn state(id: u32) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    fn within_a_minute(mut it: impl FnMut() -> bool) -> bool {
        let begun = Instant::now();
        while !it() && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        it()
    }

    #[test]
    fn a_group_is_ended_before_its_leader_is_reaped_and_never_after() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 1000 >&2 & echo $!"]).process_group(0).stdin(Stdio::null());
        let mut leader = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(leader.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let left: u32 = line.trim().parse().unwrap();
        let mut group = ProcessGroup::new(leader);
        assert!(within_a_minute(|| group.has_ended().unwrap()));
        assert_eq!(state(group.leader.id()), Some('Z'), "its number is taken still");
        assert!(state(left).is_some_and(|state| state != 'Z'), "what it has started goes on");
        assert!(group.end().unwrap().success());
        assert!(within_a_minute(|| state(left).is_none_or(|state| state == 'Z')), "nothing is left");
        assert!(group.reaped && group.has_ended().unwrap(), "no signal goes to its number any more");
        assert!(group.end().unwrap().success());
    }
}
