//! DPDK's functions as Sandstorm calls them, where the feature `bind` is on; nothing otherwise.
//!
//! Guarantees: nothing beyond the C compiler's and bindgen's reading of the installed DPDK's headers. Names, types and
//! layouts are those that the shim was compiled with. Each function here is as safe to call as the C function; the safe
//! owners are in `sandstorm_net::dpdk`.
#![allow(unsafe_code)]

#[cfg(feature = "bind")]
mod bound {
    #![allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc)]
    #![allow(missing_docs, unreachable_pub, unused, non_camel_case_types, non_upper_case_globals, non_snake_case)]
    #![allow(rustdoc::all)]

    include!(concat!(env!("OUT_DIR"), "/bound.rs"));
}

#[cfg(feature = "bind")]
pub use bound::*;
