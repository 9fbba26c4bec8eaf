//! The names that the linker gives to data segments.

use sandstorm_sandbox::DataSegment;
use wasmparser::NameMap;

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
