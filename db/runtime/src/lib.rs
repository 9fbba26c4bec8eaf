//! Tenants' compiled code: loading it, running it next to the data, ending it when it exceeds its budget.
//!
//! The core concepts:
//! - An [`ExtensionLibrary`](sandstorm_extension::ExtensionLibrary) is checked machine code; a
//!   [`LoadedExtension`](sandstorm_extension::LoadedExtension) is a tenant's name and version for it; an invocation is
//!   one call of it.
//! - An [`Engine`], one per worker, polls invocations on a side stack. A poll that exceeds its slice of CPU time is
//!   switched out by the [`Watchdog`]'s signal and goes on later, on any worker; an invocation that exceeds its total
//!   is not resumed. Faults of the library's code, its panics and an exhausted memory quota land the worker back in its
//!   own code. Nothing of the invocation is left behind.
//! - Host functions run on the side stack too; a switch waits for their return, so no lock or half-done write is left.
#![deny(unsafe_code)]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
compile_error!(
    "extensions run on x86_64 Linux (gnu) only: the stack switch and the signal handlers are written for it"
);

mod begin_error;
mod call_notes;
mod call_trace;
mod clock;
mod code_look;
mod code_sampling;
mod cold_records;
mod commit;
mod cpu_meter;
mod engine;
mod extension_calls;
mod guest_layout;
mod guest_memory;
mod guest_memory_pool;
mod guest_registers;
mod guest_runner;
mod guest_stacks;
mod guest_value;
mod guest_walk;
mod host;
mod host_call;
mod idle_lists;
mod invocation;
mod invocation_memory;
mod invocation_random;
mod invocation_trace;
mod kill_trace;
pub mod limits;
mod log_calls;
mod mapping;
mod newcomers;
mod own_calls;
mod pause_sums;
mod pending_copies;
mod preemption_policy;
mod prefetch;
mod profiler;
mod range;
mod sample_slot;
mod sandbox_calls;
mod sandbox_commit;
mod sandbox_lists;
mod sandbox_own_calls;
mod sandbox_ranges;
mod sandbox_switch;
mod sandboxed_invocation;
mod shared_trust;
mod signals;
mod stack_switch;
mod tenant_permits;
#[cfg(test)]
mod tests;
mod thread_priority;
mod transaction_state;
mod watchdog;
mod worker_block;
mod xstate;

pub use begin_error::BeginError;
pub use engine::{CallActivity, CallLevel, Engine, PollOutcome, PositionQuery};
pub use invocation::{InvocationHandle, UserData};
pub use invocation_trace::InvocationTrace;
pub use profiler::{CodeProfile, ProfiledStack, Profiler, ProfilerBusy};
pub use signals::install_process_handlers;
pub use thread_priority::run_log_writer_when_woken;
pub use watchdog::Watchdog;
