//! The part of the hash space that this server owns.

/// A contiguous range of hashes, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tablet {
    /// The first hash.
    pub first: u64,
    /// The last hash.
    pub last: u64,
}

/// Owned tablets, sorted and disjoint.
#[derive(Clone, Debug)]
pub(super) struct TabletSet {
    list: Box<[Tablet]>,
    /// A single tablet covers all: then no search is needed.
    is_all: bool,
}

impl TabletSet {
    /// Makes the set of a single server, which owns all.
    pub(super) fn all() -> TabletSet {
        TabletSet::new(vec![Tablet { first: 0, last: u64::MAX }])
    }

    pub(super) fn new(mut tablets: Vec<Tablet>) -> TabletSet {
        tablets.sort_by_key(|tablet| tablet.first);
        let is_all = tablets.contains(&Tablet { first: 0, last: u64::MAX });
        TabletSet { list: tablets.into(), is_all }
    }

    #[inline]
    pub(super) fn owns(&self, hash: u64) -> bool {
        self.is_all || self.find(hash)
    }

    fn find(&self, hash: u64) -> bool {
        let after = self.list.partition_point(|tablet| tablet.first <= hash);
        self.list[..after].last().is_some_and(|tablet| hash <= tablet.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ownership_ends_where_a_tablet_ends() {
        let tablets = TabletSet::new(vec![Tablet { first: 100, last: 199 }, Tablet { first: 10, last: 19 }]);
        for (hash, owned) in [(0, false), (10, true), (19, true), (20, false), (99, false), (150, true), (200, false)] {
            assert_eq!(tablets.owns(hash), owned, "{hash}");
        }
        assert!(TabletSet::all().owns(0) && TabletSet::all().owns(u64::MAX));
        assert!(!TabletSet::new(Vec::new()).owns(7));
    }
}
