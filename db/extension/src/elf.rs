//! The checks on a library's file before any of it is mapped: loading it must neither run code nor reach outside it.
//! The walk follows what the dynamic loader itself reads (program headers, dynamic table), never the sections.

use object::LittleEndian as LE;
use object::elf;
use object::pod;
use object::read::elf::{FileHeader, ProgramHeader};
use sandstorm_api::abi;

use super::load_error::LoadError;
use crate::limits::{LIBRARY_MAX_BYTES, LIBRARY_MAX_MAPPED_BYTES};

/// Functions that the compiler may call by itself and that libc provides: the only ones a library may import.
const IMPORTS: [&[u8]; 6] = [b"memcpy", b"memmove", b"memset", b"memcmp", b"bcmp", b"strlen"];

/// The facts that the loader needs about a file that passed.
pub(crate) struct CheckedLibrary {
    /// Address of the vtable relative to where the library is mapped.
    pub(crate) vtable: u64,
    /// Code, as ranges of addresses relative to where the library is mapped.
    pub(crate) code: Vec<std::ops::Range<u64>>,
}

fn refused<T>(reason: impl Into<String>) -> Result<T, LoadError> {
    Err(LoadError::Refused(reason.into()))
}

fn malformed(_: impl std::fmt::Debug) -> LoadError {
    LoadError::Malformed("its headers or tables reach outside the file".into())
}

/// Checks a library's file.
///
/// # Errors
/// `TooLarge`, `Malformed` and `Refused`, each with what was found.
pub(crate) fn check(file: &[u8]) -> Result<CheckedLibrary, LoadError> {
    if file.len() > LIBRARY_MAX_BYTES {
        return Err(LoadError::TooLarge { bytes: file.len(), limit: LIBRARY_MAX_BYTES });
    }
    let header = elf::FileHeader64::<LE>::parse(file)
        .map_err(|_| LoadError::Malformed("not a 64-bit little-endian ELF file".into()))?;
    if !header.is_little_endian() || header.e_machine(LE) != elf::EM_X86_64 || header.e_type(LE) != elf::ET_DYN {
        return Err(LoadError::Malformed("not a shared library for x86_64".into()));
    }
    let headers = header.program_headers(LE, file).map_err(malformed)?;
    let image = ElfImage::new(file, headers)?;
    let dynamic = DynamicTable::read(&image)?;
    check_relocations(&image, &dynamic)?;
    let vtable = find_vtable(&image, &dynamic)?;
    check_gnu_hash(&image, &dynamic)?;
    let code = image.loads.iter().filter(|load| load.executable).map(|load| load.start..load.end).collect();
    Ok(CheckedLibrary { vtable, code })
}

/// Bytes of a page: the smallest unit that the loader maps and protects.
const PAGE: u64 = 0x1000;

/// The page that an address lies in.
fn page(address: u64) -> u64 {
    address & !(PAGE - 1)
}

struct LoadSegment<'a> {
    start: u64,
    end: u64,
    writable: bool,
    executable: bool,
    bytes: &'a [u8],
}

struct ElfImage<'a> {
    loads: Vec<LoadSegment<'a>>,
    dynamic: u64,
    dynamic_size: u64,
}

