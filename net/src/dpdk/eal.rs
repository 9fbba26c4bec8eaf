//! DPDK's environment: memory, devices and threads of this process. It starts once.
//!
//! Guarantees: DPDK's functions are called between a start that succeeded and the end, never after. Everything of DPDK
//! in this crate holds the [`Eal`], so it ends when all of that is gone. Pools with packets that did not come back are
//! never freed, and then the environment stays, too, until the process ends. A port is opened once at a time.
#![allow(unsafe_code)]

use super::dma::{DmaMemory, RunningDpdk};
use super::error::{DpdkErrno, DpdkError};
use super::info::{PortDescription, describe};
use crate::limits::DPDK_NAME_BYTES;
use sandstorm_dpdk_sys as sys;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{CString, c_char};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Whether a start of DPDK was tried in this process.
static STARTED: AtomicBool = AtomicBool::new(false);

/// DPDK, started. The last owner's drop ends it.
pub struct Eal {
    state: Mutex<EalState>,
    /// Dropped so that the thread ends DPDK.
    end: Option<mpsc::Sender<bool>>,
    thread: Option<JoinHandle<()>>,
    /// Memory of tables that a device reads: of the first device that can.
    dma: Mutex<Option<Arc<DmaMemory>>>,
}

/// The parts of DPDK that are in use.
#[derive(Default)]
struct EalState {
    open: BTreeSet<u16>,
    /// Pools without owners, to be freed when no port is open and their packets are back.
    left: Vec<PoolPointer>,
}

/// A pool of DPDK's, which has locks of its own.
#[derive(Clone, Copy)]
pub(super) struct PoolPointer(pub(super) NonNull<sys::rte_mempool>);

// SAFETY: a mempool may be used from any thread; what frees it holds the lock of the state and the only pointer left.
unsafe impl Send for PoolPointer {}
// SAFETY: as above; its functions may be called from several threads at once.
unsafe impl Sync for PoolPointer {}

// SAFETY: there is an [`Eal`] only once DPDK has started, and the drop of the last owner ends it.
unsafe impl RunningDpdk for Eal {}

impl std::fmt::Debug for Eal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Eal").field("open", &self.state().open).finish_non_exhaustive()
    }
}

/// Returns advice about a failed start.
fn start_hint(code: DpdkErrno) -> &'static str {
    match code.0 {
        0 => {
            "perhaps another process uses this --file-prefix: give each its own, or --in-memory; DPDK printed more above"
        }
        libc::EACCES | libc::EPERM => {
            "no free hugepages, or no right to them or to a device: see `sandstorm doctor`, or run as root"
        }
        libc::ENOMEM => "not enough memory: reserve hugepages, or use --no-huge with -m",
        libc::ENODEV | libc::EIO => {
            "a device of --vdev or -a cannot be had: look at its name and what DPDK printed above"
        }
        _ => "look at the arguments and at what DPDK printed above; docs/dpdk.md has working ones",
    }
}

impl Eal {
    /// Starts DPDK with its own arguments (`--no-huge -m 128 --vdev ...`), without a program name. Unless the arguments
    /// say otherwise it starts no worker threads, pins no thread to a processor, and prints warnings only.
    ///
    /// # Errors
    /// [`DpdkError`]: started before, arguments that cannot be used, or DPDK's answer. After a failed start it cannot
    /// be tried again.
    pub fn start<A: AsRef<str>>(arguments: &[A]) -> Result<Arc<Eal>, DpdkError> {
        let mut arguments: Vec<String> = arguments.iter().map(|argument| argument.as_ref().to_owned()).collect();
        let strings = eal_arguments(&arguments)?;
        if STARTED.swap(true, SeqCst) {
            return Err(DpdkError::StartedBefore);
        }
        let (report, started) = mpsc::channel();
        let (end, ends) = mpsc::channel::<bool>();
        // DPDK pins the thread that starts it, so that thread does nothing else.
        let thread = std::thread::Builder::new()
            .name("dpdk".to_owned())
            .spawn(move || {
                let began = initialise(strings);
                let _starter_waits = report.send(began);
                if began.is_ok() && ends.recv() == Ok(true) {
                    // SAFETY: started on this thread; the sender of `true` was the last user.
                    unsafe { sys::rte_eal_cleanup() };
                }
            })
            .map_err(DpdkError::Thread)?;
        match started.recv() {
            Ok(Ok(())) => Ok(Arc::new(Eal {
                state: Mutex::default(),
                end: Some(end),
                thread: Some(thread),
                dma: Mutex::default(),
            })),
            Ok(Err(EalInitError::Secondary)) => Err(DpdkError::Secondary),
            failed => {
                let code = match failed {
                    Ok(Err(EalInitError::Refused(code))) => code,
                    _ => DpdkErrno(libc::EFAULT),
                };
                arguments.shrink_to_fit();
                Err(DpdkError::Start { arguments, code, hint: start_hint(code) })
            }
        }
    }

