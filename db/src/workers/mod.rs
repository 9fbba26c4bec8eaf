//! Workers: pinned threads that serve requests.
mod assembly;
mod run_queue;
mod sessions;
