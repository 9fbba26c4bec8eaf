//! Tests of pushed source: the checker, the sandbox, the builder.

#[path = "../common/mod.rs"]
mod common;

mod builder;
mod holes;
mod hostile;
mod modules;
mod mutations;
mod patterns;
mod places;
mod profiles;
mod sandbox;
mod webassembly;
