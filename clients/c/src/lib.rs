//! The Rust client behind a C interface, for clients in other languages: see README.md beside this crate.
//!
//! [`interface`] has the functions; `request` reads what they are given and answers it.
#![deny(unsafe_code)]

mod answer;
pub mod interface;
mod request;
