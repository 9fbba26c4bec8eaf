//! The slot map of a worker: values in slots that are used again, and ids that outlive them.
//!
//! An id leaves with a task or goes to another worker, and may come back when its slot has another value. So each slot
//! has a generation, which the id repeats: a late id finds nothing.

use std::fmt;
use std::marker::PhantomData;

/// Names a slot's value: the slot, and its generation. `K` keeps ids of different maps apart.
pub(in crate::workers) struct SlotId<K> {
    slot: u32,
    generation: u32,
    kind: PhantomData<fn(K)>,
}

impl<K> SlotId<K> {
    pub(in crate::workers) const fn new(slot: u32, generation: u32) -> SlotId<K> {
        SlotId { slot, generation, kind: PhantomData }
    }

    /// The id in one word. Its highest bit is free in all that a map gives out.
    #[inline]
    pub(in crate::workers) fn word(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The inverse of [`SlotId::word`].
    #[inline]
    pub(in crate::workers) fn from_u64(word: u64) -> SlotId<K> {
        SlotId::new(word as u32, (word >> 32) as u32)
    }

    #[cfg(test)]
    pub(in crate::workers) fn slot(self) -> u32 {
        self.slot
    }
}

impl<K> Clone for SlotId<K> {
    #[inline]
    fn clone(&self) -> SlotId<K> {
        *self
    }
}

impl<K> Copy for SlotId<K> {}

impl<K> PartialEq for SlotId<K> {
    #[inline]
    fn eq(&self, other: &SlotId<K>) -> bool {
        (self.slot, self.generation) == (other.slot, other.generation)
    }
}

impl<K> Eq for SlotId<K> {}

impl<K> fmt::Debug for SlotId<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

struct Slot<T> {
    /// Grows whenever a value leaves; its highest bit stays 0.
    generation: u32,
    value: T,
}

/// Values by ids. The content of a closed slot, with its buffers, stays for its next value.
pub(in crate::workers) struct GenerationalSlab<T, K> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    kind: PhantomData<fn(K)>,
}

impl<T, K> Default for GenerationalSlab<T, K> {
    fn default() -> GenerationalSlab<T, K> {
        GenerationalSlab { slots: Vec::new(), free: Vec::new(), kind: PhantomData }
    }
}

impl<T: Default, K> GenerationalSlab<T, K> {
    /// Opens a slot: a closed one with its old content, or a new one.
    #[inline]
    pub(in crate::workers) fn open(&mut self) -> (SlotId<K>, &mut T) {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: T::default() });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[at as usize];
        (SlotId::new(at, slot.generation), &mut slot.value)
    }
}

impl<T, K> GenerationalSlab<T, K> {
    /// The value of that id, if it is still there.
    #[inline]
    pub(in crate::workers) fn get_mut(&mut self, id: SlotId<K>) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation == id.generation { Some(&mut slot.value) } else { None }
    }

    /// Closes the slot of that id, which finds nothing from now on. Returns whether it was open.
    #[inline]
    pub(in crate::workers) fn close(&mut self, id: SlotId<K>) -> bool {
        let Some(slot) = self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation) else {
            return false;
        };
        slot.generation = slot.generation.wrapping_add(1) & (u32::MAX >> 1);
        self.free.push(id.slot);
        true
    }

    /// All slots, the closed ones as well, with the ids that they have or will have next.
    pub(in crate::workers) fn iter(&self) -> impl Iterator<Item = (SlotId<K>, &T)> {
        self.slots.iter().enumerate().map(|(at, slot)| (SlotId::new(at as u32, slot.generation), &slot.value))
    }

    /// Slots that are open.
    #[inline]
    pub(in crate::workers) fn live(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// An id finds its own value from when it is opened until it is closed, and nothing before or after.
        #[test]
        fn an_id_finds_its_own_value_and_no_other(steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..300)) {
            let mut map = GenerationalSlab::<usize, ()>::default();
            let (mut ids, mut open) = (Vec::<SlotId<()>>::new(), HashMap::new());
            for (number, (opens, which)) in steps.into_iter().enumerate() {
                if opens || ids.is_empty() {
                    let (id, value) = map.open();
                    *value = number;
                    prop_assert!(!ids.contains(&id), "an id never comes again");
                    open.insert(id.word(), number);
                    ids.push(id);
                } else {
                    let id = ids[which.index(ids.len())];
                    prop_assert_eq!(map.close(id), open.remove(&id.word()).is_some());
                }
                for id in &ids {
                    prop_assert_eq!(map.get_mut(*id).map(|value| *value), open.get(&id.word()).copied());
                    prop_assert_eq!((SlotId::from_u64(id.word()), id.word() >> 63), (*id, 0));
                }
                prop_assert_eq!(map.live(), open.len());
                prop_assert!(map.slots.len() <= ids.len().min(number + 1));
            }
        }
    }

    #[test]
    fn what_a_closed_slot_holds_is_there_for_the_next() {
        let mut map = GenerationalSlab::<Vec<u8>, ()>::default();
        let (first, buffer) = map.open();
        buffer.reserve(1000);
        assert!(map.close(first) && !map.close(first) && map.get_mut(first).is_none());
        let (second, buffer) = map.open();
        assert!(buffer.capacity() >= 1000 && second != first && second.slot() == first.slot());
        assert_eq!(map.iter().map(|(id, _)| id).collect::<Vec<_>>(), [second]);
    }

    #[test]
    fn the_last_generation_is_followed_by_the_first() {
        let mut map = GenerationalSlab::<(), ()>::default();
        map.open();
        map.slots[0].generation = u32::MAX >> 1;
        let last = SlotId::new(0, u32::MAX >> 1);
        assert!(last.word() >> 63 == 0 && map.close(last));
        assert_eq!(map.open().0, SlotId::new(0, 0));
    }
}
