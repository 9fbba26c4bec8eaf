//! Allocations by a worker for a request, and by an index that is emptied. The counters are the whole process's.

#[path = "../common/mod.rs"]
mod common;

mod counting;
mod index_memory;
mod requests;
