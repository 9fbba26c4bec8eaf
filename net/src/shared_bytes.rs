//! Bytes with several owners, such as a value that is sent from where it is stored.
//!
//! Guarantees: the bytes of a [`SharedBytes`] stay readable, unchanged and at one place until it is dropped. The caller
//! that makes one promises that its owner keeps them while it is held; each hold is released once.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
#[cfg(feature = "dpdk")]
use std::mem::ManuallyDrop;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// Functions called when the owner of shared bytes is held once more, and when a hold is released. Both run on any
/// thread, and neither panics: a device releases what it has sent in the middle of a burst.
#[derive(Debug)]
pub struct SharedBytesVTable {
    /// Holds once more.
    pub add_ref: unsafe extern "C" fn(owner: *mut c_void),
    /// Releases one hold. After the last one the bytes may be freed.
    pub release: unsafe extern "C" fn(owner: *mut c_void),
}

/// A hold on bytes. Cloning it takes another hold, dropping it releases one; nothing is copied or allocated.
pub struct SharedBytes {
    bytes: NonNull<[u8]>,
    owner: NonNull<c_void>,
    keeper: &'static SharedBytesVTable,
}

// SAFETY: the bytes do not change while they are held. The caller of `new` has promised that both functions of `keeper`
// may be called on any thread.
unsafe impl Send for SharedBytes {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// Makes shared bytes of `bytes`, which take over one hold on their owner.
    ///
    /// # Safety
    /// While a hold on `owner` is left, the bytes are readable and do not change. `keeper` has the functions of this
    /// owner; they may be called from any thread.
    pub unsafe fn new(bytes: NonNull<[u8]>, owner: NonNull<c_void>, keeper: &'static SharedBytesVTable) -> SharedBytes {
        SharedBytes { bytes, owner, keeper }
    }

    /// Makes shared bytes of an owner that is reference-counted already.
    pub fn of<T: AsRef<[u8]> + Send + Sync + 'static>(owner: Arc<T>) -> SharedBytes {
        let bytes = NonNull::from(T::as_ref(&owner));
        // SAFETY: an arc's pointer is never null. The bytes are borrowed from it, and there is no mutable reference to
        // it while a count of it is left, this one's at least.
        unsafe {
            let owner = NonNull::new_unchecked(Arc::into_raw(owner).cast_mut());
            SharedBytes::new(bytes, owner.cast(), ArcOwner::<T>::KEEPER)
        }
    }

    /// Returns whether both hold the same owner.
    #[inline]
    pub fn same_owner(&self, other: &SharedBytes) -> bool {
        self.owner == other.owner
    }

    /// The same hold on only some of the bytes; `None` if these are not all there.
    pub fn into_slice(mut self, range: Range<usize>) -> Option<SharedBytes> {
        self.bytes = NonNull::from(self.get(range)?);
        Some(self)
    }

    /// Takes a hold on bytes that were borrowed from these; `None` if they are others.
    pub fn slice_ref(&self, part: &[u8]) -> Option<SharedBytes> {
        let start = part.as_ptr().addr().checked_sub(self.as_ptr().addr())?;
        let range = start..start.checked_add(part.len())?;
        (range.end <= self.len()).then(|| self.clone().into_slice(range))?
    }

    /// Returns the owner, and the function that releases it, which the caller has to call once.
    #[cfg(feature = "dpdk")]
    pub(crate) fn into_raw(self) -> (NonNull<c_void>, unsafe extern "C" fn(owner: *mut c_void)) {
        let share = ManuallyDrop::new(self);
        (share.owner, share.keeper.release)
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: they are held (the promise of `new`).
        unsafe { self.bytes.as_ref() }
    }
}

impl AsRef<[u8]> for SharedBytes {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Clone for SharedBytes {
    #[inline]
    fn clone(&self) -> SharedBytes {
        // SAFETY: a hold is left: this one.
        unsafe { (self.keeper.add_ref)(self.owner.as_ptr()) };
        SharedBytes { bytes: self.bytes, owner: self.owner, keeper: self.keeper }
    }
}

impl Drop for SharedBytes {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this one's own hold, released once.
        unsafe { (self.keeper.release)(self.owner.as_ptr()) };
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share").field("bytes", &self.len()).finish_non_exhaustive()
    }
}

/// The functions of an owner behind an [`Arc`].
struct ArcOwner<T>(std::marker::PhantomData<T>);

impl<T: Send + Sync + 'static> ArcOwner<T> {
    const KEEPER: &'static SharedBytesVTable =
        &SharedBytesVTable { add_ref: ArcOwner::<T>::add_ref, release: ArcOwner::<T>::release };

    /// # Safety
    /// `owner` is what an arc of this type points to, and a count of it is left.
    unsafe extern "C" fn add_ref(owner: *mut c_void) {
        // SAFETY: the caller's promise.
        unsafe { Arc::increment_strong_count(owner.cast::<T>().cast_const()) };
    }

    /// # Safety
    /// The same; one of the counts is the caller's, which it gives up.
    unsafe extern "C" fn release(owner: *mut c_void) {
        // SAFETY: the caller's promise.
        unsafe { Arc::decrement_strong_count(owner.cast::<T>().cast_const()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_while_one_share_is_left_and_go_with_the_last_on_whatever_thread() {
        let owner = Arc::new(vec![7u8; 1000]);
        let first = SharedBytes::of(Arc::clone(&owner));
        let (second, other) = (first.clone(), SharedBytes::of(Arc::new([7u8; 3])));
        assert!(first.same_owner(&second) && !first.same_owner(&other));
        assert_eq!(Arc::strong_count(&owner), 3);
        drop(first);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let share = second.clone();
                std::thread::spawn(move || assert!(share.len() == 1000 && share.iter().all(|byte| *byte == 7)))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*second, **owner);
        drop(second);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn a_part_holds_what_the_whole_is_held_by_and_other_bytes_are_no_part() {
        let owner = Arc::new((0..100).collect::<Vec<u8>>());
        let whole = SharedBytes::of(Arc::clone(&owner));
        let part = whole.slice_ref(&whole[10..20]).unwrap();
        assert_eq!((&*part, Arc::strong_count(&owner)), (&owner[10..20], 3));
        assert!(part.slice_ref(&whole[9..20]).is_none() && part.slice_ref(&whole[10..21]).is_none());
        assert!(whole.slice_ref(&owner.to_vec()).is_none(), "equal bytes elsewhere");
        assert_eq!(part.slice_ref(&whole[19..20]).as_deref(), Some(&[19][..]));
        drop(whole);
        assert_eq!(*part.into_slice(1..3).unwrap(), [11, 12]);
        assert!(SharedBytes::of(Arc::clone(&owner)).into_slice(99..101).is_none());
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}
