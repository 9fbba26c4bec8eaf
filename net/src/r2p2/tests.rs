use crate::fuzzing;
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #[test]
    fn no_datagram_panics_a_server_or_takes_its_memory(bytes in vec(any::<u8>(), 0..600)) {
        fuzzing::server(&bytes);
    }

    #[test]
    fn no_datagram_panics_a_client_or_answers_what_was_not_asked(bytes in vec(any::<u8>(), 0..600)) {
        fuzzing::client(&bytes);
    }
}
