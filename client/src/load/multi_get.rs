//! The answer to a multi-get.

/// Takes the next record off a multi-get's answer: its value, if there is such a record, and what is behind it.
pub(super) fn split_multi_get_entry(reply: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let (head, rest) = reply.split_first_chunk::<17>()?;
    let len = u32::from_le_bytes([head[13], head[14], head[15], head[16]]) as usize;
    let (value, rest) = rest.split_at_checked(len)?;
    Some(((head[0] == 0).then_some(value), rest))
}

/// The values in a multi-get's answer; it ends early where the answer cannot be read.
pub(super) fn multi_get_values(mut reply: &[u8]) -> impl Iterator<Item = Option<&[u8]>> {
    std::iter::from_fn(move || {
        let (value, rest) = split_multi_get_entry(reply)?;
        reply = rest;
        Some(value)
    })
}
