//! Keys, their values, and how often each is asked for.
//!
//! Record `id` has a key and a value that follow from `id` alone (and a salt that each write picks), so that any reply
//! can be checked without remembering what was written.

use super::zipf_table::ZipfTable;
use rand::Rng;
use rand_distr::{Distribution, Zipf};
use std::fmt;
use std::str::FromStr;

/// Key length in bytes that is enough for any id: one letter and its digits.
pub const MIN_KEY_LEN: usize = 21;
/// Bytes of a value that carry its salt and digest; a shorter value follows from its record's id alone.
pub const MIN_CHECKED_VALUE_LEN: usize = 16;

/// Mixes 64 bits: neighbouring inputs land far apart (the finaliser of splitmix64).
pub fn mix64(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Writes the key of `id`: a kind letter and the id in decimal, padded with zeros to `len` bytes (longer where the id
/// has more digits than that).
pub fn write_key(kind: u8, id: u64, len: usize, key: &mut Vec<u8>) {
    let len = len.max(2 + id.checked_ilog10().unwrap_or(0) as usize);
    key.clear();
    key.resize(len, b'0');
    if let Some(first) = key.first_mut() {
        *first = kind;
    }
    let mut rest = id;
    for digit in key.iter_mut().skip(1).rev() {
        if rest == 0 {
            break;
        }
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

/// The key kind of plain records.
pub const RECORD: u8 = b'k';
/// The key kind of the links of chains.
pub const LINK: u8 = b'c';
/// The key kind of the lists that `aggregate` and `checksum` read.
pub const LIST: u8 = b'l';
/// The key kind of records that are never written, for a pool's misses.
pub(super) const MISSING: u8 = b'm';
/// The key kind of counters.
pub(super) const COUNTER: u8 = b'n';
/// The key kind of lists of rows for the decision tree.
pub(super) const ROW_LIST: u8 = b'q';
/// The key kind of such rows.
pub(super) const ROW: u8 = b'r';
/// The key kind of the decision tree.
pub(super) const TREE: u8 = b't';
/// The key kind of accounts.
pub(super) const ACCOUNT: u8 = b'a';
/// The key kind of users.
pub(super) const USER: u8 = b'u';

/// Writes the value of record `id` as written with `salt`: salt, digest, and filler that follows from both. A value too
/// short for that has the first bytes of a digest of the id.
pub fn write_value(id: u64, salt: u64, len: usize, value: &mut Vec<u8>) {
    value.clear();
    if len < MIN_CHECKED_VALUE_LEN {
        value.extend_from_slice(&short_value(id)[..len]);
        return;
    }
    let mut state = digest(id, salt);
    value.extend_from_slice(&salt.to_le_bytes());
    value.extend_from_slice(&state.to_le_bytes());
    while value.len() < len {
        state = mix64(state);
        value.extend_from_slice(&state.to_le_bytes());
    }
    value.truncate(len);
}

fn digest(id: u64, salt: u64) -> u64 {
    mix64(id ^ mix64(salt))
}

fn short_value(id: u64) -> [u8; MIN_CHECKED_VALUE_LEN] {
    let mut bytes = [0; MIN_CHECKED_VALUE_LEN];
    for (salt, part) in (0..).zip(bytes.chunks_mut(8)) {
        part.copy_from_slice(&digest(id, salt).to_le_bytes());
    }
    bytes
}

/// Returns whether `value` is one that record `id` can have: its digest fits its salt and id, and all its filler
/// follows from it.
pub fn check_value(id: u64, value: &[u8]) -> bool {
    let Some((head, mut filler)) = value.split_first_chunk::<MIN_CHECKED_VALUE_LEN>() else {
        return short_value(id).starts_with(value);
    };
    let [s0, s1, s2, s3, s4, s5, s6, s7, d0, d1, d2, d3, d4, d5, d6, d7] = *head;
    let salt = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
    let mut state = u64::from_le_bytes([d0, d1, d2, d3, d4, d5, d6, d7]);
    if state != digest(id, salt) {
        return false;
    }
    while !filler.is_empty() {
        state = mix64(state);
        let expected = state.to_le_bytes();
        let here = filler.len().min(expected.len());
        let (part, rest) = filler.split_at(here);
        if !expected.starts_with(part) {
            return false;
        }
        filler = rest;
    }
    true
}

/// The distribution from which keys are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Skew {
    /// Record of rank `r` with a probability in proportion to `r^-exponent`; YCSB's default is 0.99.
    Zipf {
        /// The exponent, above 0.
        exponent: f64,
    },
    /// All alike.
    Uniform,
    /// `share` of the requests go to the first `keys` of the records, the others to the rest, all alike within.
    HotSet {
        /// Part of the records that is hot, 0 to 1.
        keys: f64,
        /// Part of the requests that go there, 0 to 1.
        share: f64,
    },
    /// The newest record most often, by Zipf's law of 0.99: YCSB D's.
    Latest,
}

impl Default for Skew {
    fn default() -> Skew {
        Skew::Zipf { exponent: 0.99 }
    }
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Skew::Zipf { exponent } => write!(f, "zipf:{exponent}"),
            Skew::Uniform => f.write_str("uniform"),
            Skew::HotSet { keys, share } => write!(f, "hot:{keys}:{share}"),
            Skew::Latest => f.write_str("latest"),
        }
    }
}

impl FromStr for Skew {
    type Err = String;

    /// `uniform`, `zipf`, `zipf:EXPONENT`, `hot:KEYS:SHARE` (parts of 1), `latest`.
    fn from_str(text: &str) -> Result<Skew, String> {
        let bad = || format!("'{text}' is no key distribution: uniform, zipf, zipf:EXPONENT, hot:KEYS:SHARE or latest");
        let number = |part: Option<&str>| part.and_then(|part| part.parse::<f64>().ok()).ok_or_else(bad);
        let mut parts = text.split(':');
        let skew = match (parts.next(), parts.clone().count()) {
            (Some("uniform"), 0) => Skew::Uniform,
            (Some("latest"), 0) => Skew::Latest,
            (Some("zipf"), 0) => Skew::default(),
            (Some("zipf"), 1) => Skew::Zipf { exponent: number(parts.next())? },
            (Some("hot"), 2) => Skew::HotSet { keys: number(parts.next())?, share: number(parts.next())? },
            _ => return Err(bad()),
        };
        let fits = match skew {
            Skew::Zipf { exponent } => exponent > 0.0 && exponent.is_finite(),
            Skew::Uniform | Skew::Latest => true,
            Skew::HotSet { keys, share } => (0.0..=1.0).contains(&keys) && (0.0..=1.0).contains(&share),
        };
        if fits { Ok(skew) } else { Err(bad()) }
    }
}

/// The exponent by which the latest records are preferred; YCSB's.
const LATEST_EXPONENT: f64 = 0.99;

/// Draws record ids `0..count`.
#[derive(Clone, Debug)]
pub struct KeyChooser {
    skew: Skew,
    count: u64,
    draw: KeySampler,
}

#[derive(Clone, Debug)]
enum KeySampler {
    Zipf(Zipf<f64>),
    /// The same from tables.
    ZipfTable(ZipfTable),
    Uniform,
    HotSet {
        hot: u64,
        share: f64,
    },
    Latest(Zipf<f64>),
}

impl KeyChooser {
    /// A chooser of `count` records (at least one).
    ///
    /// # Errors
    /// A text that says which number is out of range.
    pub fn new(skew: Skew, count: u64) -> Result<KeyChooser, String> {
        let count = count.max(1);
        let zipf =
            |exponent| Zipf::new(count as f64, exponent).map_err(|error| format!("zipf exponent {exponent}: {error}"));
        let draw = match skew {
            Skew::Uniform => KeySampler::Uniform,
            Skew::Zipf { exponent } => match (zipf(exponent)?, ZipfTable::new(count, exponent)) {
                (_, Some(ranks)) => KeySampler::ZipfTable(ranks),
                (zipf, None) => KeySampler::Zipf(zipf),
            },
            Skew::Latest => KeySampler::Latest(zipf(LATEST_EXPONENT)?),
            Skew::HotSet { keys, share } => {
                let hot = ((count as f64 * keys) as u64).clamp(1, count);
                let share = if hot == count { 1.0 } else { share.clamp(0.0, 1.0) };
                KeySampler::HotSet { hot, share }
            }
        };
        Ok(KeyChooser { skew, count, draw })
    }

    /// Chooses among `count` records from here on.
    pub fn resize(&mut self, count: u64) {
        if count != self.count
            && let Ok(chooser) = KeyChooser::new(self.skew, count)
        {
            *self = chooser;
        }
    }

    /// The next id. Low ids are the frequent ones; the server's keyed hash spreads them over its table.
    pub fn next(&self, rng: &mut impl Rng) -> u64 {
        match &self.draw {
            KeySampler::Zipf(zipf) => (zipf.sample(rng) as u64).clamp(1, self.count) - 1,
            KeySampler::ZipfTable(ranks) => ranks.next(rng),
            KeySampler::Latest(zipf) => self.count - (zipf.sample(rng) as u64).clamp(1, self.count),
            KeySampler::Uniform => rng.random_range(0..self.count),
            KeySampler::HotSet { hot, share } => {
                if rng.random::<f64>() < *share {
                    rng.random_range(0..*hot)
                } else {
                    rng.random_range(*hot..self.count)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{SeedableRng, rngs::SmallRng};

    /// Chi-square of `draws` draws over `expected` probabilities, by its distance from the mean in standard deviations.
    fn chi_square_deviations(chooser: &KeyChooser, expected: &[f64], draws: u64) -> f64 {
        let mut rng = SmallRng::seed_from_u64(42);
        let mut seen = vec![0u64; expected.len()];
        for _ in 0..draws {
            seen[chooser.next(&mut rng) as usize] += 1;
        }
        let chi: f64 = seen
            .iter()
            .zip(expected)
            .map(|(seen, share)| (*seen as f64 - share * draws as f64).powi(2) / (share * draws as f64))
            .sum();
        let freedom = expected.len() as f64 - 1.0;
        (chi - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn zipf_draws_ranks_in_proportion_to_their_power() {
        for exponent in [0.5, 0.99, 1.0, 1.5] {
            let weights: Vec<f64> = (1..=200).map(|rank| f64::from(rank).powf(-exponent)).collect();
            let total: f64 = weights.iter().sum();
            let expected: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
            let chooser = KeyChooser::new(Skew::Zipf { exponent }, 200).unwrap();
            let deviations = chi_square_deviations(&chooser, &expected, 400_000);
            assert!(deviations.abs() < 6.0, "exponent {exponent}: {deviations} standard deviations off");
        }
    }

    #[test]
    fn uniform_and_hot_set_draw_what_they_say() {
        let uniform = KeyChooser::new(Skew::Uniform, 100).unwrap();
        assert!(chi_square_deviations(&uniform, &[0.01; 100], 200_000).abs() < 6.0);
        let hot = KeyChooser::new(Skew::HotSet { keys: 0.1, share: 0.9 }, 100).unwrap();
        let expected: Vec<f64> = (0..100).map(|id| if id < 10 { 0.09 } else { 0.1 / 90.0 }).collect();
        assert!(chi_square_deviations(&hot, &expected, 200_000).abs() < 6.0);
    }

    #[test]
    fn the_latest_are_asked_for_most_and_a_chooser_grows() {
        let weights: Vec<f64> = (1..=200).rev().map(|rank| f64::from(rank).powf(-LATEST_EXPONENT)).collect();
        let total: f64 = weights.iter().sum();
        let expected: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
        let mut chooser = KeyChooser::new(Skew::Latest, 10).unwrap();
        chooser.resize(200);
        assert!(chi_square_deviations(&chooser, &expected, 400_000).abs() < 6.0);
        let mut zipf = KeyChooser::new(Skew::default(), 7).unwrap();
        zipf.resize(200);
        let expected: Vec<f64> = expected.into_iter().rev().collect();
        assert!(chi_square_deviations(&zipf, &expected, 400_000).abs() < 6.0);
    }

    #[test]
    fn half_of_a_million_keys_make_one_request_in_a_hundred_as_in_etc() {
        let chooser = KeyChooser::new(super::super::MemcachedPool::Etc.skew(), 1_000_000).unwrap();
        let mut rng = SmallRng::seed_from_u64(7);
        let rare = (0..200_000).filter(|_| chooser.next(&mut rng) >= 500_000).count();
        assert!((1_500..=2_500).contains(&rare), "{rare} of 200,000");
    }

    #[test]
    fn skews_parse_as_they_print() {
        for text in ["uniform", "zipf:0.99", "zipf:1.2", "hot:0.01:0.9", "latest"] {
            assert_eq!(text.parse::<Skew>().unwrap().to_string(), text);
        }
        assert_eq!("zipf".parse::<Skew>().unwrap(), Skew::default());
        for text in ["", "zipf:", "zipf:-1", "hot:2:0.5", "hot:0.5", "uniform:1", "zipf:NaN", "latest:1"] {
            let error = text.parse::<Skew>().unwrap_err();
            assert!(error.contains(&format!("'{text}' is no key distribution: uniform, zipf")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_value_passes_for_its_own_record_only(id: u64, salt: u64, len in 1usize..300, flip in 0usize..300) {
            let mut value = Vec::new();
            write_value(id, salt, len, &mut value);
            prop_assert_eq!(value.len(), len);
            prop_assert!(check_value(id, &value));
            prop_assert!(len < MIN_CHECKED_VALUE_LEN || !check_value(id ^ 1, &value));
            let at = flip % len;
            value[at] ^= 0x40;
            prop_assert!(!check_value(id, &value));
        }

        #[test]
        fn keys_differ_and_have_their_length(a: u64, b: u64, len in 0usize..100) {
            let (mut first, mut second) = (Vec::new(), Vec::new());
            write_key(RECORD, a, len, &mut first);
            write_key(RECORD, b, len, &mut second);
            prop_assert_eq!(first == second, a == b);
            prop_assert_eq!(first.len(), len.max(1 + a.to_string().len()));
            let text = std::str::from_utf8(&first[1..]).unwrap();
            prop_assert_eq!(text.parse::<u64>().unwrap(), a);
        }
    }
}
