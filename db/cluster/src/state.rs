//! The cluster's state as it is stored: JSON under few keys.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};
use sandstorm_net::slots::SLOTS;
use sandstorm_store::slots::{ClusterServer, SlotMap, SlotMove, SlotRange, SlotSpan};
use serde::{Deserialize, Serialize};

/// The key of the slots' owners.
pub(crate) const SLOTS_KEY: &str = "slots";
/// The beginning of the keys of servers; the id follows.
pub(crate) const SERVERS: &str = "servers/";
/// The beginning of the keys that are there as long as a server lives; the id follows.
pub(crate) const LIVE: &str = "live/";
/// The first key behind all of members and slots: what servers look at ten times a second.
pub(crate) const MEMBERS_END: &str = "t";
/// The key that each change of the directory touches. It is among those of members, and so is seen by each look.
pub(crate) const DIRECTORY_KEY: &str = "next";
/// The beginning of the keys of servers that were stopped in order, from then until they start again; the id follows.
pub(crate) const STOPPED: &str = "stopped/";
/// The key with which servers of the cluster show each other that they are.
pub(crate) const PEER_KEY: &str = "peer-key";
/// The beginning of the keys of tenants; the id follows, in ten digits.
pub(crate) const TENANTS: &str = "tenants/";
/// The first key behind those of tenants.
pub(crate) const TENANTS_END: &str = "tenants0";
/// The beginning of the keys of artifacts.
pub(crate) const ARTIFACTS: &str = "artifacts/";
/// The beginning of the keys of the highest versions of extensions that were given to a push.
pub(crate) const VERSIONS: &str = "versions/";
/// Name of the file with a server's id in its state directory.
pub const SERVER_ID_FILE: &str = "cluster.id";
/// Digits of an id.
const ID_DIGITS: usize = 40;
/// What the file of an id begins with, before the number of its format. The first format was the id alone.
const ID_FILE_HEAD: &str = "sandstorm-server-id ";
/// The format of that file which is written.
const ID_FILE_FORMAT: u64 = 2;
/// Digits of the checksum in that file: the first ones of a SHA-256.
const ID_SUM_DIGITS: usize = 16;

/// Which server owns which slots: the value of one key, so that each change is one compare.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredSlots {
    /// The version of this format.
    pub(crate) format: u64,
    /// Grows by one with each change.
    pub(crate) epoch: u64,
    /// First slot, last slot, the owner's id; in order and disjoint.
    pub(crate) ranges: Vec<(u16, u16, String)>,
    /// Moves that are under way, disjoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) moves: Vec<StoredMove>,
    /// Servers that give all their slots away and get none, with the MiB that each may copy in a second; 0: as many as
    /// can be.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) draining: BTreeMap<String, u64>,
    /// Servers that belong to the cluster no more, the last ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) removed: Vec<String>,
    /// Servers whose logs have copies on others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) generations: BTreeMap<String, StoredGeneration>,
    /// Servers whose place another one has taken by itself, and that were not well for long enough since.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) on_probation: BTreeSet<String>,
}

/// The copies that a server's log has: what its `copies` tables have acknowledged is on each of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredGeneration {
    /// Grows with each change; the copies take nothing of a lower one.
    pub(crate) number: u64,
    /// The start of the server that has made the last change.
    pub(crate) boot: u64,
    /// The servers that have the copies, and the number of each copy.
    pub(crate) copies: Vec<(String, u64)>,
    /// The server that takes its place now: the one with the generation serves nothing any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) successor: Option<String>,
}

/// A move of slots from one server to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredMove {
    /// A random number.
    pub(crate) id: u64,
    pub(crate) first: u16,
    pub(crate) last: u16,
    /// The server that gives the slots away. It owns them until they are handed over.
    pub(crate) source: String,
    /// The server that takes them.
    pub(crate) target: String,
    /// Whether the target owns them. The source has to remove its records yet.
    pub(crate) handed_over: bool,
    /// The start of the source that has taken the move up; 0: none has.
    pub(crate) boot: u64,
    /// MiB that are copied in a second, at most; 0: as many as can be.
    pub(crate) mib_per_s: u64,
}

impl StoredMove {
    pub(crate) fn span(&self) -> SlotSpan {
        SlotSpan { first: self.first, last: self.last }
    }

    /// Whether it is no move: its server has got the slots of one whose records were given up, and removes what it has
    /// of them before it serves them.
    pub(crate) fn is_clearing(&self) -> bool {
        self.handed_over && self.source == self.target
    }

    /// Whether a server owns the slots and gives them away.
    pub(crate) fn is_copied_from(&self, id: &str) -> bool {
        !self.handed_over && self.source == id
    }
}

/// The format that is written here.
pub(crate) const FORMAT: u64 = 1;

