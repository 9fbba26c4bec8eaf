//! Promise: a copy is made once, tells what it has, gives leases, waits for no disk that hangs, and leaves room on its
//! server's disk.

mod suite;

use super::*;
use crate::limits::GONE_PREFIX;
use crate::replica_messages::LEASE_MS;

fn copy_store(name: &str) -> (PathBuf, CopyStore, ReplicaHead) {
    let folder = std::env::temp_dir().join(format!("sandstorm-copy_store-{name}-{}", std::process::id()));
    let _left = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let ask = ReplicaAsk::State { makes: true };
    let head = ReplicaHead { owner: "a".repeat(40), copy: 7, epoch: 1, ask, lease_ms: LEASE_MS };
    (folder.clone(), CopyStore::new(&folder), head)
}

#[test]
fn a_copy_that_is_missed_is_not_made_again() {
    let (folder, copy_store, head) = copy_store("missed");
    let uses = ReplicaHead { ask: ReplicaAsk::State { makes: false }, ..head.clone() };
    let appends = ReplicaHead { ask: ReplicaAsk::Append, ..head.clone() };
    assert_eq!(copy_store.ask(&uses, b""), Err(ReplicaError::Missing));
    assert_eq!(copy_store.ask(&appends, b""), Err(ReplicaError::Missing));
    assert!(copy_store.ask(&head, b"").is_ok() && copy_store.ask(&uses, b"").is_ok());
    assert_eq!(copy_store.ask(&appends, &ReplicaBatch::default().encode()), Ok(None));
    let name = (head.owner.clone(), head.copy);
    copy_store.seal(&name).unwrap();
    // A removal that was not ended leaves no damaged copy, and is ended; also where the same one is removed again.
    let gone = folder.join(COPIES_FOLDER).join(format!("{GONE_PREFIX}{}-0", folder_name(&name)));
    std::fs::create_dir(&gone).unwrap();
    std::fs::write(gone.join("log-0000000000000001"), b"half").unwrap();
    assert_eq!((copy_store.list().len(), CopyStore::new(&folder).names().len()), (1, 1));
    assert!(!gone.exists());
    std::fs::create_dir(&gone).unwrap();
    std::fs::write(gone.join("log-0000000000000001"), b"half").unwrap();
    // What was asked for lately stays, also where it is looked at only from then on.
    copy_store.remove_unneeded(|_| false, Instant::now());
    assert_eq!(copy_store.list().len(), 1);
    copy_store.remove_unneeded(|_| true, Instant::now() + COPY_IDLE);
    assert_eq!(copy_store.list().len(), 1);
    copy_store.remove_unneeded(|_| false, Instant::now() + COPY_IDLE);
    let left = std::fs::read_dir(folder.join(COPIES_FOLDER)).unwrap();
    let left: Vec<PathBuf> = left.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(
        (copy_store.list(), left),
        (vec![], vec![gone]),
        "what an earlier process has left goes with the next one"
    );
    assert_eq!(copy_store.ask(&uses, b""), Err(ReplicaError::Missing));
    assert_eq!(copy_store.ask(&appends, &ReplicaBatch::default().encode()), Err(ReplicaError::Missing));
    let _left = std::fs::remove_dir_all(folder);
}

/// A copy that was given up before it was one of a generation gives its room back at once.
#[test]
fn an_owner_has_a_copy_removed_unless_it_is_sealed_or_another_epoch_has_it() {
    let (folder, copy_store, head) = copy_store("given-up");
    let remove = |epoch: u64| ReplicaHead { ask: ReplicaAsk::Remove, epoch, ..head.clone() };
    assert_eq!(copy_store.ask(&remove(1), b""), Err(ReplicaError::Missing), "none is made for it");
    let newer = ReplicaHead { epoch: 2, ..head.clone() };
    assert!(copy_store.ask(&newer, b"").is_ok());
    assert!(matches!(copy_store.ask(&remove(1), b""), Err(ReplicaError::OldEpoch(_))));
    assert_eq!(copy_store.names().len(), 1);
    assert_eq!((copy_store.ask(&remove(2), b""), copy_store.names()), (Ok(None), vec![]));
    assert!(copy_store.ask(&newer, b"").is_ok());
    copy_store.seal(&(head.owner.clone(), head.copy)).unwrap();
    assert_eq!(copy_store.ask(&remove(2), b""), Err(ReplicaError::Sealed));
    assert_eq!(copy_store.names().len(), 1);
    let _left = std::fs::remove_dir_all(folder);
}

