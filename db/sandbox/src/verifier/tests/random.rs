//! Whatever the bytes, decoding and verifying ends with an answer.

use proptest::prelude::*;

use super::image;
use crate::{DataSegment, ModuleLayout, SandboxImage, verify};

/// Parts of instructions that pass, which random code is put together of.
const PARTS: &[&[u8]] = &[
    &[0x89, 0xc9],
    &[0x65, 0x8b, 0x41, 0x08],
    &[0x65, 0x67, 0x8b, 0x00],
    &[0x48, 0x83, 0xec, 0x18],
    &[0x48, 0x83, 0xc4, 0x18],
    &[0x50],
    &[0x59],
    &[0x48, 0x8b, 0x44, 0x24, 0x08],
    &[0x74, 0x02],
    &[0xeb, 0xfa],
    &[0xe8, 0x05, 0x00, 0x00, 0x00],
    &[0x65, 0xff, 0x14, 0x25, 0x00, 0xf0, 0xff, 0xff],
    &[0xc3],
    &[0x0f, 0x0b],
    &[0xf2, 0x0f, 0x10, 0x05],
    &[0xff, 0xff, 0xff, 0x7f],
];

fn random_code() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        3 => prop::sample::select(PARTS).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 1..4),
    ];
    prop::collection::vec(part, 1..40).prop_map(|parts| parts.concat())
}

fn any_image() -> impl Strategy<Value = SandboxImage> {
    let numbers = (any::<[u32; 9]>(), any::<u64>(), any::<bool>());
    let lists = (prop::collection::vec(any::<u64>(), 0..4), prop::collection::vec(any::<u8>(), 0..40), random_code());
    (numbers, lists).prop_map(|((n, api_fingerprint, writable), (variables, bytes, code))| SandboxImage {
        layout: ModuleLayout {
            memory_bytes: n[0],
            memory_max_bytes: n[1],
            heap_base: n[2],
            zeroed: n[3]..n[4],
            future_size: n[5],
            future_align: n[6],
            api_fingerprint,
            variables,
            segments: vec![DataSegment { address: n[7], writable, bytes: bytes.clone() }],
        },
        constants_at: n[8] % 8192,
        constants: bytes,
        code_at: (n[8] / 8192) % 4 * 4096,
        code,
        start: n[7] % 64,
        poll: n[6] % 64,
    })
}

/// Numbers of one field of an image that an attacker would try.
const EDGES: [u32; 12] =
    [0, 1, 4095, 4096, 65_535, 65_536, 1 << 20, 1 << 31, (1 << 31) - 65_536, (1 << 31) + 1, u32::MAX - 15, u32::MAX];

proptest! {
    #[test]
    fn random_code_is_verified_or_refused(code in random_code()) {
        let _answer = verify(&image(&code));
    }

    #[test]
    fn random_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _answer = SandboxImage::decode(&bytes);
    }

    #[test]
    fn what_is_decoded_is_what_was_encoded(image in any_image()) {
        let encoded = image.encode();
        if let Ok(decoded) = SandboxImage::decode(&encoded) {
            prop_assert_eq!(&decoded, &image);
            let _answer = verify(&decoded);
        }
        for cut in 0..encoded.len() {
            prop_assert!(SandboxImage::decode(&encoded[..cut]).is_err());
        }
    }

    #[test]
    fn any_field_of_an_image_may_be_wild(field in 0_usize..15, edge in prop::sample::select(&EDGES[..])) {
        let mut bytes = image(&[0xc3]).encode();
        bytes[8 + field * 4..12 + field * 4].copy_from_slice(&edge.to_le_bytes());
        if let Ok(decoded) = SandboxImage::decode(&bytes) {
            let _answer = verify(&decoded);
        }
    }
}
