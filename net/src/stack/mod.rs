//! A small UDP/IP stack: datagrams over ports that move Ethernet frames, for drivers that go past the kernel.
//!
//! A [`FramePort`] is one queue pair of a network interface.

mod port;

pub use port::{Fill, FramePort, InFrame, Mac, Never, Offload, OutFrame, Part, Verified};
