//! A set of keys in their order that also knows positions: how many keys lie before one, and which is the n-th.
//!
//! A B-tree of nodes with 15 to 31 keys each. A node has the number of keys below each of its children, so every search
//! adds up what it passes by; the depth is at most the logarithm to the base of 16. Short keys lie in the nodes. Keys
//! that come in ascending order leave full nodes behind: only there, along the right edge, is a node split at its end.
//!
//! It takes no lock; its owner does.

use std::mem;

use super::key_range::{IndexKey, KeyRange};

/// Keys of a node at most: a node's search compares five, and a shift of all moves about a kilobyte.
const MAX_KEYS: usize = 31;
/// Keys of a node at least, beside those of the right edge and the root.
const MIN_KEYS: usize = MAX_KEYS / 2;
/// Keys by which a node's room grows and shrinks, so that little of it is unused.
const ROOM_KEYS: usize = 8;

/// An ordered set of keys with positions.
#[derive(Default)]
pub(super) struct KeyTree {
    root: KeyNode,
    keys: u64,
}

#[derive(Default)]
struct KeyNode {
    keys: Vec<IndexKey>,
    /// One more than keys; none in a leaf.
    children: Vec<KeySubtree>,
}

struct KeySubtree {
    node: Box<KeyNode>,
    /// Keys of the node and of all below.
    keys: u64,
}

/// What the insertion of a key made of a node.
enum KeyInsertion {
    /// The key was there.
    Present,
    /// It was added.
    Added,
    /// It was added, and the node split: a key, and a node with the keys after it.
    Split(IndexKey, KeySubtree),
}

impl KeyTree {
    /// Returns the number of keys.
    #[cfg(test)]
    pub(super) fn len(&self) -> u64 {
        self.keys
    }

    /// Adds a key; does nothing if it is there.
    pub(super) fn insert(&mut self, key: IndexKey) {
        match self.root.insert(key, true) {
            KeyInsertion::Present => return,
            KeyInsertion::Added => {}
            KeyInsertion::Split(middle, right) => {
                let left = mem::take(&mut self.root);
                let left = KeySubtree { keys: self.keys + 1 - right.keys - 1, node: Box::new(left) };
                self.root = KeyNode { keys: vec![middle], children: vec![left, right] };
            }
        }
        self.keys += 1;
    }

    /// Removes a key and returns it, if it was there.
    pub(super) fn remove(&mut self, key: &[u8]) -> Option<IndexKey> {
        let removed = self.root.remove(key)?;
        self.keys -= 1;
        if self.root.keys.is_empty()
            && let Some(only) = self.root.children.pop()
        {
            self.root = *only.node;
        }
        Some(removed)
    }

    /// Returns the number of keys before one; itself counts with `included`, if it is there.
    pub(super) fn position(&self, key: &[u8], included: bool) -> u64 {
        let (mut node, mut before) = (&self.root, 0);
        loop {
            let (at, is_here) = node.search(key);
            before += at as u64 + node.children.iter().take(at).map(|child| child.keys).sum::<u64>();
            match node.children.get(at) {
                // The keys of the child before it are smaller as well.
                child if is_here => return before + child.map_or(0, |child| child.keys) + u64::from(included),
                Some(child) => node = &child.node,
                None => return before,
            }
        }
    }

