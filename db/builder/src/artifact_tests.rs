//! The artifacts that a server refuses to load.

use std::sync::Arc;

use proptest::prelude::*;

use super::artifact::{Artifact, ArtifactError, ArtifactHeader, ArtifactRequirements};
use super::limits;
use super::signing_key::{BuilderKey, KEY_FILE, PublicKey};
use sandstorm_net::{CodeOrigin, CodeTier};
use sandstorm_sandbox::code_map::{CODE_MAP_MAX_BYTES, with_code_map};
use sandstorm_schema::limits::{DESCRIPTION_BYTES, FUNCTIONS};
use sandstorm_schema::{ExtensionSchema, FunctionSchema, ValueType};

fn key(seed: u8) -> BuilderKey {
    BuilderKey::from_seed([seed; 32])
}

fn header() -> ArtifactHeader {
    ArtifactHeader {
        tenant: 7,
        abi_version: 1,
        version: 3,
        compiler: 0x1111,
        api_fingerprint: 0x2222,
        checker: 0x3333,
        source_digest: [5; 32],
        elf_digest: [0; 32],
        tier: CodeTier::Sandboxed,
        origin: CodeOrigin::Module,
        name: "sum".to_owned(),
        schema: None,
    }
}

fn expected() -> ArtifactRequirements {
    ArtifactRequirements {
        tenant: 7,
        name: "sum".to_owned(),
        tier: CodeTier::Sandboxed,
        compiler: Some(0x1111),
        api_fingerprint: 0x2222,
        checker: 0x3333,
        abi_version: 1,
        highest: Some(2),
    }
}

fn artifact() -> Artifact {
    Artifact::sign(&key(1), header(), b"\x7fELF and so on".to_vec())
}

#[test]
fn each_reason_has_its_own_error() {
    let (good, key) = (artifact(), [key(1).public()]);
    assert_eq!(good.verify(&key, &expected()), Ok(()));
    let wrong = |change: fn(&mut ArtifactRequirements)| {
        let mut asked = expected();
        change(&mut asked);
        good.verify(&key, &asked).expect_err("must be refused")
    };
    assert!(matches!(wrong(|asked| asked.tenant = 8), ArtifactError::WrongTenant { found: 7, expected: 8 }));
    let (found, expected_tier) = (CodeTier::Sandboxed, CodeTier::Native);
    let other_tier = wrong(|asked| asked.tier = CodeTier::Native);
    assert_eq!(other_tier, ArtifactError::WrongTier { found, expected: expected_tier });
    assert!(other_tier.hint().contains("--code") && other_tier.to_string().contains("sandboxed tier"));
    assert!(matches!(wrong(|asked| asked.compiler = Some(1)), ArtifactError::WrongCompiler { .. }));
    assert!(matches!(wrong(|asked| asked.abi_version = 2), ArtifactError::WrongAbi { found: 1, expected: 2 }));
    assert!(matches!(wrong(|asked| asked.api_fingerprint = 1), ArtifactError::WrongApi { .. }));
    assert!(matches!(wrong(|asked| asked.checker = 1), ArtifactError::WrongRules { found: 0x3333, expected: 1 }));
    assert!(matches!(wrong(|asked| asked.highest = Some(4)), ArtifactError::Downgraded { found: 3, highest: 4 }));
    assert!(matches!(wrong(|asked| asked.highest = Some(3)), ArtifactError::Replayed(3)));
    assert!(matches!(wrong(|asked| asked.name = "other".to_owned()), ArtifactError::WrongName { .. }));
    assert_eq!(good.verify(&[self::key(2).public()], &expected()), Err(ArtifactError::WrongKey));
    assert_eq!(good.verify(&[], &expected()), Err(ArtifactError::WrongKey));
    assert_eq!(good.verify(&[self::key(2).public(), key[0]], &expected()), Ok(()), "while keys rotate, both count");
    assert_eq!(good.verify(&key, &ArtifactRequirements { compiler: None, highest: None, ..expected() }), Ok(()));
    let mut changed = good.clone();
    changed.elf.push(0);
    assert_eq!(changed.verify(&key, &expected()), Err(ArtifactError::Tampered));
    let mut promoted = good.clone();
    promoted.header.tenant = 8;
    assert_eq!(promoted.verify(&key, &ArtifactRequirements { tenant: 8, ..expected() }), Err(ArtifactError::Tampered));
    assert!(matches!(Artifact::decode(b"\x7fELF"), Err(ArtifactError::Malformed(_))));
    let mut native = good.clone();
    native.header.tier = CodeTier::Native;
    let asked = ArtifactRequirements { tier: CodeTier::Native, ..expected() };
    assert_eq!(native.verify(&key, &asked), Err(ArtifactError::Tampered), "the tier is signed");
    let mut old = good.encode();
    old[7] = 1;
    let refused = Artifact::decode(&old).expect_err("headers of that format name no rules").to_string();
    assert!(refused.contains("older format"), "{refused}");
}

const SCHEMA: &str = r#"{"functions":[{"name":"total","args":"Basket","reply":"u64"}],"types":[{"name":"Basket","struct":{"fields":[{"name":"items","type":"Vec<u32>"}]}}]}"#;

