//! The record of a move of a tenant's home worker after its load.

/// A tenant's home worker was moved. Loads are in thousandths of a worker's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeMoveRecord {
    /// The worker that was its home.
    pub from: u32,
    /// The worker that is.
    pub to: u32,
    /// What the tenant took of the workers' time.
    pub per_mille: u32,
    /// What all tenants of the old home took, this one among them.
    pub from_per_mille: u32,
    /// What those of the new one took.
    pub to_per_mille: u32,
}
