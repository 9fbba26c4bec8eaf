//! What modules of the sandboxed tier import, export and say of themselves.

/// Version of the interface of modules (see the [documentation of the interface](super)).
pub const SANDBOX_ABI_VERSION: u32 = 1;

/// The name of the module of which a module imports the host's functions.
pub const SANDBOX_IMPORTS: &str = "sandstorm";

/// The export of a module that builds the future and polls it once.
pub const START_EXPORT: &str = "sandstorm_start";

/// The export of a module that polls the future once more.
pub const POLL_EXPORT: &str = "sandstorm_poll";

/// The name of the custom section that describes a module.
pub const MODULE_SECTION: &str = "sandstorm";

/// Length of the custom section that describes a module, in bytes.
pub const MODULE_SECTION_BYTES: usize = 24;

/// Alignment of the invocation header in a module's memory, in bytes.
pub const MODULE_INVOCATION_ALIGN: usize = 16;

/// The content of [`MODULE_SECTION`], little-endian: [`SANDBOX_ABI_VERSION`], size and alignment of the extension's
/// future in bytes, zero (u32 each), and the fingerprint of the API source (u64, as in [`super::ExtensionVtable`]).
pub const fn module_section(future: (usize, usize), api_fingerprint: u64) -> [u8; MODULE_SECTION_BYTES] {
    let (size, align) = future;
    // A type of wasm32 has fewer than 2^32 bytes, so nothing is cut off.
    let words = [SANDBOX_ABI_VERSION.to_le_bytes(), (size as u32).to_le_bytes(), (align as u32).to_le_bytes()];
    let fingerprint = api_fingerprint.to_le_bytes();
    let mut section = [0; MODULE_SECTION_BYTES];
    let mut at = 0;
    while at < 4 {
        (section[at], section[4 + at], section[8 + at]) = (words[0][at], words[1][at], words[2][at]);
        (section[16 + at], section[20 + at]) = (fingerprint[at], fingerprint[4 + at]);
        at += 1;
    }
    section
}