#[test]
fn a_copy_whose_disk_has_failed_is_removed_for_its_owner() {
    let (folder, copy_store, head) = copy_store("failed");
    let at = |epoch: u64, ask: ReplicaAsk| copy_store.ask(&ReplicaHead { epoch, ask, ..head.clone() }, b"");
    assert!(at(2, ReplicaAsk::State { makes: true }).is_ok());
    let name = (head.owner.clone(), head.copy);
    // Where the next promise would be written.
    std::fs::create_dir(copy_store.folder_of(&name).join(".new-promise")).unwrap();
    assert!(matches!(at(3, ReplicaAsk::State { makes: false }), Err(ReplicaError::Log(_))));
    assert!(matches!(at(2, ReplicaAsk::State { makes: false }), Err(ReplicaError::Log(_))), "it is at its end");
    assert_eq!(at(1, ReplicaAsk::Remove), Err(ReplicaError::OldEpoch(2)));
    assert_eq!((at(3, ReplicaAsk::Remove), copy_store.names()), (Ok(None), vec![]));
    assert_eq!(at(3, ReplicaAsk::Remove), Err(ReplicaError::Missing));
    let _left = std::fs::remove_dir_all(folder);
}

#[test]
fn the_files_of_a_removed_copy_are_deleted_beside_others_and_one_of_its_name_may_be_made() {
    let (folder, copy_store, head) = copy_store("beside");
    let name = (head.owner.clone(), head.copy);
    let mut gone = Vec::new();
    for _ in 0..3 {
        assert!(copy_store.ask(&head, b"").is_ok());
        gone.push(copy_store.take_out(&mut copy_store.open.lock(), &name).unwrap());
        assert_eq!((copy_store.names(), copy_store.heard(&name)), (vec![], OwnerContact::default()));
    }
    assert!(copy_store.ask(&head, b"").is_ok());
    let folders: Vec<PathBuf> = gone.iter().map(|gone| gone.folder().to_owned()).collect();
    assert!(folders.iter().all(|folder| folder.join("promise").exists()), "nothing is deleted under the lock");
    gone.into_iter().for_each(|gone| gone.delete(&copy_store.folder));
    assert!(!folders.iter().any(|folder| folder.exists()));
    assert_eq!(copy_store.names(), [name]);
    assert!(copy_store.ask(&head, b"").is_ok());
    let _left = std::fs::remove_dir_all(folder);
}

#[test]
fn a_disk_that_is_nearly_full_has_no_new_copy_and_takes_no_more_of_one_that_is_there() {
    let (folder, copy_store, head) = copy_store("full");
    let is_full = |done: Result<Option<ReplicaState>, ReplicaError>| matches!(done, Err(ReplicaError::Full(_)));
    copy_store.assume_free(COPY_NEW_FREE_BYTES - 1);
    assert!(is_full(copy_store.ask(&head, b"")) && copy_store.names().is_empty(), "nothing is made");
    copy_store.assume_free(COPY_NEW_FREE_BYTES);
    assert!(copy_store.ask(&head, b"").is_ok());
    // It says what it has, and gives leases; only what would be written is refused.
    copy_store.assume_free(COPY_FREE_BYTES - 1);
    assert!(copy_store.ask(&head, b"").is_ok());
    let appends = ReplicaHead { ask: ReplicaAsk::Append, ..head.clone() };
    assert_eq!(copy_store.ask(&appends, &ReplicaBatch::default().encode()), Ok(None));
    let disk = sandstorm_log::disk::folder::LogFolder::lock(&folder.join("log")).unwrap();
    let read = RecoveredLog::read(Arc::new(disk), LogOptions::default(), &mut |_, _| Ok(())).unwrap();
    let log = read.start().unwrap();
    let mut shipper = sandstorm_log::LogShipper::begin(&log, &ReplicaState::default()).unwrap().unwrap();
    let batch = shipper.next_batch(true).unwrap();
    assert!(!batch.is_empty());
    assert!(is_full(copy_store.ask(&appends, &batch.encode())));
    copy_store.assume_free(COPY_FREE_BYTES);
    assert_eq!(copy_store.ask(&appends, &batch.encode()), Ok(None));
    // What the disk says itself.
    copy_store.assume_free(u64::MAX);
    assert!(copy_store.free_bytes().is_some_and(|free| free > 0));
    log.close();
    let _left = std::fs::remove_dir_all(folder);
}

