use super::*;
use crate::fuzzing;
use proptest::collection::vec;
use proptest::prelude::*;

fn peer(number: u8) -> PeerAddr {
    PeerAddr::from(([127, 0, 0, 1], 4000 + u16::from(number)))
}

proptest! {
    #[test]
    fn a_window_with_room_does_as_a_slow_model(bytes in vec(any::<u8>(), 0..800)) {
        fuzzing::once_exact(&bytes);
    }

    #[test]
    fn a_window_without_room_keeps_its_bounds_and_runs_nothing_twice(bytes in vec(any::<u8>(), 0..1600)) {
        fuzzing::once_tight(&bytes);
    }
}

#[test]
fn a_request_runs_once_and_its_repeats_get_the_answer() {
    let mut window = ReplyCache::new(ReplyCacheLimits::default());
    assert_eq!(window.admit(0, peer(1), 0, 7, 1, 0), RequestAdmission::Execute);
    assert_eq!(window.admit(1, peer(1), 0, 7, 1, 0), RequestAdmission::InProgress);
    window.complete(peer(1), 0, 7, 1, b"one");
    assert_eq!(window.admit(2, peer(1), 0, 7, 1, 0), RequestAdmission::Replay(b"one"));
    assert_eq!(
        window.admit(3, peer(2), 0, 7, 1, 0),
        RequestAdmission::Execute,
        "another peer's session of the same number is another"
    );
    assert_eq!(window.admit(4, peer(1), 0, 7, 2, 1), RequestAdmission::Execute);
    assert_eq!(
        window.admit(5, peer(1), 0, 7, 1, 0),
        RequestAdmission::Stale,
        "the client has said that it has the answer"
    );
}

#[test]
fn a_new_session_may_begin_at_any_sequence_and_get_the_earlier_ones_later() {
    let mut window = ReplyCache::new(ReplyCacheLimits::default());
    assert_eq!(window.admit(0, peer(1), 0, 7, 5, 0), RequestAdmission::Execute);
    assert_eq!(window.admit(0, peer(1), 0, 7, 1, 0), RequestAdmission::Execute);
    assert_eq!(window.admit(0, peer(1), 0, 7, 3, 0), RequestAdmission::Execute);
}

#[test]
fn an_evicted_session_is_stale_until_nothing_of_it_can_be_repeated() {
    let limits = ReplyCacheLimits { sessions: 1, retry_lifetime_us: 1000, ..ReplyCacheLimits::default() };
    let mut window = ReplyCache::new(limits);
    assert_eq!(window.admit(0, peer(1), 0, 1, 1, 0), RequestAdmission::Execute);
    assert_eq!(
        window.admit(10, peer(1), 0, 2, 1, 0),
        RequestAdmission::Execute,
        "the first session goes for the second"
    );
    assert_eq!(window.admit(20, peer(1), 0, 1, 1, 0), RequestAdmission::Stale);
    assert_eq!(window.admit(999, peer(1), 0, 1, 2, 1), RequestAdmission::Stale);
    assert_eq!(window.admit(2000, peer(3), 0, 9, 1, 0), RequestAdmission::Execute);
    assert_eq!(
        window.admit(3100, peer(1), 0, 1, 900, 899),
        RequestAdmission::Execute,
        "all that was repeated then is over"
    );
}

#[test]
fn when_too_many_were_evicted_lately_new_sessions_are_refused() {
    let limits = ReplyCacheLimits { sessions: 2, tombstones: 64, ..ReplyCacheLimits::default() };
    let mut window = ReplyCache::new(limits);
    let admitted =
        (0..20).filter(|session| window.admit(0, peer(1), 0, *session, 1, 0) == RequestAdmission::Execute).count();
    assert_eq!(admitted, 2 + 4);
    assert_eq!(window.counters().sessions_refused, 14);
}

