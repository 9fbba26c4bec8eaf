//! A line's words: as a POSIX shell splits them, without variables, and with JSON as it is.

/// The words of a line.
///
/// # Errors
/// A quote or a bracket that is not closed.
pub(in super::super) fn split(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        let (word, after) = match first {
            '{' | '[' => json(rest)?,
            _ => plain(rest)?,
        };
        words.push(word);
        rest = after.trim_start();
    }
    Ok(words)
}

/// A word that begins with a bracket: all to the bracket that closes it, quotes included.
fn json(text: &str) -> Result<(String, &str), String> {
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for (at, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' if in_text => escaped = true,
            '"' => in_text = !in_text,
            '{' | '[' if !in_text => depth += 1,
            '}' | ']' if !in_text => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let (word, rest) = text.split_at(at + letter.len_utf8());
            return Ok((word.to_owned(), rest));
        }
    }
    Err("the JSON is not closed".to_owned())
}

/// Any other word: to the next space outside of quotes.
fn plain(text: &str) -> Result<(String, &str), String> {
    let (mut word, mut quote, mut letters) = (String::new(), None, text.char_indices());
    while let Some((at, letter)) = letters.next() {
        match (letter, quote) {
            (letter, None) if letter.is_whitespace() => return Ok((word, &text[at..])),
            ('\'' | '"', None) => quote = Some(letter),
            (letter, Some(open)) if letter == open => quote = None,
            ('\\', None | Some('"')) => word.extend(letters.next().map(|(_, escaped)| escaped)),
            _ => word.push(letter),
        }
    }
    match quote {
        None => Ok((word, "")),
        Some(open) => Err(format!("the quote {open} is not closed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_as_other_shells_do_and_json_stays_whole() {
        let words = |line: &str| split(line).unwrap_or_else(|why| panic!("{line}: {why}"));
        assert_eq!(words("  put items  apple 3 "), ["put", "items", "apple", "3"]);
        assert_eq!(words(r#"put items 'a b' "c \"d\"" e\ f"#), ["put", "items", "a b", "c \"d\"", "e f"]);
        assert_eq!(
            words(r#"bank.deposit {"name": "a }b", "x": [1, 2]} --cost"#),
            ["bank.deposit", r#"{"name": "a }b", "x": [1, 2]}"#, "--cost"]
        );
        assert_eq!(words(r#"f ["é", "\"]"] x"#), ["f", r#"["é", "\"]"]"#, "x"]);
        assert_eq!(words("''"), [""]);
        assert!(words("").is_empty() && words("   ").is_empty());
        for line in ["put 'a", "put \"a", "f {\"a\": 1", "f [\"]"] {
            assert!(split(line).is_err(), "{line}");
        }
    }
}
