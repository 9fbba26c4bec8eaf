//! Where experiments are played: a server whose workers have the first processors for themselves, and the generator on the others.

use sandstorm_control::config::Overrides;
use sandstorm_server::processors;

use crate::cli::local::LocalServer;
use crate::cli::output::Failure;

/// Starts a server of `workers` workers, bound to the first processors; from here on this thread, and those it starts, stay off
/// them, if any others are left.
pub(super) fn server(workers: usize, change: impl FnOnce(&mut Overrides)) -> Result<LocalServer, Failure> {
    return_to_all()?;
    let server = LocalServer::start_as(|overrides| {
        overrides.workers = Some(workers);
        change(overrides);
    })?;
    stay_off_first(workers);
    Ok(server)
}

/// Lets this thread, and the threads and processes that it starts, run on all processors again: an experiment before has kept it off those
/// that workers are to have.
pub(super) fn return_to_all() -> Result<(), Failure> {
    match processors::all() {
        [] => Ok(()),
        all => processors::bind(all).map_err(|error| Failure::new(format!("cannot choose processors: {error}"))),
    }
}

/// Keeps this thread, and those it starts, off the first processors.
pub(super) fn stay_off_first(count: usize) {
    let others = processors::free_of(count);
    if !others.is_empty() {
        let _stays_where_it_was = processors::bind(others);
    }
}

/// The first processor, by number: what is compared shares it in turn.
pub(super) fn first_processor() -> usize {
    processors::all().first().copied().unwrap_or(0)
}

/// Binds this thread to the first processor, as a worker is.
pub(super) fn bind_to_first() {
    let _stays_where_it_was = processors::bind_worker(0);
}