/// A server's addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerState {
    /// The version of this format.
    pub(crate) format: u64,
    /// A random number of this start, so that two servers with one id are noticed.
    pub(crate) boot: u64,
    pub(crate) data: SocketAddr,
    pub(crate) redis: Option<SocketAddr>,
    pub(crate) memcached: Option<SocketAddr>,
    pub(crate) control: String,
    /// The fingerprint of its control port's certificate; empty without TLS.
    #[serde(default)]
    pub(crate) fingerprint: String,
    /// The digest of its tenants, tables and extensions.
    #[serde(default)]
    pub(crate) directory: String,
    /// The revision of the newest change of the directory that it has taken over.
    #[serde(default)]
    pub(crate) taken_over: u64,
    /// Whether it reads copies in streams. Versions that know of none read no state of one that does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) reads_streams: bool,
}

#[cfg(test)]
impl ServerState {
    /// A server that has told nothing but that it is there.
    pub(crate) fn example() -> ServerState {
        ServerState {
            format: FORMAT,
            boot: 1,
            data: SocketAddr::from(([127, 0, 0, 1], 1)),
            redis: None,
            memcached: None,
            control: String::new(),
            fingerprint: String::new(),
            directory: String::new(),
            taken_over: 0,
            reads_streams: false,
        }
    }
}

impl StoredSlots {
    /// Divides all slots evenly between servers, in the order of their ids.
    pub(crate) fn divided(ids: &[String]) -> StoredSlots {
        let (count, slots) = (ids.len().max(1), usize::from(SLOTS));
        let bound = |part: usize| (part * slots / count) as u16;
        let ranges = ids.iter().enumerate().map(|(part, id)| (bound(part), bound(part + 1) - 1, id.clone())).collect();
        StoredSlots { format: FORMAT, epoch: 1, ranges, ..StoredSlots::default() }
    }

    /// Whether it is of a format that is known here, and sound.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("the map of slots has format {}, and this server knows {FORMAT}", self.format));
        }
        let mut next = 0;
        for (first, last, _) in &self.ranges {
            if *first < next || last < first || *last >= SLOTS {
                return Err(format!("the map of slots is damaged at slots {first} to {last}"));
            }
            next = last + 1;
        }
        let mut spans: Vec<SlotSpan> = self.moves.iter().map(StoredMove::span).collect();
        spans.sort_unstable_by_key(|span| span.first);
        let is_bad = |span: &SlotSpan| span.last < span.first || span.last >= SLOTS;
        if spans.iter().any(is_bad) || spans.windows(2).any(|pair| pair[1].first <= pair[0].last) {
            return Err("the map of slots is damaged: its moves overlap".to_owned());
        }
        Ok(())
    }

    /// Whether a server owns a slot, and no other one takes its place now.
    pub(crate) fn owns(&self, id: &str, slot: u16) -> bool {
        if self.generations.get(id).is_some_and(|generation| generation.successor.is_some()) {
            return false;
        }
        let after = self.ranges.partition_point(|(first, _, _)| *first <= slot);
        self.ranges.get(after.wrapping_sub(1)).is_some_and(|(_, last, owner)| slot <= *last && owner == id)
    }

    /// The map for lookups. A server without a record is left out, and its slots count as without an owner.
    pub(crate) fn map(&self, servers: &BTreeMap<String, ServerState>, live: impl Fn(&str) -> bool) -> SlotMap {
        let places: BTreeMap<&str, usize> = servers.keys().enumerate().map(|(at, id)| (id.as_str(), at)).collect();
        let range = |(first, last, id): &(u16, u16, String)| SlotRange {
            first: *first,
            last: *last,
            server: places.get(id.as_str()).copied(),
        };
        let server = |(id, server): (&String, &ServerState)| ClusterServer {
            id: id.clone(),
            data: server.data,
            redis: server.redis,
            memcached: server.memcached,
            control: server.control.clone(),
            directory: server.directory.clone(),
            is_alive: live(id),
            is_draining: self.draining.contains_key(id),
        };
        let ranges: Vec<SlotRange> = self.ranges.iter().map(range).collect();
        let mut map = SlotMap::new(self.epoch, servers.iter().map(server).collect(), &ranges);
        let shown = |one: &StoredMove| SlotMove {
            id: one.id,
            span: one.span(),
            source: one.source.clone(),
            target: one.target.clone(),
            handed_over: one.handed_over,
            mib_per_s: one.mib_per_s,
        };
        map.moves = self.moves.iter().map(shown).collect();
        map
    }
}

/// Whether a text is the id of a server.
pub(crate) fn is_server_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The text of the file with an id: a line that says the format, the id, and a checksum of both.
fn id_file(id: &str) -> String {
    let text = format!("{ID_FILE_HEAD}{ID_FILE_FORMAT}\n{id}\n");
    let sum = HEXLOWER.encode(digest(&SHA256, text.as_bytes()).as_ref());
    format!("{text}{}\n", sum.get(..ID_SUM_DIGITS).unwrap_or_default())
}

