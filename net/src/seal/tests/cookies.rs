//! Cookies, without a network.

use super::*;

#[test]
fn who_has_one_address_is_not_let_in_as_many() {
    let limits = SealLimits { checks_per_turn: 100, checks_per_address_s: 20, ..SealLimits::default() };
    let mut pair = Pair::with(limits, TENANT, TOKEN);
    // Guesses from one address, each with the cookie that it was sent.
    let guess = |pair: &mut Pair, session: u64| {
        pair.client = ClientSeal::new(address(1), TENANT, b"a guess", session, CLOCK_MS);
        let mut sent = Sent::new();
        let mut hello = pair.hello();
        for _ in 0..2 {
            pair.server.receive(pair.now_us, address(66), &mut hello, &TOKENS, &mut sent);
            let Some((_, answer)) = sent.pop() else { return };
            let Some((_, again)) = pair.bring(&answer).1.pop() else { return };
            hello = again;
        }
    };
    (0..500).for_each(|session| guess(&mut pair, session));
    let counters = *pair.server.counters();
    assert_eq!((counters.bad_hello, counters.no_cookie), (100 + 20, 400), "{counters:?}");
    // A client at another address gets in, in the same turn.
    pair.client = ClientSeal::new(address(1), TENANT, TOKEN, 77_777, CLOCK_MS);
    let (mut sent, mut hello) = (Sent::new(), pair.hello());
    pair.server.receive(0, pair.at, &mut hello, &TOKENS, &mut sent);
    let mut again = pair.bring(&sent.remove(0).1).1.remove(0).1;
    assert_eq!(again.len(), limits::HELLO_WITH_COOKIE_LEN);
    pair.server.receive(0, pair.at, &mut again, &TOKENS, &mut sent);
    pair.server.work(0, &mut sent);
    pair.bring(&sent.remove(0).1);
    pair.talk();
}

#[test]
fn forged_cookies_end_no_handshake_and_cost_little() {
    let mut pair = Pair::new();
    let hello = pair.hello();
    let head =
        SealHeader { kind: SealPacketKind::Retry, flags: 0, tenant: TENANT, session: pair.client.session(), number: 1 };
    let hellos: usize = (0..100u8).map(|byte| pair.bring(&[&head.encode()[..], &[byte; 16]].concat()).1.len()).sum();
    assert_eq!(hellos, limits::MAX_COOKIE_HELLOS as usize);
    let (_, sent) = pair.deliver(&hello);
    pair.bring(&sent[0].1);
    pair.talk();
}
