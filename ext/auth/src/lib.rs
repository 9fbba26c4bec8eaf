//! Sets passwords and checks them: the stored hash never leaves the server.
//!
//! - args: `table u64 | command u8 | user_len u16 | user`, then by command (integers little-endian):
//!   - 1, set: `rounds u32 | salt_len u8 | salt | password` (the password is the rest); overwrites what the user had.
//!     Rounds 1 to 100,000, salt 8 to 64 bytes from the caller's random source
//!   - 0, check: `password` (the rest)
//! - a user's record: `rounds u32 | salt_len u8 | salt | hash`, with hash = PBKDF2-HMAC-SHA256(password, salt, rounds),
//!   32 bytes
//! - reply: set: the record's version, u64; check: one byte, 1 when the password is right, 0 when not or when there is
//!   no such user
//! - errors: `Invalid` for malformed args, `Other` when the user's record is not one that `set` wrote
//!
//! An unknown user costs as many rounds as [`DECOY_ROUNDS`]: set passwords with that many, and the time of a check does
//! not tell whether there is such a user.
#![no_std]
#![forbid(unsafe_code)]

use hmac_sha256::HMAC;
use sandstorm_api::prelude::*;

const FORMAT: &str = "args: table u64, command u8 (0 check, 1 set), user_len u16, user, \
     then set: rounds u32 (1 to 100000), salt_len u8 (8 to 64), salt, password; check: password";
const MALFORMED_RECORD: &str =
    "the user's record is not one that set wrote: rounds u32, salt_len u8, salt, hash (32 bytes)";
/// Rounds between two yields: about a tenth of a millisecond.
const ROUNDS_PER_SLICE: u32 = 128;
/// What a check of an unknown user costs; the number of rounds to set passwords with.
pub const DECOY_ROUNDS: u32 = 1000;
const MAX_ROUNDS: u32 = 100_000;

enum PasswordCommand<'a> {
    Check { password: &'a [u8] },
    Set { rounds: u32, salt: &'a [u8], password: &'a [u8] },
}

/// Sets or checks a password.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, user, command) = parse_args(args).ok_or(Error::invalid(FORMAT))?;
    match command {
        PasswordCommand::Set { rounds, salt, password } => {
            let hash = pbkdf2(password, salt, rounds).await;
            let record = [&rounds.to_le_bytes()[..], &[salt.len() as u8], salt, &hash].concat();
            let version = db.put(table, user, &record).await?;
            db.reply(&version.to_le_bytes())
        }
        PasswordCommand::Check { password } => {
            let stored = db.get(table, user).await?;
            let (known, (rounds, salt, wanted)) = match &stored {
                Some(record) => (true, parse_record(record.value()).ok_or(Error::new(MALFORMED_RECORD))?),
                None => (false, (DECOY_ROUNDS, &[0u8; 16][..], &[0u8; 32])),
            };
            let hash = pbkdf2(password, salt, rounds).await;
            db.reply(&[u8::from(constant_time_eq(&hash, wanted) & known)])
        }
    }
}

/// PBKDF2 with HMAC-SHA256, one block of output (RFC 8018); yields now and then.
async fn pbkdf2(password: &[u8], salt: &[u8], rounds: u32) -> [u8; 32] {
    let keyed = HMAC::new(password);
    let mut first = keyed.clone();
    first.update(salt);
    first.update(1u32.to_be_bytes());
    let mut link = first.finalize();
    let mut hash = link;
    for round in 1..rounds {
        let mut next = keyed.clone();
        next.update(link);
        link = next.finalize();
        for (to, from) in hash.iter_mut().zip(link) {
            *to ^= from;
        }
        if round % ROUNDS_PER_SLICE == 0 {
            yield_now().await;
        }
    }
    hash
}

/// Compares in a time that does not depend on where the two differ.
fn constant_time_eq(one: &[u8; 32], two: &[u8; 32]) -> bool {
    let difference = one.iter().zip(two).fold(0, |bits, (a, b)| core::hint::black_box(bits | (a ^ b)));
    difference == 0
}

fn parse_args(args: &[u8]) -> Option<(TableId, &[u8], PasswordCommand<'_>)> {
    let (table, rest) = args.split_first_chunk::<8>()?;
    let (command, rest) = rest.split_first()?;
    let (user_len, rest) = rest.split_first_chunk::<2>()?;
    let (user, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*user_len)))?;
    let command = match command {
        0 => PasswordCommand::Check { password: rest },
        1 => {
            let (rounds, salt, password) = parse_salted(rest)?;
            PasswordCommand::Set { rounds, salt, password }
        }
        _ => return None,
    };
    Some((TableId(u64::from_le_bytes(*table)), user, command))
}

fn parse_record(record: &[u8]) -> Option<(u32, &[u8], &[u8; 32])> {
    let (rounds, salt, hash) = parse_salted(record)?;
    Some((rounds, salt, hash.try_into().ok()?))
}

