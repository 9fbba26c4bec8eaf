//! The data block behind a line that announces a value.

/// The data block behind a line that announces a value.
pub(super) enum DataBlock<'i> {
    /// The value.
    Whole(&'i [u8]),
    /// A part of it: the whole takes so many bytes, with the line.
    Incomplete(usize),
    /// A block that does not end where it should; so many bytes, with the line.
    BadTerminator(usize),
}

/// Looks for the data block of `len` bytes behind a line of `used`.
pub(super) fn find_data_block(input: &[u8], used: usize, len: usize) -> DataBlock<'_> {
    let end = used + len;
    match input.get(end..end + 2) {
        None => DataBlock::Incomplete(end + 2),
        Some(b"\r\n") => DataBlock::Whole(&input[used..end]),
        Some(_) => DataBlock::BadTerminator(end + 2),
    }
}
