//! S3 against a server in this process that checks signatures and conditions as the documentation has it, and against
//! MinIO where its program is installed.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::{S3Credentials, S3Objects, S3Place, sign};
use crate::format::hex;
use crate::object_store::{BackingError, ObjectStore, StoredObject, WriteCondition};

const KEYS: &str = "access:secret";

/// What the server has, and how it fails.
#[derive(Default)]
struct FakeStore {
    objects: Mutex<HashMap<String, Vec<u8>>>,
    /// The status of every answer; 0: as it should be.
    fails: AtomicU16,
    /// Bytes by which answers are shorter than they say.
    short: AtomicU16,
}

fn etag(bytes: &[u8]) -> String {
    format!("\"{}\"", &hex(&hmac_sha256::Hash::hash(bytes))[..32])
}

impl FakeStore {
    fn start() -> (Arc<FakeStore>, S3Place) {
        let (store, listener) = (Arc::new(FakeStore::default()), TcpListener::bind("127.0.0.1:0").unwrap());
        let place = S3Place {
            endpoint: format!("http://{}", listener.local_addr().unwrap()),
            bucket: "bucket".to_owned(),
            prefix: "a/b".to_owned(),
            region: "eu".to_owned(),
        };
        let (serving, of) = (Arc::clone(&store), place.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (store, place) = (Arc::clone(&serving), of.clone());
                thread::spawn(move || store.serve(&place, stream));
            }
        });
        (store, place)
    }

    fn serve(&self, place: &S3Place, stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
            let (method, path) = line.split_once(' ').map(|(method, rest)| (method.to_owned(), rest))?;
            let path = path.split(' ').next()?.to_owned();
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
            let (status, tag, body) = self.answer(place, (&method, &path), &headers, body);
            let short = usize::from(self.short.load(Relaxed));
            let sent = if method == "HEAD" { 0 } else { body.len().saturating_sub(short) };
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n{tag}\r\n", body.len());
            let mut stream = &stream;
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body[..sent])).ok()?;
            if short > 0 {
                return None;
            }
        }
    }

    fn answer(
        &self,
        place: &S3Place,
        (method, path): (&str, &str),
        headers: &HashMap<String, String>,
        body: Vec<u8>,
    ) -> (u16, String, Vec<u8>) {
        let error =
            |status, code: &str| (status, String::new(), format!("<Error><Code>{code}</Code></Error>").into_bytes());
        let fails = self.fails.load(Relaxed);
        if fails != 0 {
            return error(fails, "TheTestSaidSo");
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let credentials = S3Credentials::parse(KEYS).unwrap();
        let is_signed = (now - 5..=now).any(|seconds| {
            let wanted = sign(place, &credentials, (method, path), &body, seconds);
            wanted.iter().all(|(name, value)| headers.get(*name) == Some(value))
        });
        if !is_signed {
            return error(403, "SignatureDoesNotMatch");
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
                let new = tag(&etag(&body));
                objects.insert(name.to_owned(), body);
                (200, new, Vec::new())
            }
            ("DELETE", _) => {
                objects.remove(name);
                (204, String::new(), Vec::new())
            }
            (_, None) => error(404, "NoSuchKey"),
            (_, Some(found)) => (200, tag(&found), objects[name].clone()),
        }
    }
}

/// What every store that speaks S3 has to do.
fn behaves(objects: &dyn ObjectStore) {
    let (name, none) = ("a=2Fkey", WriteCondition::Always);
    objects.delete(name, &none).unwrap();
    assert_eq!(objects.get(name, 100).unwrap(), None);
    let tag = objects.put(name, b"one", &WriteCondition::Absent).unwrap();
    assert_eq!(objects.get(name, 100).unwrap(), Some(StoredObject { bytes: b"one".to_vec(), tag: tag.clone() }));
    assert_eq!(objects.put(name, b"two", &WriteCondition::Absent), Err(BackingError::Conflict));
    let second = objects.put(name, b"two", &WriteCondition::Tag(tag.clone())).unwrap();
    assert_eq!(objects.put(name, b"three", &WriteCondition::Tag(tag.clone())), Err(BackingError::Conflict));
    assert!(matches!(objects.get(name, 2), Err(BackingError::Damaged(_))), "longer than a record");
    assert_eq!(objects.delete(name, &WriteCondition::Tag(tag)), Err(BackingError::Conflict));
    assert_eq!(objects.get(name, 100).unwrap().map(|object| object.bytes), Some(b"two".to_vec()));
    objects.delete(name, &WriteCondition::Tag(second.clone())).unwrap();
    assert_eq!(objects.get(name, 100).unwrap(), None);
    assert_eq!(objects.put(name, b"four", &WriteCondition::Tag(second)), Err(BackingError::Conflict), "it is gone");
    let large: Vec<u8> = (0..1_000_000_u32).map(|number| number as u8).collect();
    objects.put("large", &large, &none).unwrap();
    assert_eq!(objects.get("large", 1_000_000).unwrap().map(|object| object.bytes), Some(large));
    objects.delete("large", &none).unwrap();
}

