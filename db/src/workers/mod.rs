//! Workers: pinned threads that serve requests.
mod run_queue;
