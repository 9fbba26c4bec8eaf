//! The Sandstorm server: store, tenants, workers, extensions, builder, control.
#![deny(unsafe_code)]

pub mod admin;
pub mod builder;
pub mod config;
pub mod extensions;
pub mod gate;
pub mod janitor;
pub mod limits;
pub mod metrics;
pub mod processors;
// The commands come with the next changes.
#[allow(dead_code)]
pub mod protocols;
pub mod server;
pub mod store;
pub mod tenants;
pub mod terminal;
pub mod workers;