/// An artifact of each format that is read, the newest last, with the number of its format.
fn of_all_formats() -> [(u32, Artifact); 3] {
    let library = b"in place of a library".to_vec();
    let native = ArtifactHeader { tier: CodeTier::Native, origin: CodeOrigin::Source, ..header() };
    let schema = Some(Arc::new(ExtensionSchema::parse(SCHEMA).expect("a schema")));
    let source = ArtifactHeader { origin: CodeOrigin::Source, ..header() };
    [
        (2, Artifact::sign_without_tier(&key(1), native, library.clone())),
        (3, Artifact::sign_without_schema(&key(1), header(), library.clone())),
        (4, Artifact::sign(&key(1), ArtifactHeader { schema, ..source }, library)),
    ]
}

#[test]
fn golden_artifacts_of_all_formats_are_read_and_the_newest_is_what_is_written() {
    for (format, made) in of_all_formats() {
        let path = format!("{}/golden/artifact-format-{format}.bin", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() && format == 4 {
            std::fs::write(&path, made.encode()).expect("room");
        }
        let golden = std::fs::read(&path).expect("the file of that format");
        assert!(
            made.encode() == golden,
            "format {format} has changed: give it a new number, and keep reading this one"
        );
        let read = Artifact::decode(&golden).expect("its own bytes");
        assert_eq!(read, made, "format {format}");
        let asked = ArtifactRequirements { tier: made.header.tier, ..expected() };
        assert_eq!(read.verify(&[key(1).public()], &asked), Ok(()), "format {format}");
        no_flipped_bit_passes_of(&golden, &asked);
    }
}

#[test]
fn an_artifact_of_a_newer_format_is_refused_by_name() {
    for version in [5, 6, 255] {
        let mut newer = artifact().encode();
        newer[7] = version;
        let refused = Artifact::decode(&newer).expect_err("a newer format");
        assert!(refused.to_string().contains("newer format"), "{refused}");
        assert_eq!(refused.code(), "artifact_malformed");
    }
}

#[test]
fn an_artifact_that_names_no_tier_is_native_and_stays_as_it_was_signed() {
    let native = ArtifactHeader { tier: CodeTier::Native, origin: CodeOrigin::Source, ..header() };
    let old = Artifact::sign_without_tier(&key(1), native.clone(), b"\x7fELF".to_vec());
    let bytes = old.encode();
    assert_eq!(bytes[..8], *b"sandart\x02");
    let read = Artifact::decode(&bytes).expect("servers before this one wrote it");
    assert_eq!((read.header.tier, read.encode() == bytes), (CodeTier::Native, true));
    let asked = ArtifactRequirements { tier: CodeTier::Native, ..expected() };
    assert_eq!(read.verify(&[key(1).public()], &asked), Ok(()));
    assert!(matches!(read.verify(&[key(1).public()], &expected()), Err(ArtifactError::WrongTier { .. })));

    // What was signed in one format is not taken in the other, whatever its name holds.
    let mut promoted = Artifact::sign(&key(1), native, b"\x7fELF".to_vec()).encode();
    promoted[7] = 2;
    let read = Artifact::decode(&promoted).expect("the tier's byte is part of the name");
    let asked = ArtifactRequirements { name: read.header.name.clone(), ..asked };
    assert_eq!(read.verify(&[key(1).public()], &asked), Err(ArtifactError::Tampered));
    let mut named = header();
    named.name = "\u{1}sum".to_owned();
    let mut demoted = Artifact::sign_without_tier(&key(1), named, b"\x7fELF".to_vec()).encode();
    demoted[7] = 3;
    let read = Artifact::decode(&demoted).expect("the name's first byte is the tier");
    let asked = ArtifactRequirements { tier: CodeTier::Native, ..expected() };
    assert_eq!(read.verify(&[key(1).public()], &asked), Err(ArtifactError::Tampered));
}

#[test]
fn the_schema_is_signed_and_one_that_is_none_is_no_header() {
    let schema = Arc::new(ExtensionSchema::parse(SCHEMA).expect("a schema"));
    let typed = ArtifactHeader { schema: Some(schema.clone()), ..header() };
    let bytes = Artifact::sign(&key(1), typed, b"\x7fELF".to_vec()).encode();
    let read = Artifact::decode(&bytes).expect("its own bytes");
    assert_eq!((read.header.schema.clone(), read.encode() == bytes), (Some(schema), true));
    assert_eq!(read.verify(&[key(1).public()], &expected()), Ok(()));
    let at = bytes.windows(3).position(|three| three == b"u64").expect("the reply's type");
    for (text, is_schema) in [(b"u32", true), (b"x64", false), (b"u65", false)] {
        let mut other = bytes.clone();
        other[at..at + 3].copy_from_slice(text);
        match Artifact::decode(&other) {
            Ok(read) => assert_eq!(
                (is_schema, read.verify(&[key(1).public()], &expected())),
                (true, Err(ArtifactError::Tampered))
            ),
            // Also a schema, if this program would write it in another way.
            Err(error) => assert!(matches!(error, ArtifactError::Malformed(_)), "{error}"),
        }
    }
}

#[test]
fn an_unknown_tier_is_no_header() {
    let bytes = artifact().encode();
    let at = bytes.windows(3).position(|three| three == b"sum").expect("the name") - 5;
    for byte in (0..=u8::MAX).filter(|byte| ![1, 2, 3].contains(byte)) {
        let mut other = bytes.clone();
        other[at] = byte;
        assert!(matches!(Artifact::decode(&other), Err(ArtifactError::Malformed(_))), "tier {byte}");
    }
}

#[test]
fn no_flipped_bit_passes() {
    no_flipped_bit_passes_of(&artifact().encode(), &expected());
}

fn no_flipped_bit_passes_of(bytes: &[u8], expected: &ArtifactRequirements) {
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << bit;
            let refused = Artifact::decode(&flipped)
                .and_then(|artifact| artifact.verify(&[key(1).public()], expected))
                .expect_err("a flipped bit passed");
            assert!(
                matches!(refused, ArtifactError::Malformed(_) | ArtifactError::WrongKey | ArtifactError::Tampered),
                "byte {at}, bit {bit}: {refused}"
            );
        }
    }
}

