//! Huge pages for as long as something is measured with them.

use std::fs;

/// How many the kernel has set apart.
const RESERVED: &str = "/proc/sys/vm/nr_hugepages";
/// Megabytes of one.
const PAGE_MB: usize = 2;

/// Pages that were set apart, given back with this value.
pub(super) struct HugePages {
    before: usize,
}

fn reserved() -> Result<usize, String> {
    let text = fs::read_to_string(RESERVED).map_err(|error| format!("{RESERVED}: {error}"))?;
    text.trim().parse().map_err(|_| format!("{RESERVED} says {text:?}"))
}

impl HugePages {
    /// Sets so much memory apart, beside what there is.
    ///
    /// # Errors
    /// Why it cannot be had: the kernel lets root alone do so, and may not find as many pages in a piece.
    pub(super) fn reserve(mb: usize) -> Result<HugePages, String> {
        let (before, pages) = (reserved()?, mb.div_ceil(PAGE_MB));
        fs::write(RESERVED, (before + pages).to_string())
            .map_err(|error| format!("no huge pages: {RESERVED}: {error}"))?;
        let had = HugePages { before };
        match reserved()? {
            now if now >= before + pages => Ok(had),
            now => Err(format!("no huge pages: the kernel found {} of {pages}", now.saturating_sub(before))),
        }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // Those in use go when they are free.
        let _left = fs::write(RESERVED, self.before.to_string());
    }
}