#[test]
fn no_two_processes_have_the_copies_of_one_state_directory() {
    let (folder, ..) = copy_store("locked");
    let first = CopyStore::lock(&folder).unwrap();
    assert!(matches!(CopyStore::lock(&folder), Err(LogError::Locked(_))));
    assert!(first.names().is_empty() && first.list().is_empty());
    drop(first);
    assert!(CopyStore::lock(&folder).is_ok());
    let _left = std::fs::remove_dir_all(folder);
}

#[test]
fn what_was_opened_again_tells_what_it_has_before_it_takes_more() {
    let (folder, copy_store, head) = copy_store("opened");
    assert!(copy_store.ask(&head, b"").is_ok());
    copy_store.open.lock().clear();
    assert_eq!(copy_store.list().len(), 1);
    let appends = ReplicaHead { ask: ReplicaAsk::Append, ..head.clone() };
    assert!(matches!(copy_store.ask(&appends, &ReplicaBatch::default().encode()), Err(ReplicaError::Gap(_))));
    assert!(copy_store.ask(&head, b"").is_ok());
    assert_eq!(copy_store.ask(&appends, &ReplicaBatch::default().encode()), Ok(None));
    let _left = std::fs::remove_dir_all(folder);
}

#[test]
fn what_is_heard_of_an_owner_waits_for_no_disk_and_a_seal_confirms_nothing() {
    let (folder, copy_store, head) = copy_store("heard");
    let name = (head.owner.clone(), head.copy);
    assert_eq!(copy_store.heard(&name), OwnerContact::default());
    let ask = |head: &ReplicaHead| copy_store.answer(&head.encode(b"").unwrap()).unwrap();
    ask(&head);
    // It has told what it has, and its owner may find that this is less than it had confirmed.
    assert_eq!(copy_store.heard(&name), OwnerContact { questions: 1, asking: 0, confirms: false });
    let appends = ReplicaHead { ask: ReplicaAsk::Append, ..head.clone() };
    let append = || copy_store.answer(&appends.encode(&ReplicaBatch::default().encode()).unwrap()).unwrap();
    append();
    assert!(copy_store.heard(&name).confirms);
    ask(&head);
    assert!(!copy_store.heard(&name).confirms, "it is compared anew");
    append();
    assert_eq!(copy_store.heard(&name), OwnerContact { questions: 4, asking: 0, confirms: true });
    let busy = copy_store.copy(&mut copy_store.open.lock(), &name, CopyAccess::Uses).unwrap();
    {
        let (_open, _hangs) = (copy_store.open.lock(), busy.lock());
        assert_eq!(copy_store.heard(&name).questions, 4);
    }
    copy_store.seal(&name).unwrap();
    ask(&ReplicaHead { ask: ReplicaAsk::State { makes: false }, ..head.clone() });
    assert_eq!(copy_store.heard(&name), OwnerContact { questions: 5, asking: 0, confirms: false });
    copy_store.remove_unneeded(|_| false, Instant::now() + COPY_IDLE);
    assert_eq!(copy_store.heard(&name), OwnerContact::default());
    let _left = std::fs::remove_dir_all(folder);
}

#[test]
fn an_owner_that_needs_other_leases_is_refused_by_name_and_still_heard() {
    let (folder, copy_store, head) = copy_store("lease");
    let name = (head.owner.clone(), head.copy);
    let append = ReplicaHead { ask: ReplicaAsk::Append, ..head.clone() };
    let ask = |head: &ReplicaHead| {
        let answer = copy_store.answer(&head.encode(&ReplicaBatch::default().encode()).unwrap()).unwrap();
        serde_json::from_slice::<ReplicaAnswer>(&answer).unwrap().read().map(drop)
    };
    assert_eq!((ask(&head), ask(&append)), (Ok(()), Ok(())));
    assert!(copy_store.heard(&name).confirms);
    let until = copy_store.copy(&mut copy_store.open.lock(), &name, CopyAccess::Uses).unwrap().lock().leased_until;
    for (lease_ms, said) in [(500, "needs leases of 500 ms"), (LEASE_MS - 1, "249 ms"), (0, "does not say")] {
        for head in [&head, &append] {
            let Err(ReplicaError::Log(refused)) = ask(&ReplicaHead { lease_ms, ..head.clone() }) else { panic!() };
            let refused = refused.to_string();
            assert!(refused.contains(said) && refused.contains("gives leases of 250 ms"), "{refused}");
            assert!(refused.contains(&head.owner), "{refused}");
        }
        // It lives, and its place is not taken by what has not confirmed the last question.
        assert!(!copy_store.heard(&name).confirms);
    }
    assert_eq!(copy_store.heard(&name).questions, 8);
    let copy = copy_store.copy(&mut copy_store.open.lock(), &name, CopyAccess::Uses).unwrap();
    assert_eq!(copy.lock().leased_until, until, "none was given");
    let _left = std::fs::remove_dir_all(folder);
}

