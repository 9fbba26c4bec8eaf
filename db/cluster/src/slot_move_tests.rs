//! Promise: the parts of a move, over real tables: what is made and written in the last moment arrives, a late question
//! takes nothing from the next attempt, and what cannot be finished costs no memory.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sandstorm_catalog::{
    AgreedImage, Directory, DirectoryAgreement, DirectoryOptions, NewTable, NewTenant, TableDurability,
};
use sandstorm_store::slots::{ClusterServer, SlotMap, SlotOwnership, SlotRange, SlotSpan};
use sandstorm_store::{Epochs, StoreError, WriteOptions};

use crate::copy_format::{CopiedTable, CopyAnswer, CopyAsk, CopyRequest, EmptiedTable};
use crate::copy_notes::CopyNotes;
use crate::directory::ClusterDirectory;
use crate::directory_model::SharedStore;
use crate::move_coordinator::MoveCoordinator;
use crate::slot_copy::{CopySource, CopyTables, SlotCopy};
use crate::slot_mover::{MoverLoop, OwnTables};
use crate::slot_plans::KnownServers;
use crate::state::{FORMAT, StoredMove, StoredSlots};

const ALL: SlotSpan = SlotSpan { first: 0, last: 16_383 };
const MOVE: u64 = 5;
const BOOT: u64 = 7;
const LONG: Duration = Duration::from_secs(3_600);

/// The source and the target of a move of all slots.
pub(crate) struct TwoServers {
    pub(crate) desks: [Arc<MoveCoordinator>; 2],
    pub(crate) directories: [Arc<Directory>; 2],
}

fn id_of(number: usize) -> String {
    format!("{number:040x}")
}

/// A map in which one server owns everything.
fn map_of(owner: usize, moves: Vec<StoredMove>) -> StoredSlots {
    let ranges = vec![(ALL.first, ALL.last, id_of(owner))];
    StoredSlots { format: FORMAT, epoch: 1, ranges, moves, ..StoredSlots::default() }
}

fn moving() -> StoredMove {
    let (source, target) = (id_of(0), id_of(1));
    let (SlotSpan { first, last }, handed_over) = (ALL, false);
    StoredMove { id: MOVE, first, last, source, target, handed_over, boot: BOOT, mib_per_s: 0 }
}

impl TwoServers {
    pub(crate) fn start() -> TwoServers {
        let agreement: Arc<dyn DirectoryAgreement> = Arc::new(ClusterDirectory::over(SharedStore::default()));
        let desks =
            [0, 1].map(|number| Arc::new(MoveCoordinator::new(Arc::new(SlotOwnership::new(id_of(number))), BOOT)));
        let directories = [0, 1].map(|number| {
            let directory = Directory::with_options(Epochs::new(), DirectoryOptions::default());
            directory.join_cluster(desks[number].slots());
            let found = AgreedImage::read(&*agreement, &Default::default()).unwrap();
            found.iter().for_each(|found| directory.restore(&found.image).unwrap());
            directory.agree_with(&agreement, found.as_ref()).unwrap();
            directory
        });
        let servers = TwoServers { desks, directories };
        servers.adopt(1, &map_of(0, vec![moving()]));
        servers.directories[0].create_tenant(NewTenant::named("shop")).unwrap();
        servers.make_table("old");
        servers.directories[1].catch_up().unwrap();
        servers
    }

    fn adopt(&self, revision: u64, map: &StoredSlots) {
        let known = KnownServers { all: &BTreeMap::new(), live: &BTreeSet::new() };
        let servers: Vec<ClusterServer> = [0, 1].map(|number| ClusterServer::example(&id_of(number))).into();
        let place = |id: &str| servers.iter().position(|server| server.id == id);
        let range =
            |(first, last, owner): &(u16, u16, String)| SlotRange { first: *first, last: *last, server: place(owner) };
        let ranges: Vec<SlotRange> = map.ranges.iter().map(range).collect();
        for coordinator in &self.desks {
            coordinator.slots().set_map(SlotMap::new(map.epoch, servers.clone(), &ranges));
            coordinator.adopt((revision, map.clone()), known, "key");
        }
    }

    /// Makes a table at the source.
    fn make_table(&self, name: &str) {
        let new = NewTable { quota_bytes: Some(1 << 20), ..NewTable::named(name) };
        self.directories[0].create_table("shop", new).unwrap();
    }