#[test]
fn a_version_without_a_successor_is_no_version() {
    let last = ArtifactHeader { version: super::limits::MAX_VERSION + 1, ..header() };
    let bytes = Artifact::sign(&key(1), last, b"\x7fELF".to_vec()).encode();
    assert!(matches!(Artifact::decode(&bytes), Err(ArtifactError::Malformed(_))));
}

/// A server reads no longer file when it starts again.
#[test]
fn what_stands_beside_the_largest_library_fits() {
    let function = |number: usize| FunctionSchema {
        name: format!("function{number}"),
        args: ValueType::Unit,
        reply: ValueType::Unit,
        fingerprint: 0,
        description: "x".repeat(DESCRIPTION_BYTES),
    };
    let schemas = (1..=FUNCTIONS)
        .map_while(|count| ExtensionSchema::checked((0..count).map(function).collect(), Vec::new()).ok());
    let schema = schemas.last().expect("a schema");
    assert!(schema.to_json().len() > 16 << 10, "it is a large one");
    let header = ArtifactHeader { name: "n".repeat(limits::NAME_BYTES), schema: Some(Arc::new(schema)), ..header() };
    let (library, map) = (b"\x7fELF".to_vec(), vec![1; CODE_MAP_MAX_BYTES]);
    let bytes = Artifact::sign(&key(1), header, with_code_map(library.clone(), &map)).encode();
    let beside = bytes.len() - library.len();
    assert!(beside > CODE_MAP_MAX_BYTES && beside <= limits::ARTIFACT_EXTRA_BYTES, "{beside}");
}

#[test]
fn no_cut_passes() {
    let bytes = artifact().encode();
    for length in 0..bytes.len() {
        assert!(matches!(Artifact::decode(&bytes[..length]), Err(ArtifactError::Malformed(_))), "{length} bytes");
    }
}

proptest! {
    #[test]
    fn an_artifact_comes_back_as_it_was(
        tenant: u32, kind in 0..3_usize, version in 1..=super::limits::MAX_VERSION, compiler: u64, api_fingerprint: u64, checker: u64, source_digest: [u8; 32],
        name in "[a-z0-9_-]{1,64}", elf in proptest::collection::vec(any::<u8>(), 0..2000),
    ) {
        let kinds = [
            (CodeTier::Native, CodeOrigin::Source),
            (CodeTier::Sandboxed, CodeOrigin::Source),
            (CodeTier::Sandboxed, CodeOrigin::Module),
        ];
        let (tier, origin) = kinds[kind];
        let header = ArtifactHeader { tenant, tier, origin, abi_version: 1, version, compiler, api_fingerprint, checker, source_digest, elf_digest: [0; 32], name: name.clone(), schema: None };
        let made = Artifact::sign(&key(9), header, elf);
        let read = Artifact::decode(&made.encode()).expect("its own bytes");
        prop_assert_eq!(&read, &made);
        let highest = Some(version - 1);
        let asked = ArtifactRequirements { tenant, tier, name, compiler: Some(compiler), api_fingerprint, checker, abi_version: 1, highest };
        prop_assert_eq!(read.verify(&[key(9).public()], &asked), Ok(()));
    }

    #[test]
    fn random_bytes_are_no_artifact(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
        prop_assert!(Artifact::decode(&bytes).is_err());
    }
}

#[test]
fn the_key_is_made_once_and_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let state = tempfile::tempdir().expect("a folder");
    let keys: Vec<PublicKey> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| BuilderKey::open(state.path()).expect("a key").public())).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(keys.iter().all(|key| *key == keys[0]), "eight starts at once, one key");
    let path = state.path().join(KEY_FILE);
    assert_eq!(std::fs::metadata(&path).expect("the file").permissions().mode() & 0o777, 0o600);
    assert_eq!(PublicKey::from_hex(&keys[0].to_hex()), Some(keys[0]));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("our file");
    assert!(BuilderKey::open(state.path()).expect_err("open to others").to_string().contains("chmod 600"));
}
