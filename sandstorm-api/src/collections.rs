//! A hash map and a hash set, and a vector that needs no memory of the arena while it is short. (`core` and `alloc`
//! have `BTreeMap`, `BTreeSet`, `VecDeque` and `BinaryHeap`.)
//!
//! ```
//! use sandstorm_api::collections::{HashMap, HashSet, SmallVec};
//!
//! let mut stock = HashMap::new();
//! stock.insert("tea", 3);
//! *stock.entry("milk").or_insert(0) += 5;
//! assert_eq!((stock.remove("milk"), stock.get("tea"), stock.len()), (Some(5), Some(&3), 1));
//! let names = HashSet::from_iter(["tea", "milk", "tea"]);
//! assert_eq!((names.len(), names.contains("milk")), (2, true));
//! let parts: SmallVec<&str, 4> = "a,b".split(',').collect();
//! assert_eq!(&parts[..], ["a", "b"]);
//! ```

mod hash_map;
mod hash_set;
mod small_vec;

pub use hash_map::{Entry, HashMap, OccupiedEntry, VacantEntry};
pub use hash_set::HashSet;
pub use small_vec::SmallVec;
