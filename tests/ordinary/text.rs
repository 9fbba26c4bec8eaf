//! Ordinary extensions, one module each: text, numbers, dates, bits.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

/// A parser for key=value lines.
pub mod settings {
    use alloc::borrow::Cow;
    use alloc::collections::BTreeMap;
    use alloc::string::String;

    #[derive(Debug, Default, Clone, PartialEq, Eq)]
    pub struct Settings<'t> {
        values: BTreeMap<&'t str, Cow<'t, str>>,
    }

    impl<'t> Settings<'t> {
        pub fn parse(text: &'t str) -> Result<Self, (usize, &'static str)> {
            let mut settings = Settings::default();
            for (number, line) in text.lines().enumerate() {
                let line = line.split('#').next().map_or("", str::trim);
                if line.is_empty() {
                    continue;
                }
                let (name, value) = line.split_once('=').ok_or((number + 1, "no `=`"))?;
                let value = match value.trim().strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
                    Some(quoted) if quoted.contains('\\') => Cow::Owned(quoted.replace("\\n", "\n")),
                    Some(quoted) => Cow::Borrowed(quoted),
                    None => Cow::Borrowed(value.trim()),
                };
                settings.values.insert(name.trim(), value);
            }
            Ok(settings)
        }

        pub fn number<N: core::str::FromStr>(&self, name: &str) -> Option<N> {
            self.values.get(name)?.parse().ok()
        }

        pub fn render(&self) -> String {
            self.values.iter().fold(String::new(), |mut out, (name, value)| {
                out.push_str(name);
                out += " = ";
                out += value;
                out.push('\n');
                out
            })
        }
    }
}

/// Dates from milliseconds.
pub mod dates {
    use core::fmt;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub struct Date {
        pub year: i64,
        pub month: u8,
        pub day: u8,
    }

    impl From<u64> for Date {
        fn from(ms: u64) -> Date {
            let days = (ms / 86_400_000) as i64 + 719_468;
            let era = days.div_euclid(146_097);
            let of_era = days.rem_euclid(146_097);
            let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
            let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
            let shifted = (5 * day_of_year + 2) / 153;
            let day = (day_of_year - (153 * shifted + 2) / 5 + 1) as u8;
            let month = if shifted < 10 { shifted + 3 } else { shifted - 9 } as u8;
            Date { year: year_of_era + era * 400 + i64::from(month <= 2), month, day }
        }
    }

    impl fmt::Display for Date {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let Date { year, month, day } = self;
            write!(f, "{year:04}-{month:02}-{day:02}")
        }
    }
}

/// A sieve, greatest common divisors, powers.
pub mod numbers {
    use alloc::vec;
    use alloc::vec::Vec;
    use core::num::{NonZeroU32, Wrapping};

    pub fn primes(limit: usize) -> Vec<usize> {
        let mut sieve = vec![true; limit + 1];
        let mut primes = vec![];
        for number in 2..=limit {
            if !sieve[number] {
                continue;
            }
            primes.push(number);
            for multiple in (number * number..=limit).step_by(number) {
                sieve[multiple] = false;
            }
        }
        primes
    }

    pub const fn gcd(a: u64, b: u64) -> u64 {
        if b == 0 { a } else { gcd(b, a % b) }
    }

    pub fn power(base: u64, exponent: u32, modulus: NonZeroU32) -> u64 {
        let modulus = u64::from(modulus.get());
        (0..32).rev().fold(1, |result, bit| {
            let squared = result * result % modulus;
            if exponent >> bit & 1 == 1 { squared * (base % modulus) % modulus } else { squared }
        })
    }

    pub struct Random(Wrapping<u64>);

    impl Iterator for Random {
        type Item = u64;
        fn next(&mut self) -> Option<u64> {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            Some(self.0.0)
        }
    }

    pub fn rolls(seed: u64, count: usize) -> Vec<u8> {
        Random(Wrapping(seed | 1)).map(|value| (value % 6) as u8 + 1).take(count).collect()
    }
}

/// A bit set over words.
pub mod bits {
    use alloc::vec::Vec;
    use core::ops::{BitAnd, BitOrAssign};

    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Bits(Vec<u64>);

    impl Bits {
        const WORD: usize = u64::BITS as usize;

        pub fn insert(&mut self, index: usize) -> bool {
            let (word, bit) = (index / Self::WORD, 1 << (index % Self::WORD));
            if self.0.len() <= word {
                self.0.resize(word + 1, 0);
            }
            let before = self.0[word] & bit != 0;
            self.0[word] |= bit;
            !before
        }

        pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
            self.0.iter().enumerate().flat_map(|(word, bits)| {
                (0..Self::WORD).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * Self::WORD + bit)
            })
        }

        pub fn len(&self) -> usize {
            self.0.iter().map(|word| word.count_ones() as usize).sum()
        }

        pub fn is_empty(&self) -> bool {
            self.0.iter().all(|word| *word == 0)
        }
    }

    impl BitAnd for &Bits {
        type Output = Bits;
        fn bitand(self, other: Self) -> Bits {
            Bits(self.0.iter().zip(&other.0).map(|(a, b)| a & b).collect())
        }
    }

    impl BitOrAssign<&Bits> for Bits {
        fn bitor_assign(&mut self, other: &Bits) {
            other.iter().for_each(|index| {
                self.insert(index);
            });
        }
    }

    impl FromIterator<usize> for Bits {
        fn from_iter<I: IntoIterator<Item = usize>>(items: I) -> Bits {
            let mut bits = Bits::default();
            for item in items {
                bits.insert(item);
            }
            bits
        }
    }
}