    /// Returns the key before which there are `position` others.
    pub(super) fn at(&self, mut position: u64) -> Option<&IndexKey> {
        let mut node = &self.root;
        'down: loop {
            if node.children.is_empty() {
                return node.keys.get(usize::try_from(position).ok()?);
            }
            for (index, child) in node.children.iter().enumerate() {
                if position < child.keys {
                    node = &child.node;
                    continue 'down;
                }
                position -= child.keys;
                if position == 0 {
                    return node.keys.get(index);
                }
                position -= 1;
            }
            return None;
        }
    }

    /// Returns the number of keys of a span.
    pub(super) fn count(&self, span: &KeyRange<'_>) -> u64 {
        if span.is_empty() {
            return 0;
        }
        let end = span.to.map_or(self.keys, |to| self.position(to, span.included));
        end.saturating_sub(self.position(span.from, span.past))
    }

    /// Shows the keys from the beginning of a span on, in its order, beyond its end too, until `show` returns `false`.
    pub(super) fn walk<'t>(&'t self, span: &KeyRange<'_>, show: &mut dyn FnMut(&'t IndexKey) -> bool) {
        if span.backward {
            self.root.descend(span.to.map(|to| (to, span.included)), show);
        } else {
            self.root.ascend(Some((span.from, !span.past)), show);
        }
    }

    /// Takes the tree apart.
    pub(super) fn into_parts(self) -> TreeParts {
        TreeParts { nodes: vec![self.root] }
    }
}

/// The nodes of a tree that is being freed.
pub(super) struct TreeParts {
    nodes: Vec<KeyNode>,
}

impl TreeParts {
    /// Frees so many keys, or all; returns their number.
    pub(super) fn free_some(&mut self, keys: usize) -> usize {
        let mut freed = 0;
        while freed < keys
            && let Some(mut node) = self.nodes.pop()
        {
            self.nodes.extend(node.children.drain(..).map(|child| *child.node));
            let taken = node.keys.len().min(keys - freed);
            node.keys.truncate(node.keys.len() - taken);
            freed += taken;
            if !node.keys.is_empty() {
                self.nodes.push(node);
            }
        }
        freed
    }
}

impl KeyNode {
    /// Returns the number of keys of the node that are smaller, and whether the next one is this.
    fn search(&self, key: &[u8]) -> (usize, bool) {
        match self.keys.binary_search_by(|own| own.as_slice().cmp(key)) {
            Ok(at) => (at, true),
            Err(at) => (at, false),
        }
    }

    /// `at_edge`: no key of the tree is larger than all of this node's.
    fn insert(&mut self, key: IndexKey, at_edge: bool) -> KeyInsertion {
        let (at, is_here) = self.search(&key);
        if is_here {
            return KeyInsertion::Present;
        }
        let at_end = at_edge && at == self.keys.len();
        match self.children.get_mut(at) {
            None => self.put(at, key),
            Some(child) => match child.node.insert(key, at_end) {
                KeyInsertion::Present => return KeyInsertion::Present,
                KeyInsertion::Added => {
                    child.keys += 1;
                    return KeyInsertion::Added;
                }
                KeyInsertion::Split(middle, right) => {
                    child.keys -= right.keys;
                    self.put(at, middle);
                    self.children.insert(at + 1, right);
                }
            },
        }
        if self.keys.len() <= MAX_KEYS {
            return KeyInsertion::Added;
        }
        let middle = if at_end { self.keys.len() - 2 } else { self.keys.len() / 2 };
        let (middle, right) = self.split(middle);
        KeyInsertion::Split(middle, right)
    }

    fn put(&mut self, at: usize, key: IndexKey) {
        if self.keys.len() == self.keys.capacity() {
            self.keys.reserve_exact(ROOM_KEYS);
        }
        self.keys.insert(at, key);
    }

    /// Takes a key out and everything after it.
    fn split(&mut self, middle: usize) -> (IndexKey, KeySubtree) {
        let keys = self.keys.split_off(middle + 1);
        let children = if self.children.is_empty() { Vec::new() } else { self.children.split_off(middle + 1) };
        let right = KeyNode { keys, children };
        let middle = self.keys.pop().unwrap_or_default();
        self.trim();
        (middle, right.into())
    }

    /// Gives back room that the node will not need soon.
    fn trim(&mut self) {
        if self.keys.capacity() - self.keys.len() > ROOM_KEYS {
            self.keys.shrink_to(self.keys.len() + ROOM_KEYS / 2);
        }
        if self.children.capacity() - self.children.len() > 2 * ROOM_KEYS {
            self.children.shrink_to(self.children.len() + ROOM_KEYS);
        }
    }

