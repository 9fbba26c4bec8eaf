//! Records, and the ids of the tables that they are in.

/// The id of one of the tenant's tables, or of one granted to it, as the tenant's programs know it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(pub u64);

/// One immutable record, borrowed from the table for the life of the invocation. A later write of its key makes a new
/// record and leaves this one as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) version: u64,
    pub(crate) flags: u32,
}

impl<'a> Record<'a> {
    /// The key.
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The value.
    pub fn value(&self) -> &'a [u8] {
        self.value
    }

    /// The version; grows with every write of the key.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The flags that the writer stored.
    pub fn flags(&self) -> u32 {
        self.flags
    }
}
