//! Runs rows through a decision tree that is stored in a record, and counts the classes that they end in.
//!
//! - the tree record's value: nodes of 16 bytes, the root first:
//!   `feature u16 | left u16 | right u16 | class u16 | threshold i64`. A row goes left where its number at `feature` is
//!   at most `threshold`, else right; children stand behind their parent. A node with the feature 65535 is a leaf: it
//!   gives the row its class
//! - a row: a record whose value is numbers, i64 each. A row whose length is no multiple of 8, or that has no number at
//!   a feature that its path asks for, is skipped and counted
//! - args: `table u64 | rows table u64 | tree_len u16 | tree key | list key` (integers little-endian; the list key is
//!   the rest). Tree and list stand in the first table. Without a list key all records of the rows table are rows, else
//!   those that the list record names: `len u16 | key`, repeated; a listed row that is not there is skipped and counted
//! - reply: `classified u64 | skipped u64`, then `class u16 | count u64` for each class met, classes ascending
//! - errors: `NotFound` without the tree or list record, `Invalid` when they are not what is said above
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const FORMAT: &str = "args: table u64, rows table u64, tree_len u16, tree key, list key (the rest; empty: all rows)";
const TREE_FORMAT: &str = "the tree record's value must be 1 to 65535 nodes of feature u16, left u16, right u16, \
     class u16, threshold i64, children behind their parents";
const LIST_FORMAT: &str = "the list record's value must be len u16, key, repeated";
const LEAF: u16 = u16::MAX;
const NODE_LEN: usize = 16;
/// Rows read and classified between two yields.
const ROWS_PER_SLICE: usize = 64;

#[derive(Clone, Copy, Debug)]
struct TreeNode {
    feature: u16,
    left: u16,
    right: u16,
    class: u16,
    threshold: i64,
}

#[derive(Default)]
struct ClassCounts {
    classified: u64,
    skipped: u64,
    classes: BTreeMap<u16, u64>,
}

/// Classifies the rows and replies with the counts.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, rows, tree_key, list_key) = parse_args(args).ok_or(Error::invalid(FORMAT))?;
    let tree = db.get(table, tree_key).await?.ok_or(Error::not_found("no tree record under the key"))?;
    let tree = parse_tree(tree.value()).ok_or(Error::invalid(TREE_FORMAT))?;
    let mut counts = ClassCounts::default();
    if list_key.is_empty() {
        scan_rows(db, rows, &tree, &mut counts).await?;
    } else {
        let list = db.get(table, list_key).await?.ok_or(Error::not_found("no list record under the key"))?;
        let keys = parse_key_list(list.value()).ok_or(Error::invalid(LIST_FORMAT))?;
        for batch in keys.chunks(ROWS_PER_SLICE) {
            for row in db.get_many(rows, batch).await? {
                count_row(&mut counts, row.and_then(|row| classify(&tree, row.value())));
            }
            yield_now().await;
        }
    }
    reply(db, &counts)
}

async fn scan_rows(db: Db<'_>, rows: TableId, tree: &[TreeNode], counts: &mut ClassCounts) -> Result<(), Error> {
    let mut next = Some(Default::default());
    while let Some(cursor) = next {
        let page = db.scan(rows, cursor, ROWS_PER_SLICE)?;
        for row in &page.records {
            count_row(counts, classify(tree, row.value()));
        }
        next = page.next;
        yield_now().await;
    }
    Ok(())
}

fn count_row(counts: &mut ClassCounts, class: Option<u16>) {
    match class {
        Some(class) => {
            counts.classified += 1;
            *counts.classes.entry(class).or_default() += 1;
        }
        None => counts.skipped += 1,
    }
}

