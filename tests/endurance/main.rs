//! Endless load, and its effects on the process. Each test has a process of its own, one at a time: they measure the
//! memory, the files and the time of the whole process.

#[path = "../common/mod.rs"]
mod common;

mod extents;
mod garbage;
mod isolation;
mod kills;
mod leaks;
mod neighbours;
mod pairs;
mod stealing;
mod storm;
mod torture;
