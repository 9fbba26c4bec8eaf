//! Where experiments are played: a server whose workers have the first processors for themselves, and the generator on the others.

use sandstorm_db::config::Overrides;
use sandstorm_db::processors;

use crate::cli::local::LocalServer;
use crate::cli::output::Failure;

/// Starts a server of `workers` workers, bound to the first processors; from here on this thread, and those it starts, stay off
/// them, if any others are left.
pub(super) fn server(workers: usize, change: impl FnOnce(&mut Overrides)) -> Result<LocalServer, Failure> {
    // An experiment before has left this thread off the processor that the worker is to have.
    let all = processors::all();
    if !all.is_empty() {
        processors::bind(all).map_err(|error| Failure::new(format!("cannot choose processors: {error}")))?;
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
