//! The processors of the experiments: the server's workers have the first ones for themselves, and the generator has
//! the others.

use sandstorm_control::config::CliOverrides;
use sandstorm_server::cpu_affinity;

use crate::local_server::LocalServer;
use sandstorm_terminal::output::CliError;

/// Starts a server of `workers` workers, bound to the first processors. From here on this thread, and those it starts,
/// stay off them, if any others are left.
pub(super) fn start_bench_server(
    workers: usize,
    change: impl FnOnce(&mut CliOverrides),
) -> Result<LocalServer, CliError> {
    reset_affinity()?;
    let server = LocalServer::start_as(|overrides| {
        overrides.workers = Some(workers);
        change(overrides);
    })?;
    avoid_first_processors(workers);
    Ok(server)
}

/// Lets this thread, and the threads and processes that it starts, run on all processors again. An earlier experiment
/// has kept it off those that workers use.
pub(super) fn reset_affinity() -> Result<(), CliError> {
    match cpu_affinity::allowed_cpus() {
        [] => Ok(()),
        all => cpu_affinity::bind_to(all).map_err(|error| CliError::new(format!("cannot choose processors: {error}"))),
    }
}

/// Keeps this thread, and those it starts, off the first processors.
pub(super) fn avoid_first_processors(count: usize) {
    let others = cpu_affinity::worker_free_cpus(count);
    if !others.is_empty() {
        let _stays_where_it_was = cpu_affinity::bind_to(others);
    }
}

/// Number of the first processor; the compared programs use it in turn.
pub(super) fn first_processor() -> usize {
    cpu_affinity::allowed_cpus().first().copied().unwrap_or(0)
}

/// Binds this thread to the first processor, as a worker is.
pub(super) fn bind_to_first() {
    let _stays_where_it_was = cpu_affinity::bind_worker(0);
}
