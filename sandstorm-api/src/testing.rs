//! An in-memory stand-in for the store, so that an extension's own `#[test]`s run without a server.
#![allow(unsafe_code)]