    /// Writes a record at the source.
    pub(crate) fn write(&self, table: &str, key: &[u8]) -> Result<(), StoreError> {
        let view = self.directories[0].snapshot().by_name("shop").unwrap().clone();
        let (entry, participant) = (view.table_by_name(table).unwrap(), self.directories[0].participant());
        let table = &entry.table;
        table.put(&participant, table.hash(key), key, b"value", &WriteOptions::default(), 1).map(drop)
    }

    /// Records of a table at the target.
    pub(crate) fn arrived(&self, table: &str) -> u64 {
        let view = self.directories[1].snapshot().by_name("shop").unwrap().clone();
        view.table_by_name(table).map_or(0, |entry| entry.table.stats().records)
    }

    pub(crate) fn ask(&self, attempt: u64, ask: CopyAsk) -> Result<CopyAnswer, String> {
        let request = CopyRequest { target: id_of(1), move_id: MOVE, attempt, ask };
        self.desks[0].answer_copy(&self.directories[0], &request)
    }

    pub(crate) fn target_tables(&self) -> OwnTables {
        OwnTables::new(Arc::clone(&self.directories[1]))
    }

    fn noted(&self) -> usize {
        self.desks[0].slots().noted_bytes()
    }
}

/// A link that does something before it asks.
struct LinkWith<'s, F: FnMut(&TwoServers, &CopyAsk)> {
    servers: &'s TwoServers,
    before: F,
}

impl<F: FnMut(&TwoServers, &CopyAsk)> CopySource for LinkWith<'_, F> {
    fn ask(&mut self, request: &CopyRequest) -> Result<CopyAnswer, String> {
        (self.before)(self.servers, &request.ask);
        self.servers.desks[0].answer_copy(&self.servers.directories[0], request)
    }
}

/// Copies until the slots can be handed over; returns why not.
pub(crate) fn copy(servers: &TwoServers, before: impl FnMut(&TwoServers, &CopyAsk)) -> Result<(), String> {
    let mut link = LinkWith { servers, before };
    let mut own = servers.target_tables();
    let mut copy = SlotCopy::new(&id_of(1), MOVE, ALL, 1);
    for _ in 0..10_000 {
        if copy.is_ready() {
            return Ok(());
        }
        copy.step(&mut link, &mut own)?;
    }
    Err("it has no end".to_owned())
}

#[test]
fn a_table_that_is_made_while_slots_are_copied_comes_with_its_records() {
    let servers = TwoServers::start();
    servers.write("old", b"a").unwrap();
    let mut made = false;
    let copied = copy(&servers, |servers, ask| {
        if *ask == CopyAsk::Changes && !made {
            // The target reads of it later.
            made = true;
            servers.make_table("new");
            servers.write("new", b"b").unwrap();
        }
    });
    assert_eq!((copied, made), (Ok(()), true));
    assert_eq!((servers.arrived("old"), servers.arrived("new")), (1, 1));
    assert_eq!(servers.write("new", b"c"), Err(StoreError::WrongServer), "they are frozen");
}

/// A tenant that empties its table keeps no slots from moving: what was copied before is removed, and nothing else.
#[test]
fn a_table_that_is_emptied_while_slots_are_copied_is_copied_as_it_is_then() {
    let servers = TwoServers::start();
    servers.make_table("other");
    servers.directories[1].catch_up().unwrap();
    servers.write("old", b"a").unwrap();
    servers.write("other", b"a").unwrap();
    let mut emptied = 0;
    let copied = copy(&servers, |servers, ask| {
        if *ask == CopyAsk::Changes && servers.desks[0].slots().owns_all() {
            emptied += 1;
            let view = servers.directories[0].snapshot().by_name("shop").unwrap().clone();
            let (entry, participant) = (view.table_by_name("old").unwrap(), servers.directories[0].participant());
            entry.table.clear(&participant).unwrap();
            servers.write("old", format!("b{emptied}").as_bytes()).unwrap();
        }
    });
    assert!(copied.is_ok() && emptied > 0, "{copied:?}");
    assert_eq!((servers.arrived("old"), servers.arrived("other")), (1, 1));
}

#[test]
fn a_copy_that_is_spoilt_ends_at_once_and_notes_no_more() {
    let servers = TwoServers::start();
    let (mut pages, mut noted) = (0, 0);
    let copied = copy(&servers, |servers, ask| {
        if matches!(ask, CopyAsk::Page { .. }) {
            pages += 1;
            servers.write("old", b"a").unwrap();
            servers.desks[0].slots().spoil_copy();
            noted = servers.noted();
            servers.write("old", b"b").unwrap();
            assert!(noted > 0 && servers.noted() == noted, "{noted}");
        }
    });
    assert!(copied.is_err_and(|why| why.contains("begins again")) && pages == 1, "{pages} pages");
    assert_eq!(copy(&servers, |_, _| {}), Ok(()));
    assert_eq!((servers.arrived("old"), servers.noted()), (2, 0));
}