impl<'a> ElfImage<'a> {
    fn new(file: &'a [u8], headers: &'a [elf::ProgramHeader64<LE>]) -> Result<ElfImage<'a>, LoadError> {
        let mut image = ElfImage { loads: Vec::new(), dynamic: 0, dynamic_size: 0 };
        let (mut dynamics, mut relro) = (0, Vec::new());
        for header in headers {
            match header.p_type(LE) {
                elf::PT_LOAD => image.add_load(file, header)?,
                elf::PT_DYNAMIC => {
                    dynamics += 1;
                    image.dynamic = header.p_vaddr(LE);
                    image.dynamic_size = header.p_memsz(LE);
                }
                elf::PT_TLS => return refused("it has thread-local storage (PT_TLS)"),
                elf::PT_INTERP => return refused("it asks for an interpreter (PT_INTERP)"),
                elf::PT_GNU_STACK if header.p_flags(LE).0 & elf::PF_X.0 != 0 => {
                    return refused("it asks for an executable stack");
                }
                elf::PT_GNU_RELRO => relro.push((header.p_vaddr(LE), header.p_memsz(LE))),
                elf::PT_GNU_STACK | elf::PT_GNU_EH_FRAME | elf::PT_PHDR | elf::PT_NOTE => {}
                other => return refused(format!("it has a program header of an unknown type {:#x}", other.0)),
            }
        }
        if !relro.into_iter().all(|(start, size)| image.may_be_protected(start, size)) {
            return refused("it asks for memory outside its writable data to be made read-only (PT_GNU_RELRO)");
        }
        match dynamics {
            1 => Ok(image),
            _ => refused("it does not have exactly one dynamic table"),
        }
    }

    fn add_load(&mut self, file: &'a [u8], header: &elf::ProgramHeader64<LE>) -> Result<(), LoadError> {
        let flags = header.p_flags(LE).0;
        let (writable, executable) = (flags & elf::PF_W.0 != 0, flags & elf::PF_X.0 != 0);
        if writable && executable {
            return refused("it has a segment that is both writable and executable");
        }
        let bytes = header.data(LE, file).map_err(malformed)?;
        let start = header.p_vaddr(LE);
        let size = header.p_memsz(LE);
        let end = start.checked_add(size).filter(|end| *end <= LIBRARY_MAX_MAPPED_BYTES);
        let Some(end) = end else {
            return refused(format!("it would map more than {LIBRARY_MAX_MAPPED_BYTES} bytes"));
        };
        // The loader reserves from the first segment to the last and maps over that: out of order would map elsewhere.
        let after = self.loads.last().is_none_or(|last| page(start) >= last.end.next_multiple_of(PAGE));
        if !after || (bytes.len() as u64) > size || header.p_align(LE) > 0x20_0000 {
            return Err(LoadError::Malformed("its segments overlap, are out of order or are misaligned".into()));
        }
        self.loads.push(LoadSegment { start, end, writable, executable, bytes });
        Ok(())
    }

    /// Returns whether the loader may take write access away from a range: its pages are those of one writable segment.
    fn may_be_protected(&self, start: u64, size: u64) -> bool {
        let inside = |load: &LoadSegment<'_>, end: u64| {
            load.writable && page(start) >= page(load.start) && end <= load.end.next_multiple_of(PAGE)
        };
        start.checked_add(size).is_some_and(|end| self.loads.iter().any(|load| inside(load, end)))
    }

    /// Returns the file's bytes that will lie at an address; empty where there are none.
    fn at(&self, address: u64) -> &'a [u8] {
        let load = self.loads.iter().find(|load| (load.start..load.end).contains(&address));
        load.and_then(|load| load.bytes.get((address - load.start) as usize..)).unwrap_or_default()
    }

    fn table<T: pod::Pod>(&self, address: u64, count: u64) -> Result<&'a [T], LoadError> {
        let count = usize::try_from(count).map_err(malformed)?;
        pod::slice_from_bytes(self.at(address), count).map(|(table, _)| table).map_err(malformed)
    }
}

#[derive(Default)]
struct DynamicTable {
    symbols: u64,
    strings: u64,
    strings_len: u64,
    hash: u64,
    gnu_hash: u64,
    rela: (u64, u64),
    plt: (u64, u64),
}

