//! Sealed sessions: what a tenant's packets look like where others can read, forge or repeat them.
//!
//! [`keys`] derives from a tenant's token what either side holds of it.
//! Nothing here has a socket or a clock: datagrams and times come in, datagrams go out.

pub mod keys;

pub use keys::{TokenKeys, Verifier};