    fn remove(&mut self, key: &[u8]) -> Option<IndexKey> {
        let (at, is_here) = self.search(key);
        let Some(child) = self.children.get_mut(at) else {
            let removed = is_here.then(|| self.keys.remove(at));
            self.trim();
            return removed;
        };
        let removed = if is_here {
            // The largest key below takes its place.
            let before = child.node.remove_last()?;
            mem::replace(self.keys.get_mut(at)?, before)
        } else {
            child.node.remove(key)?
        };
        child.keys -= 1;
        self.refill(at);
        Some(removed)
    }

    fn remove_last(&mut self) -> Option<IndexKey> {
        let Some(child) = self.children.last_mut() else {
            let last = self.keys.pop();
            self.trim();
            return last;
        };
        let last = child.node.remove_last()?;
        child.keys -= 1;
        self.refill(self.children.len() - 1);
        Some(last)
    }

    /// Gives a child that has too few keys one of a neighbour's, or joins the two.
    fn refill(&mut self, at: usize) {
        let keys_of = |child: Option<&KeySubtree>| child.map_or(0, |child| child.node.keys.len());
        if keys_of(self.children.get(at)) >= MIN_KEYS {
            return;
        }
        let before = at.checked_sub(1).map_or(0, |before| keys_of(self.children.get(before)));
        let after = keys_of(self.children.get(at + 1));
        if before > MIN_KEYS {
            self.move_right(at - 1);
        } else if after > MIN_KEYS {
            self.move_left(at);
        } else {
            self.join(if at == 0 { 0 } else { at - 1 });
        }
    }

    /// Moves a key from the child before `at` by way of this node to the one after it.
    fn move_right(&mut self, at: usize) {
        let [left, right] = &mut self.children[at..at + 2] else { return };
        let Some(key) = left.node.keys.pop() else { return };
        right.node.put(0, mem::replace(&mut self.keys[at], key));
        let moved = left.node.children.pop();
        let keys = 1 + moved.as_ref().map_or(0, |child| child.keys);
        left.keys -= keys;
        right.keys += keys;
        moved.into_iter().for_each(|child| right.node.children.insert(0, child));
        left.node.trim();
    }

    /// Moves a key from the child after `at` by way of this node to the one before it.
    fn move_left(&mut self, at: usize) {
        let [left, right] = &mut self.children[at..at + 2] else { return };
        let key = right.node.keys.remove(0);
        left.node.put(left.node.keys.len(), mem::replace(&mut self.keys[at], key));
        let moved = (!right.node.children.is_empty()).then(|| right.node.children.remove(0));
        let keys = 1 + moved.as_ref().map_or(0, |child| child.keys);
        left.keys += keys;
        right.keys -= keys;
        left.node.children.extend(moved);
        right.node.trim();
    }

    /// Makes one of two neighbours and of the key between them.
    fn join(&mut self, at: usize) {
        if at + 1 >= self.children.len() {
            return;
        }
        let (key, right) = (self.keys.remove(at), self.children.remove(at + 1));
        let left = &mut self.children[at];
        left.keys += right.keys + 1;
        let (keys, children) = (right.node.keys, right.node.children);
        left.node.keys.reserve_exact(keys.len() + 1);
        left.node.keys.push(key);
        left.node.keys.extend(keys);
        left.node.children.extend(children);
        self.trim();
    }