#[test]
fn a_copy_is_not_read_before_the_lease_ends_that_the_process_before_may_have_given() {
    let (folder, mut copy_store, head) = copy_store("earlier");
    let name = (head.owner.clone(), head.copy);
    assert!(copy_store.ask(&head, b"").is_ok());
    copy_store.open.lock().clear();
    copy_store.made.0 = boot_time() + Duration::from_secs(600);
    let copy = copy_store.copy(&mut copy_store.open.lock(), &name, CopyAccess::Uses).unwrap();
    assert_eq!(copy.lock().leased_until, copy_store.made.0 + EARLIER_LEASE);
    // A lease that is given ends no earlier one.
    assert!(copy_store.ask(&head, b"").is_ok());
    assert_eq!(copy.lock().leased_until, copy_store.made.0 + EARLIER_LEASE);
    let _left = std::fs::remove_dir_all(folder);
}

#[test]
fn a_question_behind_a_disk_that_hangs_is_answered() {
    let (folder, copy_store, head) = copy_store("hangs");
    assert!(copy_store.ask(&head, b"").is_ok());
    let busy =
        copy_store.copy(&mut copy_store.open.lock(), &(head.owner.clone(), head.copy), CopyAccess::Uses).unwrap();
    {
        let _hangs = busy.lock();
        assert!(matches!(copy_store.ask(&head, b""), Err(ReplicaError::Log(_))));
    }
    {
        let _hangs = copy_store.open.lock();
        assert!(matches!(copy_store.ask(&head, b""), Err(ReplicaError::Log(_))));
    }
    assert!(copy_store.ask(&head, b"").is_ok());
    let _left = std::fs::remove_dir_all(folder);
}

/// Keys of a copy that is whole, one change each.
const KEYS: u8 = 20;

/// A copy of a small log, which has several segments: its folder, and its name.
pub(crate) fn whole_copy(name: &str) -> (PathBuf, CopyStore, CopyName) {
    let (folder, copy_store, head) = copy_store(name);
    let disk = LogFolder::lock(&folder.join("log")).unwrap();
    let options = LogOptions { segment_bytes: 64 << 10, ..LogOptions::default() };
    let log = RecoveredLog::read(Arc::new(disk), options, &mut |_, _| Ok(())).unwrap().start().unwrap();
    for number in 0..KEYS {
        let change = LoggedChange {
            kind: sandstorm_log::ChangeKind::Put,
            table: 7,
            version: u64::from(number) + 1,
            expires_at_ms: 0,
            flags: 0,
            key: &[number],
            value: &[3; 9_000],
        };
        assert!(log.wait(log.append(&change, true), Duration::from_secs(120)));
    }
    assert!(copy_store.ask(&head, b"").is_ok());
    let appends = ReplicaHead { ask: ReplicaAsk::Append, ..head.clone() };
    let mut shipper = sandstorm_log::LogShipper::begin(&log, &ReplicaState::default()).unwrap().unwrap();
    loop {
        let batch = shipper.next_batch(true).unwrap();
        if batch.is_empty() {
            break;
        }
        assert_eq!(copy_store.ask(&appends, &batch.encode()), Ok(None));
        shipper.acknowledge();
    }
    log.close();
    (folder, copy_store, (head.owner, head.copy))
}

/// Changes a byte of a segment of a copy. Again: it is as it was.
pub(crate) fn flip(copy_store: &CopyStore, name: &CopyName, (segment, at): (u64, usize)) {
    let path = copy_store.folder_of(name).join(format!("log-{segment:016x}"));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at] ^= 4;
    std::fs::write(&path, bytes).unwrap();
}

