//! What is allocated, by a worker for a request and by an index that is emptied. The whole process counts.

#[path = "../common/mod.rs"]
mod common;

mod counting;
mod index_memory;
mod requests;
