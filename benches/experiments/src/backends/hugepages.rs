//! Huge pages that are reserved for the length of a measurement.

use std::fs;

/// The kernel's number of reserved huge pages.
const RESERVED: &str = "/proc/sys/vm/nr_hugepages";
/// Megabytes of one page.
const PAGE_MB: usize = 2;

/// Reserved pages, given back when dropped.
pub(super) struct HugePages {
    before: usize,
}

fn reserved() -> Result<usize, String> {
    let text = fs::read_to_string(RESERVED).map_err(|error| format!("{RESERVED}: {error}"))?;
    text.trim().parse().map_err(|_| format!("{RESERVED} says {text:?}"))
}

impl HugePages {
    /// Reserves this much memory, in addition to what is reserved already.
    ///
    /// # Errors
    /// The reason why it cannot be reserved: only root may do so, and the kernel may not find enough contiguous memory.
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
        // Pages in use are freed later, when their user releases them.
        let _left = fs::write(RESERVED, self.before.to_string());
    }
}
