//! The generator against answers of the protocols as their documents have them, whole and in parts.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;
use crate::load::Class;

fn data() -> Data {
    Data { links: 10, lists: 3, ..Data::new(1, 50) }
}

/// The answer of a server that has all records.
fn answer(speech: PeerProtocol, data: &Data, ids: &[u64]) -> Vec<u8> {
    let (mut key, mut value, mut out) = (Vec::new(), Vec::new(), Vec::new());
    if speech == PeerProtocol::Redis && ids.len() > 1 {
        out.extend_from_slice(format!("*{}\r\n", ids.len()).as_bytes());
    }
    for id in ids {
        data.write_item(*id, &mut key, &mut value);
        if speech == PeerProtocol::Redis {
            out.extend_from_slice(format!("${}\r\n", value.len()).as_bytes());
        } else {
            out.extend_from_slice(b"VALUE ");
            out.extend_from_slice(&key);
            out.extend_from_slice(format!(" 0 {}\r\n", value.len()).as_bytes());
        }
        out.extend_from_slice(&value);
        out.extend_from_slice(b"\r\n");
    }
    if speech != PeerProtocol::Redis {
        out.extend_from_slice(b"END\r\n");
    }
    out
}

fn drawn(workload: &PeerWorkload, data: &Data) -> PeerRequest {
    let chooser = KeyChooser::new(Skew::Uniform, workload.population(data)).unwrap();
    workload.draw(data, &chooser, &mut SmallRng::seed_from_u64(5))
}

#[test]
fn replies_are_read_whole_or_not_at_all() {
    let data = data();
    for speech in [PeerProtocol::Memcached, PeerProtocol::Redis] {
        for ids in [&[7u64][..], &[1, 2, 3]] {
            let whole = answer(speech, &data, ids);
            let workload = PeerWorkload::Get(ids.len());
            let request = drawn(&workload, &data);
            for cut in 0..whole.len() {
                assert!(
                    workload.read(speech, &request, &whole[..cut]).unwrap().is_none(),
                    "{speech:?}: {cut} of {}",
                    whole.len()
                );
            }
            let more = [&whole[..], b"more"].concat();
            assert_eq!(workload.read(speech, &request, &more).unwrap(), Some((PeerReply::Value(&whole), whole.len())));
        }
    }
    for (speech, text) in [(PeerProtocol::Memcached, "SERVER_ERROR no\r\n"), (PeerProtocol::Redis, "-ERR no\r\n")] {
        let request = drawn(&PeerWorkload::Get(1), &data);
        let (reply, len) = PeerWorkload::Get(1).read(speech, &request, text.as_bytes()).unwrap().unwrap();
        assert!(matches!(reply, PeerReply::Error(_)) && len == text.len());
        assert!(PeerWorkload::Get(1).read(speech, &request, b"\x01junk\r\n").is_err());
    }
}

/// A server of one connection that answers `get` of memcached from the data, each answer in two parts.
fn serve(data: Data, wrong: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let data = data.clone();
            std::thread::spawn(move || answer_gets(stream, &data, wrong));
        }
    });
    address
}

fn answer_gets(mut stream: TcpStream, data: &Data, wrong: bool) {
    let (mut come, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(len) if len > 0 => come.extend_from_slice(&buffer[..len]),
            _ => return,
        }
        while let Some(end) = come.windows(2).position(|pair| pair == b"\r\n") {
            let line: Vec<u8> = come.drain(..end + 2).collect();
            let words = std::str::from_utf8(&line).unwrap().split_whitespace().skip(1);
            let ids: Vec<u64> = words.map(|key| key[1..].parse::<u64>().unwrap() ^ u64::from(wrong)).collect();
            let answer = answer(PeerProtocol::Memcached, data, &ids);
            let half = answer.len() / 2;
            for part in [&answer[..half], &answer[half..]] {
                if stream.write_all(part).is_err() {
                    return;
                }
            }
        }
    }
}

