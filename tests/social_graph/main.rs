//! The social graph (`ext/tao` and the client library): against a model, and at size.

#[path = "../common/mod.rs"]
mod common;

mod graph;
mod million;
mod tao;
