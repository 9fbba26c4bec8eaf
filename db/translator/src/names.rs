//! The names that the linker gives to data segments and functions.

use sandstorm_sandbox::DataSegment;
use wasmparser::NameMap;

use crate::limits::FUNCTIONS_MAX;

/// What a data segment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SectionName {
    /// `.rodata`
    ReadOnly,
    /// `.data`, and every other name.
    Writable,
}

/// The named segments: what each is for, and where it lies.
pub(crate) fn data_ranges(names: NameMap<'_>, segments: &[DataSegment]) -> Vec<(SectionName, std::ops::Range<u32>)> {
    let mut ranges = Vec::new();
    for name in names.into_iter().flatten() {
        let Some(segment) = segments.get(name.index as usize) else { continue };
        let read_only = name.name == ".rodata" || name.name.starts_with(".rodata.");
        let what = if read_only { SectionName::ReadOnly } else { SectionName::Writable };
        let end = segment.address.saturating_add(segment.bytes.len() as u32);
        ranges.push((what, segment.address..end));
    }
    ranges
}

/// Bytes of a function's name that are kept.
const NAME_MAX_BYTES: usize = 1 << 10;

/// The named functions, by their numbers.
pub(crate) fn function_names(names: NameMap<'_>) -> Vec<(u32, String)> {
    let kept = names.into_iter().flatten().take(FUNCTIONS_MAX).filter(|name| name.name.len() <= NAME_MAX_BYTES);
    let mut named: Vec<_> = kept.map(|name| (name.index, name.name.to_owned())).collect();
    named.sort_by_key(|(number, _)| *number);
    named
}
