//! The reasons why a library cannot be loaded.

/// The reason why a library cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is longer than the limit.
    #[error("the library is {bytes} bytes long, more than the limit of {limit} bytes")]
    TooLarge {
        /// The file's length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The file is not a library, or a damaged one.
    #[error("not a library of an extension: {0}")]
    Malformed(String),
    /// The file contains something that no extension's library may.
    #[error("the library is refused: {0}")]
    Refused(String),
    /// Built for another version of the binary interface.
    #[error("the library was built for ABI version {library}, this server has {server}: push the source again")]
    OtherAbi {
        /// The library's version.
        library: u32,
        /// The server's version.
        server: u32,
    },
    /// Built against another version of the API's source.
    #[error("the library was built against API {library:016x}, this server has {server:016x}: push the source again")]
    OtherApi {
        /// The library's version.
        library: u64,
        /// The server's version.
        server: u64,
    },
    /// The operating system or the dynamic loader refused.
    #[error("loading the library failed: {what}: {reason}")]
    System {
        /// The operation that was tried.
        what: &'static str,
        /// The error that it returned.
        reason: String,
    },
}

impl LoadError {
    pub(super) fn system(what: &'static str, reason: impl std::fmt::Display) -> LoadError {
        LoadError::System { what, reason: reason.to_string() }
    }
}
