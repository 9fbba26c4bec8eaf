//! What tests of the crates above share.

pub use super::agreed_in_memory::AgreedInMemory;
use sandstorm_extension::CodePolicy;

/// The environment variable that names the tier in which the suites run: `sandboxed` or `native`.
pub const CODE_VARIABLE: &str = "SANDSTORM_TEST_CODE";
/// The tier in which they run if it is not set.
const CODE: CodePolicy = CodePolicy::Native;

/// The code policy of the tenants whose extensions the suites push and call. Tests that are about one tier name it.
///
/// # Panics
/// If the variable names no policy.
pub fn code() -> CodePolicy {
    match std::env::var(CODE_VARIABLE) {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("{CODE_VARIABLE}: {error}")),
        Err(_) => CODE,
    }
}
