//! The client's promises, tested against a server on loopback with a configurable bad network.

use crate::fake_server::{FakeServer, FakeServerOptions, TABLE, TENANT, TOKEN};
use crate::*;
use sandstorm_net::rpc::{OpKind, Operation, RpcStatus};
use std::time::Duration;

fn config(fake: &FakeServer) -> Config {
    // The deadline is far beyond what any of these take: slow machines fail nothing.
    Config::new(fake.address, TENANT).token(TOKEN).deadline(Duration::from_secs(30))
}

const LOSSY: FakeServerOptions =
    FakeServerOptions { workers: 1, home: 0, loss: 0.1, duplication: 0.1, silent_worker: None, open: false };

async fn every_operation(client: &Client) {
    assert_eq!(client.get(TABLE, b"k").await.unwrap(), None);
    let first = client.put(TABLE, b"k", b"v1").if_absent().flags(9).await.unwrap();
    assert_eq!(client.put(TABLE, b"k", b"v2").if_absent().await, Err(Error::Conflict));
    assert_eq!(client.put(TABLE, b"other", b"v").if_present().await, Err(Error::Conflict));
    let record = client.get(TABLE, b"k").await.unwrap().unwrap();
    assert_eq!(record, Record { value: Bytes::from_static(b"v1"), version: first, flags: 9 });
    let second = client.put(TABLE, b"k", b"v2").if_version(first).await.unwrap();
    assert!(second > first);
    assert_eq!(client.put(TABLE, b"k", b"v3").if_version(first).await, Err(Error::Conflict));
    client.put(TABLE, b"brief", b"x").ttl(Duration::from_millis(1)).await.unwrap();
    client.put(TABLE, b"lasting", b"y").ttl(Duration::from_secs(3600)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let many = client.multi_get(TABLE, &["k", "none", "brief", "lasting"]).await.unwrap();
    let values: Vec<Option<&[u8]>> =
        many.iter().map(|record| record.as_ref().map(|record| &record.value[..])).collect();
    assert_eq!(values, [Some(&b"v2"[..]), None, None, Some(b"y")]);
    assert_eq!(client.increment(TABLE, b"n", 5).await, Ok(5));
    assert_eq!(client.increment(TABLE, b"n", -7).await, Ok(-2));
    assert!(matches!(client.increment(TABLE, b"k", 1).await, Err(Error::NotANumber { .. })));
    assert_eq!(client.delete_if_version(TABLE, b"k", first).await, Err(Error::Conflict));
    assert_eq!(client.delete_if_version(TABLE, b"k", second).await, Ok(true));
    assert_eq!(client.delete(TABLE, b"k").await, Ok(false));
    assert_eq!(client.invoke("echo", b"args").await.unwrap(), "args");
    assert_eq!(client.query("echo", b"args").await.unwrap(), "args");
    client.ping().await.unwrap();
    assert_eq!(client.get(TABLE + 1, b"k").await, Err(Error::UnknownTable));
    assert_eq!(client.invoke("nope", b"").await, Err(Error::UnknownExtension));
    assert_eq!(client.invoke("fail", b"").await, Err(Error::Failed { code: 42, text: "as asked".into() }));
    let killed = client.invoke("bad", b"").await.unwrap_err();
    assert_eq!(killed, Error::Killed { cause: KillCause::SliceBudget, text: "after 1 ms".into() });
    assert!(killed.to_string().contains("slice_budget"), "{killed}");
}

#[tokio::test]
async fn every_operation_works_on_a_good_and_on_a_bad_network() {
    for options in [FakeServerOptions::default(), LOSSY] {
        let fake = FakeServer::start(options);
        let client = Client::connect(config(&fake)).await.unwrap();
        every_operation(&client).await;
        assert_eq!(fake.runs().0, 1, "each message that changes something ran once");
    }
}

#[tokio::test]
async fn a_batch_answers_each_operation_in_order() {
    let fake = FakeServer::start(LOSSY);
    let client = Client::connect(config(&fake)).await.unwrap();
    let batch = client.batch().put(TABLE, b"a", b"1").get(TABLE, b"a").get(TABLE, b"none").increment(TABLE, b"a", 1);
    let batch = batch.delete(TABLE, b"a").invoke("fail", b"").multi_get(TABLE, &["a"]).get(TABLE + 1, b"a");
    let replies = batch.send().await.unwrap();
    let version = match replies[0] {
        Ok(Reply::Written(version)) => version,
        ref other => panic!("{other:?}"),
    };
    let record = Record { value: Bytes::from_static(b"1"), version, flags: 0 };
    assert_eq!(
        replies[1..5],
        [Ok(Reply::Record(Some(record))), Ok(Reply::Record(None)), Ok(Reply::Sum(2)), Ok(Reply::Deleted(true))]
    );
    assert!(matches!(replies[5], Err(Error::Failed { .. })));
    assert_eq!(replies[6..], [Ok(Reply::Records(vec![None])), Err(Error::UnknownTable)]);
    assert!(client.batch().is_empty());
    assert_eq!(client.batch().send().await.unwrap(), vec![]);
    for (count, is_refused) in [(256, false), (257, true)] {
        let batch = (0..count).fold(client.batch(), |batch, _| batch.get(TABLE, b"a"));
        assert_eq!(matches!(batch.send().await, Err(Error::TooLarge { .. })), is_refused, "{count} operations");
    }
}

#[tokio::test]
async fn many_keys_are_asked_for_in_turns_and_what_cannot_be_split_is_refused_before_it_is_sent() {
    let fake = FakeServer::start(LOSSY);
    let client = Client::connect(config(&fake)).await.unwrap();
    client.put(TABLE, b"k2499", b"last").await.unwrap();
    client.put(TABLE, b"k1000", b"v").await.unwrap();
    let keys: Vec<String> = (0..2500).map(|number| format!("k{number}")).collect();
    let found = client.multi_get(TABLE, &keys).await.unwrap();
    let positions =
        found.iter().enumerate().filter_map(|(position, record)| Some((position, record.as_ref()?.value.clone())));
    assert_eq!(positions.collect::<Vec<_>>(), [(1000, Bytes::from_static(b"v")), (2499, Bytes::from_static(b"last"))]);
    assert_eq!(found.len(), 2500);
    assert_eq!(client.multi_get::<&str>(TABLE, &[]).await, Ok(Vec::new()));

    let sent = client.stats().requests;
    let expected = |error: Error| matches!(error, Error::TooLarge { what } if what.contains("1,000 keys"));
    assert_eq!(client.snapshot(TABLE, &keys[..1000]).await.unwrap().len(), 1000);
    assert!(expected(client.snapshot(TABLE, &keys[..1001]).await.unwrap_err()));
    let two = client.batch().multi_get(TABLE, &keys[..600]).multi_get(TABLE, &keys[..401]);
    assert!(expected(two.send().await.unwrap_err()));
    let both = client.batch().multi_get(TABLE, &keys[..1]).range(TABLE, b"", b"", 5_000, Direction::Forward);
    assert!(expected(both.send().await.unwrap_err()));
    assert_eq!(client.stats().requests, sent + 1, "the others did not leave");
}

#[tokio::test]
async fn thousands_in_flight_all_run_once_on_a_bad_network() {
    let fake = FakeServer::start(LOSSY);
    let client = Client::connect(config(&fake)).await.unwrap();
    let tasks: Vec<_> = (0..5000)
        .map(|i| {
            let client = client.clone();
            tokio::spawn(async move { client.increment(TABLE, format!("n{}", i % 10).as_bytes(), 1).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    for n in 0..10 {
        assert_eq!(fake.value(format!("n{n}").as_bytes()).unwrap(), b"500");
    }
    assert_eq!(fake.runs(), (1, 5000));
    assert!(client.stats().retransmissions > 0, "the network was bad enough to matter");
}

#[tokio::test]
async fn values_of_all_sizes_up_to_8_mib_travel_both_ways() {
    let fake = FakeServer::start(FakeServerOptions { loss: 0.01, duplication: 0.01, ..FakeServerOptions::default() });
    let client = Client::connect(config(&fake)).await.unwrap();
    for len in [0, 1, 1300, 1400, 1401, 1472, 3000, 65_536, 1 << 20, 8 << 20] {
        let value: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        client.put(TABLE, b"large", &value).await.unwrap();
        let back = client.get(TABLE, b"large").await.unwrap().unwrap();
        assert!(back.value == value, "{len} bytes");
    }
    let too_large = client.put(TABLE, b"large", &vec![0; (8 << 20) + 1]).await;
    assert!(matches!(too_large, Err(Error::TooLarge { .. })));
    assert!(matches!(client.get(TABLE, &[0; 65_537]).await, Err(Error::TooLarge { .. })));
}

#[tokio::test]
async fn a_silent_server_times_out_and_says_so() {
    let fake = FakeServer::start(FakeServerOptions::default());
    fake.stall(true);
    let hasty = config(&fake).deadline(Duration::from_millis(50));
    let error = Client::connect(hasty.clone()).await.unwrap_err();
    assert_eq!(error, Error::Timeout { after: Duration::from_millis(50) });
    assert!(error.to_string().contains("is the server running"));
    fake.stall(false);
    let client = Client::connect(config(&fake)).await.unwrap();
    fake.stall(true);
    let hasty = client.with_deadline(Duration::from_millis(30));
    // More than the window takes, so that some never leave the client: they end as well.
    let tasks: Vec<_> = (0..3000)
        .map(|_| {
            let client = hasty.clone();
            tokio::spawn(async move { client.get(TABLE, b"k").await })
        })
        .collect();
    for task in tasks {
        assert!(matches!(task.await.unwrap(), Err(Error::Timeout { .. })));
    }
    fake.stall(false);
    assert_eq!(client.get(TABLE, b"k").await, Ok(None), "and the connection is as good as new");
}

#[tokio::test]
async fn a_restarted_server_is_greeted_anew() {
    let fake = FakeServer::start(FakeServerOptions::default());
    let client = Client::connect(config(&fake)).await.unwrap();
    for round in 1..=3 {
        client.put(TABLE, b"k", b"v").await.unwrap();
        fake.restart();
        assert!(client.get(TABLE, b"k").await.unwrap().is_some());
        assert_eq!(client.stats().sessions_renewed, round);
    }
    fake.restart();
    let gets: Vec<_> = (0..500)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.get(TABLE, b"k").await })
        })
        .collect();
    for get in gets {
        assert!(get.await.unwrap().unwrap().is_some());
    }
}

#[tokio::test]
async fn what_may_have_run_before_a_restart_is_not_run_again() {
    // For an open tenant's unknown session, a server decides by the start that a request is bound to.
    for open in [false, true] {
        let fake = FakeServer::start(FakeServerOptions { open, ..FakeServerOptions::default() });
        let client = Client::connect(config(&fake)).await.unwrap();
        fake.stall(true);
        let increment = tokio::spawn({
            let client = client.clone();
            async move { client.increment(TABLE, b"n", 1).await }
        });
        // Long enough for the client to have repeated it.
        while client.stats().retransmissions == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        fake.restart();
        fake.stall(false);
        assert_eq!(increment.await.unwrap(), Err(Error::Stale));
        assert_eq!(client.increment(TABLE, b"n", 1).await, Ok(1), "and the next one runs");
        assert_eq!(client.stats().sessions_renewed, 1);
    }
}

#[tokio::test]
async fn a_wrong_token_or_tenant_is_told_so() {
    let fake = FakeServer::start(FakeServerOptions::default());
    let wrong = Client::connect(config(&fake).token("wrong")).await.unwrap_err();
    assert_eq!(wrong, Error::Unauthenticated);
    let unknown = Config { tenant: TENANT + 1, ..config(&fake) };
    assert_eq!(Client::connect(unknown).await.unwrap_err(), Error::Unauthenticated, "which of both is not told");
}

#[tokio::test]
async fn requests_go_to_the_home_worker_or_where_told() {
    let fake = FakeServer::start(FakeServerOptions { workers: 3, home: 2, ..FakeServerOptions::default() });
    let client = Client::connect(config(&fake)).await.unwrap();
    assert_eq!((client.workers(), client.home_worker()), (3, 2));
    let before = [fake.requests(0), fake.requests(2)];
    for _ in 0..100 {
        client.get(TABLE, b"k").await.unwrap();
    }
    // A greeting that was sent once more may come late, none of the gets does.
    assert!(fake.requests(0) < before[0] + 10, "{} requests", fake.requests(0) - before[0]);
    assert!(fake.requests(2) >= before[1] + 100);
    let elsewhere = Client::connect(config(&fake).route(Route::Worker(1))).await.unwrap();
    every_operation(&elsewhere).await;
    assert!(fake.requests(1) > 20, "a wrong port works all the same");
}

#[tokio::test]
async fn a_home_port_that_is_deaf_is_no_obstacle() {
    let fake = FakeServer::start(FakeServerOptions {
        workers: 2,
        home: 1,
        silent_worker: Some(1),
        ..FakeServerOptions::default()
    });
    // The deadline is what the deaf port costs; a slow machine may need several for the one that hears.
    let (begun, mut connected) = (std::time::Instant::now(), Err(Error::Closed));
    while connected.is_err() && begun.elapsed() < Duration::from_secs(60) {
        connected = Client::connect(config(&fake).deadline(Duration::from_millis(500))).await;
    }
    let client = connected.unwrap();
    every_operation(&client.with_deadline(Duration::from_secs(30))).await;
}

#[tokio::test]
async fn a_home_that_moves_is_followed_once_its_port_answers() {
    let fake = FakeServer::start(FakeServerOptions { workers: 3, silent_worker: Some(2), ..Default::default() });
    let client = Client::connect(config(&fake)).await.unwrap().with_deadline(Duration::from_secs(60));
    let follows = async |home: u32| {
        let (before, begun) = (fake.requests(home as usize), std::time::Instant::now());
        while client.home_worker() != home || fake.requests(home as usize) < before + 100 {
            client.increment(TABLE, b"n", 1).await.unwrap();
            assert!(begun.elapsed() < Duration::from_secs(60), "it is still at worker {}", client.home_worker());
        }
    };
    for home in [1, 0] {
        fake.move_home(home);
        follows(home).await;
    }
    // The session with worker 1 was last told that the home is there, and is not asked again.
    let left = fake.requests(1);
    for _ in 0..100 {
        client.increment(TABLE, b"n", 1).await.unwrap();
    }
    assert_eq!(fake.requests(1), left, "it stays where the home is");
    // At a port that does not answer there is nothing to be had: requests go on where they went.
    fake.move_home(2);
    let (begun, before) = (std::time::Instant::now(), fake.requests(0));
    while client.home_worker() != 2 && begun.elapsed() < Duration::from_secs(60) {
        client.increment(TABLE, b"n", 1).await.unwrap();
    }
    assert_eq!(client.home_worker(), 2, "it knows");
    for _ in 0..100 {
        client.increment(TABLE, b"n", 1).await.unwrap();
    }
    assert!(fake.requests(0) >= before + 100 && fake.requests(1) >= 100);
    let last = client.increment(TABLE, b"n", 1).await.unwrap();
    assert_eq!(fake.runs(), (1, last as usize), "each ran once, wherever it went");
}

#[tokio::test]
async fn a_client_of_a_worker_of_its_choice_follows_no_home() {
    let fake = FakeServer::start(FakeServerOptions { workers: 2, ..Default::default() });
    let client = Client::connect(config(&fake).route(Route::Worker(1))).await.unwrap();
    let others = fake.requests(0);
    for _ in 0..100 {
        client.get(TABLE, b"k").await.unwrap();
    }
    assert_eq!(fake.requests(0), others);
}

#[test]
fn a_client_whose_runtime_ended_says_closed() {
    let fake = FakeServer::start(FakeServerOptions::default());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let client = first.block_on(Client::connect(config(&fake))).unwrap();
    drop(first);
    assert_eq!(runtime().block_on(client.get(TABLE, b"k")), Err(Error::Closed));
}

#[test]
fn the_blocking_face_does_the_same() {
    let fake = FakeServer::start(LOSSY);
    let client = blocking::Client::connect(config(&fake)).unwrap();
    client.run(|client| async move { every_operation(&client).await });
    let version = client.put(TABLE, b"b", b"v", &PutOptions::default().if_absent()).unwrap();
    assert_eq!(client.get(TABLE, b"b").unwrap().unwrap().version, version);
    assert_eq!(client.delete(TABLE, b"b"), Ok(true));
    let replies = client.send(client.batch().get(TABLE, b"b")).unwrap();
    assert_eq!(replies, [Ok(Reply::Record(None))]);
}

#[tokio::test]
async fn a_range_goes_on_where_an_answer_has_no_record_but_more() {
    let fake = FakeServer::start(FakeServerOptions::default());
    let client = Client::connect(config(&fake)).await.unwrap();
    let key = |number: u8| [b'r', number];
    for number in 0..20 {
        let (key, value) = (key(number), [number]);
        let put = client.put(TABLE, &key, &value);
        // Long stretches of them have expired, the first and the last among them.
        if number % 10 == 9 {
            put.await.unwrap()
        } else {
            put.ttl(Duration::from_millis(1)).await.unwrap()
        };
    }
    for number in (0..20).filter(|number| number % 10 != 9) {
        while client.get(TABLE, &key(number)).await.unwrap().is_some() {}
    }
    for (direction, expected) in [(Direction::Forward, [9, 19]), (Direction::Backward, [19, 9])] {
        for limit in [1, 2, 10] {
            let found = client.range(TABLE, b"r", b"s", limit, direction).await.unwrap();
            let found: Vec<u8> = found.iter().map(|record| record.value[0]).collect();
            assert_eq!(found, expected[..limit.min(2)], "{limit} {direction:?}");
        }
    }
    let page = client.range_at_once(TABLE, &key(10), b"s", 10, Direction::Forward).await.unwrap();
    assert_eq!(page, RangePage { records: Vec::new(), on: Some(Bytes::copy_from_slice(&key(12))) });
}

#[test]
fn what_is_out_of_memory_is_told_in_the_servers_words() {
    use sandstorm_net::rpc::{OpKind, Operation, RpcStatus};
    for text in ["the table's memory quota is reached: delete records or raise the quota", "write again in a moment"] {
        let answer = Operation { value: text.as_bytes(), ..Operation::new(OpKind::Put).answer(RpcStatus::OutOfMemory) };
        let error = Error::of(&answer).unwrap();
        assert_eq!((error.to_string(), error.code()), (format!("out of memory: {text}"), "out_of_memory"));
    }
}

/// A commit waits while its slot changes its server, and forgets an owner that does not answer: the next commit begins
/// with the server that knows.
#[tokio::test]
async fn a_commit_waits_for_a_slot_that_moves_and_forgets_an_owner_that_is_gone() {
    let fake = FakeServer::start(FakeServerOptions::default());
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = Client::connect(config(&fake)).await.unwrap();
    let commit = async |deadline: Duration| {
        let client = client.with_deadline(deadline);
        let mut transaction = client.transaction();
        transaction.put(TABLE, b"k", b"v");
        transaction.commit().await
    };
    // The fake server's own word for a commit that it takes.
    let taken = Err(Error::Overloaded);
    fake.elsewhere((0..3).map(|_| "- slot 7 is changing its server; ask again".to_owned()));
    assert_eq!(commit(Duration::from_secs(30)).await, taken);
    let long = Duration::from_secs(30);
    fake.elsewhere([format!("{} owns slot 7 of the key", silent.local_addr().unwrap())]);
    let deadline = Duration::from_millis(200);
    let gone = commit(deadline).await;
    assert!(matches!(gone, Err(Error::Timeout { .. })), "{gone:?}");
    assert_eq!(commit(long).await, taken, "the first server is asked again");
}

/// Calls in a batch run near the key, too: each goes to the server that has it, with the others that are there.
#[tokio::test]
async fn the_calls_of_a_batch_run_near_the_key_of_its_client() {
    let [fake, owner] = [(); 2].map(|()| FakeServer::start(FakeServerOptions::default()));
    let client = Client::connect(config(&fake)).await.unwrap();
    note_where(&owner, b"there").await;
    let near = client.calls_near(b"k");
    let args = [&[0; 8][..], b"where"].concat();
    fake.elsewhere((0..2).map(|_| format!("{} owns the slot of the key", owner.address)));
    let replies = near.batch().invoke("get", &args).query("get", &args).send().await.unwrap();
    let there = || Ok(Reply::Invoked(Bytes::from_static(b"there")));
    assert_eq!(replies, [there(), there()]);
    assert_eq!(near.invoke("get", &args).await.unwrap(), "there", "it has learned where the key is");
    // Without a key they run where the client is connected.
    note_where(&fake, b"here").await;
    let replies = client.batch().invoke("get", &args).send().await.unwrap();
    assert_eq!(replies, [Ok(Reply::Invoked(Bytes::from_static(b"here")))]);
}

/// Writes which server this is.
async fn note_where(fake: &FakeServer, value: &[u8]) {
    Client::connect(config(fake)).await.unwrap().put(TABLE, b"where", value).await.unwrap();
}

/// A batch, or many puts, of which all is too large for a message says so, and is not an empty answer.
#[tokio::test]
async fn what_is_left_out_as_too_large_is_an_error_if_nothing_else_is_there() {
    let fake = FakeServer::start(FakeServerOptions::default());
    let client = Client::connect(config(&fake)).await.unwrap();
    let large = vec![0; 9 << 20];
    let refused = client.batch().put(TABLE, b"k", &large).send().await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    assert_eq!(client.batch().send().await, Ok(Vec::new()));
    let records = [(&b"first"[..], &b"1"[..]), (b"k", &large), (b"last", b"1")];
    let refused = client.put_many(TABLE, &records, &PutOptions::default()).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    assert!(client.get(TABLE, b"first").await.unwrap().is_some(), "it is no transaction");
    assert_eq!(client.get(TABLE, b"last").await.unwrap(), None);
}

/// The names of what a test cannot have a server say at will: those that calls over HTTP have for it, too.
#[test]
fn each_refusal_of_a_server_has_its_name() {
    for (status, name) in [
        (RpcStatus::Overloaded, "overloaded"),
        (RpcStatus::ShuttingDown, "shutting_down"),
        (RpcStatus::NotDurable, "not_durable"),
        (RpcStatus::NotRead, "not_read"),
        (RpcStatus::NotBacked, "not_backed"),
        (RpcStatus::OverQuota, "over_quota"),
        (RpcStatus::Suspended, "suspended"),
        (RpcStatus::Stale, "stale"),
    ] {
        let answer = Operation { status, ..Operation::new(OpKind::Invoke) };
        assert_eq!(Error::of(&answer).map(|error| error.code()), Some(name));
    }
}
