//! A workload by its name: the mix of requests, the records, their popularity, and their sizes.

use super::class::NAMED_WORKLOADS;
use super::{Class, Data, MemcachedPool, Mix, Skew};
use std::str::FromStr;

/// A workload: a mix, and what its name says beyond it.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The name as it was written.
    pub name: String,
    /// The mix of requests.
    pub mix: Mix,
    /// The distribution of requests over records.
    pub skew: Skew,
    /// The pool whose sizes records have; `None`: all records have one size.
    pub pool: Option<MemcachedPool>,
}

impl FromStr for Plan {
    type Err = String;

    /// A mix; `ycsb-d` asks for the latest records most, a pool's name brings its sizes, misses and skew.
    fn from_str(text: &str) -> Result<Plan, String> {
        let mix: Mix = text.parse()?;
        let pool =
            NAMED_WORKLOADS.iter().any(|(name, _)| *name == text).then(|| text.parse::<MemcachedPool>().ok()).flatten();
        let skew = match (pool, text) {
            (Some(pool), _) => pool.skew(),
            (None, "ycsb-d") => Skew::Latest,
            _ => Skew::default(),
        };
        Ok(Plan { name: text.to_owned(), mix, skew, pool })
    }
}

impl Plan {
    /// Checks that every class of the mix can be asked of such records.
    ///
    /// # Errors
    /// Names the class, and the reason.
    pub fn check(&self) -> Result<(), String> {
        let of_graph = self.mix.classes().filter(|class| class.is_of_graph()).count();
        if of_graph > 0 && (of_graph < self.mix.classes().count() || self.pool.is_some()) {
            return Err("a graph's requests cannot be mixed with others, and have no sizes of a pool".into());
        }
        if self.pool.is_some() && self.mix.has(Class::Scan) {
            return Err("scan reads keys of one length that follow one another: not with a pool's sizes".into());
        }
        Ok(())
    }

    /// The data of the plan: this number of records in a table, with the further records that the mix needs.
    pub fn data(&self, table: u64, records: u64) -> Data {
        Data { pool: self.pool, ..Data::new(table, records) }.for_mix(&self.mix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_bring_what_was_published_with_them() {
        let plan = |text: &str| text.parse::<Plan>().unwrap();
        assert_eq!((plan("ycsb-d").skew, plan("ycsb-d").mix.to_string()), (Skew::Latest, "get=95,insert=5".into()));
        assert_eq!((plan("ycsb-e").skew, plan("ycsb-e").pool), (Skew::default(), None));
        assert_eq!((plan("etc").pool, plan("etc").skew), (Some(MemcachedPool::Etc), Skew::Zipf { exponent: 1.2 }));
        assert_eq!(plan("get=1,auth=2").pool, None);
        assert!("ycsb-z".parse::<Plan>().unwrap_err().contains("'ycsb-z' is no workload"));
        assert!(plan("tao").check().is_ok() && plan("tao-60-40").check().is_ok());
        assert!(plan("get=1,obj-get=1").check().unwrap_err().contains("graph"));
        assert!(plan("tao").data(7, 100).graph.is_some() && plan("get").data(7, 100).graph.is_none());
        let scans = Plan { pool: Some(MemcachedPool::App), ..plan("ycsb-e") };
        assert!(scans.check().unwrap_err().contains("scan") && plan("ycsb-e").check().is_ok());
        let data = plan("get=1,auth=1,analysis=1,checksum=1").data(7, 100);
        assert_eq!((data.users, data.row_lists, data.lists), (100, 100, 100));
    }
}