#[test]
fn a_late_question_takes_nothing_from_the_next_attempt() {
    let servers = TwoServers::start();
    servers.ask(1, CopyAsk::Begin).unwrap();
    let late = std::thread::scope(|scope| {
        let turn = servers.desks[0].turn();
        let late = scope.spawn(|| servers.ask(1, CopyAsk::Changes));
        std::thread::sleep(Duration::from_millis(20));
        servers.desks[0].begin(MOVE, 2, &id_of(1)).unwrap();
        servers.write("old", b"a").unwrap();
        drop(turn);
        late.join().unwrap()
    });
    assert!(late.is_err() && servers.noted() > 0, "{late:?}");
    let own = OwnTables::new(Arc::clone(&servers.directories[0]));
    own.forget_noted(&servers.desks[0]);
    assert!(servers.noted() > 0, "a copy is under way");
    assert!(servers.ask(2, CopyAsk::Changes).is_ok_and(|answer| answer.keys().count() == 1));
    servers.write("old", b"b").unwrap();
    servers.ask(2, CopyAsk::Abandon).unwrap();
    own.forget_noted(&servers.desks[0]);
    assert_eq!(servers.noted(), 0);
}

#[test]
fn what_no_hand_over_was_sent_for_is_served_again() {
    let servers = TwoServers::start();
    let coordinator = &servers.desks[0];
    servers.ask(1, CopyAsk::Begin).unwrap();
    coordinator.end_silent(LONG, Duration::ZERO);
    assert!(servers.ask(1, CopyAsk::Alive).is_ok(), "a target that is busy is waited for");
    coordinator.end_silent(Duration::ZERO, LONG);
    assert!(servers.ask(1, CopyAsk::Alive).is_err());

    servers.ask(2, CopyAsk::Begin).unwrap();
    coordinator.slots().set_trouble(Some((1, "away".to_owned())));
    assert!(servers.ask(2, CopyAsk::Freeze).is_ok_and(|answer| answer.head.waits));
    assert!(coordinator.slots().owns_all(), "nothing is frozen while etcd is away");
    coordinator.slots().set_trouble(None);
    servers.ask(2, CopyAsk::Freeze).unwrap();
    coordinator.set_ready(2).unwrap();
    assert_eq!(servers.write("old", b"a"), Err(StoreError::WrongServer));
    coordinator.end_silent(LONG, Duration::ZERO);
    assert!(coordinator.slots().owns_all(), "nothing was sent");

    servers.ask(3, CopyAsk::Begin).unwrap();
    servers.ask(3, CopyAsk::Freeze).unwrap();
    coordinator.set_ready(3).unwrap();
    assert!(coordinator.next_change(1).is_some(), "the hand-over");
    coordinator.end_silent(Duration::ZERO, Duration::ZERO);
    assert!(!coordinator.slots().owns_slot(0), "nobody knows what became of it");
}

#[test]
fn what_was_copied_for_a_cancelled_move_is_removed() {
    let servers = TwoServers::start();
    servers.write("old", b"a").unwrap();
    copy(&servers, |_, _| {}).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        let notes = CopyNotes::read(folder.path()).unwrap();
        MoverLoop::new(Arc::clone(&servers.desks[1]), Arc::clone(&servers.directories[1]), notes)
    };
    let mut mover = start();
    mover.notes.add(MOVE, ALL).unwrap();
    mover.remove_cancelled();
    assert_eq!((servers.arrived("old"), mover.notes.copies()), (1, vec![(MOVE, ALL)]), "it is under way");
    servers.adopt(2, &map_of(0, Vec::new()));
    // Also where the server has started again since: it knows of the move by its file.
    let mut mover = start();
    mover.remove_cancelled();
    assert_eq!((servers.arrived("old"), mover.notes.copies()), (0, vec![]));
    assert_eq!(start().notes.copies(), []);

    // One that was handed over: its slots are this server's, also while they are not served.
    servers.adopt(3, &map_of(0, vec![moving()]));
    copy(&servers, |_, _| {}).unwrap();
    servers.adopt(4, &map_of(1, Vec::new()));
    servers.desks[1].slots().disown(ALL);
    mover.notes.add(MOVE, ALL).unwrap();
    mover.remove_cancelled();
    assert_eq!((servers.arrived("old"), mover.notes.copies()), (1, vec![]));
}