    /// Shows the keys from `from` on, itself if the second part says so, in their order; returns whether it saw them
    /// all.
    fn ascend<'t>(&'t self, from: Option<(&[u8], bool)>, show: &mut dyn FnMut(&'t IndexKey) -> bool) -> bool {
        let (at, is_here) = from.map_or((0, false), |(from, _)| self.search(from));
        if !is_here && !self.children.get(at).is_none_or(|child| child.node.ascend(from, show)) {
            return false;
        }
        let skipped = is_here && !from.is_some_and(|(_, included)| included);
        for (index, key) in self.keys.iter().enumerate().skip(at) {
            if !(skipped && index == at || show(key)) {
                return false;
            }
            if !self.children.get(index + 1).is_none_or(|child| child.node.ascend(None, show)) {
                return false;
            }
        }
        true
    }

    /// As [`KeyNode::ascend`], from the largest key on down.
    fn descend<'t>(&'t self, to: Option<(&[u8], bool)>, show: &mut dyn FnMut(&'t IndexKey) -> bool) -> bool {
        let (at, is_here) = to.map_or((self.keys.len(), false), |(to, _)| self.search(to));
        if is_here && to.is_some_and(|(_, included)| included) && !self.keys.get(at).is_none_or(&mut *show) {
            return false;
        }
        let below = if is_here { None } else { to };
        if !self.children.get(at).is_none_or(|child| child.node.descend(below, show)) {
            return false;
        }
        for index in (0..at).rev() {
            if !self.keys.get(index).is_none_or(&mut *show)
                || !self.children.get(index).is_none_or(|child| child.node.descend(None, show))
            {
                return false;
            }
        }
        true
    }
}

impl From<KeyNode> for KeySubtree {
    fn from(node: KeyNode) -> KeySubtree {
        let keys = node.keys.len() as u64 + node.children.iter().map(|child| child.keys).sum::<u64>();
        KeySubtree { node: Box::new(node), keys }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, Bound};

    use super::*;

    /// Checks order, counts, depth and fill of a node and all below; returns the number of keys and the depth.
    fn check(node: &KeyNode, at_edge: bool, is_root: bool) -> (u64, usize) {
        assert!(node.keys.len() <= MAX_KEYS && node.keys.is_sorted_by(|a, b| a < b));
        assert!(is_root || at_edge || node.keys.len() >= MIN_KEYS, "{} keys", node.keys.len());
        assert!(is_root || !node.keys.is_empty());
        assert!(node.keys.capacity() <= node.keys.len() + ROOM_KEYS, "{} of {}", node.keys.len(), node.keys.capacity());
        let (mut keys, mut depth) = (node.keys.len() as u64, 0);
        if node.children.is_empty() {
            return (keys, depth);
        }
        assert_eq!(node.children.len(), node.keys.len() + 1);
        for (index, child) in node.children.iter().enumerate() {
            let is_last = index == node.keys.len();
            let (below, levels) = check(&child.node, at_edge && is_last, false);
            assert_eq!(below, child.keys);
            assert!(index == 0 || levels + 1 == depth, "all leaves are at one depth");
            assert!(is_last || child.node.keys.last() < node.keys.get(index));
            assert!(index == 0 || child.node.keys.first() > node.keys.get(index - 1));
            (keys, depth) = (keys + below, levels + 1);
        }
        (keys, depth)
    }

