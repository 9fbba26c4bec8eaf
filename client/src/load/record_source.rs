//! Sources of records to be written.

/// Records that are to be written, one after another.
pub(super) trait RecordSource {
    /// Returns the number of records.
    fn total(&self) -> u64;
    /// The first one.
    fn first(&self) -> Option<u64>;
    /// The one behind that.
    fn after(&self, item: u64) -> Option<u64>;
    /// Writes its key and value; gives the table that it belongs into.
    fn write(&self, item: u64, key: &mut Vec<u8>, value: &mut Vec<u8>) -> u64;
}
