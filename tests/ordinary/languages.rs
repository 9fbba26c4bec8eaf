//! Ordinary extensions, one module each: what reads and writes small languages.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

/// A tokenizer and a recursive descent parser of arithmetic.
pub mod calculator {
    use core::iter::Peekable;
    use core::str::Chars;
    use sandstorm_api::prelude::*;

    #[derive(Debug, Clone, Copy, PartialEq)]
    pub enum Token {
        Number(f64),
        Plus,
        Minus,
        Times,
        Over,
        Open,
        Close,
    }

    pub struct Lexer<'a> {
        characters: Peekable<Chars<'a>>,
    }

    impl<'a> Lexer<'a> {
        pub fn new(text: &'a str) -> Self {
            Lexer { characters: text.chars().peekable() }
        }
        fn number(&mut self, first: char) -> Result<f64, Error> {
            let mut text = String::from(first);
            while let Some(&next) = self.characters.peek() {
                if !next.is_ascii_digit() && next != '.' {
                    break;
                }
                text.push(next);
                self.characters.next();
            }
            text.parse().map_err(|_| Error::invalid(format!("`{text}` is no number")))
        }
    }

    impl Iterator for Lexer<'_> {
        type Item = Result<Token, Error>;
        fn next(&mut self) -> Option<Self::Item> {
            let first = loop {
                match self.characters.next()? {
                    ' ' | '\t' => {}
                    other => break other,
                }
            };
            Some(Ok(match first {
                '+' => Token::Plus,
                '-' => Token::Minus,
                '*' => Token::Times,
                '/' => Token::Over,
                '(' => Token::Open,
                ')' => Token::Close,
                digit @ '0'..='9' => match self.number(digit) {
                    Ok(n) => Token::Number(n),
                    Err(error) => return Some(Err(error)),
                },
                other => return Some(Err(Error::invalid(format!("unexpected {other:?}")))),
            }))
        }
    }

    pub struct Parser<I: Iterator<Item = Token>> {
        tokens: Peekable<I>,
    }

    impl<I: Iterator<Item = Token>> Parser<I> {
        pub fn new(tokens: I) -> Self {
            Parser { tokens: tokens.peekable() }
        }
        fn atom(&mut self) -> Result<f64, Error> {
            match self.tokens.next() {
                Some(Token::Number(n)) => Ok(n),
                Some(Token::Minus) => Ok(-self.atom()?),
                Some(Token::Open) => {
                    let value = self.sum()?;
                    if self.tokens.next_if_eq(&Token::Close).is_none() {
                        return Err("`)` expected".into());
                    }
                    Ok(value)
                }
                other => Err(Error::invalid(format!("{other:?}"))),
            }
        }
        fn product(&mut self) -> Result<f64, Error> {
            let mut value = self.atom()?;
            while let Some(operator) = self.tokens.next_if(|token| matches!(token, Token::Times | Token::Over)) {
                let right = self.atom()?;
                value = if operator == Token::Times { value * right } else { value / right };
            }
            Ok(value)
        }
        pub fn sum(&mut self) -> Result<f64, Error> {
            let mut value = self.product()?;
            while let Some(operator) = self.tokens.next_if(|token| matches!(token, Token::Plus | Token::Minus)) {
                let right = self.product()?;
                if operator == Token::Plus { value += right } else { value -= right }
            }
            Ok(value)
        }
    }

    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let tokens = Lexer::new(core::str::from_utf8(args)?).collect::<Result<Vec<_>, _>>()?;
        let value = Parser::new(tokens.into_iter()).sum()?;
        db.reply(value.to_string().as_bytes())
    }
}

