//! S3 against a server in this process that checks signatures and conditions as the documentation has it, and against
//! MinIO where its program is installed.

use std::net::TcpListener;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use super::{S3Credentials, S3Objects, S3Place};
use crate::fake_s3::{FakeS3, KEYS};
use crate::object_store::{BackingError, ObjectStore, StoredObject, WriteCondition};

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
    let (_store, place) = FakeS3::start().unwrap();
    behaves(&S3Objects::new(place, S3Credentials::parse(KEYS).unwrap()));
    let folder = tempfile::tempdir().unwrap();
    behaves(&crate::FolderObjects::open(folder.path()).unwrap());
    behaves(&crate::MemoryObjects::default());
}

#[test]
fn a_store_that_refuses_fails_or_lies_has_an_error_for_each() {
    let (store, place) = FakeS3::start().unwrap();
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
fn folders_are_listed_page_by_page() {
    let (_store, place) = FakeS3::start().unwrap();
    let at = |prefix: &str| {
        let place = S3Place { prefix: prefix.to_owned(), ..place.clone() };
        S3Objects::new(place, S3Credentials::parse(KEYS).unwrap())
    };
    assert_eq!(at("none").list_folders().unwrap(), Vec::<String>::new());
    let mut expected = Vec::new();
    for number in 0..25 {
        let name = format!("20260102T0304{number:02}.678Z");
        for object in ["part-00000000", "manifest.json"] {
            at("a/b").put(&format!("{name}/{object}"), b"x", &WriteCondition::Always).unwrap();
        }
        expected.push(name);
    }
    at("a/b").put("lies-here", b"x", &WriteCondition::Always).unwrap();
    at("a").put("other/part", b"x", &WriteCondition::Always).unwrap();
    assert_eq!(at("a/b").list_folders().unwrap(), expected);
    assert_eq!(at("a").list_folders().unwrap(), ["b", "other"]);
    assert_eq!(at("").list_folders().unwrap(), ["a"]);
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
