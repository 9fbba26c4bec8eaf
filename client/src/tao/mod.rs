//! A social graph in the style of TAO (USENIX ATC 2013): what travels to and from the extension `tao` (`ext/tao`).

pub mod codec;

pub use codec::{Fields, LIMIT, Tables};