#[test]
fn every_reply_is_counted_and_wrong_ones_are_found() {
    for wrong in [false, true] {
        let address = serve(data(), wrong);
        let load = PeerLoad {
            connections: 3,
            pipeline: 4,
            verify_every: 1,
            warm_up: Duration::ZERO,
            duration: Duration::from_millis(200),
            ..PeerLoad::new(address, PeerProtocol::Memcached, PeerWorkload::Get(2), data())
        };
        let report = run(&load).unwrap();
        assert!(report.count > 0 && report.errors == 0 && report.lost == 0, "{report:?}");
        assert_eq!(report.wrong > 0, wrong, "{report:?}");
        assert!((report.keys_per_s - 2.0 * report.per_s).abs() < 1.0);
    }
}

#[test]
fn a_call_names_its_key_and_a_chain_ends_where_it_should() {
    let data = data();
    let workload = PeerWorkload::ServerCode {
        words: vec![b"FCALL".to_vec(), b"chain".to_vec()],
        more: vec![b"8".to_vec()],
        class: Class::Chain,
    };
    let (mut out, mut scratch) = (Vec::new(), protocol::PeerBuffers::default());
    let request = drawn(&workload, &data);
    workload.write(PeerProtocol::Redis, &data, &request, &mut out, &mut scratch);
    assert!(out.starts_with(b"*5\r\n$5\r\nFCALL\r\n$5\r\nchain\r\n$1\r\n1\r\n$30\r\nc"));
    assert!(out.ends_with(b"$1\r\n8\r\n"));
    assert!(!workload.is_right(PeerProtocol::Redis, &data, &request, b"$2\r\nno\r\n", &mut scratch));
}

#[test]
fn a_pools_mix_has_its_sizes_and_asks_for_what_is_not_there() {
    let plan: crate::load::Plan = "etc".parse().unwrap();
    let data = plan.data(1, 1000);
    let workload = PeerWorkload::Mixed(plan.mix);
    let chooser = KeyChooser::new(Skew::Uniform, workload.population(&data)).unwrap();
    let mut rng = SmallRng::seed_from_u64(9);
    let (mut scratch, mut met) = (protocol::PeerBuffers::default(), std::collections::BTreeMap::new());
    for _ in 0..4000 {
        let request = workload.draw(&data, &chooser, &mut rng);
        for speech in [PeerProtocol::Memcached, PeerProtocol::Redis] {
            let mut out = Vec::new();
            workload.write(speech, &data, &request, &mut out, &mut scratch);
            let text = String::from_utf8_lossy(&out).into_owned();
            let words: Vec<&str> = text.split([' ', '\r']).collect();
            let (verb, key) = if speech == PeerProtocol::Redis {
                (text.split("\r\n").nth(2).unwrap().to_lowercase(), text.split("\r\n").nth(4).unwrap())
            } else {
                (words[0].to_owned(), words[1])
            };
            let there = key.starts_with('k');
            assert!(there || key.starts_with('m'), "{text:?}");
            *met.entry((speech == PeerProtocol::Redis, verb.clone().replace("delete", "del"), there)).or_insert(0) += 1;
            let right: &[u8] = match (speech, verb.as_str(), there) {
                (PeerProtocol::Redis, "set", _) => b"+OK\r\n",
                (_, "set", _) => b"STORED\r\n",
                (PeerProtocol::Redis, "del", _) => b":0\r\n",
                (_, "delete", _) => b"NOT_FOUND\r\n",
                (PeerProtocol::Redis, _, false) => b"$-1\r\n",
                (_, _, false) => b"END\r\n",
                // A record's value is checked as that of any get is.
                _ => continue,
            };
            let (reply, len) = workload.read(speech, &request, right).unwrap().unwrap();
            assert!(reply == PeerReply::Value(right) && len == right.len());
            assert!(workload.is_right(speech, &data, &request, right, &mut scratch), "{text:?}");
            assert!(!workload.is_right(speech, &data, &request, b"+NO\r\n", &mut scratch));
        }
    }
    for redis in [false, true] {
        let share =
            |verb: &str, there| f64::from(met.get(&(redis, verb.to_owned(), there)).copied().unwrap_or(0)) / 4000.0;
        let near = |found: f64, wanted: f64| assert!((found - wanted).abs() < 0.03, "{found} is not {wanted}: {met:?}");
        near(share("get", true), 0.734 * 0.814 / 0.997);
        near(share("get", false), 0.734 * 0.186 / 0.997);
        near(share("del", false), 0.24 / 0.997);
        assert_eq!((share("set", false), share("del", true)), (0.0, 0.0));
    }
}
