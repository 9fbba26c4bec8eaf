//! Answers to clients, in memcached's words where it has them.

use sandstorm_net::memcached::TOO_LARGE;

use sandstorm_store::StoreError;
use sandstorm_store::backed::BackingRefusal;

/// The answer to a first command other than authentication.
pub(super) const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated";

/// Appends a line.
pub(super) fn push_line(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

pub(super) const NOT_FOUND: &str = "NOT_FOUND";
pub(super) const NOT_STORED: &str = "NOT_STORED";
pub(super) const EXISTS: &str = "EXISTS";
const OUT_OF_MEMORY: &str = "SERVER_ERROR out of memory storing object";
/// An error that memcached does not have; it begins as its own do, for clients that compare.
const STILL_READ: &str = "SERVER_ERROR out of memory storing object: too many replaced records are still being read, write again in a moment";
/// As above.
const NOT_LOGGED: &str = "SERVER_ERROR the change cannot be kept on disk, and the table's records are; reads go on";
/// As above.
const NOT_SPILLED: &str = "SERVER_ERROR out of memory storing object: the table's memory is full and its records cannot move to the disk now; reads go on";
/// As above.
const NOT_BACKED: &str =
    "SERVER_ERROR the table's backing does not take the change now; reads of what is in memory go on";
/// As above.
const DIRTY_FULL: &str = "SERVER_ERROR as many bytes wait to be written to the table's backing as may: ask again later";
/// As above.
const READ_THROUGH: &str = "SERVER_ERROR the table's policy is read-through: write to its backing";
/// As above.
pub(super) const NOT_CLEARED: &str = "SERVER_ERROR a table with a backing is not emptied as a whole";
/// As above.
pub(super) const COLD: &str = "SERVER_ERROR the record is not in memory, and is fetched: ask again";
const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object: the server's machine has no memory left, the table's quota is not reached";
pub(super) const NOT_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
pub(super) const OVER_QUOTA: &str = "SERVER_ERROR quota requests_per_s: too many requests a second";
pub(super) const NO_TENANT: &str = "SERVER_ERROR the tenant that this port speaks for is not there";
pub(super) const NO_TABLE: &str = "SERVER_ERROR the tenant has no such table";
pub(super) const READ_ONLY: &str = "SERVER_ERROR the table was granted for reading only";
pub(super) const NOT_OWNER: &str = "SERVER_ERROR only a table's owner may empty it";

pub(super) const WRONG_SERVER: &str = "SERVER_ERROR another server of the cluster owns the key";

/// The text of a store's error.
pub(super) fn store_error_text(error: StoreError) -> &'static str {
    match error {
        StoreError::OutOfMemory => OUT_OF_MEMORY,
        StoreError::NoMemory => NO_MEMORY,
        StoreError::ReclaimPressure => STILL_READ,
        StoreError::NotLogged(_) => NOT_LOGGED,
        StoreError::NotSpilled(_) => NOT_SPILLED,
        StoreError::NotBacked(BackingRefusal::Down) => NOT_BACKED,
        StoreError::NotBacked(BackingRefusal::DirtyFull) => DIRTY_FULL,
        StoreError::NotBacked(BackingRefusal::ReadOnly) => READ_THROUGH,
        StoreError::NotBacked(BackingRefusal::NotCleared) => NOT_CLEARED,
        StoreError::Cold => COLD,
        StoreError::ValueTooLarge | StoreError::KeyTooLarge => TOO_LARGE,
        StoreError::Conflict => EXISTS,
        StoreError::NotANumber => NOT_NUMERIC,
        StoreError::WrongServer => WRONG_SERVER,
    }
}
