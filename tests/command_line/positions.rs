//! Promise: positions in ordered tables, and when records expire, are asked for and changed on the command line.

use serde_json::json;

use crate::common::process::Server;

#[test]
fn positions_of_ordered_tables_from_the_command_line() {
    let server = Server::start(&["--no-builder"]);
    server.ok("tenant create shop");
    server.ok("table create sorted --ordered");
    server.ok("table create plain");
    for key in ["cherry", "apple", "hex:00ff", "banana"] {
        server.ok(&format!("put sorted {key} 1"));
    }
    assert_eq!(server.ok("count sorted"), "4\n");
    assert_eq!(server.ok("count sorted apple cherry"), "2\n", "the end is left out");
    assert_eq!(server.ok("count sorted cherry apple"), "0\n");
    assert_eq!(server.json("count sorted b"), json!({"count": 2}));
    assert_eq!((server.ok("rank sorted cherry"), server.ok("rank sorted b")), ("3\n".to_owned(), "2\n".to_owned()));
    assert_eq!(server.json("rank sorted hex:00"), json!({"rank": 0}));
    assert_eq!((server.ok("nth sorted 1"), server.ok("nth sorted 0")), ("apple\n".to_owned(), "hex:00ff\n".to_owned()));
    assert_eq!(server.json("nth sorted 3")["key"]["text"], "cherry");
    let beyond = server.fails("nth sorted 4");
    assert!(beyond.contains("no key at position 4: the table has 4 keys"), "{beyond}");
    for wrong in ["count plain", "rank plain k", "nth plain 0"] {
        let refused = server.fails(wrong);
        assert!(refused.contains("\"plain\" is not ordered") && refused.contains("--ordered"), "{wrong}: {refused}");
    }
}

#[test]
fn times_to_live_from_the_command_line() {
    let server = Server::start(&["--no-builder"]);
    server.ok("tenant create shop");
    server.ok("table create carts");
    server.ok("put carts k hello --flags 7");
    assert_eq!(server.ok("ttl carts k"), "it does not expire\n");
    assert_eq!(server.json("ttl carts k"), json!({"expires": false}));
    assert_eq!(server.ok("touch carts k --ttl 100000"), "touched\n");
    let left = server.json("ttl carts k");
    assert!(left["expires"] == true && left["ttl_ms"].as_u64().is_some_and(|left_ms| left_ms > 0), "{left}");
    assert!(server.ok("ttl carts k").ends_with(" s\n"));
    let record = &server.json("get carts k")["record"];
    assert_eq!((&record["value"]["text"], &record["flags"]), (&json!("hello"), &json!(7)));
    server.ok("touch carts k --never");
    assert_eq!(server.json("ttl carts k"), json!({"expires": false}));
    for absent in ["ttl carts none", "touch carts none --never"] {
        assert!(server.fails(absent).contains("no record under none"), "{absent}");
    }
    assert!(server.fails("touch carts k --ttl 0").contains("--ttl 0 is no time to live"));
    assert!(server.fails("touch carts k").contains("--never"), "one of both is said");
    server.ok("touch carts k --ttl 0.001");
    assert!(crate::common::eventually(|| !server.output("get carts k").status.success()));
}