/// What becomes of the question for the hand-over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadyFate {
    /// The slots are handed over, and the answer is lost.
    AnswerLost,
    /// It does not come to the source.
    QuestionLost,
    Answered,
}

/// Copies all slots to the second server, whose source hands them over as `fate` says. Returns whether calls were made
/// elsewhere while the copy was served, and how often the source was asked whether its own are made.
fn copy_to_ready(servers: &TwoServers, mover: &mut MoverLoop, fate: ReadyFate) -> (bool, u32) {
    struct ReadyLink<'s>(&'s TwoServers, ReadyFate, (bool, u32));
    impl CopySource for ReadyLink<'_> {
        fn ask(&mut self, request: &CopyRequest) -> Result<CopyAnswer, String> {
            let ReadyLink(servers, fate, (was_elsewhere, asked)) = self;
            match request.ask {
                CopyAsk::Ready if *fate == ReadyFate::QuestionLost => return Err("it was lost".to_owned()),
                CopyAsk::Ready => {
                    servers.desks[0].set_ready(request.attempt)?;
                    let change = servers.desks[0].next_change(1).expect("the hand-over");
                    servers.adopt(2, &change.map);
                    if *fate == ReadyFate::AnswerLost {
                        return Err("it was lost".to_owned());
                    }
                }
                CopyAsk::Changes => *was_elsewhere = servers.desks[1].slots().is_called_elsewhere(0),
                CopyAsk::Called => *asked += 1,
                _ => {}
            }
            servers.desks[0].answer_copy(&servers.directories[0], request)
        }
    }
    let mut link = ReadyLink(servers, fate, (false, 0));
    mover.copy_from(&moving(), &mut link);
    link.2
}

/// The calls for changes from before come first, whatever becomes of an answer: docs/cluster.md.
#[test]
fn a_hand_over_whose_answer_is_lost_keeps_the_order_of_calls() {
    let folder = tempfile::tempdir().unwrap();
    let start = |servers: &TwoServers| {
        let notes = CopyNotes::read(folder.path()).unwrap();
        MoverLoop::new(Arc::clone(&servers.desks[1]), Arc::clone(&servers.directories[1]), notes)
    };
    let servers = TwoServers::start();
    let (mut mover, slots, mut asked) = (start(&servers), servers.desks[1].slots(), 0);
    let mut end_doubt = |mover: &mut MoverLoop| {
        mover.end_doubt(|_, wanted, _| {
            assert!(slots.is_called_elsewhere(0) && wanted.id == MOVE);
            asked += 1;
        });
        asked
    };
    // It never came to the source.
    copy_to_ready(&servers, &mut mover, ReadyFate::QuestionLost);
    assert_eq!((end_doubt(&mut mover), slots.is_called_elsewhere(0)), (0, true), "it may still be handed over");
    // The next attempt shows that it was not.
    assert_eq!(copy_to_ready(&servers, &mut mover, ReadyFate::AnswerLost), (false, 0));
    assert!(slots.owns_all() && slots.is_called_elsewhere(0), "the source has not said that its calls are made");
    assert_eq!((end_doubt(&mut mover), slots.is_called_elsewhere(0)), (1, false));
    assert_eq!(end_doubt(&mut mover), 1, "it is asked once");

    // Cancelled: nothing is waited for.
    let servers = TwoServers::start();
    let (mut mover, slots) = (start(&servers), servers.desks[1].slots());
    copy_to_ready(&servers, &mut mover, ReadyFate::QuestionLost);
    servers.adopt(2, &map_of(0, Vec::new()));
    mover.end_doubt(|_, _, _| panic!("the slots have stayed"));
    assert!(!slots.is_called_elsewhere(0));
    servers.adopt(1, &map_of(0, vec![moving()]));
    assert_eq!(copy_to_ready(&servers, &mut mover, ReadyFate::Answered).1, 1, "an answer that comes");
}