impl DynamicTable {
    /// Reads the dynamic table; refuses every entry that is not known to be harmless.
    fn read(image: &ElfImage<'_>) -> Result<DynamicTable, LoadError> {
        let mut found = DynamicTable::default();
        let entry = size_of::<elf::Dyn64<LE>>() as u64;
        let entries: &[elf::Dyn64<LE>] = image.table(image.dynamic, image.dynamic_size / entry)?;
        let mut ended = false;
        for entry in entries {
            let value = entry.d_val.get(LE);
            match entry.d_tag.get(LE) {
                elf::DT_NULL => {
                    ended = true;
                    break;
                }
                elf::DT_SYMTAB => found.symbols = value,
                elf::DT_STRTAB => found.strings = value,
                elf::DT_STRSZ => found.strings_len = value,
                elf::DT_HASH => found.hash = value,
                elf::DT_GNU_HASH => found.gnu_hash = value,
                elf::DT_RELA => found.rela.0 = value,
                elf::DT_RELASZ => found.rela.1 = value,
                elf::DT_JMPREL => found.plt.0 = value,
                elf::DT_PLTRELSZ => found.plt.1 = value,
                elf::DT_PLTREL if value == elf::DT_RELA.0 as u64 => {}
                elf::DT_RELAENT if value == 24 => {}
                elf::DT_SYMENT if value == 24 => {}
                elf::DT_FLAGS if value & !u64::from(DF_ALLOWED) == 0 => {}
                elf::DT_FLAGS_1 if value & !u64::from(DF_1_ALLOWED) == 0 => {}
                elf::DT_RELACOUNT | elf::DT_PLTGOT | elf::DT_SONAME | elf::DT_BIND_NOW => {}
                elf::DT_NEEDED => return refused("it needs another library (DT_NEEDED)"),
                elf::DT_INIT | elf::DT_INIT_ARRAY | elf::DT_PREINIT_ARRAY | elf::DT_FINI | elf::DT_FINI_ARRAY => {
                    return refused("it has code that runs when it is loaded or unloaded (init or fini)");
                }
                other => return refused(format!("its dynamic table has an entry {:#x} = {value:#x}", other.0)),
            }
        }
        if !ended || [found.symbols, found.strings, found.hash, found.gnu_hash].contains(&0) {
            return Err(LoadError::Malformed(
                "its dynamic table lacks symbols, strings, their hashes or an end".into(),
            ));
        }
        Ok(found)
    }

    fn symbol<'a>(&self, image: &ElfImage<'a>, index: u32) -> Result<&'a elf::Sym64<LE>, LoadError> {
        let address = self.symbols.checked_add(u64::from(index) * 24).ok_or(()).map_err(malformed)?;
        image.table::<elf::Sym64<LE>>(address, 1)?.first().ok_or(()).map_err(malformed)
    }

    fn name<'a>(&self, image: &ElfImage<'a>, symbol: &elf::Sym64<LE>) -> Result<&'a [u8], LoadError> {
        let strings: &[u8] = image.table(self.strings, self.strings_len)?;
        let rest = strings.get(symbol.st_name.get(LE) as usize..).ok_or(()).map_err(malformed)?;
        rest.split(|byte| *byte == 0).next().ok_or(()).map_err(malformed)
    }
}

/// `DF_SYMBOLIC` and `DF_BIND_NOW`; not `DF_TEXTREL`, `DF_STATIC_TLS`, `DF_ORIGIN`.
const DF_ALLOWED: u32 = 0x2 | 0x8;
/// `DF_1_NOW`; not, for one, `DF_1_NODELETE`, with which a library could never be unloaded.
const DF_1_ALLOWED: u32 = 0x1;

fn check_symbol(image: &ElfImage<'_>, dynamic: &DynamicTable, index: u32) -> Result<(), LoadError> {
    let symbol = dynamic.symbol(image, index)?;
    let name = dynamic.name(image, symbol)?;
    let shown = String::from_utf8_lossy(name);
    if matches!(symbol.st_info.st_type(), elf::STT_GNU_IFUNC | elf::STT_TLS) {
        return refused(format!("its symbol `{shown}` is thread-local or resolved by code"));
    }
    if symbol.st_info.st_bind() == elf::STB_GNU_UNIQUE {
        return refused(format!("its symbol `{shown}` is unique in the process, so it could never be unloaded"));
    }
    if index != 0 && symbol.st_shndx.get(LE) == elf::SHN_UNDEF && !IMPORTS.contains(&name) {
        return refused(format!("it imports `{shown}`; only memcpy and its like may be imported"));
    }
    Ok(())
}