/// The class of the leaf that the row ends in; `None` for a row that the tree cannot judge.
fn classify(tree: &[TreeNode], row: &[u8]) -> Option<u16> {
    let (numbers, odd) = row.as_chunks::<8>();
    if !odd.is_empty() {
        return None;
    }
    let mut node = tree.first()?;
    while node.feature != LEAF {
        let number = i64::from_le_bytes(*numbers.get(usize::from(node.feature))?);
        let child = if number <= node.threshold { node.left } else { node.right };
        node = tree.get(usize::from(child))?;
    }
    Some(node.class)
}

/// Children stand behind their parents, so a walk of the tree ends.
fn parse_tree(bytes: &[u8]) -> Option<Vec<TreeNode>> {
    let (nodes, odd) = bytes.as_chunks::<NODE_LEN>();
    if !odd.is_empty() || nodes.is_empty() || nodes.len() > usize::from(u16::MAX) {
        return None;
    }
    let tree: Vec<TreeNode> = nodes.iter().map(parse_node).collect();
    let is_child = |parent: usize, child: u16| (parent + 1..tree.len()).contains(&usize::from(child));
    let sound =
        |(at, node): (usize, &TreeNode)| node.feature == LEAF || is_child(at, node.left) && is_child(at, node.right);
    tree.iter().enumerate().all(sound).then_some(tree)
}

fn parse_node(bytes: &[u8; NODE_LEN]) -> TreeNode {
    let [f0, f1, l0, l1, r0, r1, c0, c1, threshold @ ..] = *bytes;
    TreeNode {
        feature: u16::from_le_bytes([f0, f1]),
        left: u16::from_le_bytes([l0, l1]),
        right: u16::from_le_bytes([r0, r1]),
        class: u16::from_le_bytes([c0, c1]),
        threshold: i64::from_le_bytes(threshold),
    }
}

fn reply(db: Db<'_>, counts: &ClassCounts) -> Result<(), Error> {
    db.reply(&counts.classified.to_le_bytes())?;
    db.reply(&counts.skipped.to_le_bytes())?;
    for (class, count) in &counts.classes {
        db.reply(&class.to_le_bytes())?;
        db.reply(&count.to_le_bytes())?;
    }
    Ok(())
}

