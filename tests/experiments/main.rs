//! `sandstorm bench`. A program of its own: its servers poll, and leave little processor time to others.

#[path = "../common/mod.rs"]
mod common;

mod bench;
