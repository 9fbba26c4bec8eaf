//! Loading an extension's library.
//!
//! Guarantees: nothing of a file is mapped before [`super::elf::check`] has passed it. The mapped file is sealed memory
//! that nothing can change afterwards. A file name is never reused while its library is loaded (the descriptor stays
//! open as long), so the loader can never answer with an older library. The library is unmapped when the last [`Arc`]
//! of it goes, and each invocation holds one.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use sandstorm_api::abi;
use sandstorm_sandbox::code_map::split_code_map;
use sandstorm_schema::ExtensionSchema;

use super::elf;
use super::library_code::LibraryCode;
use super::load_error::LoadError;
use super::sandbox_module::SandboxModule;
use super::trust::LibraryTrust;
use crate::limits::{FUTURE_MAX_ALIGN_BYTES, FUTURE_MAX_BYTES};

/// A loaded library: its code stays mapped as long as this lives.
#[derive(Debug)]
pub struct ExtensionLibrary {
    vtable: LibraryVtable,
    /// Grows with every library of the process: no two have the same.
    number: u64,
    pub(super) trust: Arc<LibraryTrust>,
    module: Option<SandboxModule>,
    code: LibraryCode,
    schema: OnceLock<LibrarySchema>,
    // Fields drop in this order: the library goes before the descriptor that its file name depends on.
    _library: Option<libloading::os::unix::Library>,
    _file: Option<File>,
}

/// The types of a library's functions, and the same as JSON.
#[derive(Debug)]
struct LibrarySchema {
    schema: Arc<ExtensionSchema>,
    json: String,
}

/// The library's functions and the shape of its future, checked and copied.
#[derive(Clone, Copy, Debug)]
pub struct LibraryVtable {
    /// Bytes of a future.
    pub future_size: usize,
    /// Alignment of a future, bytes.
    pub future_align: usize,
    /// Makes a future and polls it once.
    pub start: unsafe extern "C" fn(*mut u8, *mut abi::InvocationHeader) -> u32,
    /// Polls a future again.
    pub poll: unsafe extern "C" fn(*mut u8, *mut abi::InvocationHeader) -> u32,
}

impl ExtensionLibrary {
    /// Checks, maps and links a library.
    ///
    /// # Errors
    /// See [`LoadError`]; the server and what it has loaded stay as they were.
    pub fn load(file: &[u8], api_fingerprint: u64) -> Result<Arc<ExtensionLibrary>, LoadError> {
        let (file, map) = split_code_map(file);
        let checked = elf::check(file)?;
        let sealed = sealed_copy(file)?;
        let path = format!("/proc/self/fd/{}", sealed.as_raw_fd());
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
        // SAFETY: the checked file runs nothing on being loaded (no init code, no resolvers, no needed libraries).
        let library = unsafe { libloading::os::unix::Library::open(Some(&path), flags) }
            .map_err(|error| LoadError::system("linking it", error))?;
        // SAFETY: the symbol is the vtable that the check found; only its address is taken here.
        let vtable = unsafe { library.get::<*const abi::ExtensionVtable>(abi::EXTENSION_SYMBOL) }
            .map_err(|error| LoadError::system("finding its vtable", error))?
            .into_raw()
            .cast::<abi::ExtensionVtable>()
            .cast_const();
        let (library, base) = base_of(library)?;
        if vtable.addr() as u64 != base.wrapping_add(checked.vtable) {
            return Err(LoadError::Refused("the loader finds its vtable elsewhere than the check did".into()));
        }
        // SAFETY: the check saw a whole vtable at this address, inside the library's data, which is mapped now and
        // readable.
        let vtable = check_vtable(unsafe { &*vtable }, base, &checked.code, api_fingerprint)?;
        Ok(Arc::new(ExtensionLibrary {
            vtable,
            number: next_number(),
            trust: LibraryTrust::of_library(file),
            module: None,
            code: LibraryCode::new(base as usize, checked.code, map),
            schema: OnceLock::new(),
            _library: Some(library),
            _file: Some(sealed),
        }))
    }

