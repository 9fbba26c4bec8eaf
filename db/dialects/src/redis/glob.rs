//! Patterns as Redis matches them: `*`, `?`, `[a-c]`, `[^a]`, and a backslash before a literal character.

use crate::limits::redis::PATTERN_STEPS;

/// A pattern, and the work that may still go into it: a long pattern, or many texts, can take a very long time.
pub(super) struct GlobPattern<'p> {
    bytes: &'p [u8],
    given: u64,
    left: u64,
}

impl<'p> GlobPattern<'p> {
    pub(super) fn new(bytes: &'p [u8]) -> GlobPattern<'p> {
        GlobPattern::within(bytes, PATTERN_STEPS)
    }

    /// One of several patterns that together may take no more steps than a single one.
    pub(super) fn within(bytes: &'p [u8], steps: u64) -> GlobPattern<'p> {
        GlobPattern { bytes, given: steps, left: steps }
    }

    /// Steps taken so far.
    pub(super) fn steps(&self) -> u64 {
        self.given - self.left
    }

    /// Whether its work is used up: the results since then mean nothing.
    pub(super) fn is_exhausted(&self) -> bool {
        self.left == 0
    }

    /// Whether all of `text` matches. A star is retried only up to the next one.
    pub(super) fn matches(&mut self, text: &[u8]) -> bool {
        let (pattern, mut p, mut t) = (self.bytes, 0, 0);
        // The position to continue from if the part after the last star does not match here.
        let mut again: Option<(usize, usize)> = None;
        while self.left > 0 {
            if pattern.get(p) == Some(&b'*') {
                p += 1;
                again = Some((p, t));
                self.left -= 1;
                continue;
            }
            if let Some(byte) = text.get(t) {
                let (matched, taken) = match_one(&pattern[p..], *byte);
                self.left = self.left.saturating_sub(1 + taken as u64);
                if matched {
                    (p, t) = (p + taken, t + 1);
                    continue;
                }
            } else if p >= pattern.len() {
                return true;
            }
            match again {
                Some((after, from)) if from < text.len() => {
                    again = Some((after, from + 1));
                    (p, t) = (after, from + 1);
                }
                _ => return false,
            }
        }
        false
    }
}

/// Whether the first element of a pattern matches a byte, and the length of the element.
fn match_one(pattern: &[u8], byte: u8) -> (bool, usize) {
    match pattern {
        [] => (false, 0),
        [b'?', ..] => (true, 1),
        [b'\\', escaped, ..] => (*escaped == byte, 2),
        [b'[', set @ ..] => {
            let (matched, taken) = match_class(set, byte);
            (matched, 1 + taken)
        }
        [plain, ..] => (*plain == byte, 1),
    }
}

/// Whether a byte is in a set, and the length of its text with the closing bracket, which may be missing at the end.
fn match_class(set: &[u8], byte: u8) -> (bool, usize) {
    let negated = set.first() == Some(&b'^');
    let (mut at, mut matched) = (usize::from(negated), false);
    loop {
        match set.get(at..).unwrap_or_default() {
            [b'\\', escaped, ..] => {
                matched |= *escaped == byte;
                at += 2;
            }
            [b']', ..] => return (matched != negated, at + 1),
            [] => return (matched != negated, at),
            [low, b'-', high, ..] => {
                matched |= (*low.min(high)..=*low.max(high)).contains(&byte);
                at += 3;
            }
            [plain, ..] => {
                matched |= *plain == byte;
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::GlobPattern;

    fn matches(pattern: &[u8], text: &[u8]) -> bool {
        GlobPattern::new(pattern).matches(text)
    }

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "xxaxxbx", false),
            ("a*a*a*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
            ("[", "[", false),
            ("[]]", "]", false),
            ("a?", "a", false),
            ("foo*", "foobar", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} on {text}");
        }
    }

    #[test]
    fn work_on_a_pattern_is_bounded() {
        let long = [b"*".as_slice(), &[b'a'; 30_000], b"b"].concat();
        let mut pattern = GlobPattern::new(&long);
        assert!(!pattern.matches(&[b'a'; 60_000]) && pattern.is_exhausted());
        let set = [b"*[".as_slice(), &[b'x'; 1 << 20], b"]"].concat();
        let mut pattern = GlobPattern::new(&set);
        assert!((0..64).all(|_| !pattern.matches(b"abcd")) && pattern.is_exhausted());
    }
}
