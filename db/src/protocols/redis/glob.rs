//! Patterns as Redis matches them: `*`, `?`, `[a-c]`, `[^a]`, and a backslash before what is to be taken as it is.

/// Whether all of `text` matches. Work is bounded by the product of both lengths: a star is tried again only up to the next one.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on if what follows the last star does not match here.
    let mut again: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            again = Some((p, t));
            continue;
        }
        let step = text.get(t).and_then(|byte| one(&pattern[p..], *byte));
        if let Some(taken) = step {
            (p, t) = (p + taken, t + 1);
            continue;
        }
        if t == text.len() && p >= pattern.len() {
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
}

/// Whether the first element of a pattern matches a byte; how long the element is.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', set @ ..] => {
            let (matched, taken) = class(set, byte);
            matched.then_some(1 + taken)
        }
        [plain, ..] => (*plain == byte).then_some(1),
    }
}

/// Whether a byte is in a set; how long its text is, the closing bracket included, which may be missing at the end.
fn class(set: &[u8], byte: u8) -> (bool, usize) {
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
    use super::matches;

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
}