    /// Returns the ports that DPDK has found or made, including open ones.
    ///
    /// # Errors
    /// A device that does not describe itself.
    pub fn ports(&self) -> Result<Vec<PortDescription>, DpdkError> {
        let mut ports = Vec::new();
        let mut next = 0;
        loop {
            // SAFETY: DPDK is started; any number may be asked.
            let found = unsafe { sys::rte_eth_find_next(next) };
            // SAFETY: as above.
            if unsafe { sys::rte_eth_dev_is_valid_port(found) } == 0 {
                return Ok(ports);
            }
            ports.push(describe(found)?);
            next = found.saturating_add(1);
        }
    }

    /// Gives the calling thread a cache of each pool until it ends. All works without it, only slower.
    pub(super) fn enter(&self) {
        REGISTERED.with(|registered| {
            if !registered.tried.replace(true) {
                // SAFETY: DPDK is started; the thread unregisters when it ends, see `ThreadRegistration`.
                registered.done.set(unsafe { sys::rte_thread_register() } == 0);
            }
        });
    }

    fn state(&self) -> MutexGuard<'_, EalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the memory that was mapped for a device: one thread maps at a time.
    pub(super) fn dma(&self) -> MutexGuard<'_, Option<Arc<DmaMemory>>> {
        self.dma.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a port for one owner.
    pub(super) fn claim(&self, port: u16) -> Result<(), DpdkError> {
        if self.state().open.insert(port) { Ok(()) } else { Err(DpdkError::PortInUse(port)) }
    }

    /// Records that the port is closed.
    pub(super) fn release(&self, port: u16) {
        let mut state = self.state();
        state.open.remove(&port);
        state.sweep();
    }

    /// Records that the pool has no owner any more, but packets of it may be in use.
    pub(super) fn leave(&self, pool: PoolPointer) {
        let mut state = self.state();
        state.left.push(pool);
        state.sweep();
    }

    /// Returns the number of pools without owners whose packets have not come back.
    pub fn orphaned_pools(&self) -> usize {
        self.state().left.len()
    }
}

impl EalState {
    /// Frees the pools that can be freed. While a port is open, a packet of any pool may be in it.
    fn sweep(&mut self) {
        if !self.open.is_empty() {
            return;
        }
        self.left.retain(|pool| {
            let pool = pool.0.as_ptr();
            // SAFETY: the pool is not freed yet. No port is open and its owner has gone, so no other thread uses it.
            unsafe {
                let out = sys::rte_mempool_in_use_count(pool) > 0;
                if !out {
                    sys::rte_mempool_free(pool);
                }
                out
            }
        });
    }
}

impl Drop for Eal {
    fn drop(&mut self) {
        self.state().sweep();
        let clean = self.state().left.is_empty() && self.state().open.is_empty();
        if let Some(end) = self.end.take() {
            let _thread_waits = end.send(clean);
        }
        if let Some(thread) = self.thread.take()
            && clean
        {
            let _ended = thread.join();
        }
    }
}