/// Edit distance, capitals, wrapping at a width.
pub mod words {
    use alloc::string::String;
    use alloc::vec::Vec;

    pub fn distance(left: &str, right: &str) -> usize {
        let right: Vec<char> = right.chars().collect();
        let mut row: Vec<usize> = (0..=right.len()).collect();
        for (i, a) in left.chars().enumerate() {
            let mut diagonal = core::mem::replace(&mut row[0], i + 1);
            for (j, b) in right.iter().enumerate() {
                let cost = diagonal + usize::from(a != *b);
                diagonal = row[j + 1];
                row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
            }
        }
        row.last().copied().unwrap_or_default()
    }

    pub fn capitalized(text: &str) -> String {
        let mut letters = text.chars();
        letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
    }

    pub fn wrapped(text: &str, width: usize) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for word in text.split_ascii_whitespace() {
            match lines.last_mut() {
                Some(line) if line.len() + 1 + word.len() <= width => {
                    line.push(' ');
                    line.push_str(word);
                }
                _ => lines.push(word.into()),
            }
        }
        lines
    }

    pub fn rotated(text: &str) -> String {
        text.chars()
            .map(|letter| match letter {
                'a'..='z' => ((letter as u8 - b'a' + 13) % 26 + b'a') as char,
                'A'..='Z' => ((letter as u8 - b'A' + 13) % 26 + b'A') as char,
                other => other,
            })
            .collect()
    }
}

/// Labels, let-else, let chains, nested closures, shadowing, blocks as values.
pub mod control {
    use alloc::string::String;
    use alloc::vec::Vec;
    use core::ops::ControlFlow;

    pub fn find(grid: &[Vec<i32>], wanted: i32) -> Option<(usize, usize)> {
        let mut found = None;
        'rows: for (y, row) in grid.iter().enumerate() {
            for (x, value) in row.iter().enumerate() {
                if *value == wanted {
                    found = Some((x, y));
                    break 'rows;
                }
            }
        }
        found
    }

    pub fn collatz(start: u64) -> u32 {
        let mut value = start;
        let mut steps = 0;
        let result = loop {
            if value <= 1 {
                break steps;
            }
            value = if value % 2 == 0 { value / 2 } else { value * 3 + 1 };
            steps += 1;
        };
        result
    }

    pub fn until_negative(values: &[i64]) -> Result<i64, i64> {
        let ended = values.iter().try_fold(0_i64, |total, value| match value {
            value if *value < 0 => ControlFlow::Break(total),
            value => ControlFlow::Continue(total + value),
        });
        match ended {
            ControlFlow::Continue(total) => Ok(total),
            ControlFlow::Break(total) => Err(total),
        }
    }

    pub fn describe(input: Option<&str>, limit: Option<usize>) -> String {
        let Some(text) = input else { return String::from("nothing") };
        if let Some(limit) = limit
            && let Some(cut) = text.get(..limit)
            && !cut.is_empty()
        {
            return alloc::format!("{cut}…");
        }
        let length = {
            let text = text.trim();
            text.len()
        };
        alloc::format!("{text:?} ({length:>4}) {0:#x} {0:+} {width:>1$}", length, 6, width = length)
    }

    pub fn settle(results: Vec<Result<u8, String>>) -> Result<Vec<u8>, String> {
        let (good, bad): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        match bad.into_iter().find_map(Result::err) {
            Some(error) => Err(error),
            None => Ok(good.into_iter().flatten().collect()),
        }
    }
}

/// Shared ownership and interior mutability.
pub mod shared {
    use alloc::rc::{Rc, Weak};
    use alloc::string::String;
    use alloc::vec::Vec;
    use core::cell::{Cell, OnceCell, RefCell};

    #[derive(Debug, Default)]
    pub struct Folder {
        name: String,
        parent: RefCell<Weak<Folder>>,
        children: RefCell<Vec<Rc<Folder>>>,
        visits: Cell<u32>,
        path: OnceCell<String>,
    }

    impl Folder {
        pub fn new(name: &str) -> Rc<Folder> {
            Rc::new(Folder { name: name.into(), ..Folder::default() })
        }

        pub fn add(self: &Rc<Self>, name: &str) -> Rc<Folder> {
            let child = Folder::new(name);
            *child.parent.borrow_mut() = Rc::downgrade(self);
            self.children.borrow_mut().push(Rc::clone(&child));
            child
        }

        pub fn path(&self) -> &str {
            self.visits.set(self.visits.get() + 1);
            self.path.get_or_init(|| match self.parent.borrow().upgrade() {
                Some(parent) => alloc::format!("{}/{}", parent.path(), self.name),
                None => self.name.clone(),
            })
        }

        pub fn deepest(&self) -> usize {
            self.children.borrow().iter().map(|child| child.deepest() + 1).max().unwrap_or(0)
        }
    }
}
