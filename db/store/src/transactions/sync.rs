//! The synchronisation that `protocol` uses; `model.rs` puts loom's in its place.

pub(super) use parking_lot::Mutex as Lock;
pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
