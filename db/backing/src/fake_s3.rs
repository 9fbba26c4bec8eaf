//! A fake S3 server in this process, for tests. It speaks S3 as far as this crate does, checks signatures and
//! conditions as the documentation says, and fails on demand.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::format::hex;
use crate::s3::{S3Credentials, S3Place, date_and_time, sign};

/// The credentials that the server knows.
pub const KEYS: &str = "access:secret";
/// Names of one page of a list: few, so that there are several.
const PAGE: usize = 10;

/// What the server has, and how it fails. Its bucket is `bucket`, its region `eu`.
#[derive(Debug)]
pub struct FakeS3 {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    random: Mutex<SmallRng>,
    /// The status of every answer; 0: as it should be.
    pub fails: AtomicU16,
    /// Bytes by which answers are shorter than they say.
    pub short: AtomicU16,
    /// Of 1,000 requests, those that are answered with 500 before anything is done.
    pub failing_of_1000: AtomicU32,
    /// Of 1,000 requests, those after which the connection ends in the middle of the answer.
    pub cut_of_1000: AtomicU32,
    /// Milliseconds that each request takes.
    pub slow_ms: AtomicU64,
    /// Writes after which all further ones are refused; 0: none.
    pub writes_until_full: AtomicU64,
    /// Requests so far.
    pub requests: AtomicU64,
}

fn etag(bytes: &[u8]) -> String {
    hex(&hmac_sha256::Hash::hash(bytes)).get(..32).map_or_else(String::new, |tag| format!("\"{tag}\""))
}

/// Status, headers, body.
type FakeAnswer = (u16, String, Vec<u8>);

fn error(status: u16, code: &str) -> FakeAnswer {
    (status, String::new(), format!("<Error><Code>{code}</Code></Error>").into_bytes())
}