/// A copy from a server whose records were given up later, by a start of the target that knows of it no more.
#[test]
fn slots_of_a_lost_server_are_served_once_old_copies_are_removed() {
    let servers = TwoServers::start();
    servers.write("old", b"a").unwrap();
    copy(&servers, |_, _| {}).unwrap();
    assert_eq!(servers.arrived("old"), 1);
    let mut mover =
        MoverLoop::new(Arc::clone(&servers.desks[1]), Arc::clone(&servers.directories[1]), CopyNotes::default());
    let taken = StoredMove { source: id_of(1), handed_over: true, boot: 0, ..moving() };
    servers.adopt(2, &map_of(1, vec![taken]));
    let coordinator = &servers.desks[1];
    assert!(!coordinator.slots().owns_slot(0), "it would serve an old value");
    let (move_id, span) = coordinator.next_to_clear().unwrap();
    mover.clear(move_id, span);
    assert_eq!((servers.arrived("old"), coordinator.slots().owns_slot(0)), (0, false));
    let change = coordinator.next_change(2).expect("the map without it");
    assert!(change.map.moves.is_empty());
    servers.adopt(3, &change.map);
    assert!(coordinator.slots().owns_all() && !mover.may_remove(move_id, span), "what is written now stays");
}

/// A table whose durability was changed at another server, and holds at one of the two only.
#[test]
fn no_slots_come_to_a_table_that_is_logged_in_another_way() {
    let servers = TwoServers::start();
    let begun = servers.ask(1, CopyAsk::Begin).unwrap();
    let mut own = servers.target_tables();
    own.check(&begun.head.tables).unwrap();
    let untold: Vec<CopiedTable> =
        begun.head.tables.iter().map(|table| CopiedTable { logged: None, ..table.clone() }).collect();
    assert_eq!(own.logged_otherwise(&untold), None, "a source of an earlier version does not say");
    assert_eq!(own.logged_otherwise(&begun.head.tables), None);
    for logged in [(TableDurability::Copies, 7), (TableDurability::None, 7), (TableDurability::Disk, 0)] {
        let other: Vec<CopiedTable> =
            untold.iter().map(|table| CopiedTable { logged: Some(logged), ..table.clone() }).collect();
        let why = own.logged_otherwise(&other).unwrap();
        assert!(why.contains("the durability of table old"), "{why}");
    }
}

/// A tenant that changes a table's durability whenever slots are about to be handed over.
#[test]
fn a_change_of_durability_has_no_copy_begin_anew() {
    let servers = TwoServers::start();
    servers.write("old", b"a").unwrap();
    let (mut begun, mut frozen) = (0, 0);
    let mut own = ChangedTables { own: servers.target_tables(), looks: Cell::new(0) };
    let mut link = LinkWith {
        servers: &servers,
        before: |servers: &TwoServers, ask: &CopyAsk| {
            begun += u32::from(*ask == CopyAsk::Begin);
            if *ask == CopyAsk::Freeze {
                // What the last try has frozen is served again, and what is written then comes along.
                frozen += 1;
                servers.write("old", format!("b{frozen}").as_bytes()).unwrap();
            }
        },
    };
    let mut copy = SlotCopy::new(&id_of(1), MOVE, ALL, 1);
    let mut told = 0;
    while !copy.is_ready() {
        copy.step(&mut link, &mut own).unwrap();
        told += u32::from(copy.waits && copy.state() == "waits: it was changed");
    }
    assert!(!copy.waits && told >= 2, "{told} {}", copy.state());
    assert_eq!((begun, frozen, servers.arrived("old")), (1, 3, 4));
}

/// Tables of a target of which one is logged otherwise than at the source once they are frozen first, and once all is
/// copied first.
struct ChangedTables {
    own: OwnTables,
    /// One when the copy begins, one at each freeze, one when all is copied.
    looks: Cell<u32>,
}

impl CopyTables for ChangedTables {
    fn check(&mut self, tables: &[CopiedTable]) -> Result<(), String> {
        self.own.check(tables)
    }

    fn logged_otherwise(&self, tables: &[CopiedTable]) -> Option<String> {
        assert_eq!(self.own.logged_otherwise(tables), None);
        self.looks.set(self.looks.get() + 1);
        matches!(self.looks.get(), 2 | 4).then(|| "it was changed".to_owned())
    }

    fn clear(&mut self, spans: &[SlotSpan]) -> Result<bool, String> {
        self.own.clear(spans)
    }

    fn empty(&mut self, spans: &[SlotSpan], table: &EmptiedTable) -> Result<bool, String> {
        self.own.empty(spans, table)
    }

    fn take(&mut self, answer: &CopyAnswer) -> Result<u64, String> {
        self.own.take(answer)
    }

    fn finish(&mut self, tables: &[CopiedTable]) -> Result<(), String> {
        self.own.finish(tables)
    }
}