/// Returns the arguments as DPDK takes them, with a program name and better defaults.
fn eal_arguments(arguments: &[String]) -> Result<Vec<CString>, DpdkError> {
    let named = |name: &str| arguments.iter().any(|argument| argument.split('=').next() == Some(name));
    let short = |name: &str| arguments.iter().any(|argument| argument.starts_with(name) && !argument.starts_with("--"));
    let mut all = vec!["sandstorm".to_owned()];
    if !named("--lcores") && !short("-l") && !short("-c") {
        // One DPDK thread, on any processor that this process may use.
        all.push(format!("--lcores=0@({})", usable_processors()));
    }
    if !named("--no-telemetry") && !named("--telemetry") {
        all.push("--no-telemetry".to_owned());
    }
    all.extend(arguments.iter().cloned());
    let kinds = secondary_process_arguments(arguments);
    all.into_iter()
        .map(|argument| {
            if ["-h", "--help"].contains(&argument.as_str()) {
                return Err(DpdkError::Argument(argument, "DPDK would end the process"));
            }
            if argument == "--" || kinds.contains(&argument) {
                return Err(DpdkError::Argument(argument, "each server is a primary process of its own"));
            }
            if argument.len() > DPDK_NAME_BYTES {
                return Err(DpdkError::Argument(argument, "it is too long"));
            }
            CString::new(argument.clone()).map_err(|_| DpdkError::Argument(argument, "it holds a zero byte"))
        })
        .collect()
}

/// Returns the arguments that ask for another process type than primary, in one word or two. Abbreviated ones are
/// detected after the start.
fn secondary_process_arguments(arguments: &[String]) -> Vec<String> {
    let next = arguments.iter().skip(1).map(String::as_str).chain([""]);
    let requested = arguments.iter().zip(next).filter(|(argument, next)| match argument.split_once('=') {
        Some(("--proc-type", kind)) => kind != "primary",
        _ => *argument == "--proc-type" && *next != "primary",
    });
    requested.map(|(argument, _)| argument.clone()).collect()
}

/// Returns the processors that this thread may use, as DPDK writes them.
fn usable_processors() -> String {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return "0".to_owned() };
    let usable: Vec<String> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu.to_string()).collect();
    if usable.is_empty() { "0".to_owned() } else { usable.join(",") }
}

/// The reason why DPDK did not start.
#[derive(Clone, Copy, Debug)]
enum EalInitError {
    /// DPDK refused; 0: it gave no reason.
    Refused(DpdkErrno),
    /// DPDK had attached itself to the memory of another process.
    Secondary,
}

/// Starts DPDK on this thread.
fn initialise(arguments: Vec<CString>) -> Result<(), EalInitError> {
    let count = arguments.len();
    // DPDK may write to the array, and keeps pointers to some of the strings: both live as long as the process.
    let pointers: Vec<*mut c_char> =
        arguments.into_iter().map(CString::into_raw).chain([std::ptr::null_mut()]).collect();
    let pointers = Box::leak(pointers.into_boxed_slice());
    // SAFETY: `count` strings that end with a zero, and a null behind them, all of which are never freed. `STARTED`
    // makes this the only call.
    unsafe {
        sys::ss_quiet();
        if sys::rte_eal_init(count as i32, pointers.as_mut_ptr()) < 0 {
            return Err(EalInitError::Refused(DpdkErrno(sys::ss_errno().max(0))));
        }
        if sys::rte_eal_process_type() != sys::rte_proc_type_t_RTE_PROC_PRIMARY {
            sys::rte_eal_cleanup();
            return Err(EalInitError::Secondary);
        }
        // Threads of this process can then have caches; there are no secondary processes.
        sys::rte_mp_disable();
    }
    Ok(())
}

/// Whether this thread is registered with DPDK.
struct ThreadRegistration {
    tried: Cell<bool>,
    done: Cell<bool>,
}

thread_local! {
    static REGISTERED: ThreadRegistration = const { ThreadRegistration { tried: Cell::new(false), done: Cell::new(false) } };
}

impl Drop for ThreadRegistration {
    fn drop(&mut self) {
        if self.done.get() {
            // SAFETY: this thread is registered. DPDK may have ended meanwhile, but its tables of threads are static,
            // and it looks at no more.
            unsafe { sys::rte_thread_unregister() };
        }
    }
}