    /// Verifies and maps a sandboxed extension's image.
    ///
    /// # Errors
    /// See [`LoadError`]; the server and what it has loaded stay as they were.
    pub fn load_sandboxed(image: &[u8], api_fingerprint: u64) -> Result<Arc<ExtensionLibrary>, LoadError> {
        let (image, map) = split_code_map(image);
        let module = SandboxModule::load(image, api_fingerprint)?;
        let (base, range) = module.code();
        let (start, poll) = module.entries();
        type Entry = unsafe extern "C" fn(*mut u8, *mut abi::InvocationHeader) -> u32;
        // SAFETY: both are addresses of verified code that takes two numbers and returns one. The runtime enters it
        // only with gs at the invocation's memory, and passes addresses of that memory.
        let (start, poll) = unsafe {
            (
                std::mem::transmute::<*const (), Entry>(std::ptr::with_exposed_provenance(start)),
                std::mem::transmute::<*const (), Entry>(std::ptr::with_exposed_provenance(poll)),
            )
        };
        let layout = module.layout();
        let (future_size, future_align) = (layout.future_size as usize, layout.future_align.max(1) as usize);
        let vtable = LibraryVtable { future_size, future_align, start, poll };
        Ok(Arc::new(ExtensionLibrary {
            vtable,
            number: next_number(),
            trust: LibraryTrust::of_library(image),
            module: Some(module),
            code: LibraryCode::new(base, vec![range], map),
            schema: OnceLock::new(),
            _library: None,
            _file: None,
        }))
    }

    /// The library's number in this process, which no other one has or will have.
    #[inline]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Says what types its functions have, which its artifact knows. The first word holds.
    pub fn set_schema(&self, schema: Arc<ExtensionSchema>) {
        self.schema.get_or_init(|| LibrarySchema { json: schema.to_json(), schema });
    }

    /// The types of its functions, if it has typed ones.
    #[inline]
    pub fn schema(&self) -> Option<&Arc<ExtensionSchema>> {
        self.schema.get().map(|known| &known.schema)
    }

    /// The same as JSON.
    pub fn schema_json(&self) -> Option<&str> {
        self.schema.get().map(|known| known.json.as_str())
    }

    /// Where its code is in memory, and what it was made of.
    pub fn code(&self) -> &LibraryCode {
        &self.code
    }

    /// The module of a sandboxed extension; `None`: it is native.
    #[inline]
    pub fn module(&self) -> Option<&SandboxModule> {
        self.module.as_ref()
    }

    /// Functions of this program that stand in for a library's.
    #[cfg(any(test, feature = "testing"))]
    #[inline]
    pub fn of_this_program(vtable: LibraryVtable) -> Arc<ExtensionLibrary> {
        ExtensionLibrary::with_trust(vtable, Arc::default())
    }

    #[cfg(any(test, feature = "testing"))]
    fn with_trust(vtable: LibraryVtable, trust: Arc<LibraryTrust>) -> Arc<ExtensionLibrary> {
        let (number, module, code) = (next_number(), None, LibraryCode::default());
        let schema = OnceLock::new();
        Arc::new(ExtensionLibrary { vtable, number, trust, module, code, schema, _library: None, _file: None })
    }

    /// A library that does nothing when it is called, for tests that do not call it.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_nothing() -> Arc<ExtensionLibrary> {
        ExtensionLibrary::of_this_program(NOTHING)
    }

    /// The same with the trust of a library.
    #[cfg(test)]
    pub(super) fn of_nothing_with_trust(trust: Arc<LibraryTrust>) -> Arc<ExtensionLibrary> {
        ExtensionLibrary::with_trust(NOTHING, trust)
    }

    /// The file in memory.
    #[cfg(any(test, feature = "testing"))]
    #[inline]
    pub fn file(&self) -> Option<&File> {
        self._file.as_ref()
    }

    /// Its functions and the shape of its future.
    #[inline]
    pub fn vtable(&self) -> &LibraryVtable {
        &self.vtable
    }
}

