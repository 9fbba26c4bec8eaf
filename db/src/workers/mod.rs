//! Workers: pinned threads that serve requests.
mod assembly;
mod plain;
mod run_queue;
mod sessions;