/// The id that such a file has. A digit that has changed would make the server another one, without its slots.
fn id_of_file(bytes: &[u8]) -> Result<String, String> {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    let Some(rest) = text.strip_prefix(ID_FILE_HEAD) else {
        let id = text.trim();
        return match is_server_id(id) {
            true => Ok(id.to_owned()),
            false => Err(format!("no id of a server, which is {ID_DIGITS} hexadecimal digits")),
        };
    };
    let (format, rest) = rest.split_once('\n').unwrap_or((rest, ""));
    if let Some(format) = format.parse().ok().filter(|format: &u64| *format > ID_FILE_FORMAT) {
        return Err(format!(
            "it has format {format}, and this program reads formats up to {ID_FILE_FORMAT}: start the newer version \
             that wrote it"
        ));
    }
    let id = rest.lines().next().unwrap_or_default();
    match is_server_id(id) && text == id_file(id) {
        true => Ok(id.to_owned()),
        false => Err("its checksum is wrong: it was changed or damaged".to_owned()),
    }
}

/// The id of a server, which its state directory keeps; made at the first start.
///
/// # Errors
/// One line: the file cannot be read or made, is damaged, or was written by a later version of this program.
pub fn server_id(state: &Path) -> Result<String, String> {
    let path = state.join(SERVER_ID_FILE);
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    match fs::read(&path) {
        Ok(bytes) => id_of_file(&bytes).map_err(|why| {
            format!("{}: {why}. The id is in backups, and `cluster status` of another server shows it", path.display())
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let id = HEXLOWER.encode(&rand::random::<[u8; ID_DIGITS / 2]>());
            let mut file =
                fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
            file.write_all(id_file(&id).as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
            fs::File::open(state).and_then(|folder| folder.sync_all()).map_err(failed)?;
            Ok(id)
        }
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_divided_evenly_and_wholly() {
        for count in 1..=64 {
            let ids: Vec<String> = (0..count).map(|id| format!("{id:03}")).collect();
            let divided = StoredSlots::divided(&ids);
            assert_eq!(divided.check(), Ok(()));
            for slot in 0..SLOTS {
                assert_eq!(ids.iter().filter(|id| divided.owns(id, slot)).count(), 1, "{count} servers: {slot}");
            }
            let sizes = divided.ranges.iter().map(|(first, last, _)| last - first);
            assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1, "{count} servers");
        }
    }

    #[test]
    fn a_map_that_is_not_understood_is_refused() {
        let range = |first, last| (first, last, "a".to_owned());
        let with = |format, ranges: Vec<_>| StoredSlots { format, epoch: 1, ranges, ..StoredSlots::default() };
        assert_eq!(with(FORMAT, vec![range(0, 5), range(6, 16_383)]).check(), Ok(()));
        for bad in
            [vec![range(0, 5), range(5, 9)], vec![range(9, 8)], vec![range(0, 16_384)], vec![range(5, 6), range(0, 1)]]
        {
            assert!(with(FORMAT, bad.clone()).check().is_err_and(|why| why.contains("damaged")), "{bad:?}");
        }
        assert!(with(2, Vec::new()).check().is_err_and(|why| why.contains("format 2")));
    }

    #[test]
    fn an_id_is_made_once_and_kept() {
        let folder = std::env::temp_dir().join(format!("sandstorm-id-{}", rand::random::<u64>()));
        fs::create_dir(&folder).unwrap();
        let made = server_id(&folder).unwrap();
        assert_eq!(server_id(&folder), Ok(made));
        fs::write(folder.join(SERVER_ID_FILE), "me").unwrap();
        assert!(server_id(&folder).is_err_and(|why| why.contains("40 hexadecimal digits")));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn golden_files_of_an_id_are_read_in_both_formats_and_no_flipped_bit_or_cut_passes() {
        const ID: &str = "00112233445566778899aabbccddeeff01234567";
        let golden = |name: &str| fs::read(format!("{}/golden/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let [first, newest] = ["server-id-format-1.txt", "server-id-format-2.txt"].map(golden);
        let hint = "the format has changed: give it a new number, and keep a reader of the old one";
        assert_eq!(id_file(ID), String::from_utf8_lossy(&newest), "{hint}");
        assert_eq!([id_of_file(&first), id_of_file(&newest)], [Ok(ID.to_owned()), Ok(ID.to_owned())]);
        for at in 0..newest.len() {
            for bit in 0..8 {
                let mut other = newest.clone();
                other[at] ^= 1 << bit;
                assert!(id_of_file(&other).is_err(), "{}", String::from_utf8_lossy(&other));
            }
            assert!(id_of_file(&newest[..at]).is_err(), "{at} bytes");
        }
        let newer = String::from_utf8_lossy(&newest).replace("id 2", "id 3");
        assert!(id_of_file(newer.as_bytes()).is_err_and(|why| why.contains("start the newer version")));
        // The file is named, and what to do.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SERVER_ID_FILE);
        fs::write(&path, &newest[..newest.len() - 3]).unwrap();
        let why = server_id(folder.path()).unwrap_err();
        assert!(why.contains(&*path.to_string_lossy()) && why.contains("checksum") && why.contains("backups"), "{why}");
    }
}