#[test]
fn idle_sessions_leave_nothing_behind() {
    let limits = ReplyCacheLimits { retry_lifetime_us: 1000, ..ReplyCacheLimits::default() };
    let mut window = ReplyCache::new(limits);
    for session in 0..10 {
        assert_eq!(window.admit(0, peer(1), 0, session, 1, 0), RequestAdmission::Execute);
        window.complete(peer(1), 0, session, 1, &[1; 5000]);
    }
    for turn in 0..10 {
        assert_eq!(window.admit(2001 + turn, peer(2), 0, 99, turn + 1, turn), RequestAdmission::Execute);
    }
    assert_eq!(window.sessions(), 1);
    assert_eq!(window.bytes(), INITIAL_RING_LEN * size_of::<ReplyEntry>());
}

#[test]
fn large_answers_of_one_session_do_not_push_out_the_others() {
    let limits = ReplyCacheLimits { bytes: 1 << 20, ..ReplyCacheLimits::default() };
    let mut window = ReplyCache::new(limits);
    assert_eq!(window.admit(0, peer(1), 0, 1, 1, 0), RequestAdmission::Execute);
    window.complete(peer(1), 0, 1, 1, b"mine");
    for sequence in 1..500 {
        assert_eq!(window.admit(0, peer(2), 0, 2, sequence, 0), RequestAdmission::Execute);
        window.complete(peer(2), 0, 2, sequence, &[2; 50_000]);
    }
    assert_eq!(window.admit(0, peer(1), 0, 1, 1, 0), RequestAdmission::Replay(b"mine"));
    assert_eq!(window.admit(0, peer(2), 0, 2, 499, 0), RequestAdmission::Replay(&[2; 50_000]));
    assert_eq!(
        window.admit(0, peer(2), 0, 2, 400, 0),
        RequestAdmission::Stale,
        "forgotten for room, so it must not run again"
    );
}

#[test]
fn a_tenant_that_opens_sessions_without_end_loses_only_its_own() {
    let limits =
        ReplyCacheLimits { sessions: 16, tombstones: 64, retry_lifetime_us: 1000, ..ReplyCacheLimits::default() };
    let mut window = ReplyCache::new(limits);
    let good = |window: &mut ReplyCache, now_us, session, sequence| {
        let admitted = window.admit(now_us, peer(1), 1, session, sequence, sequence - 1) == RequestAdmission::Execute;
        window.complete(peer(1), 1, session, sequence, b"good");
        admitted
    };
    assert!(good(&mut window, 0, 100, 1));
    let flood = |window: &mut ReplyCache, now_us, from: u64| {
        (from..from + 1000)
            .filter(|session| window.admit(now_us, peer(2), 2, *session, 1, 0) == RequestAdmission::Execute)
            .count()
    };
    let admitted = flood(&mut window, 1, 0);
    assert!(admitted < 40, "{admitted} sessions admitted");
    assert!(good(&mut window, 2, 100, 2), "an idle session of another tenant is still known");
    for session in 101..107 {
        assert!(good(&mut window, 3, session, 1), "another tenant's new session {session} is let in");
    }
    flood(&mut window, 4, 5000);
    for session in 100..107 {
        let last = if session == 100 { 2 } else { 1 };
        assert_eq!(window.admit(5, peer(1), 1, session, last, 0), RequestAdmission::Replay(b"good"));
    }
    assert!(window.sessions() <= 16 && window.bytes() <= limits.bytes);
    // An unknown session of the tenant that lost so many may have been known: it waits until that is over.
    assert_eq!(window.admit(6, peer(2), 2, 3, 1, 0), RequestAdmission::Stale);
    assert_eq!(window.admit(1500, peer(2), 2, 90_000, 1, 0), RequestAdmission::Stale);
    assert_eq!(window.admit(2600, peer(2), 2, 90_001, 1, 0), RequestAdmission::Execute);
}

#[test]
fn tenants_with_one_session_number_at_one_address_have_two_sessions() {
    let mut window = ReplyCache::new(ReplyCacheLimits::default());
    assert_eq!(window.admit(0, peer(1), 1, 7, 1, 0), RequestAdmission::Execute);
    window.complete(peer(1), 1, 7, 1, b"secret");
    assert_eq!(window.admit(0, peer(1), 2, 7, 1, 0), RequestAdmission::Execute);
}