/// The functions of a library that does nothing.
#[cfg(any(test, feature = "testing"))]
const NOTHING: LibraryVtable = {
    unsafe extern "C" fn nothing(_future: *mut u8, _invocation: *mut abi::InvocationHeader) -> u32 {
        0
    }
    LibraryVtable { future_size: 0, future_align: 1, start: nothing, poll: nothing }
};

/// The number of a new library.
fn next_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Returns the file's bytes in memory that can no longer change.
fn sealed_copy(bytes: &[u8]) -> Result<File, LoadError> {
    let name = c"sandstorm-extension";
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a valid name; the kernel knows no MFD_EXEC before 6.3 and says so, then it is not needed.
    let mut descriptor = unsafe { libc::memfd_create(name.as_ptr(), flags | libc::MFD_EXEC) };
    if descriptor < 0 {
        // SAFETY: as above.
        descriptor = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    }
    if descriptor < 0 {
        return Err(LoadError::system("making a file in memory", io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is new and ours.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all(bytes).map_err(|error| LoadError::system("writing the file in memory", error))?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    // SAFETY: fcntl on our own descriptor.
    if unsafe { libc::fcntl(descriptor, libc::F_ADD_SEALS, seals) } != 0 {
        return Err(LoadError::system("sealing the file in memory", io::Error::last_os_error()));
    }
    Ok(file)
}

/// Returns the address at which the loader has mapped a library: the base of its addresses.
fn base_of(library: libloading::os::unix::Library) -> Result<(libloading::os::unix::Library, u64), LoadError> {
    let handle = library.into_raw();
    // SAFETY: the handle was taken out of a library just now.
    let library = unsafe { libloading::os::unix::Library::from_raw(handle) };
    let mut map: *const u64 = std::ptr::null();
    // SAFETY: the library is open, and the request writes one pointer there, to a `link_map`, whose first word is the
    // base.
    let base = unsafe {
        match libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) {
            0 => map.as_ref().copied(),
            _ => None,
        }
    };
    let base = base.ok_or_else(|| LoadError::system("finding it in memory", "the loader does not say where it is"))?;
    Ok((library, base))
}

fn check_vtable(
    vtable: &abi::ExtensionVtable,
    base: u64,
    code: &[std::ops::Range<u64>],
    api_fingerprint: u64,
) -> Result<LibraryVtable, LoadError> {
    if vtable.abi_version != abi::ABI_VERSION {
        return Err(LoadError::OtherAbi { library: vtable.abi_version, server: abi::ABI_VERSION });
    }
    if vtable.api_fingerprint != api_fingerprint {
        return Err(LoadError::OtherApi { library: vtable.api_fingerprint, server: api_fingerprint });
    }
    let functions = [vtable.create as usize, vtable.poll as usize, vtable.drop as usize, vtable.start as usize];
    let inside = |address: &usize| {
        let offset = (*address as u64).wrapping_sub(base);
        code.iter().any(|range| range.contains(&offset))
    };
    if !functions.iter().all(inside) {
        return Err(LoadError::Refused("its vtable points outside its code".into()));
    }
    let (future_size, future_align) = (vtable.future_size, vtable.future_align);
    if future_size > FUTURE_MAX_BYTES || !future_align.is_power_of_two() || future_align > FUTURE_MAX_ALIGN_BYTES {
        return Err(LoadError::Refused(format!(
            "its future takes {future_size} bytes aligned to {future_align}; at most {FUTURE_MAX_BYTES} bytes aligned to \
             {FUTURE_MAX_ALIGN_BYTES} are allowed: box large locals"
        )));
    }
    Ok(LibraryVtable { future_size, future_align, start: vtable.start, poll: vtable.poll })
}
