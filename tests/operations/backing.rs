//! Promise: what a table with write-back has acknowledged is in its backing in the end, also where the server is killed
//! with changed records, more than once; and what the command line says of such tables is true.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use super::disk::{RedisCounting, stream};
use crate::common::process::Server;

fn objects(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().expect("text")).collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    names
}

/// The value that an object has, which is its end.
fn ends_with(folder: &Path, name: &str, value: &str) -> bool {
    fs::read(folder.join(name)).is_ok_and(|bytes| bytes.ends_with(value.as_bytes()))
}

fn done(server: &Server, line: &str) -> String {
    let output = server.output(line);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn refused(server: &Server, line: &str) -> String {
    let output = server.output(line);
    assert!(!output.status.success(), "{line} is refused");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn a_killed_server_writes_what_its_backing_does_not_have_after_the_next_start() {
    let behind = tempfile::tempdir().expect("a folder");
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    let options = ["--data", "127.0.0.1:0"];
    let mut server = Server::start_in(None, Arc::clone(&folder), &options);
    done(&server, "tenant create a");
    let url = format!("file://{}", behind.path().display());
    let late = "--policy write-back --flush-after 600000 --durability disk";
    done(&server, &format!("--tenant a table create items --backing {url} {late}"));
    for number in 0..20 {
        done(&server, &format!("--tenant a put items key-{number} first-{number}"));
    }
    assert_eq!(objects(behind.path()), Vec::<String>::new(), "nothing is written before its time");
    let table = server.json("--tenant a table show items");
    assert_eq!((&table["backing"]["dirty_keys"], &table["mode"]), (&20.into(), &"cache".into()), "{table}");
    let shown = refused(&server, "--tenant a table drop items");
    assert!(shown.contains("20 changed records"), "{shown}");
    done(&server, "--tenant a table flush items");
    assert_eq!(objects(behind.path()).len(), 20);
    // Changed, deleted and made, then killed; twice, so that what a start has restored is killed as well.
    done(&server, "--tenant a put items key-3 second");
    done(&server, "--tenant a del items key-4");
    done(&server, "--tenant a put items key-20 made");
    for _ in 0..2 {
        server.process.kill().expect("killed");
        server.process.wait().expect("it has ended");
        assert!(ends_with(behind.path(), "key-3", "first-3") || ends_with(behind.path(), "key-3", "second"));
        server = Server::start_in(None, Arc::clone(&folder), &options);
    }
    done(&server, "--tenant a table flush items");
    assert!(ends_with(behind.path(), "key-3", "second") && ends_with(behind.path(), "key-20", "made"));
    assert!(!objects(behind.path()).contains(&"key-4".to_owned()), "what was deleted is gone");
    assert_eq!(objects(behind.path()).len(), 20);
    let list = done(&server, "--tenant a table list");
    assert!(list.contains("write-back") && list.contains("OLDEST"), "{list}");
    done(&server, "--tenant a table set items --policy read-through");
    // The command line knows tokens by the server's address, which is another one now.
    done(&server, "tenant token a");
    let shown = refused(&server, "--tenant a put items key-1 x");
    assert!(shown.to_lowercase().contains("read"), "{shown}");
    done(&server, "--tenant a table drop items");
}

#[test]
fn what_a_table_with_a_backing_cannot_be_is_refused_by_what_is_wrong() {
    let server = Server::start_as(&[]);
    let behind = tempfile::tempdir().expect("a folder");
    done(&server, "tenant create a");
    let create = |rest: &str| format!("--tenant a table create items {rest}");
    let folder = format!("--backing file://{}", behind.path().display());
    for (line, says) in [
        (create("--backing http://nowhere/"), "s3://"),
        (create("--backing file://relative"), "not understood"),
        (create(&format!("{folder} --mode store")), "mode is cache"),
        (create(&format!("{folder} --ordered")), "ordered"),
        (create(&format!("{folder} --policy write-back --durability none")), "interval or disk"),
        (create("--backing s3://bucket"), "secret"),
        (create("--backing s3://bucket --backing-secret none"), "no secret"),
        (create("--policy write-back"), "--backing"),
    ] {
        let shown = refused(&server, &line);
        assert!(shown.contains(says), "{line}: {shown}");
    }
    done(&server, &create(&folder));
    for (line, says) in [
        ("--tenant a table set items --mode store", "cache for its life"),
        ("--tenant a table set items --policy write-back", "interval or disk"),
        ("--tenant a export items -", "not listed"),
    ] {
        let shown = refused(&server, line);
        assert!(shown.contains(says), "{line}: {shown}");
    }
    done(&server, "--tenant a table set items --policy write-back --durability interval --dirty 1MiB");
    assert_eq!(server.json("--tenant a table show items")["backing"]["dirty_limit_bytes"], 1 << 20);
    let shown = refused(&server, "--tenant a table set items --durability none");
    assert!(shown.contains("interval or disk"), "{shown}");
    done(&server, "--tenant a table set items --policy write-through --durability none");
}

#[test]
fn a_table_may_be_in_front_of_another_table() {
    let server = Server::start_as(&[]);
    let token = server.json("tenant create a")["token"].as_str().expect("a token").to_owned();
    let file = server.folder.path().join("token");
    fs::write(&file, token).expect("written");
    done(&server, &format!("--tenant a secret set other --from {}", file.display()));
    done(&server, "--tenant a table create items");
    done(&server, "--tenant a put items there before");
    let control = server.control.trim_start_matches("http://").to_owned();
    let backing = format!("--backing sandstorm://{control}/a/items?format=raw --backing-secret other");
    done(&server, &format!("--tenant a table create front {backing}"));
    assert!(done(&server, "--tenant a get front there").contains("before"));
    done(&server, "--tenant a put front key value");
    assert!(done(&server, "--tenant a get items key").contains("value"), "it is answered when the other table has it");
    done(&server, "--tenant a del front there");
    refused(&server, "--tenant a get items there");
    // Another writer: the table behind is written by others.
    done(&server, "--tenant a put items key theirs");
    let shown = refused(&server, "--tenant a put front key ours");
    assert!(shown.contains("nobody") || shown.contains("it was done") || shown.contains("not durable"), "{shown}");
    assert!(done(&server, "--tenant a get front key").contains("theirs"));
}

#[test]
fn what_redis_clients_were_told_of_a_write_back_is_behind_the_table_in_the_end_though_the_server_is_killed() {
    let behind = tempfile::tempdir().expect("a folder");
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
    let address = format!("127.0.0.1:{port}");
    let listen = format!("{address}=a/items");
    let options = ["--data", "127.0.0.1:0", "--redis", &listen];
    let mut server = Server::start_in(None, Arc::clone(&folder), &options);
    done(&server, "tenant create a --open");
    let late = "--policy write-back --flush-after 600000 --durability disk --dirty 64KiB";
    done(&server, &format!("--tenant a table create items --backing file://{} {late}", behind.path().display()));
    let mut redis = RedisCounting(stream(&address), false);
    let value = |number: u32| format!("{number:0>1000}");
    // Until as many bytes wait as may: what is refused changes nothing, what is there already may be changed.
    let mut told = 0;
    let refused = loop {
        match redis.ask(&["SET", &format!("key-{told}"), &value(told)]) {
            Ok(_) => told += 1,
            Err(refused) => break refused,
        }
        assert!(told < 1_000, "the bound holds");
    };
    assert!(refused.starts_with("-NOTBACKED ") && told > 20, "{told}: {refused}");
    assert!(redis.ask(&["GET", &format!("key-{told}")]).expect("an answer").starts_with("$-1"));
    redis.ask(&["SET", "key-3", &value(333)]).expect("it takes no more room");
    redis.ask(&["DEL", "key-4"]).expect("nor does this");
    server.process.kill().expect("killed");
    server.process.wait().expect("it has ended");
    let server = Server::start_in(None, Arc::clone(&folder), &options);
    done(&server, "tenant token a");
    done(&server, "--tenant a table flush items");
    for number in (0..told).filter(|number| *number != 4) {
        let expected = value(if number == 3 { 333 } else { number });
        assert!(ends_with(behind.path(), &format!("key-{number}"), &expected), "{number}");
    }
    assert_eq!(objects(behind.path()).len() as u32, told - 1);
    let mut redis = RedisCounting(stream(&address), false);
    redis.ask(&["SET", &format!("key-{told}"), &value(told)]).expect("there is room again");
}