/// A sequence of a session that is bound to that start.
const fn bound(start: u32, number: u64) -> u64 {
    (start as u64) << 32 | number
}

#[test]
fn a_bound_session_is_the_same_wherever_its_packets_come_from() {
    let mut window = ReplyCache::new(ReplyCacheLimits::default()).with_server_start(0, 9, false);
    let (first, second, acked) = (bound(9, 1), bound(9, 2), bound(9, 0));
    assert_eq!(window.admit(0, peer(1), 1, 7, first, acked), RequestAdmission::Execute);
    assert_eq!(
        window.admit(1, peer(2), 1, 7, first, acked),
        RequestAdmission::InProgress,
        "it came from another port as well"
    );
    window.complete(peer(1), 1, 7, first, b"one");
    assert_eq!(window.admit(2, peer(3), 1, 7, first, acked), RequestAdmission::Replay(b"one"));
    assert_eq!(
        window.admit(2, peer(3), 2, 7, first, acked),
        RequestAdmission::Execute,
        "of another tenant it is another"
    );
    assert_eq!(window.admit(3, peer(4), 1, 7, second, first), RequestAdmission::Execute);
    assert_eq!(
        window.admit(4, peer(1), 1, 7, first, acked),
        RequestAdmission::Stale,
        "the client has said that it has the answer"
    );
    window.cancel(peer(5), 1, 7, second);
    assert_eq!(window.admit(5, peer(6), 1, 7, second, first), RequestAdmission::Execute);
    let sealed = [1, 2].map(|number| crate::seal::session_peer(1, number));
    let ran = sealed.map(|peer| window.admit(6, peer, 1, 7, second, first) == RequestAdmission::Execute);
    assert_eq!(ran, [true, true], "a sealed session is a peer of its own");
}

#[test]
fn what_is_bound_to_another_start_of_the_server_never_runs() {
    let mut window = ReplyCache::new(ReplyCacheLimits::default()).with_server_start(0, 9, true);
    for (number, acked) in [(1, 0), (1, bound(8, 0)), (5, bound(8, 3)), (900, 0)] {
        for at_us in [0, 1 << 40] {
            assert_eq!(window.admit(at_us, peer(1), 1, 7, bound(8, number), acked), RequestAdmission::PreviousStart);
        }
    }
    assert_eq!((window.sessions(), window.counters().stale), (0, 8), "and takes no room");
    assert_eq!(window.admit(0, peer(1), 1, 7, bound(9, 1), bound(9, 0)), RequestAdmission::Execute);
}

#[test]
fn an_unknown_session_that_is_bound_to_no_start_and_has_answers_is_former_while_that_may_be() {
    let limits = ReplyCacheLimits { retry_lifetime_us: 1000, ..ReplyCacheLimits::default() };
    let mut window = ReplyCache::new(limits).with_server_start(500, 9, true);
    assert_eq!(window.admit(600, peer(1), 1, 7, 5, 4), RequestAdmission::PreviousStart);
    assert_eq!(window.admit(600, peer(1), 1, 8, 1, 0), RequestAdmission::Execute, "a new one has no answers yet");
    assert_eq!(window.admit(601, peer(1), 1, 8, 2, 1), RequestAdmission::Execute, "and is known when it has");
    window.greet(602, peer(1), 1, 9, 1);
    assert_eq!(window.admit(603, peer(1), 1, 9, 2, 1), RequestAdmission::Execute, "it has greeted this server");
    assert_eq!(window.admit(603, peer(2), 1, 9, 2, 1), RequestAdmission::PreviousStart, "another has not");
    assert_eq!(
        window.admit(1500, peer(1), 1, 7, 6, 5),
        RequestAdmission::Execute,
        "nobody repeats what was asked of the server before"
    );
    let mut first = ReplyCache::new(limits).with_server_start(500, 9, false);
    assert_eq!(first.admit(600, peer(1), 1, 7, 5, 4), RequestAdmission::Execute, "there was no server before");
}
