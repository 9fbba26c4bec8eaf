//! The Rust client of the Sandstorm storage server.
#![deny(unsafe_code)]

pub mod control;
pub mod limits;
