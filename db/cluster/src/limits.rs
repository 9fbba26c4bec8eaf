//! Limits of this crate: name, default, unit, reason.

use std::time::Duration;

/// Time between two looks at the cluster's state. A change of it is known everywhere after as long; a look takes etcd
/// well below a millisecond.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which a request to etcd has failed. Longer than an election of etcd takes by default, 1 s.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Life of a server's sign of life, unless it is renewed. Five times [`RENEWAL_INTERVAL`].
pub const LEASE_S: u64 = 10;
/// Time between two renewals of it.
pub const RENEWAL_INTERVAL: Duration = Duration::from_secs(2);
/// Bytes of an answer of etcd, at most: [`TENANTS_IN_ANSWER`] tenants of [`TENANT_BYTES`], as base64.
pub const ANSWER_BYTES: u64 = 16 << 20;
/// Tenants that are asked for at a time.
pub const TENANTS_IN_ANSWER: usize = 16;
/// Bytes of a tenant with its tables, grants and versions, as JSON. etcd takes 1.5 MiB in a request by default.
pub const TENANT_BYTES: usize = 512 << 10;
/// Bytes of the tenants that one change touches, for the same reason.
pub const CHANGE_BYTES: usize = 1 << 20;
/// Tenants that one change touches, at most. etcd takes 128 operations in a transaction by default.
pub const CHANGE_TENANTS: usize = 100;
/// The last changes of the directory whose numbers are kept, so that a server whose answer was lost learns whether its
/// change was made. A server makes less than some hundred a second, and asks within seconds.
pub const REMEMBERED_CHANGES: usize = 256;
/// Times that a server asks whether a change was made whose answer was lost.
pub const SETTLE_TRIES: usize = 3;
/// Bytes of a part of an artifact: as base64 within etcd's request.
pub const ARTIFACT_PART_BYTES: usize = 512 << 10;
/// Bytes of an artifact or a source that servers of a cluster share. etcd holds 2 GiB of all by default.
pub const ARTIFACT_BYTES: usize = 16 << 20;
/// Times that a number of a version is asked for, where other servers ask at the same moment.
pub const VERSION_TRIES: usize = 16;
/// Endpoints of an address, at most. An etcd has seven members at most.
pub const ENDPOINTS: usize = 7;
/// Ids of removed servers that are kept, so that what starts with one is refused. A cluster has 64 servers at most.
pub const REMOVED_SERVERS: usize = 1_024;
/// Times that a change of the map of slots is made anew because another one was faster. Each server makes some in a
/// second, while slots move.
pub const MAP_CHANGE_TRIES: usize = 8;
/// Changes of the map of slots that wait for etcd at one server, at most. Each look makes up to [`CHANGES_PER_LOOK`].
pub const MAP_REQUESTS: usize = 64;
/// Time that a caller that wants slots moved waits for the answer: some requests to etcd.
pub const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that the target of a move waits for the hand-over, before it asks again. Well below [`TARGET_SILENCE`].
pub const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after which the source of a move serves frozen slots again, if the target says nothing.
pub const TARGET_SILENCE: Duration = Duration::from_secs(5);
/// Time after which the source ends a copy that is under way, if the target says nothing. It costs only the memory of
/// the noted keys, and other moves from there, which wait; a busy target needs its time.
pub const COPY_SILENCE: Duration = Duration::from_secs(60);
/// Time after which a target that does something else, or keeps a rate, says that it is there.
pub const ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which a request of one server to another has failed.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(15);
/// Time until the target of a move tries again.
pub const COPY_PAUSE: Duration = Duration::from_millis(500);
/// Time between two looks for moves, where no copy is under way.
pub const MOVE_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of records in an answer of the source; it ends with the record that exceeds them. About a millisecond of a
/// network of 10 Gbit/s.
pub const COPY_PAGE_BYTES: usize = 1 << 20;
/// Bytes of an answer of the source, at most: a page, and the longest record.
pub const COPY_ANSWER_BYTES: u64 = 256 << 20;
/// Records that the source looks at for one answer.
pub const COPY_SCAN_RECORDS: usize = 16_384;
/// Reads of the disk for one answer of the source, of a table larger than memory: a second or so of a slow disk.
pub const COPY_READS: usize = 128;
/// Time that the target of a move waits, for all records of an answer together, until the disk takes those of tables
/// larger than memory; then it gives up. Well below [`COPY_SILENCE`].
pub const SPILL_WAIT: Duration = Duration::from_secs(10);
/// Changed keys that backings of tables do not have yet, up to which slots are frozen for the rest: some tenths of a
/// second of a slow object store, of which a table has six requests under way.
pub const FREEZE_BELOW_DIRTY: usize = 32;
/// Time for which the source waits for backings before it freezes slots, until it says that they have to wait.
pub const FLUSH_BEFORE_FREEZE: Duration = Duration::from_secs(1);
/// Time for which frozen slots wait for backings, until they are served again. Well below [`TARGET_SILENCE`].
pub const FLUSH_FROZEN: Duration = Duration::from_secs(2);
/// Time between two looks at what backings do not have yet.
pub const BACKING_POLL: Duration = Duration::from_millis(5);
/// Bytes of the log for whose changes calls are still to be made when slots are frozen, at most, if the triggers that
/// make them come so far in time: some tens of milliseconds of calls, for which the target's own wait.
pub const CALLS_LEFT_BYTES: u64 = 1 << 20;
/// Time for which an answer of the source waits for those calls, until it says that they are not made yet.
pub const CALLS_WAIT: Duration = Duration::from_secs(1);
/// Time for which a move waits for them in all, before its slots are frozen and again afterwards. A call that fails is
/// made again for longer than that.
pub const CALLS_WAIT_MOST: Duration = Duration::from_secs(10);
/// Such waits that a source knows, at most, the newest ones: a move has two, one after the other, and 64 servers may
/// take slots from one. One that is forgotten begins anew.
pub const CALLS_WAITS: usize = 128;
/// Time for which the target waits until the source says that they are made. Longer than the source waits itself: it
/// may start again meanwhile.
pub const CALLS_ELSEWHERE_MOST: Duration = Duration::from_secs(15);
/// Time between two looks whether they are made.
pub const CALLS_POLL: Duration = Duration::from_millis(2);
/// Time in which another server runs calls for changes. Their budgets are well below that; one that is made again since
/// its answer was late runs twice.
pub const CALLS_TIMEOUT: Duration = Duration::from_secs(60);
/// Changed keys that one answer of the source has, at most.
pub const COPY_CHANGES: usize = 4_096;
/// Bytes of noted keys above which the changes are copied between the pages, so that a long copy is not spoilt by
/// them: an eighth of what may be noted.
pub const CHANGES_ABOVE_BYTES: u64 = 8 << 20;
/// Changed keys in an answer below which the slots are frozen for the rest: some milliseconds.
pub const FREEZE_BELOW_CHANGES: usize = 256;
/// Answers with changed keys after which they are frozen anyway, if not an eighth fewer are left: the target may be
/// slower than the writers.
pub const FREEZE_AFTER_ROUNDS: u32 = 64;
/// Records that are looked at between two quiescent points while slots are cleared.
pub const CLEAR_BATCH: usize = 1_024;
/// Changes of the map that one look makes, one after the other.
pub const CHANGES_PER_LOOK: usize = 8;
/// Time between two lines in the log about a store that does not answer.
pub const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Time for which an answer of a copy lets its owner show records; a sealed copy is not read before. A successor waits
/// for it, and an owner that is starved of its processor for longer shows nothing for a moment.
pub const LEASE: Duration = Duration::from_millis(250);
/// The longest lease that an earlier version gave: the process before this one may have been of one, and have given it.
pub const EARLIER_LEASE: Duration = Duration::from_millis(500);
/// The part of [`LEASE`] that the owner counts on: clocks of two machines may differ in their pace by a tenth.
pub const COUNTED_LEASE: Duration = Duration::from_millis(225);
/// Time after which a copy is asked again where there is nothing to send: several questions fall into a lease.
pub const HEARTBEAT: Duration = Duration::from_millis(40);
/// Time that the answer to a question with pieces of the log may take, until one without them is asked behind it: a
/// slow disk would use up each lease before its owner has it.
pub const LEASE_ON_ARRIVAL: Duration = Duration::from_millis(100);
/// Time after which a question to a copy has failed. A disk that moves a bad block takes some seconds.
pub const REPLICA_TIMEOUT: Duration = Duration::from_secs(5);
/// Time until a copy that has not answered is asked again.
pub const REPLICA_PAUSE: Duration = Duration::from_millis(100);
/// Time after which a copy that confirms nothing is replaced by another one.
pub const REPLACE_AFTER: Duration = Duration::from_secs(2);
/// Time after which a copy is replaced that is on a server whose place is taken: two questions. It is gone, most
/// likely, and writes wait for it. The new copy is filled while the rest of the lease is waited for.
pub const REPLACE_TAKEN_AFTER: Duration = Duration::from_millis(100);
/// Time after which a copy that is being filled and confirms nothing is given up.
pub const FILL_SILENCE: Duration = Duration::from_secs(20);
/// The same for one that has confirmed nothing yet, and was refused: its disk is full, or it cannot be reached.
pub const FILL_REFUSED: Duration = Duration::from_secs(2);
/// Time without the confirmation of all copies after which writes that wait for it are refused, as where the disk
/// stalls.
pub const COPIES_STALL: Duration = Duration::from_secs(5);
/// Keys of a copy whose last changes are noted while a server takes the place of another: 24
/// bytes each, in a table of 100 MiB that is doubled for the last time when it is half as large. Of further keys all
/// changes are made.
pub const LAST_CHANGES: usize = 7 << 19;
/// Bytes of changes that are kept while a copy is read whose records a server makes its own. With more of them the copy
/// is read a second time. Half of the log from which a checkpoint is due anyway. The memory for them grows by
/// doubling: for a moment it is up to three times as much.
pub const KEPT_CHANGES_BYTES: usize = 64 << 20;
/// Bytes of changes that a successor takes over for the calls of triggers, at most: its log is to have them before the
/// slots are its own, and takes some hundred MiB a second. What a trigger that is paused waits with may be more.
pub const INHERITED_CALLS_BYTES: u64 = 128 << 20;
/// Time between two looks at how the copies are.
pub const KEEPER_INTERVAL: Duration = Duration::from_millis(50);
/// The folder of copies in the state directory.
pub const COPIES_FOLDER: &str = "copies";
/// Begins the name of the folder of a copy that is being removed, or that is written to be read once: what is left of
/// one after a stop is no copy.
pub const GONE_PREFIX: &str = ".gone-";
/// Time after which a copy that no generation has and no owner asks is removed.
pub const COPY_IDLE: Duration = Duration::from_secs(600);
/// Time for which a question about a copy waits for another one that uses the copy, before it fails:
/// well below [`REPLICA_TIMEOUT`], so that a disk that hangs does not take all threads of the control port.
pub const COPY_LOCK_WAIT: Duration = Duration::from_secs(1);
/// Age of the map above which no copy is removed: the server may not hear of what has changed. Some looks of
/// [`POLL_INTERVAL`], and a request that takes its time.
pub const SWEEP_MAP_AGE: Duration = Duration::from_secs(5);
/// Time between two looks for such copies.
pub const COPY_SWEEP_INTERVAL: Duration = Duration::from_secs(30);
/// Time between two tries to remove streams that are needed no more, while there are some.
pub const STREAM_CARE_TICK: Duration = Duration::from_secs(1);
/// Time between two looks at a stream that keeps less than it has to: writes are refused until that is over.
pub const STREAM_FAULT_LOOK: Duration = Duration::from_secs(2);
/// Time after which a connection for questions about a copy ends that has none: its owner asks every [`HEARTBEAT`].
pub const COPY_STREAM_IDLE: Duration = Duration::from_secs(10);
/// Bytes of the head of the answer that begins such a connection, at most.
pub(crate) const UPGRADE_HEAD_BYTES: usize = 16 << 10;
/// Bytes of an answer about a copy, at most: its files.
pub const REPLICA_ANSWER_BYTES: u64 = 4 << 20;
/// Bytes of a question about a copy, at most: a batch of two frames and a part of a checkpoint.
pub const REPLICA_QUESTION_BYTES: usize = 8 << 20;
/// Bytes that have to be free on a server's disk for a new copy of another server's log: what the server's own log
/// needs for a checkpoint beside it, and some segments of the copy.
pub const COPY_NEW_FREE_BYTES: u64 = 512 << 20;
/// Bytes that stay free of copies that are there: four segments of the server's own log, whose writers are refused
/// last.
pub const COPY_FREE_BYTES: u64 = 128 << 20;
/// Time after which a new copy is given up whose server has no room for it.
pub const FILL_FULL: Duration = Duration::from_millis(500);
/// Time after which a server is sent again what it had no room for: a batch is large, and room comes slowly.
pub const FULL_AGAIN: Duration = Duration::from_secs(1);
/// Time for which a server is left alone whose disk had no room for all of a new copy; each further time it is twice as
/// long. A try writes all that there is room for, some GiB perhaps.
pub const OVERFULL_PAUSE: Duration = Duration::from_secs(10);
/// The longest of these pauses: after as long its disk is looked at again, whatever has made room.
pub const OVERFULL_PAUSE_MOST: Duration = Duration::from_secs(600);
/// Copies on other servers that a log may have, at most.
pub const COPIES_MOST: usize = 4;
/// The parts of servers' workers' time, and of their memory, below which a mean counts as so much: servers that have
/// little to do are level, however unequal that is. Memory disturbs nothing before it is nearly full.
pub const BALANCE_FLOORS: [f64; 2] = [0.05, 0.25];
/// How far above the mean a server may be that is left as it is, as a part of the mean. Loads are known from samples,
/// so less would follow chance.
pub const BALANCE_WITHIN: f64 = 0.1;
/// Moves that a plan has, at most: a server copies one at a time, and what is under way for long is planned by old
/// loads.
pub const BALANCE_MOVES: usize = 32;
/// Accesses a second of a server's slots from which they are divided by accesses: of fewer, samples say nothing about
/// single slots.
pub const SPLIT_ACCESSES_PER_S: f64 = 100.0;
/// The part of what a server has to do that a split moves, at least: less is not worth a change of the map.
pub const SPLIT_LEAST_PART: f64 = 0.02;
/// Ranges of slots that a plan still divides, at most. The map of all ranges is one value in etcd, of some 50 bytes
/// each.
pub const BALANCE_RANGES: usize = 4_096;
/// Time between two looks at which owners of copies are silent: two fall into each of their questions.
pub const WATCH_TICK: Duration = Duration::from_millis(20);
/// The same where there are no copies.
pub const IDLE_WATCH_TICK: Duration = Duration::from_millis(200);
/// Ticks without a question after which an owner is asked whether it is there: twice the time between its questions.
pub const SILENT_TICKS: u64 = 4;
/// Time after which that question has no answer. A control port that is busy takes some tens of milliseconds.
pub const ASK_TIMEOUT: Duration = Duration::from_millis(200);
/// Ticks in time between such a question and its time-out, at least, so that it counts: half of those that there are.
/// With fewer the server that asks had no processor itself.
pub const ASK_TICKS_LEAST: u64 = 5;
/// Questions in a row without an answer after which an owner is gone. One may have met a busy moment.
pub const UNANSWERED_QUESTIONS: u32 = 2;
/// Ticks after a question that has failed at once, until the next one: as many as one takes that has no answer.
pub const FAILED_TICKS: u64 = 10;
/// Ticks after which an owner that is gone is asked again: half a second.
pub const ASK_AGAIN_TICKS: u64 = 25;
/// Ticks for which the answer counts that an owner serves whose log is in a stream, half a second: it sends this server
/// nothing, and each server that could take its place asks it so often.
pub const STREAM_OWNER_TICKS: u64 = 25;
/// Age of the map above which no place is taken: some looks of [`POLL_INTERVAL`].
pub const PLACE_MAP_AGE: Duration = Duration::from_millis(500);
/// Time for which the request to take a place holds, unless it is made again in the next tick.
pub const PLACE_WISH_AGE: Duration = Duration::from_millis(100);
/// Time for which a server whose place was taken by itself has to be well without a break, until it takes places by
/// itself again. Two servers that hang by turns move each other's records once, and then no more.
pub const PROBATION: Duration = Duration::from_secs(600);
/// Time between two looks at the cluster's state while a server takes another one's place.
pub const SUCCESSION_POLL: Duration = Duration::from_millis(20);
/// Time for which a server looks so often, since it has seen that a place is taken. A succession takes seconds,
/// and one that hangs must not cost the cluster's etcd fifty questions a second of each server.
pub const SUCCESSION_POLLED: Duration = Duration::from_secs(10);
/// Notes about failovers that wait to become events, at most. They are read each second or so.
pub const FAILOVER_NOTES: usize = 64;
/// Words about damage of copies that wait to become events, at most.
pub const DAMAGE_NOTES: usize = 64;
/// Bytes a second that are read again from the disk, of the log and of the copies that are here: a tenth of what a disk
/// with heads reads in order, and a hundredth of one without.
pub const SCRUB_BYTES_PER_S: u64 = 8 << 20;
/// Bytes after which the reading rests: a frame has at most as many.
pub const SCRUB_REST_BYTES: u64 = 1 << 20;
/// Time between the beginnings of two passes, where the first takes less: some 28 GiB are read in as long.
pub const SCRUB_PERIOD: Duration = Duration::from_secs(3_600);
/// Time after a start until the first pass: the server and its clients have other things to read then.
pub const SCRUB_FIRST: Duration = Duration::from_secs(60);
/// Time between two looks whether a pass is due, and whether damage of the log is over.
pub const SCRUB_LOOK: Duration = Duration::from_millis(500);
/// Time after which a checkpoint is asked for again that takes the place of what is damaged, if there was none.
pub const SCRUB_REPAIR_AGAIN: Duration = Duration::from_secs(60);
/// Bytes of the answer of a server that is asked whether it is there.
pub const LIFE_ANSWER_BYTES: u64 = 1 << 10;
/// Time for which a server looks at its accesses before it tells its load.
pub const LOAD_WINDOW: Duration = Duration::from_secs(3);
/// Bytes of what a server tells of its load, at most: some 80 for each of all slots.
pub const LOAD_ANSWER_BYTES: u64 = 4 << 20;
/// Requests with clients' commands that one server has with another one at a time. Each is a thread there and a
/// connection to the other's control port, of which that takes 32 of one address.
pub const FORWARD_LINKS: usize = 8;
/// Those of one tenant among them: half, so that one whose records are slow to read does not keep the others waiting.
pub const FORWARD_LINKS_OF_TENANT: usize = 4;
/// Batches of commands that wait for one server, at most. Each is a connection of a client's, which waits as well; at a
/// tenth of a millisecond each they are sent within [`FORWARD_TIMEOUT`].
pub const FORWARD_WAITING: usize = 1_024;
/// Those of them that datagrams have brought, shared by tenants: a quarter, since datagrams have no connections that
/// bound their number, and may come from forged senders.
pub const FORWARD_WAITING_DATAGRAMS: usize = FORWARD_WAITING / 4;
/// Bytes of the commands that wait for one server, at most: the largest values of some connections.
pub const FORWARD_WAITING_BYTES: usize = 64 << 20;
/// Bytes of answers that wait until other servers have answered the rest of their batches, at most: of all targets,
/// shared by tenants. Reads beyond are asked for anew.
pub const FORWARD_KEPT_BYTES: usize = 64 << 20;
/// Time in which a command of a client is answered by another server, all waiting included. As long as a server takes
/// to say that its disk stalls.
pub const FORWARD_TIMEOUT: Duration = Duration::from_secs(5);
/// Time in which another server takes a connection; else its machine is away.
pub const FORWARD_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Times that a command is sent on, or sent again, because its slot has moved meanwhile, or is moving.
pub const FORWARD_TRIES: usize = 100;
/// Time for which it waits in between, all together: the last step of a move takes milliseconds, and after an owner has
/// changed all servers know within [`POLL_INTERVAL`].
pub const FORWARD_PAUSES: Duration = Duration::from_secs(2);
/// The first of these pauses. Each further one is twice as long: the whole request is sent each time.
pub const FORWARD_PAUSE: Duration = Duration::from_millis(20);
/// The longest one.
pub const FORWARD_PAUSE_MOST: Duration = Duration::from_millis(320);
/// Time after which a thread that sends commands ends, if it has nothing to do.
pub const FORWARD_IDLE: Duration = Duration::from_secs(10);
/// Bytes of the answer to a request with commands, at most: those of the largest value, and some more.
pub const FORWARD_ANSWER_BYTES: u64 = 16 << 20;
