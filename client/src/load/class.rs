//! Classes of operations, and mixes of them.

use crate::message::Message;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A kind of request. Each has its own row in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Reads one record.
    Get,
    /// Writes one record.
    Put,
    /// Writes a record that is not there yet: one behind the last.
    Insert,
    /// Deletes one record.
    Delete,
    /// Reads one record, then writes it; its latency is that of both.
    ReadModifyWrite,
    /// Reads the records of a list in one operation.
    MultiGet,
    /// Adds one to a counter.
    Increment,
    /// Calls `get`.
    InvokeGet,
    /// Calls `range`: a few records with consecutive keys.
    Scan,
    /// Calls `chain`: a pointer chase inside of the server.
    Chain,
    /// The same pointer chase by gets, one after another; its latency is that of the whole chase.
    ChainGets,
    /// Calls `aggregate` on a list.
    Aggregate,
    /// Does what `aggregate` does, in the client: a get of the list, a multi-get, the arithmetic. Its latency is that
    /// of all steps.
    AggregateGets,
    /// Calls `checksum` on a list.
    Checksum,
    /// Does what `checksum` does, in the client: a get, a multi-get, a digest.
    ChecksumGets,
    /// Calls `analysis`: a decision tree over a list of rows.
    Analysis,
    /// Does what `analysis` does, in a client that has the tree: a get, a multi-get, decisions.
    AnalysisGets,
    /// Calls `auth`: checks a password, one in eight of them wrong.
    Auth,
    /// Does what `auth` does, in a client that is trusted with the hash: a get, rounds of hashing.
    AuthGets,
    /// Calls `long`: many gets of the records of a list.
    Long,
    /// Does what `long` does: a get of the list, and one multi-get for each of its batches, one after another.
    LongGets,
    /// Reads an account.
    Balance,
    /// Calls `transfer`: from one account to another, in a transaction.
    Transfer,
    /// A request to the graph of `tao`: reads an object.
    ObjGet,
    /// Adds an object.
    ObjAdd,
    /// Writes an object's field.
    ObjUpdate,
    /// Deletes an object; any one, not those that are asked for most.
    ObjDelete,
    /// Reads one to three edges of an object by where they go to, one of them not there.
    AssocGet,
    /// Reads how many edges an object's list has.
    AssocCount,
    /// Reads the newest edges of a list.
    AssocRange,
    /// Reads the edges of a list between two times.
    AssocTimeRange,
    /// Adds an edge and its inverse.
    AssocAdd,
    /// Deletes an edge and its inverse.
    AssocDelete,
    /// Gives an edge, and its inverse, another type.
    AssocChangeType,
    /// Calls `bad` with the kind of misbehaviour that the options name; being killed is its expected end.
    Bad,
}

/// The kind of records that a class asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyPopulation {
    /// Plain ones.
    Records,
    /// The links of chains.
    Links,
    /// Lists of plain records.
    Lists,
    /// Lists of rows for the decision tree.
    RowLists,
    /// Users with passwords.
    Users,
    /// Accounts of a closed economy.
    Accounts,
}

impl KeyPopulation {
    pub(super) const COUNT: usize = 6;
}

impl Class {
    /// All classes, in the order of the type.
    pub const ALL: [Class; 35] = [
        Class::Get,
        Class::Put,
        Class::Insert,
        Class::Delete,
        Class::ReadModifyWrite,
        Class::MultiGet,
        Class::Increment,
        Class::InvokeGet,
        Class::Scan,
        Class::Chain,
        Class::ChainGets,
        Class::Aggregate,
        Class::AggregateGets,
        Class::Checksum,
        Class::ChecksumGets,
        Class::Analysis,
        Class::AnalysisGets,
        Class::Auth,
        Class::AuthGets,
        Class::Long,
        Class::LongGets,
        Class::Balance,
        Class::Transfer,
        Class::ObjGet,
        Class::ObjAdd,
        Class::ObjUpdate,
        Class::ObjDelete,
        Class::AssocGet,
        Class::AssocCount,
        Class::AssocRange,
        Class::AssocTimeRange,
        Class::AssocAdd,
        Class::AssocDelete,
        Class::AssocChangeType,
        Class::Bad,
    ];