/// What a scrub finds of the first file of a copy: what is confirmed.
fn scrub(copy_store: &CopyStore, name: &CopyName) -> Vec<sandstorm_log::ScrubDamage> {
    let Some((disk, files)) = copy_store.scrubbed(name) else { return Vec::new() };
    let (mut opened, mut found) = (files[0].open(&*disk).unwrap().unwrap(), Vec::new());
    loop {
        match opened.step() {
            sandstorm_log::ScrubStep::Sound(_) => {}
            sandstorm_log::ScrubStep::End => return found,
            sandstorm_log::ScrubStep::Damage(damage) => {
                assert!(copy_store.confirm_damage(name, &files[0], &damage));
                let is_over = !damage.is_padding;
                found.push(damage);
                if is_over {
                    return found;
                }
            }
        }
    }
}

/// The keys of a sealed copy.
fn keys(copy_store: &CopyStore, name: &CopyName) -> Result<Vec<u8>, ReplicaError> {
    let mut keys = Vec::new();
    let visit = &mut |change: &LoggedChange<'_>| {
        keys.extend_from_slice(change.key);
        Ok(())
    };
    copy_store.read(name, visit).map(|()| keys)
}

#[test]
fn a_copy_whose_padding_is_damaged_confirms_nothing_and_is_read_and_others_are_not() {
    let (folder, copy_store, name) = whole_copy("padding");
    let ask = ReplicaAsk::State { makes: false };
    let head = ReplicaHead { owner: name.0.clone(), copy: name.1, epoch: 1, ask, lease_ms: LEASE_MS };
    assert_eq!(scrub(&copy_store, &name), []);
    // Behind the first frame, which is empty.
    flip(&copy_store, &name, (1, 4_096 + 70));
    let found = scrub(&copy_store, &name);
    assert!(found.len() == 1 && found[0].is_padding && found[0].offset == 4_096, "{found:?}");
    assert!(matches!(copy_store.ask(&head, b""), Err(ReplicaError::Damaged(_))), "its owner makes another one");
    assert!(copy_store.is_damaged(&name) && copy_store.damage_counts() == [1, 1]);
    assert!(copy_store.list()[0].damage.as_ref().is_some_and(|text| text.contains("byte 4096")), "it is shown");
    // Where the owner is gone it may be all that is left, and it has everything.
    assert!(copy_store.seal(&name).is_ok());
    assert_eq!(keys(&copy_store, &name).unwrap(), (0..KEYS).collect::<Vec<u8>>());
    // What it had confirmed is damaged: it is refused, whatever was known before.
    let confirmed = CopyDamage { text: "a frame".to_owned(), is_padding: false };
    copy_store.note_damage(&name, confirmed);
    copy_store.note_damage(&name, CopyDamage { text: "padding".to_owned(), is_padding: true });
    assert!(matches!(copy_store.seal(&name), Err(ReplicaError::Damaged(text)) if text == "a frame"));
    assert!(matches!(keys(&copy_store, &name), Err(ReplicaError::Damaged(_))));
    assert_eq!(copy_store.damage_counts(), [1, 1], "it is one copy");
    let _left = std::fs::remove_dir_all(folder);
}

#[test]
fn a_sealed_copy_that_is_opened_again_without_frames_that_it_had_is_found() {
    let (folder, copy_store, name) = whole_copy("sealed");
    copy_store.seal(&name).unwrap();
    copy_store.close(&name);
    assert_eq!((scrub(&copy_store, &name), copy_store.confirm_ends(&name)), (vec![], true));
    copy_store.close(&name);
    flip(&copy_store, &name, (1, 2 * 4_096 + 70));
    // What is left of its first segment is sound, and the second one begins behind it.
    assert_eq!(scrub(&copy_store, &name), []);
    assert!(!copy_store.confirm_ends(&name) && copy_store.is_damaged(&name));
    let damage = copy_store.list()[0].damage.clone();
    assert!(damage.as_ref().is_some_and(|text| text.contains("damaged at byte 8192")), "{damage:?}");
    assert!(matches!(copy_store.seal(&name), Err(ReplicaError::Damaged(_))));
    assert!(matches!(keys(&copy_store, &name), Err(ReplicaError::Damaged(_))));
    let _left = std::fs::remove_dir_all(folder);
}