/// `rounds u32 | salt_len u8 | salt | rest`
fn parse_salted(bytes: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let (rounds, rest) = bytes.split_first_chunk::<4>()?;
    let rounds = u32::from_le_bytes(*rounds);
    let (salt_len, rest) = rest.split_first()?;
    let (salt, rest) = rest.split_at_checked(usize::from(*salt_len))?;
    ((1..=MAX_ROUNDS).contains(&rounds) && (8..=64).contains(&salt.len())).then_some((rounds, salt, rest))
}

#[cfg(test)]
mod tests {
    use sandstorm_api::testing::TestStore;

    use super::*;

    const SALT: &[u8] = b"saltSALTsaltSALTsaltSALTsaltSALTsalt";

    fn head(table: TableId, command: u8, user: &str) -> Vec<u8> {
        [&table.0.to_le_bytes()[..], &[command], &(user.len() as u16).to_le_bytes(), user.as_bytes()].concat()
    }

    fn set(table: TableId, user: &str, rounds: u32, salt: &[u8], password: &str) -> Vec<u8> {
        let salted = [&rounds.to_le_bytes()[..], &[salt.len() as u8], salt, password.as_bytes()].concat();
        [head(table, 1, user), salted].concat()
    }

    fn check(table: TableId, user: &str, password: &str) -> Vec<u8> {
        [head(table, 0, user), password.as_bytes().to_vec()].concat()
    }

    #[test]
    fn the_hash_is_pbkdf2_as_published() {
        let mut store = TestStore::new();
        let table = store.table("t");
        let password = "passwordPASSWORDpassword";
        store.invoke(run, &set(table, "u", 4096, SALT, password)).unwrap();
        // The well-known vector of RFC 6070's inputs for SHA-256, first 32 bytes.
        let hash = [
            0x34, 0x8c, 0x89, 0xdb, 0xcb, 0xd3, 0x2b, 0x2f, 0x32, 0xd8, 0x14, 0xb8, 0x11, 0x6e, 0x84, 0xcf, 0x2b, 0x17,
            0x34, 0x7e, 0xbc, 0x18, 0x00, 0x18, 0x1c, 0x4e, 0x2a, 0x1f, 0xb8, 0xdd, 0x53, 0xe1,
        ];
        assert!(store.get(table, b"u").unwrap().ends_with(&hash));
        assert!(store.polls() >= 4096 / u64::from(ROUNDS_PER_SLICE), "yields in between");
    }

    #[test]
    fn only_the_right_password_of_the_right_user_passes() {
        let mut store = TestStore::new();
        let table = store.table("t");
        store.invoke(run, &set(table, "ann", 10, SALT, "secret")).unwrap();
        store.invoke(run, &set(table, "bob", 20, &SALT[..8], "")).unwrap();
        for (user, password, right) in
            [("ann", "secret", 1), ("ann", "secreT", 0), ("ann", "", 0), ("bob", "", 1), ("bob", "secret", 0)]
        {
            assert_eq!(store.invoke(run, &check(table, user, password)), Ok(vec![right]), "{user} {password}");
        }
        store.invoke(run, &set(table, "ann", 10, SALT, "new")).unwrap();
        assert_eq!(store.invoke(run, &check(table, "ann", "secret")), Ok(vec![0]));
        assert_eq!(store.invoke(run, &check(table, "ann", "new")), Ok(vec![1]));
    }

    #[test]
    fn an_unknown_user_costs_what_a_known_one_costs() {
        let mut store = TestStore::new();
        let table = store.table("t");
        store.invoke(run, &set(table, "ann", DECOY_ROUNDS, SALT, "secret")).unwrap();
        assert_eq!(store.invoke(run, &check(table, "ann", "wrong")), Ok(vec![0]));
        let known = store.polls();
        assert_eq!(store.invoke(run, &check(table, "nobody", "wrong")), Ok(vec![0]));
        assert_eq!(store.polls(), known);
    }

    #[test]
    fn broken_records_and_malformed_args_are_refused() {
        let mut store = TestStore::new();
        let table = store.table("t");
        store.put(table, b"u", b"password in the clear");
        assert_eq!(store.invoke(run, &check(table, "u", "x")), Err(Error::new(MALFORMED_RECORD)));
        for args in [
            set(table, "u", 0, SALT, "x"),
            set(table, "u", MAX_ROUNDS + 1, SALT, "x"),
            set(table, "u", 1, b"short", "x"),
        ] {
            assert_eq!(store.invoke(run, &args), Err(Error::invalid(FORMAT)));
        }
        assert_eq!(store.invoke(run, &head(table, 2, "u")), Err(Error::invalid(FORMAT)));
        let whole = set(table, "user", 1, SALT, "");
        for short in 0..whole.len() {
            assert_eq!(store.invoke(run, &whole[..short]), Err(Error::invalid(FORMAT)));
        }
        assert_eq!(store.get(table, b"u"), Some(&b"password in the clear"[..]));
    }
}