    /// Its name in mixes and reports.
    pub fn name(self) -> &'static str {
        match self {
            Class::Get => "get",
            Class::Put => "put",
            Class::Insert => "insert",
            Class::Delete => "delete",
            Class::ReadModifyWrite => "read-modify-write",
            Class::MultiGet => "multi-get",
            Class::Increment => "increment",
            Class::InvokeGet => "invoke-get",
            Class::Scan => "scan",
            Class::Chain => "chain",
            Class::ChainGets => "chain-gets",
            Class::Aggregate => "aggregate",
            Class::AggregateGets => "aggregate-gets",
            Class::Checksum => "checksum",
            Class::ChecksumGets => "checksum-gets",
            Class::Analysis => "analysis",
            Class::AnalysisGets => "analysis-gets",
            Class::Auth => "auth",
            Class::AuthGets => "auth-gets",
            Class::Long => "long",
            Class::LongGets => "long-gets",
            Class::Balance => "balance",
            Class::Transfer => "transfer",
            Class::ObjGet => "obj-get",
            Class::ObjAdd => "obj-add",
            Class::ObjUpdate => "obj-update",
            Class::ObjDelete => "obj-delete",
            Class::AssocGet => "assoc-get",
            Class::AssocCount => "assoc-count",
            Class::AssocRange => "assoc-range",
            Class::AssocTimeRange => "assoc-time-range",
            Class::AssocAdd => "assoc-add",
            Class::AssocDelete => "assoc-delete",
            Class::AssocChangeType => "assoc-change-type",
            Class::Bad => "bad",
        }
    }

    /// The extension that it calls, if it calls one.
    pub fn extension(self) -> Option<&'static str> {
        match self {
            Class::InvokeGet => Some("get"),
            Class::Scan => Some("range"),
            Class::Chain => Some("chain"),
            Class::Aggregate => Some("aggregate"),
            Class::Checksum => Some("checksum"),
            Class::Analysis => Some("analysis"),
            Class::Auth => Some("auth"),
            Class::Long => Some("long"),
            Class::Transfer => Some("transfer"),
            Class::Bad => Some("bad"),
            class if class.is_of_graph() => Some("tao"),
            _ => None,
        }
    }

    /// Appends the call of its extension, as a query if it only reads.
    pub(super) fn call(self, args: &[u8], message: &mut Message) {
        let name = self.extension().unwrap_or_default();
        if self.is_query() { message.query(name, 0, args) } else { message.invoke(name, 0, args) }
    }

    /// Returns whether it calls an extension that only reads. Such a call is sent as a query: like a get, it may run
    /// twice.
    fn is_query(self) -> bool {
        use Class::{Aggregate, Analysis, Auth, Chain, Checksum, InvokeGet, Long, Scan};
        matches!(self, InvokeGet | Scan | Chain | Aggregate | Checksum | Analysis | Auth | Long)
            || (self.is_of_graph() && !self.changes_graph())
    }

    /// Returns whether it asks for a graph, as the extension `tao` keeps it.
    pub fn is_of_graph(self) -> bool {
        (Class::ObjGet as usize..=Class::AssocChangeType as usize).contains(&self.index())
    }

    /// Returns whether it changes a graph.
    pub(super) fn changes_graph(self) -> bool {
        use Class::{AssocAdd, AssocChangeType, AssocDelete, ObjAdd, ObjDelete, ObjUpdate};
        matches!(self, ObjAdd | ObjUpdate | ObjDelete | AssocAdd | AssocDelete | AssocChangeType)
    }

    pub(super) fn population(self) -> KeyPopulation {
        match self {
            Class::Chain | Class::ChainGets => KeyPopulation::Links,
            Class::MultiGet | Class::Aggregate | Class::Checksum | Class::Long => KeyPopulation::Lists,
            Class::AggregateGets | Class::ChecksumGets | Class::LongGets => KeyPopulation::Lists,
            Class::Analysis | Class::AnalysisGets => KeyPopulation::RowLists,
            Class::Auth | Class::AuthGets => KeyPopulation::Users,
            Class::Balance | Class::Transfer => KeyPopulation::Accounts,
            _ => KeyPopulation::Records,
        }
    }

    /// Returns the class whose extension does what a client does here by gets; `None` if it is no such class.
    pub fn called(self) -> Option<Class> {
        match self {
            Class::ChainGets => Some(Class::Chain),
            Class::AggregateGets => Some(Class::Aggregate),
            Class::ChecksumGets => Some(Class::Checksum),
            Class::AnalysisGets => Some(Class::Analysis),
            Class::AuthGets => Some(Class::Auth),
            Class::LongGets => Some(Class::Long),
            _ => None,
        }
    }

    /// Returns whether its first step is a get of its list or record, and others follow.
    pub(super) fn begins_with_get(self) -> bool {
        use Class::{AggregateGets, AnalysisGets, ChecksumGets, LongGets, ReadModifyWrite};
        matches!(self, ReadModifyWrite | AggregateGets | ChecksumGets | AnalysisGets | LongGets)
    }

    /// Returns whether it writes plain records that others read.
    pub(super) fn rewrites(self) -> bool {
        matches!(self, Class::Put | Class::Delete | Class::ReadModifyWrite)
    }

    pub(super) fn index(self) -> usize {
        self as usize
    }
}

/// Percentages of classes, such as `get=95,put=5`; also a single class, or the percentages of a named workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    shares: Vec<(Class, f64)>,
    total: f64,
}

impl Mix {
    /// A mix of one class.
    pub fn only(class: Class) -> Mix {
        Mix { shares: vec![(class, 1.0)], total: 1.0 }
    }