    fn key(number: u64) -> IndexKey {
        let mut key = IndexKey::from_slice(&number.to_be_bytes());
        key.extend_from_slice(&b"x".repeat(number as usize % 40));
        key
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % end
        }
    }

    /// The model: a set of the standard library, whose positions are counted.
    #[derive(Default)]
    struct Model {
        tree: KeyTree,
        set: BTreeSet<Vec<u8>>,
    }

    impl Model {
        fn step(&mut self, random: &mut Random, keys: u64, removals: u64) {
            let key = key(random.below(keys));
            if random.below(100) < removals {
                let removed = self.tree.remove(&key);
                assert_eq!(removed.as_deref(), self.set.take(key.as_slice()).as_deref());
            } else {
                self.set.insert(key.to_vec());
                self.tree.insert(key);
            }
        }

        fn compare(&self, random: &mut Random, keys: u64) {
            assert_eq!(check(&self.tree.root, true, true).0, self.tree.len());
            assert_eq!(self.tree.len(), self.set.len() as u64);
            for _ in 0..20 {
                let (one, other) = (key(random.below(keys)), key(random.below(keys)));
                let (past, included, backward) = (random.below(2) == 1, random.below(2) == 1, random.below(2) == 1);
                let to = (random.below(4) != 0).then_some(other.as_slice());
                let span = KeyRange { from: &one, past, to, included, backward };
                let expected: Vec<&Vec<u8>> = self.expected(&span).collect();
                assert_eq!(self.tree.count(&span), expected.len() as u64, "{span:?}");
                let at = self.tree.position(&one, false);
                let before = self.set.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(one.as_slice()))).count();
                assert_eq!(at, before as u64);
                assert_eq!(self.tree.at(at).map(|key| key.to_vec()).as_ref(), self.set.iter().nth(before));
                let mut shown = Vec::new();
                self.tree.walk(&span, &mut |key| {
                    shown.push(key.to_vec());
                    shown.len() < expected.len()
                });
                if !expected.is_empty() {
                    let in_order: Vec<&Vec<u8>> =
                        if backward { expected.into_iter().rev().collect() } else { expected };
                    assert_eq!(shown.iter().collect::<Vec<_>>(), in_order, "{span:?}");
                }
            }
            assert_eq!(self.tree.at(self.tree.len()), None);
        }

        fn expected<'m>(&'m self, span: &'m KeyRange<'_>) -> impl Iterator<Item = &'m Vec<u8>> {
            self.set.iter().filter(|key| {
                let key = key.as_slice();
                (key > span.from || !span.past && key == span.from)
                    && span.to.is_none_or(|to| key < to || span.included && key == to)
            })
        }
    }

    #[test]
    fn it_is_a_sorted_set_that_knows_positions() {
        let (rounds, steps) = if cfg!(miri) { (4, 60) } else { (200, 500) };
        let mut random = Random(1);
        for keys in [40, 4_000] {
            let mut model = Model::default();
            for round in 0..rounds {
                // It grows, shrinks to nearly nothing, and grows again.
                let removals = [10, 50, 90, 100, 30][round / 8 % 5];
                for _ in 0..steps {
                    model.step(&mut random, keys, removals);
                }
                model.compare(&mut random, keys);
            }
        }
    }

    #[test]
    fn keys_that_come_in_order_fill_the_nodes_and_leave_in_any() {
        let keys = if cfg!(miri) { 300 } else { 20_000 };
        let (mut model, mut random) = (Model::default(), Random(2));
        for number in 0..keys {
            model.set.insert(key(number).to_vec());
            model.tree.insert(key(number));
        }
        model.compare(&mut random, keys);
        let mut nodes = 0;
        fn count(node: &KeyNode, nodes: &mut u64) {
            *nodes += 1;
            node.children.iter().for_each(|child| count(&child.node, nodes));
        }
        count(&model.tree.root, &mut nodes);
        assert!(nodes * 28 <= keys + 28 * 8, "{nodes} nodes for {keys} keys");
        for number in (0..keys).map(|number| number * 7 % keys) {
            assert_eq!(model.tree.remove(&key(number)).is_some(), model.set.remove(key(number).as_slice()));
            if number % 97 == 0 {
                check(&model.tree.root, true, true);
            }
        }
        model.compare(&mut random, keys);
    }

    #[test]
    fn its_parts_are_freed_a_few_at_a_time() {
        let mut tree = KeyTree::default();
        (0..1_000).for_each(|number| tree.insert(key(number)));
        let mut parts = tree.into_parts();
        let mut left = 1_000;
        while left > 0 {
            let freed = parts.free_some(7);
            assert_eq!(freed, left.min(7));
            left -= freed;
        }
        assert_eq!(parts.free_some(7), 0);
    }
}
