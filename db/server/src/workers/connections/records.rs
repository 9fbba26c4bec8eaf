//! Finds the boundaries of TLS records in the input, so that each can be decrypted, and counted, by itself.

/// Bytes before a record: its type, a version, and how many follow.
const HEADER_BYTES: usize = 5;

/// The part of the current record that has come.
#[derive(Default)]
pub(super) struct Records {
    header: [u8; HEADER_BYTES],
    /// Received bytes of the header.
    filled: usize,
    /// Missing bytes of the record.
    left: usize,
}

impl Records {
    /// Returns how many bytes at the front of `bytes` belong to the current record, and whether it is whole with them.
    pub(super) fn front(&mut self, bytes: &[u8]) -> (usize, bool) {
        let mut taken = 0;
        while let Some(slot) = self.header.get_mut(self.filled) {
            let Some(byte) = bytes.get(taken) else { return (taken, false) };
            *slot = *byte;
            (self.filled, taken) = (self.filled + 1, taken + 1);
            self.left = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
        }
        let more = self.left.min(bytes.len() - taken);
        self.left -= more;
        let is_whole = self.left == 0;
        if is_whole {
            *self = Records::default();
        }
        (taken + more, is_whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_however_they_come() {
        let lens = [1usize, 0, 300, 16_384, 22, 22];
        let stream: Vec<u8> = lens
            .iter()
            .flat_map(|len| [&[23, 3, 3][..], &(*len as u16).to_be_bytes(), &vec![7; *len]].concat())
            .collect();
        for step in [1, 2, 4, 5, 6, 7, 100, 4_096, stream.len()] {
            let (mut records, mut found, mut len) = (Records::default(), Vec::new(), 0);
            for mut part in stream.chunks(step) {
                while !part.is_empty() {
                    let (taken, is_whole) = records.front(part);
                    (part, len) = (&part[taken..], len + taken);
                    if is_whole {
                        found.push(len - HEADER_BYTES);
                        len = 0;
                    }
                }
            }
            assert_eq!((found.as_slice(), len), (&lens[..], 0), "in steps of {step}");
        }
    }
}