/// JSON-like text, in and out.
pub mod json {
    use alloc::borrow::Cow;
    use alloc::collections::BTreeMap;
    use core::fmt::{self, Write};
    use sandstorm_api::prelude::*;
    #[derive(Debug, Clone, PartialEq)]
    pub enum Value {
        Null,
        Bool(bool),
        Number(f64),
        Text(String),
        List(Vec<Value>),
        Object(BTreeMap<String, Value>),
    }
    impl fmt::Display for Value {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Self::Null => f.write_str("null"),
                Self::Bool(b) => write!(f, "{b}"),
                Self::Number(n) => write!(f, "{n}"),
                Self::Text(t) => write!(f, "\"{}\"", escape(t)),
                Self::List(items) => {
                    f.write_char('[')?;
                    for (at, item) in items.iter().enumerate() {
                        if at > 0 {
                            f.write_char(',')?;
                        }
                        item.fmt(f)?;
                    }
                    f.write_char(']')
                }
                Self::Object(map) => {
                    f.write_char('{')?;
                    let mut first = true;
                    for (key, value) in map {
                        if !core::mem::take(&mut first) {
                            f.write_char(',')?;
                        }
                        write!(f, "\"{}\":{value}", escape(key))?;
                    }
                    f.write_char('}')
                }
            }
        }
    }
    fn escape(text: &str) -> Cow<'_, str> {
        if !text.contains(['"', '\\', '\n']) {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len() + 8);
        for c in text.chars() {
            match c {
                '"' | '\\' => {
                    out.push('\\');
                    out.push(c)
                }
                '\n' => out.push_str("\\n"),
                c if c.is_control() => {
                    let _ = write!(out, "\\u{:04x}", u32::from(c));
                }
                c => out.push(c),
            }
        }
        Cow::Owned(out)
    }
    pub struct Reader<'a> {
        bytes: &'a [u8],
        at: usize,
        depth: u32,
    }
    type Answer<T> = Result<T, Error>;
    impl<'a> Reader<'a> {
        const DEEPEST: u32 = 32;
        pub fn read(text: &'a str) -> Answer<Value> {
            let mut reader = Reader { bytes: text.as_bytes(), at: 0, depth: 0 };
            let value = reader.value()?;
            reader.space();
            if reader.at == text.len() { Ok(value) } else { Err(reader.error("the end")) }
        }
        fn error(&self, expected: &str) -> Error {
            Error::invalid(format!("{expected} expected at {}", self.at))
        }
        fn space(&mut self) {
            while self.bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
                self.at += 1;
            }
        }
        fn eat(&mut self, what: &[u8]) -> bool {
            let found = self.bytes[self.at..].starts_with(what);
            if found {
                self.at += what.len();
            }
            found
        }
        fn value(&mut self) -> Answer<Value> {
            self.space();
            self.depth += 1;
            if self.depth > Self::DEEPEST {
                return Err(self.error("less depth"));
            }
            let value = match self.bytes.get(self.at) {
                Some(b'n') if self.eat(b"null") => Value::Null,
                Some(b't') if self.eat(b"true") => Value::Bool(true),
                Some(b'f') if self.eat(b"false") => Value::Bool(false),
                Some(b'"') => Value::Text(self.text()?),
                Some(b'[') => Value::List(self.items(b']', Self::value)?),
                Some(b'{') => Value::Object(
                    self.items(b'}', |r| {
                        r.space();
                        let key = r.text()?;
                        r.space();
                        if !r.eat(b":") {
                            return Err(r.error(":"));
                        }
                        Ok((key, r.value()?))
                    })?
                    .into_iter()
                    .collect(),
                ),
                Some(b'-' | b'0'..=b'9') => {
                    let len = self.bytes[self.at..]
                        .iter()
                        .take_while(|b| matches!(b, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9'))
                        .count();
                    let text = core::str::from_utf8(&self.bytes[self.at..self.at + len])?;
                    self.at += len;
                    Value::Number(text.parse().map_err(|_| Error::invalid("a number"))?)
                }
                _ => return Err(self.error("a value")),
            };
            self.depth -= 1;
            Ok(value)
        }
        fn items<T>(&mut self, end: u8, item: impl Fn(&mut Self) -> Answer<T>) -> Answer<Vec<T>> {
            self.at += 1;
            let mut items = vec![];
            loop {
                self.space();
                if self.eat(&[end]) {
                    return Ok(items);
                }
                if !items.is_empty() && !self.eat(b",") {
                    return Err(self.error(","));
                }
                items.push(item(self)?);
            }
        }
        fn text(&mut self) -> Answer<String> {
            if !self.eat(b"\"") {
                return Err(self.error("\""));
            }
            let rest = core::str::from_utf8(&self.bytes[self.at..])?;
            let mut out = String::new();
            let mut chars = rest.char_indices();
            while let Some((at, c)) = chars.next() {
                match c {
                    '"' => {
                        self.at += at + 1;
                        return Ok(out);
                    }
                    '\\' => {
                        let Some((_, escaped)) = chars.next() else { break };
                        out.push(match escaped {
                            'n' => '\n',
                            't' => '\t',
                            c => c,
                        });
                    }
                    c => out.push(c),
                }
            }
            Err(self.error("a closing quote"))
        }
    }
    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        db.reply(Reader::read(core::str::from_utf8(args)?)?.to_string().as_bytes())
    }
    #[cfg(test)]
    mod tests {
        use super::*;
        #[test]
        fn both_ways() {
            assert_eq!(Reader::read("[1,{\"a\":null}]").unwrap().to_string(), "[1,{\"a\":null}]");
        }
    }
}