fn check_relocations(image: &ElfImage<'_>, dynamic: &DynamicTable) -> Result<(), LoadError> {
    for (address, bytes) in [dynamic.rela, dynamic.plt] {
        if bytes == 0 {
            continue;
        }
        for relocation in image.table::<elf::Rela64<LE>>(address, bytes / 24)? {
            let target = relocation.r_offset.get(LE);
            let fits =
                |load: &LoadSegment<'_>| load.writable && target >= load.start && target <= load.end.saturating_sub(8);
            if !image.loads.iter().any(fits) {
                return refused("it has a relocation outside its writable data");
            }
            match relocation.r_type(LE, false) {
                elf::R_X86_64_RELATIVE => {}
                elf::R_X86_64_GLOB_DAT | elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_64 => {
                    check_symbol(image, dynamic, relocation.r_sym(LE, false))?;
                }
                other => return refused(format!("it has a relocation of type {}", other.0)),
            }
        }
    }
    Ok(())
}

/// Reads the file's 32-bit numbers.
fn words(image: &ElfImage<'_>, address: u64, count: u64) -> Result<Vec<u32>, LoadError> {
    let table: &[object::U32<LE>] = image.table(address, count)?;
    Ok(table.iter().map(|word| word.get(LE)).collect())
}

/// Returns the number of symbols; every one of them is checked.
fn count_symbols(image: &ElfImage<'_>, dynamic: &DynamicTable) -> Result<u32, LoadError> {
    words(image, dynamic.hash, 2)?.get(1).copied().ok_or(()).map_err(malformed)
}

/// Checks the hash table by which the loader finds symbols. No walk through it may leave it, or end at an unchecked
/// symbol.
fn check_gnu_hash(image: &ElfImage<'_>, dynamic: &DynamicTable) -> Result<(), LoadError> {
    let symbols = count_symbols(image, dynamic)?;
    let header = words(image, dynamic.gnu_hash, 4)?;
    let [buckets, first, bloom, _shift] = header[..] else { return Err(malformed(())) };
    let (buckets, bloom) = (u64::from(buckets), u64::from(bloom));
    if buckets == 0 || !bloom.is_power_of_two() || first > symbols {
        return refused("its hash table of symbols (DT_GNU_HASH) is not one");
    }
    let at = dynamic.gnu_hash + 16;
    image.table::<object::U64<LE>>(at, bloom)?;
    let heads = words(image, at + bloom * 8, buckets)?;
    let chains = words(image, at + bloom * 8 + buckets * 4, u64::from(symbols - first))?;
    let inside = heads.iter().all(|head| *head == 0 || (first..symbols).contains(head));
    // A chain goes on until a word is odd.
    let ends = chains.last().is_none_or(|last| last & 1 == 1);
    if inside && ends { Ok(()) } else { refused("its hash table of symbols (DT_GNU_HASH) leads outside itself") }
}

/// Checks every symbol; returns the address of the vtable.
fn find_vtable(image: &ElfImage<'_>, dynamic: &DynamicTable) -> Result<u64, LoadError> {
    let count = count_symbols(image, dynamic)?;
    let mut vtable = None;
    for index in 0..count {
        check_symbol(image, dynamic, index)?;
        let symbol = dynamic.symbol(image, index)?;
        if dynamic.name(image, symbol)? == abi::EXTENSION_SYMBOL.as_bytes() {
            let address = symbol.st_value.get(LE);
            let size = size_of::<abi::ExtensionVtable>() as u64;
            let inside = |load: &LoadSegment<'_>| address >= load.start && address <= load.end.saturating_sub(size);
            let object = symbol.st_info.st_type() == elf::STT_OBJECT && symbol.st_size.get(LE) == size;
            if !object || !address.is_multiple_of(8) || !image.loads.iter().any(inside) {
                return refused(format!("its `{}` is not a vtable", abi::EXTENSION_SYMBOL));
            }
            if vtable.replace(address).is_some() {
                return refused(format!("it exports `{}` twice", abi::EXTENSION_SYMBOL));
            }
        }
    }
    vtable.ok_or_else(|| LoadError::Refused(format!("it does not export `{}`", abi::EXTENSION_SYMBOL)))
}