#[test]
fn objects_of_a_bucket_are_read_written_and_guarded_by_their_tags() {
    let (_store, place) = FakeStore::start();
    behaves(&S3Objects::new(place, S3Credentials::parse(KEYS).unwrap()));
    let folder = tempfile::tempdir().unwrap();
    behaves(&crate::FolderObjects::open(folder.path()).unwrap());
    behaves(&crate::MemoryObjects::default());
}

#[test]
fn a_store_that_refuses_fails_or_lies_has_an_error_for_each() {
    let (store, place) = FakeStore::start();
    let objects = S3Objects::new(place.clone(), S3Credentials::parse(KEYS).unwrap());
    objects.put("key", b"a value of some length", &WriteCondition::Always).unwrap();
    let strangers = S3Objects::new(place.clone(), S3Credentials::parse("access:wrong").unwrap());
    let refused = strangers.get("key", 100).unwrap_err();
    assert_eq!(refused, BackingError::Refused("status 403, SignatureDoesNotMatch".to_owned()));
    let nowhere = S3Objects::new(S3Place { bucket: "other".to_owned(), ..place }, S3Credentials::parse(KEYS).unwrap());
    assert!(
        matches!(nowhere.get("key", 100), Err(BackingError::Refused(_))),
        "a bucket that is not there is no absent key"
    );
    for (status, is_refused) in [(503, false), (500, false), (429, false), (507, true), (400, true)] {
        store.fails.store(status, Relaxed);
        for result in [objects.get("key", 100).map(drop), objects.put("key", b"x", &WriteCondition::Always).map(drop)] {
            let error = result.unwrap_err();
            assert_eq!(matches!(error, BackingError::Refused(_)), is_refused, "{status}: {error}");
            assert!(error.to_string().contains("TheTestSaidSo"), "{error}");
        }
    }
    store.fails.store(0, Relaxed);
    store.short.store(5, Relaxed);
    let short = objects.get("key", 100);
    assert!(matches!(short, Err(BackingError::Unavailable(_) | BackingError::Damaged(_))), "{short:?}");
    store.short.store(0, Relaxed);
    assert!(objects.get("key", 100).unwrap().is_some());
}

#[test]
fn minio_behaves_as_the_server_of_this_test() {
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    std::fs::create_dir(folder.path().join("bucket")).unwrap();
    let server = std::process::Command::new("minio")
        .args(["server", "--quiet", "--address", &format!("127.0.0.1:{port}")])
        .arg(folder.path())
        .env("MINIO_ROOT_USER", "access-key")
        .env("MINIO_ROOT_PASSWORD", "secret-key")
        .spawn();
    let Ok(mut server) = server else {
        eprintln!("skipped: there is no program `minio` here");
        return;
    };
    let place = S3Place {
        endpoint: format!("http://127.0.0.1:{port}"),
        bucket: "bucket".to_owned(),
        prefix: String::new(),
        region: "us-east-1".to_owned(),
    };
    let objects = S3Objects::new(place, S3Credentials::parse("access-key:secret-key").unwrap());
    let begun = std::time::Instant::now();
    while objects.get("key", 100).is_err() && begun.elapsed().as_secs() < 30 {
        thread::sleep(std::time::Duration::from_millis(50));
    }
    behaves(&objects);
    server.kill().unwrap();
    server.wait().unwrap();
}