/// Text: words, tables, a template, roman numbers, wildcard match.
pub mod texts {
    use core::fmt::Write as _;
    use sandstorm_api::prelude::*;
    pub fn wildcard(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => wildcard(rest, text) || (!text.is_empty() && wildcard(pattern, &text[1..])),
            ([b'?', p @ ..], [_, t @ ..]) => wildcard(p, t),
            ([a, p @ ..], [b, t @ ..]) if a == b => wildcard(p, t),
            _ => false,
        }
    }
    pub fn roman(mut n: u32) -> String {
        const STEPS: [(u32, &str); 7] = [(100, "C"), (90, "XC"), (50, "L"), (10, "X"), (5, "V"), (4, "IV"), (1, "I")];
        STEPS.iter().fold(String::new(), |mut out, &(value, text)| {
            while n >= value {
                out += text;
                n -= value;
            }
            out
        })
    }
    pub fn template<'t>(text: &'t str, value: impl Fn(&'t str) -> Option<String>) -> Result<String, Error> {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once("{{") {
            let (name, after) = behind.split_once("}}").ok_or("no end")?;
            out.push_str(before);
            out.push_str(&value(name.trim()).ok_or_else(|| Error::invalid(format!("{name}?")))?);
            rest = after;
        }
        Ok(out + rest)
    }
    pub fn columns(rows: &[(&str, u64)]) -> String {
        let width = rows.iter().map(|(n, _)| n.chars().count()).max().unwrap_or_default();
        let mut out = String::new();
        for (name, value) in rows {
            let _ = writeln!(out, "{name:<width$} | {value:>8}");
        }
        out
    }
    pub fn title(text: &str) -> String {
        text.split_whitespace()
            .map(|w| {
                let mut c = w.chars();
                c.next().map(|f| f.to_uppercase().collect::<String>() + c.as_str()).unwrap_or_default()
            })
            .collect::<Vec<_>>()
            .join(" ")
    }
    pub fn csv(line: &str) -> Vec<String> {
        let (mut cells, mut cell, mut quoted) = (vec![], String::new(), false);
        for c in line.chars() {
            match (c, quoted) {
                ('"', _) => quoted = !quoted,
                (',', false) => cells.push(core::mem::take(&mut cell)),
                (c, _) => cell.push(c),
            }
        }
        cells.push(cell);
        cells
    }
    pub fn edit_distance(a: &str, b: &str) -> usize {
        let b: Vec<char> = b.chars().collect();
        let mut row: Vec<usize> = (0..=b.len()).collect();
        for (i, x) in a.chars().enumerate() {
            let mut before = i;
            row[0] = i + 1;
            for (j, y) in b.iter().enumerate() {
                let next = row[j + 1];
                row[j + 1] = if x == *y { before } else { 1 + before.min(row[j]).min(next) };
                before = next;
            }
        }
        row[b.len()]
    }
    pub fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
        text.split('&').filter_map(|p| p.split_once('='))
    }
    pub fn longest<'a>(words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        words.into_iter().max_by_key(|w| w.len())
    }
    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let text = core::str::from_utf8(args)?;
        let found: Vec<_> =
            pairs(text).filter(|(k, _)| wildcard(b"na*", k.as_bytes())).map(|(_, v)| v.to_owned()).collect();
        let greeting = template("Hello {{ who }}", |name| (name == "who").then(|| title(text)))?;
        let mut lines = text.lines().map(csv).peekable_or_default();
        db.reply(
            format!(
                "{found:?} {greeting} {} {} {} {:?} {:?}",
                roman(94),
                columns(&[("a", 1)]),
                edit_distance("kitten", "sitting"),
                longest(text.split(' ')),
                lines.pop()
            )
            .as_bytes(),
        )
    }
    trait OrDefault {
        fn peekable_or_default(self) -> Vec<Vec<String>>;
    }
    impl<F: FnMut(&str) -> Vec<String>> OrDefault for core::iter::Map<core::str::Lines<'_>, F> {
        fn peekable_or_default(self) -> Vec<Vec<String>> {
            let mut all = Vec::new();
            for line in self.take(3) {
                all.push(line);
            }
            all
        }
    }
}
