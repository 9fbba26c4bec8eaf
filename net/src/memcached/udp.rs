//! The header of memcached's datagrams: a request's number, the datagram's number, their count, and two reserved bytes.

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// Bytes of an answer that one datagram carries, behind its header: 1400 with it.
pub const PAYLOAD_LEN: usize = 1400 - HEADER_LEN;

/// A datagram's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemcachedUdpHeader {
    /// The request's number, its client's own.
    pub request: u16,
    /// The datagram's index.
    pub index: u16,
    /// The number of datagrams.
    pub count: u16,
}

impl MemcachedUdpHeader {
    /// Splits a datagram into its header and the bytes behind it.
    pub fn decode(datagram: &[u8]) -> Option<(MemcachedUdpHeader, &[u8])> {
        let (header, rest) = datagram.split_first_chunk::<HEADER_LEN>()?;
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        Some((MemcachedUdpHeader { request: word(0), index: word(2), count: word(4) }, rest))
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let [a, b] = self.request.to_be_bytes();
        let [c, d] = self.index.to_be_bytes();
        let [e, f] = self.count.to_be_bytes();
        [a, b, c, d, e, f, 0, 0]
    }
}

/// The datagrams of an answer: header and bytes of each. None if it takes more than can be counted.
pub fn split_response(request: u16, answer: &[u8]) -> Option<impl Iterator<Item = ([u8; HEADER_LEN], &[u8])>> {
    let count = u16::try_from(answer.len().div_ceil(PAYLOAD_LEN)).ok()?;
    let parts = (0..count).zip(answer.chunks(PAYLOAD_LEN));
    Some(parts.map(move |(index, part)| (MemcachedUdpHeader { request, index, count }.encode(), part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_goes_in_as_many_datagrams_as_it_takes() {
        let answer: Vec<u8> = (0..PAYLOAD_LEN * 2 + 5).map(|byte| byte as u8).collect();
        let parts: Vec<_> = split_response(0x1234, &answer).unwrap().collect();
        assert_eq!(parts.len(), 3);
        let mut whole = Vec::new();
        for (index, (header, part)) in parts.iter().enumerate() {
            let datagram = [&header[..], part].concat();
            let (header, rest) = MemcachedUdpHeader::decode(&datagram).unwrap();
            assert_eq!(header, MemcachedUdpHeader { request: 0x1234, index: index as u16, count: 3 });
            whole.extend_from_slice(rest);
        }
        assert_eq!(whole, answer);
        assert!(MemcachedUdpHeader::decode(&[0; 7]).is_none());
        assert!(split_response(1, &vec![0; PAYLOAD_LEN * 65_536]).is_none());
    }
}
