//! Where experiments are played: a server whose workers have the first processors for themselves, and the generator on the others.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use sandstorm_db::config::Overrides;

use crate::cli::local::LocalServer;
use crate::cli::output::Failure;

/// The processors of this process as it was started.
static PROCESSORS: OnceLock<Option<CpuSet>> = OnceLock::new();

fn processors() -> Option<CpuSet> {
    *PROCESSORS.get_or_init(|| sched_getaffinity(None).ok())
}

/// Starts a server of `workers` workers, bound to the first processors; from here on this thread, and those it starts, stay off
/// them, if any others are left.
pub(super) fn server(workers: usize, change: impl FnOnce(&mut Overrides)) -> Result<LocalServer, Failure> {
    // An experiment before has left this thread off the processor that the worker is to have.
    if let Some(all) = processors() {
        sched_setaffinity(None, &all).map_err(|error| Failure::new(format!("cannot choose processors: {error}")))?;
    }
    let server = LocalServer::start_as(|overrides| {
        overrides.workers = Some(workers);
        change(overrides);
    })?;
    stay_off_first(workers);
    Ok(server)
}

/// Keeps this thread, and those it starts, off the first processors.
pub(super) fn stay_off_first(count: usize) {
    let Some(mut allowed) = processors() else { return };
    if allowed.count() as usize <= count {
        return;
    }
    let first: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).take(count).collect();
    first.into_iter().for_each(|cpu| allowed.unset(cpu));
    let _stays_where_it_was = sched_setaffinity(None, &allowed);
}

/// The first processor, by number: what is compared shares it in turn.
pub(super) fn first_processor() -> usize {
    processors().and_then(|all| (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu))).unwrap_or(0)
}

/// Binds this thread to the first processor, as a worker is.
pub(super) fn bind_to_first() {
    let mut first = CpuSet::new();
    first.set(first_processor());
    let _stays_where_it_was = sched_setaffinity(None, &first);
}