fn parse_key_list(mut list: &[u8]) -> Option<Vec<&[u8]>> {
    let mut keys = Vec::new();
    while !list.is_empty() {
        let (len, rest) = list.split_first_chunk::<2>()?;
        let (key, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        keys.push(key);
        list = rest;
    }
    Some(keys)
}

fn parse_args(args: &[u8]) -> Option<(TableId, TableId, &[u8], &[u8])> {
    let (table, rest) = args.split_first_chunk::<8>()?;
    let (rows, rest) = rest.split_first_chunk::<8>()?;
    let (tree_len, rest) = rest.split_first_chunk::<2>()?;
    let (tree_key, list_key) = rest.split_at_checked(usize::from(u16::from_le_bytes(*tree_len)))?;
    Some((TableId(u64::from_le_bytes(*table)), TableId(u64::from_le_bytes(*rows)), tree_key, list_key))
}

#[cfg(test)]
mod tests {
    use sandstorm_api::testing::TestStore;

    use super::*;

    fn node(feature: u16, left: u16, right: u16, class: u16, threshold: i64) -> Vec<u8> {
        let small: Vec<u8> = [feature, left, right, class].iter().flat_map(|number| number.to_le_bytes()).collect();
        [small, threshold.to_le_bytes().to_vec()].concat()
    }

    /// Class 7 where the first number is at most 10; else 8 or 9 by whether the second is negative.
    fn tree() -> Vec<u8> {
        let nodes = [node(0, 1, 2, 0, 10), node(LEAF, 0, 0, 7, 0), node(1, 3, 4, 0, -1)];
        [nodes.concat(), node(LEAF, 0, 0, 8, 0), node(LEAF, 0, 0, 9, 0)].concat()
    }

    fn row(numbers: &[i64]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn args(table: TableId, rows: TableId, tree: &[u8], list: &[u8]) -> Vec<u8> {
        [&table.0.to_le_bytes()[..], &rows.0.to_le_bytes(), &(tree.len() as u16).to_le_bytes(), tree, list].concat()
    }

    fn reply(skipped: u64, classes: &[(u16, u64)]) -> Result<Vec<u8>, Error> {
        let classified: u64 = classes.iter().map(|class| class.1).sum();
        let mut reply = [classified.to_le_bytes(), skipped.to_le_bytes()].concat();
        for (class, count) in classes {
            reply.extend_from_slice(&class.to_le_bytes());
            reply.extend_from_slice(&count.to_le_bytes());
        }
        Ok(reply)
    }

    fn store() -> (TestStore, TableId, TableId) {
        let mut store = TestStore::new();
        let (table, rows) = (store.table("models"), store.table("rows"));
        store.put(table, b"tree", &tree());
        (store, table, rows)
    }

    #[test]
    fn scanned_rows_end_in_the_classes_that_a_model_expects() {
        let (mut store, table, rows) = store();
        let mut expected = BTreeMap::new();
        for number in 0..500i64 {
            let (first, second) = (number % 23, number % 7 - 3);
            store.put(rows, &number.to_le_bytes(), &row(&[first, second, 99]));
            let class = if first <= 10 {
                7
            } else if second < 0 {
                8
            } else {
                9
            };
            *expected.entry(class).or_insert(0) += 1;
        }
        store.put(rows, b"odd", b"123");
        store.put(rows, b"too short for its path", &row(&[11]));
        store.put(rows, b"long enough for its path", &row(&[10]));
        *expected.entry(7).or_insert(0) += 1;
        let expected: Vec<(u16, u64)> = expected.into_iter().collect();
        assert_eq!(store.invoke(run, &args(table, rows, b"tree", b"")), reply(2, &expected));
        assert!(store.polls() > 500 / ROWS_PER_SLICE as u64);
    }

    #[test]
    fn listed_rows_and_missing_ones() {
        let (mut store, table, rows) = store();
        store.put(rows, b"a", &row(&[1]));
        store.put(rows, b"b", &row(&[11, 0]));
        store.put(table, b"l", b"\x01\x00a\x01\x00b\x01\x00-\x01\x00a");
        assert_eq!(store.invoke(run, &args(table, rows, b"tree", b"l")), reply(1, &[(7, 2), (9, 1)]));
        assert_eq!(store.invoke(run, &args(table, rows, b"tree", b"-")).unwrap_err().kind(), ErrorKind::NotFound);
        store.put(table, b"l", b"\x02\x00a");
        assert_eq!(store.invoke(run, &args(table, rows, b"tree", b"l")), Err(Error::invalid(LIST_FORMAT)));
    }

    #[test]
    fn a_tree_that_could_not_be_walked_is_refused() {
        let (mut store, table, rows) = store();
        assert_eq!(store.invoke(run, &args(table, rows, b"-", b"")).unwrap_err().kind(), ErrorKind::NotFound);
        let leaf = node(LEAF, 0, 0, 1, 0);
        let itself = [node(0, 0, 1, 0, 0), leaf.clone()].concat();
        let backwards = [node(0, 1, 2, 0, 0), node(0, 2, 0, 0, 0), leaf.clone()].concat();
        let outside = [node(0, 1, 2, 0, 0), leaf.clone()].concat();
        for broken in [Vec::new(), leaf[..15].to_vec(), [leaf, vec![0]].concat(), itself, backwards, outside] {
            store.put(table, b"tree", &broken);
            assert_eq!(store.invoke(run, &args(table, rows, b"tree", b"")), Err(Error::invalid(TREE_FORMAT)));
        }
        let whole = args(table, rows, b"tree", b"");
        for short in 0..whole.len() {
            assert_eq!(store.invoke(run, &whole[..short]), Err(Error::invalid(FORMAT)));
        }
    }
}