    /// The class for `draw`, a number from 0 up to 1.
    pub fn pick(&self, draw: f64) -> Class {
        let mut rest = draw * self.total;
        for (class, share) in &self.shares {
            rest -= share;
            if rest < 0.0 {
                return *class;
            }
        }
        self.shares.last().map_or(Class::Get, |(class, _)| *class)
    }

    /// The classes in it.
    pub fn classes(&self) -> impl Iterator<Item = Class> + '_ {
        self.shares.iter().map(|(class, _)| *class)
    }

    /// Returns whether the class is in it.
    pub fn has(&self, class: Class) -> bool {
        self.classes().any(|one| one == class)
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (class, share)) in self.shares.iter().enumerate() {
            write!(f, "{}{}={share}", if index > 0 { "," } else { "" }, class.name())?;
        }
        Ok(())
    }
}

/// The workloads that have a name, and their shares: YCSB's (Cooper et al., SoCC'10) and YCSB+T's closed economy
/// (Dey et al., ICDEW'14), Facebook's pools of memcached
/// (Atikoglu et al., SIGMETRICS'12), TAO's requests (Bronson et al., ATC'13), and the two that Splinter asked of its
/// TAO (Kulkarni et al., OSDI'18).
pub(super) const NAMED_WORKLOADS: [(&str, &str); 14] = [
    ("ycsb-a", "get=50,put=50"),
    ("ycsb-b", "get=95,put=5"),
    ("ycsb-c", "get=100"),
    ("ycsb-d", "get=95,insert=5"),
    ("ycsb-e", "scan=95,insert=5"),
    ("ycsb-f", "get=50,read-modify-write=50"),
    ("ycsb-t", "balance=90,transfer=10"),
    ("usr", "get=99.7,put=0.2,delete=0.1"),
    ("app", "get=83.4,put=5.2,delete=11.4"),
    ("etc", "get=73.4,put=2.3,delete=24"),
    ("var", "get=18,put=82"),
    ("sys", "get=67.5,put=32.5"),
    (
        "tao",
        "assoc-range=40.8182,obj-get=28.8422,assoc-get=15.6686,assoc-count=11.6766,assoc-time-range=2.7944,\
         assoc-add=0.105,obj-update=0.0414,obj-add=0.033,assoc-delete=0.0166,obj-delete=0.004,assoc-change-type=0.0018",
    ),
    ("tao-60-40", "obj-get=60,assoc-range=40"),
];

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Mix, String> {
        let text = NAMED_WORKLOADS.iter().find(|(name, _)| *name == text).map_or(text, |(_, shares)| shares);
        let mut shares: Vec<(Class, f64)> = Vec::new();
        for part in text.split(',') {
            let (name, share) = part.split_once('=').unwrap_or((part, "1"));
            let class = Class::ALL.into_iter().find(|class| class.name() == name.trim());
            let class = class.ok_or_else(|| {
                let whole: Vec<&str> = NAMED_WORKLOADS.iter().map(|(name, _)| *name).collect();
                let names: Vec<&str> = Class::ALL.iter().map(|class| class.name()).collect();
                format!("'{name}' is no workload: {}, or shares of {}", whole.join(", "), names.join(", "))
            })?;
            let share: f64 = share.trim().parse().map_err(|_| format!("'{part}': the share is no number"))?;
            if !(share > 0.0 && share.is_finite()) {
                return Err(format!("'{part}': a share is above 0"));
            }
            if shares.iter().any(|(known, _)| *known == class) {
                return Err(format!("'{part}': {} has a share already", class.name()));
            }
            shares.push((class, share));
        }
        let total = shares.iter().map(|(_, share)| share).sum();
        Ok(Mix { shares, total })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_parse_as_they_print_and_pick_in_proportion() {
        let mix: Mix = "get=95,put=5".parse().unwrap();
        assert_eq!(mix, "ycsb-b".parse().unwrap());
        assert_eq!(mix.to_string().parse::<Mix>().unwrap(), mix);
        let gets = (0..1000).filter(|draw| mix.pick(f64::from(*draw) / 1000.0) == Class::Get).count();
        assert_eq!(gets, 950);
        for class in Class::ALL {
            assert_eq!(class.name().parse::<Mix>().unwrap(), Mix::only(class));
            assert_eq!(Class::ALL[class.index()], class);
        }
        for (name, _) in NAMED_WORKLOADS {
            assert!((99.0..=100.5).contains(&name.parse::<Mix>().unwrap().total), "{name}");
        }
    }

    #[test]
    fn what_is_no_mix_is_refused_with_what_is_wrong() {
        for (text, reason) in [
            ("", "'' is no workload: ycsb-a, "),
            ("gets", "'gets' is no workload"),
            ("get=0", "above 0"),
            ("get=x", "'get=x': the share is no number"),
            ("get=-1,put=2", "above 0"),
            ("get=inf", "above 0"),
            ("get=1,put=1,get=2", "'get=2': get has a share already"),
        ] {
            let error = text.parse::<Mix>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
