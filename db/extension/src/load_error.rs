//! Why a library cannot be loaded.

/// Why a library cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is longer than allowed.
    #[error("the library is {bytes} bytes long, more than the limit of {limit} bytes")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The file is not a library, or a damaged one.
    #[error("not a library of an extension: {0}")]
    Malformed(String),
    /// The file holds something that no extension's library may.
    #[error("the library is refused: {0}")]
    Refused(String),
    /// Built for another version of the binary interface.
    #[error("the library was built for ABI version {library}, this server has {server}: push the source again")]
    OtherAbi {
        /// What the library says.
        library: u32,
        /// What the server has.
        server: u32,
    },
    /// Built against another version of the API's source.
    #[error("the library was built against API {library:016x}, this server has {server:016x}: push the source again")]
    OtherApi {
        /// What the library says.
        library: u64,
        /// What the server has.
        server: u64,
    },
    /// The operating system or the dynamic loader refused.
    #[error("loading the library failed: {what}: {reason}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What came back.
        reason: String,
    },
}

impl LoadError {
    pub(super) fn system(what: &'static str, reason: impl std::fmt::Display) -> LoadError {
        LoadError::System { what, reason: reason.to_string() }
    }
}
