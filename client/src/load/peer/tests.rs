//! The generator against answers of the protocols as their documents have them, whole and in parts.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;
use crate::load::Class;

fn data() -> Data {
    Data { links: 10, lists: 3, ..Data::new(1, 50) }
}

/// What a server that has all records would say.
fn answer(speech: Speech, data: &Data, ids: &[u64]) -> Vec<u8> {
    let (mut key, mut value, mut out) = (Vec::new(), Vec::new(), Vec::new());
    if speech == Speech::Redis && ids.len() > 1 {
        out.extend_from_slice(format!("*{}\r\n", ids.len()).as_bytes());
    }
    for id in ids {
        data.write_item(*id, &mut key, &mut value);
        if speech == Speech::Redis {
            out.extend_from_slice(format!("${}\r\n", value.len()).as_bytes());
        } else {
            out.extend_from_slice(b"VALUE ");
            out.extend_from_slice(&key);
            out.extend_from_slice(format!(" 0 {}\r\n", value.len()).as_bytes());
        }
        out.extend_from_slice(&value);
        out.extend_from_slice(b"\r\n");
    }
    if speech != Speech::Redis {
        out.extend_from_slice(b"END\r\n");
    }
    out
}

#[test]
fn replies_are_read_whole_or_not_at_all() {
    let data = data();
    for speech in [Speech::Memcached, Speech::Redis] {
        for ids in [&[7u64][..], &[1, 2, 3]] {
            let whole = answer(speech, &data, ids);
            let ask = Ask::Get(ids.len());
            for cut in 0..whole.len() {
                assert!(ask.read(speech, &whole[..cut]).unwrap().is_none(), "{speech:?}: {cut} of {}", whole.len());
            }
            let more = [&whole[..], b"more"].concat();
            assert_eq!(ask.read(speech, &more).unwrap(), Some((Reply::Good(&whole), whole.len())));
        }
    }
    for (speech, text) in [(Speech::Memcached, "SERVER_ERROR no\r\n"), (Speech::Redis, "-ERR no\r\n")] {
        let (reply, len) = Ask::Get(1).read(speech, text.as_bytes()).unwrap().unwrap();
        assert!(matches!(reply, Reply::Error(_)) && len == text.len());
        assert!(Ask::Get(1).read(speech, b"\x01junk\r\n").is_err());
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
            let answer = answer(Speech::Memcached, data, &ids);
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
            ..PeerLoad::new(address, Speech::Memcached, Ask::Get(2), data())
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
    let ask =
        Ask::Call { words: vec![b"FCALL".to_vec(), b"chain".to_vec()], more: vec![b"8".to_vec()], class: Class::Chain };
    let (mut out, mut scratch) = (Vec::new(), speech::Scratch::default());
    let chooser = Chooser::new(Skew::Uniform, ask.population(&data)).unwrap();
    let asked = ask.draw(&data, &chooser, &mut SmallRng::seed_from_u64(5));
    ask.write(Speech::Redis, &data, &asked, &mut out, &mut scratch);
    assert!(out.starts_with(b"*5\r\n$5\r\nFCALL\r\n$5\r\nchain\r\n$1\r\n1\r\n$30\r\nc"));
    assert!(out.ends_with(b"$1\r\n8\r\n"));
    assert!(!ask.is_right(Speech::Redis, &data, &asked, b"$2\r\nno\r\n", &mut scratch));
}