impl FakeS3 {
    /// Starts one; returns it, and where it is.
    ///
    /// # Errors
    /// Those of the system.
    pub fn start() -> io::Result<(Arc<FakeS3>, S3Place)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let store = Arc::new(FakeS3 {
            objects: Mutex::default(),
            random: Mutex::new(SmallRng::seed_from_u64(5)),
            fails: AtomicU16::new(0),
            short: AtomicU16::new(0),
            failing_of_1000: AtomicU32::new(0),
            cut_of_1000: AtomicU32::new(0),
            slow_ms: AtomicU64::new(0),
            writes_until_full: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        });
        let place = S3Place {
            endpoint: format!("http://{}", listener.local_addr()?),
            bucket: "bucket".to_owned(),
            prefix: "a/b".to_owned(),
            region: "eu".to_owned(),
        };
        let (serving, of) = (Arc::clone(&store), place.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (store, place) = (Arc::clone(&serving), of.clone());
                thread::spawn(move || store.serve(&place, &stream));
            }
        });
        Ok((store, place))
    }

    /// Returns its URL with a prefix, as options and settings take it.
    pub fn url(place: &S3Place, prefix: &str) -> String {
        format!("s3://{}/{prefix}?endpoint={}&region={}", place.bucket, place.endpoint, place.region)
    }

    /// Returns the names of all objects, in their order.
    pub fn names(&self) -> Vec<String> {
        self.objects.lock().keys().cloned().collect()
    }

    /// Changes an object unnoticed by its table; returns whether there is one.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        self.objects.lock().get_mut(name).map(change).is_some()
    }

    /// Removes an object; returns whether there was one.
    pub fn remove(&self, name: &str) -> bool {
        self.objects.lock().remove(name).is_some()
    }

    fn hits(&self, of_1000: &AtomicU32) -> bool {
        self.random.lock().random_range(0..1000) < of_1000.load(Relaxed)
    }

    fn serve(&self, place: &S3Place, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
            let (method, target) = line.split_once(' ')?;
            let target = target.split(' ').next()?;
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let mut headers = HashMap::new();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).ok()?;
                let Some((name, value)) = line.trim_end().split_once(':') else { break };
                headers.insert(name.to_lowercase(), value.trim().to_owned());
            }
            let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap_or(0));
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            self.requests.fetch_add(1, Relaxed);
            thread::sleep(Duration::from_millis(self.slow_ms.load(Relaxed)));
            let (status, tag, body) = self.answer(place, (method, path, query), &headers, body);
            let mut short = usize::from(self.short.load(Relaxed));
            if self.hits(&self.cut_of_1000) {
                short = body.len() / 2 + 1;
            }
            let sent = if method == "HEAD" { 0 } else { body.len().saturating_sub(short) };
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n{tag}\r\n", body.len());
            // An answer without a body is cut within its head.
            let head = if short > 0 && body.is_empty() { head.get(..10)? } else { &head };
            let mut stream = stream;
            let body = body.get(..sent).unwrap_or_default();
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).ok()?;
            if short > 0 {
                return None;
            }
        }
    }

    fn answer(
        &self,
        place: &S3Place,
        (method, path, query): (&str, &str, &str),
        headers: &HashMap<String, String>,
        body: Vec<u8>,
    ) -> FakeAnswer {
        let fails = self.fails.load(Relaxed);
        if fails != 0 {
            return error(fails, "TheTestSaidSo");
        }
        if self.hits(&self.failing_of_1000) {
            return error(500, "InternalError");
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let Some(credentials) = S3Credentials::parse(KEYS) else { return error(500, "NoCredentials") };
        // A signature holds for a quarter of an hour, as in S3.
        let said = headers.get("x-amz-date");
        let moment = (now - 900..=now).rev().find(|seconds| said == Some(&date_and_time(*seconds).1));
        let is_signed = moment.is_some_and(|seconds| {
            let wanted = sign(place, &credentials, (method, path, query), &body, seconds);
            wanted.iter().all(|(name, value)| headers.get(*name) == Some(value))
        });
        if !is_signed {
            return error(403, "SignatureDoesNotMatch");
        }
        if path == "/bucket" {
            return self.list(query);
        }
        let Some(name) = path.strip_prefix("/bucket/") else { return error(404, "NoSuchBucket") };
        let mut objects = self.objects.lock();
        let found = objects.get(name).map(|bytes| etag(bytes));
        let is_met = headers.get("if-match").is_none_or(|tag| found.as_ref() == Some(tag))
            && (!headers.contains_key("if-none-match") || found.is_none());
        let tag = |tag: &str| format!("etag: {tag}\r\n");
        match (method, found) {
            ("PUT", _) if !is_met => error(412, "PreconditionFailed"),
            ("PUT", _) => {
                let until_full = self.writes_until_full.load(Relaxed);
                if until_full == 1 {
                    return error(507, "InsufficientStorage");
                }
                self.writes_until_full.store(until_full.saturating_sub(1), Relaxed);
                let new = tag(&etag(&body));
                objects.insert(name.to_owned(), body);
                (200, new, Vec::new())
            }
            ("DELETE", _) => {
                objects.remove(name);
                (204, String::new(), Vec::new())
            }
            (_, None) => error(404, "NoSuchKey"),
            (_, Some(found)) => (200, tag(&found), objects.get(name).cloned().unwrap_or_default()),
        }
    }

    /// A page of the folders directly below a prefix.
    fn list(&self, query: &str) -> FakeAnswer {
        let of = |name: &str| {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.filter(|(found, _)| *found == name).map(|(_, value)| value.replace("%2F", "/")).next()
        };
        if of("list-type").as_deref() != Some("2") || of("delimiter").as_deref() != Some("/") {
            return error(400, "InvalidArgument");
        }
        let (prefix, from) = (of("prefix").unwrap_or_default(), of("continuation-token").unwrap_or_default());
        let objects = self.objects.lock();
        let below = objects.keys().filter_map(|name| name.strip_prefix(&*prefix));
        let folders: BTreeSet<&str> = below.filter_map(|rest| rest.split_once('/').map(|(folder, _)| folder)).collect();
        let mut left = folders.into_iter().filter(|folder| from.is_empty() || *folder > &*from);
        let page: Vec<&str> = left.by_ref().take(PAGE).collect();
        let mut body = String::from("<?xml version=\"1.0\"?><ListBucketResult>");
        for folder in &page {
            body.push_str(&format!("<CommonPrefixes><Prefix>{prefix}{folder}/</Prefix></CommonPrefixes>"));
        }
        match page.last().filter(|_| left.next().is_some()) {
            Some(last) => body.push_str(&format!(
                "<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>"
            )),
            None => body.push_str("<IsTruncated>false</IsTruncated>"),
        }
        body.push_str("</ListBucketResult>");
        (200, String::new(), body.into_bytes())
    }
}
