//! expect: compile-error or refused
//! No `run` at all.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub fn walk() {}
