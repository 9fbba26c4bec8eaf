//! Writes answers as RESP2 or RESP3 has them.

/// Writes answers in the protocol's version.
#[derive(Debug)]
pub struct RespWriter<'o> {
    /// The bytes so far.
    pub out: &'o mut Vec<u8>,
    /// True if the client speaks RESP3.
    pub resp3: bool,
}

/// Appends a number in decimal.
pub fn push_decimal(number: i64, out: &mut Vec<u8>) {
    let (mut digits, mut at, mut left) = ([0u8; 20], 20, number.unsigned_abs());
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    out.extend_from_slice(&digits[at..]);
}

impl RespWriter<'_> {
    fn line(&mut self, prefix: u8, number: i64) {
        self.out.push(prefix);
        push_decimal(number, self.out);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A word, such as `OK`.
    pub fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// `OK`.
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// An error: a word in capitals and a text. Line ends in it become spaces.
    pub fn error(&mut self, text: &[u8]) {
        self.out.push(b'-');
        let one_line = |byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte };
        self.out.extend(text.iter().map(one_line));
        self.out.extend_from_slice(b"\r\n");
    }

    /// A number.
    pub fn integer(&mut self, number: i64) {
        self.line(b':', number);
    }

    /// Bytes.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.line(b'$', bytes.len() as i64);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Bytes, or nothing.
    pub fn optional(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// Text for a person: RESP3 says so.
    pub fn verbatim(&mut self, text: &str) {
        match self.resp3 {
            true => {
                self.line(b'=', text.len() as i64 + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
            false => self.bulk(text.as_bytes()),
        }
    }

    /// Nothing, where bytes could be.
    pub fn null(&mut self) {
        self.out.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// Nothing, where an array could be.
    pub fn null_array(&mut self) {
        self.out.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// The beginning of an array of that many answers.
    pub fn array(&mut self, count: usize) {
        self.line(b'*', count as i64);
    }

    /// The beginning of a set of that many answers; an array in RESP2.
    pub fn set(&mut self, count: usize) {
        self.line(if self.resp3 { b'~' } else { b'*' }, count as i64);
    }

    /// The beginning of a map of that many pairs; an array of both in RESP2.
    pub fn map(&mut self, pairs: usize) {
        match self.resp3 {
            true => self.line(b'%', pairs as i64),
            false => self.line(b'*', 2 * pairs as i64),
        }
    }

    /// The beginning of a push message; an array in RESP2.
    pub fn push(&mut self, count: usize) {
        self.line(if self.resp3 { b'>' } else { b'*' }, count as i64);
    }

    /// A number with a fraction, in the shortest digits that mean it; bytes in RESP2.
    pub fn double(&mut self, number: f64) {
        let text = match () {
            () if number.is_nan() => "nan".to_owned(),
            () if number.is_infinite() => if number > 0.0 { "inf" } else { "-inf" }.to_owned(),
            () => number.to_string(),
        };
        match self.resp3 {
            true => {
                self.out.push(b',');
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
            false => self.bulk(text.as_bytes()),
        }
    }

    /// Yes or no; a number in RESP2.
    pub fn boolean(&mut self, yes: bool) {
        match self.resp3 {
            true => self.out.extend_from_slice(if yes { b"#t\r\n" } else { b"#f\r\n" }),
            false => self.integer(yes.into()),
        }
    }
}
