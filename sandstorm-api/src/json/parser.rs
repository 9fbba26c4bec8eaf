//! The parser of JSON (RFC 8259): strict, recursive, within limits.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{JSON_DEPTH, Json, JsonError, JsonLimits, JsonNumber};

/// Parses a whole text.
pub(super) fn parse(text: &[u8], limits: JsonLimits) -> Result<Json, JsonError> {
    if text.len() > limits.bytes {
        return Err(JsonError::new(format!("a text has at most {} bytes here, not {}", limits.bytes, text.len())));
    }
    let text = core::str::from_utf8(text).map_err(|error| {
        let at = error.valid_up_to();
        error_at(&text[..at], "it is no UTF-8")
    })?;
    let mut parser = JsonParser { text, at: 0, limits, values: 0 };
    parser.skip_spaces();
    let value = parser.value(0)?;
    parser.skip_spaces();
    match parser.peek() {
        None => Ok(value),
        Some(_) => Err(parser.error("nothing may follow the value")),
    }
}

/// An error behind these bytes of a text.
fn error_at(before: &[u8], text: &str) -> JsonError {
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let begin = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    // Bytes that begin a character.
    let column = before[begin..].iter().filter(|byte| **byte & 0xc0 != 0x80).count() + 1;
    JsonError::new(format!("line {line}, column {column}: {text}"))
}

struct JsonParser<'t> {
    text: &'t str,
    at: usize,
    limits: JsonLimits,
    values: usize,
}

impl JsonParser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn error(&self, text: &str) -> JsonError {
        error_at(&self.text.as_bytes()[..self.at], text)
    }

    fn skip_spaces(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Goes behind a sign if it is there.
    fn skip(&mut self, sign: u8) -> bool {
        let is_there = self.peek() == Some(sign);
        self.at += usize::from(is_there);
        is_there
    }

    fn value(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.values += 1;
        if self.values > self.limits.values {
            return Err(self.error(&format!("there are more than {} values", self.limits.values)));
        }
        match self.peek() {
            Some(b'{' | b'[') if depth >= self.limits.depth.min(JSON_DEPTH) => {
                Err(self.error(&format!("values are nested deeper than {depth}")))
            }
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.list(depth + 1),
            Some(b'"') => self.string().map(Json::Text),
            Some(b'-' | b'0'..=b'9') => self.number().map(Json::Number),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            Some(b'n') => self.word("null", Json::Null),
            Some(_) => Err(self.error("a value begins with `{`, `[`, `\"`, a digit, `-`, or is true, false or null")),
            None => Err(self.error("a value is missing")),
        }
    }

    fn word(&mut self, word: &str, value: Json) -> Result<Json, JsonError> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(self.error(&format!("it is no {word}")));
        }
        self.at += word.len();
        Ok(value)
    }

    fn list(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.at += 1;
        let mut values = Vec::new();
        self.skip_spaces();
        if self.skip(b']') {
            return Ok(Json::List(values));
        }
        loop {
            values.push(self.value(depth)?);
            self.skip_spaces();
            if self.skip(b']') {
                return Ok(Json::List(values));
            }
            if !self.skip(b',') {
                return Err(self.error("a list ends with `]`"));
            }
            self.skip_spaces();
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.at += 1;
        let mut fields = BTreeMap::new();
        self.skip_spaces();
        if self.skip(b'}') {
            return Ok(Json::Object(fields));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.error("a field begins with its name, in `\"`"));
            }
            let name = self.string()?;
            self.skip_spaces();
            if !self.skip(b':') {
                return Err(self.error("a colon follows the name of a field"));
            }
            self.skip_spaces();
            let value = self.value(depth)?;
            fields.insert(name, value);
            self.skip_spaces();
            if self.skip(b'}') {
                return Ok(Json::Object(fields));
            }
            if !self.skip(b',') {
                return Err(self.error("an object ends with `}`"));
            }
            self.skip_spaces();
        }
    }

    fn string(&mut self) -> Result<String, JsonError> {
        self.at += 1;
        let mut text = String::new();
        loop {
            let rest = &self.text[self.at..];
            let end = rest.bytes().position(|byte| byte == b'"' || byte == b'\\' || byte < 0x20);
            let Some(end) = end else {
                self.at = self.text.len();
                return Err(self.error("a text ends with `\"`"));
            };
            text.push_str(&rest[..end]);
            self.at += end;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => text.push(self.escape()?),
                _ => return Err(self.error("a control character in a text is written \\n, \\t or \\u00..")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, JsonError> {
        const WRONG: &str = "after `\\` comes one of \"\\/bfnrt, or u and four hexadecimal digits";
        let kind = self.text.as_bytes().get(self.at + 1).copied();
        let character = match kind {
            Some(sign @ (b'"' | b'\\' | b'/')) => char::from(sign),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(),
            _ => return Err(self.error(WRONG)),
        };
        self.at += 2;
        Ok(character)
    }

    /// `\uXXXX`, or two of them for a character beyond the first 65,536.
    fn unicode_escape(&mut self) -> Result<char, JsonError> {
        let first = self.code_unit()?;
        let code = match first {
            0xd800..=0xdbff => {
                let second = if self.peek() == Some(b'\\') { self.code_unit()? } else { 0 };
                match second {
                    0xdc00..=0xdfff => 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00),
                    _ => return Err(self.error("the first half of a surrogate pair has no second one")),
                }
            }
            code => code,
        };
        char::from_u32(code).ok_or_else(|| self.error("the second half of a surrogate pair has no first one"))
    }

    fn code_unit(&mut self) -> Result<u32, JsonError> {
        let wrong = "`\\u` has four hexadecimal digits";
        let bytes = self.text.as_bytes();
        if bytes.get(self.at + 1) != Some(&b'u') {
            return Err(self.error(wrong));
        }
        let mut code = 0;
        for at in self.at + 2..self.at + 6 {
            let digit = bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
            code = code * 16 + digit.ok_or_else(|| self.error(wrong))?;
        }
        self.at += 6;
        Ok(code)
    }

    fn number(&mut self) -> Result<JsonNumber, JsonError> {
        let begin = self.at;
        let is_negative = self.skip(b'-');
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return Err(self.error("a digit is missing")),
        }
        let mut is_whole = true;
        if self.skip(b'.') {
            is_whole = false;
            self.some_digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            is_whole = false;
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.some_digits()?;
        }
        let text = &self.text[begin..self.at];
        let whole = match (is_whole, is_negative) {
            (true, false) => text.parse().ok().map(JsonNumber::Positive),
            // -0 is a floating-point number: no whole one has that sign.
            (true, true) => text.parse().ok().filter(|number| *number < 0).map(JsonNumber::Negative),
            (false, _) => None,
        };
        let float = || text.parse().ok().filter(|number: &f64| number.is_finite()).map(JsonNumber::Float);
        whole.or_else(float).ok_or_else(|| self.error("the number is too large"))
    }

    fn digits(&mut self) {
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
    }

    fn some_digits(&mut self) -> Result<(), JsonError> {
        let begin = self.at;
        self.digits();
        if self.at == begin { Err(self.error("a digit is missing")) } else { Ok(()) }
    }
}
