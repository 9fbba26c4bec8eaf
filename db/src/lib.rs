//! The Sandstorm server, composed: the data plane and, around it, the control plane.
#![forbid(unsafe_code)]

pub mod server;
pub mod terminal;
