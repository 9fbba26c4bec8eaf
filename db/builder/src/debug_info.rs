//! What the compiler says of its machine code, read once, here: the builder makes a [map](sandstorm_sandbox::code_map)
//! of it, and the debug information itself goes. So a server parses none, and a library stays small.
//!
//! A map is a convenience: where debug information cannot be read, or takes long, a library has none, and is as good.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use gimli::{EndianSlice, LittleEndian, UnwindSection};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use sandstorm_sandbox::code_map::{CallerRule, CodeMapWriter, SourceFrame};
use sandstorm_translator::SourceLines;

use super::Manifest;
use super::scratch::ScratchDir;

/// CPU time that a map may take: on a busy machine a library has one as well. An ordinary one takes some ten
/// milliseconds; debug information of modules that were made elsewhere may be made to take long.
const MAP_TIME: Duration = Duration::from_secs(2);
/// The file with a module, written down as Rust.
pub(super) const TEXT_FILE: &str = "module.rs";
/// Places of one map, at most: some ten times as many as of a large extension.
const PLACES_MAX: usize = 400_000;

/// What this thread has used of the processor.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// A place in a source.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnedFrame {
    function: String,
    file: String,
    line: u32,
}

/// How functions and files are called in a map.
#[derive(Clone, Debug)]
pub(super) struct SourceNames {
    /// Where builds have their folders.
    scratch: PathBuf,
    /// The extension's name, as that of its crate.
    crate_name: String,
    /// What its manifest says.
    kept_arguments: u32,
}

impl SourceNames {
    pub(super) fn new(scratch: &ScratchDir, manifest: &Manifest) -> SourceNames {
        let (scratch, crate_name) = (scratch.path().to_owned(), manifest.name.replace('-', "_"));
        SourceNames { scratch, crate_name, kept_arguments: manifest.keep_arguments }
    }

    /// A function's name: demangled, without hashes, and with the extension's name for that of the tenant's crate.
    fn function(&self, raw: &str) -> String {
        let name = format!("{:#}", rustc_demangle::demangle(raw));
        name.replace("tenant::", &format!("{}::", self.crate_name))
    }

    /// A file's path, relative to what its author knows: the pushed folder, or a library's name.
    fn file(&self, path: &str) -> String {
        let path = Path::new(path);
        if let Ok(inside) = path.strip_prefix(&self.scratch) {
            return inside.components().skip(1).collect::<PathBuf>().to_string_lossy().into_owned();
        }
        let parts: Vec<&str> = path
            .components()
            .filter_map(|part| match part {
                Component::Normal(part) => part.to_str(),
                _ => None,
            })
            .collect();
        let from = match parts.iter().rposition(|part| *part == "src") {
            Some(at) => at.saturating_sub(1),
            None => parts.len().saturating_sub(3),
        };
        parts[from..].join("/")
    }
}

/// Debug information, ready to be asked.
struct DebugInfo<'a> {
    context: addr2line::Context<Bytes<'a>>,
    names: &'a SourceNames,
    /// Names that were made once.
    functions: HashMap<String, String>,
}

impl<'a> DebugInfo<'a> {
    /// Of sections by their names; `None`: it cannot be read.
    fn new(section: impl Fn(&str) -> &'a [u8], names: &'a SourceNames) -> Option<DebugInfo<'a>> {
        let load = |id: gimli::SectionId| Ok::<_, gimli::Error>(EndianSlice::new(section(id.name()), LittleEndian));
        let context = addr2line::Context::from_dwarf(gimli::Dwarf::load(load).ok()?).ok()?;
        Some(DebugInfo { context, names, functions: HashMap::new() })
    }

    /// The functions at an address, the innermost first.
    fn frames_at(&mut self, address: u64) -> Vec<OwnedFrame> {
        let mut found = Vec::new();
        let Ok(mut frames) = self.context.find_frames(address).skip_all_loads() else { return found };
        while let Ok(Some(frame)) = frames.next() {
            let raw = frame.function.as_ref().and_then(|function| function.raw_name().ok()).unwrap_or_default();
            let function = match self.functions.get(&*raw) {
                Some(known) => known.clone(),
                None => {
                    let name = self.names.function(&raw);
                    self.functions.insert(raw.into_owned(), name.clone());
                    name
                }
            };
            let (file, line) = frame.location.map_or((None, None), |at| (at.file, at.line));
            found.push(OwnedFrame {
                function,
                file: file.map_or_else(String::new, |file| self.names.file(file)),
                line: line.unwrap_or(0),
            });
        }
        found
    }

    /// Where the code of another place begins, and where it ends, in a range of addresses.
    fn places(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let Ok(places) = self.context.find_location_range(from, to) else { return Vec::new() };
        places.take(PLACES_MAX).map(|(at, bytes, _)| (at, at.saturating_add(bytes))).collect()
    }
}

/// A section's bytes.
fn section<'a>(file: &object::File<'a>, name: &str) -> &'a [u8] {
    file.section_by_name(name).and_then(|section| section.data().ok()).unwrap_or_default()
}

/// The map of a library of the native tier.
pub(super) fn native_map(library: &[u8], names: &SourceNames) -> Vec<u8> {
    let until = cpu_time() + MAP_TIME;
    let made = || {
        let file = object::File::parse(library).ok()?;
        let mut info = DebugInfo::new(|name| section(&file, name), names)?;
        let places = text_places(&file, &info)?;
        let mut lines = Lines::of_symbols(&file, names);
        for (from, to) in places {
            if cpu_time() > until {
                return None;
            }
            let frames = info.frames_at(from);
            lines.set(from, to, frames);
        }
        Some(lines.write(&file, names))
    };
    made().unwrap_or_default()
}

/// The map of a sandboxed extension's library, which was made of a module: machine code leads to lines of the
/// translator's text, these to operators of the module, and these to lines of the source. `module` has the module's
/// debug information by the names of its sections; without it there are the functions' names.
pub(super) fn sandboxed_map(
    library: &[u8],
    source: &SourceLines,
    module: &[(&str, &[u8])],
    names: &SourceNames,
) -> Vec<u8> {
    let until = cpu_time() + MAP_TIME;
    let made = || {
        let file = object::File::parse(library).ok()?;
        let mut machine = DebugInfo::new(|name| section(&file, name), names)?;
        let module_section =
            |name: &str| module.iter().find(|(other, _)| *other == name).map_or(&[][..], |found| found.1);
        let mut module =
            ModuleInfo { source, info: DebugInfo::new(module_section, names), names, known: HashMap::new() };
        let mut lines = Lines::default();
        for (from, to) in text_places(&file, &machine)? {
            if cpu_time() > until {
                return None;
            }
            // Other lines are those of the standard library's functions, which the translator's own ones use.
            let text = machine.frames_at(from).into_iter().filter(|frame| frame.file == TEXT_FILE);
            let frames = text.flat_map(|frame| module.frames_at(frame.line)).collect();
            lines.set(from, to, frames);
        }
        lines.fill_gaps(|address| machine.frames_at(address).pop().map(|outermost| outermost.function));
        Some(lines.write(&file, names))
    };
    made().unwrap_or_default()
}

/// A module's lines.
struct ModuleInfo<'a> {
    source: &'a SourceLines,
    info: Option<DebugInfo<'a>>,
    names: &'a SourceNames,
    known: HashMap<u32, Vec<OwnedFrame>>,
}

impl ModuleInfo<'_> {
    /// What a line of the translator's text was made of; nothing for what is the translator's own.
    fn frames_at(&mut self, line: u32) -> Vec<OwnedFrame> {
        let Some(operator) = self.source.operator_at(line) else { return Vec::new() };
        if let Some(known) = self.known.get(&operator) {
            return known.clone();
        }
        let mut frames = self.info.as_mut().map_or_else(Vec::new, |info| info.frames_at(operator.into()));
        if frames.iter().all(|frame| frame.function.is_empty()) {
            let number = self.source.function_at(line).unwrap_or_default();
            let named = self.source.name_of(number).map(|name| self.names.function(name));
            let function = named.unwrap_or_else(|| format!("function {number}"));
            frames = vec![OwnedFrame { function, file: String::new(), line: 0 }];
        }
        self.known.insert(operator, frames.clone());
        frames
    }
}

/// The places of the code's section; `None`: there is none.
fn text_places(file: &object::File<'_>, info: &DebugInfo<'_>) -> Option<Vec<(u64, u64)>> {
    let text = file.section_by_name(".text")?;
    Some(info.places(text.address(), text.address() + text.size()))
}

/// Frames by the address where they begin.
#[derive(Default)]
struct Lines {
    frames: BTreeMap<u64, Vec<OwnedFrame>>,
    /// The functions that the linker knows, where nothing else is known.
    symbols: BTreeMap<u64, String>,
}

impl Lines {
    fn of_symbols(file: &object::File<'_>, names: &SourceNames) -> Lines {
        let mut lines = Lines::default();
        for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0) {
            let Ok(name) = symbol.name() else { continue };
            lines.symbols.insert(symbol.address(), names.function(name));
        }
        for address in lines.symbols.keys().copied().collect::<Vec<_>>() {
            lines.frames.insert(address, lines.symbol_at(address));
        }
        lines
    }

    fn symbol_at(&self, address: u64) -> Vec<OwnedFrame> {
        let found = self.symbols.range(..=address).next_back();
        let named = found.map(|(_, name)| OwnedFrame { function: name.clone(), file: String::new(), line: 0 });
        named.into_iter().collect()
    }

    /// Says what the code of a range was made of.
    fn set(&mut self, from: u64, to: u64, frames: Vec<OwnedFrame>) {
        let mut frames = if frames.is_empty() { self.symbol_at(from) } else { frames };
        // Instructions of no line, such as those that make room on the stack, are counted to the line before them.
        let before = self.frames.range(..from).next_back().map(|(_, frames)| &frames[..]).unwrap_or_default();
        for (frame, before) in frames.iter_mut().rev().zip(before.iter().rev()) {
            if frame.function != before.function {
                break;
            }
            if frame.line == 0 {
                (frame.line, frame.file) = (before.line, before.file.clone());
            }
        }
        self.frames.insert(from, frames);
        let behind = self.symbol_at(to);
        self.frames.entry(to).or_insert(behind);
    }

    /// Counts instructions of no line to what is before them in the same function: the compiler gives the jump at a
    /// loop's end none, say, where code is as likely to be interrupted as at any other.
    fn fill_gaps(&mut self, mut function_at: impl FnMut(u64) -> Option<String>) {
        let mut before: Option<(u64, Vec<OwnedFrame>)> = None;
        for (address, frames) in &mut self.frames {
            if let (true, Some((known_at, known))) = (frames.is_empty(), &before) {
                let function = function_at(*address);
                if function.is_some() && function == function_at(*known_at) {
                    frames.clone_from(known);
                }
            }
            before = (!frames.is_empty()).then(|| (*address, frames.clone()));
        }
    }

    /// The map of these lines, and of how each function's caller is found.
    fn write(&self, file: &object::File<'_>, names: &SourceNames) -> Vec<u8> {
        let mut writer = CodeMapWriter::new(names.kept_arguments);
        for (address, frames) in &self.frames {
            let Ok(address) = u32::try_from(*address) else { continue };
            let frames: Vec<_> = frames.iter().map(borrowed).collect();
            writer.add_line(address, &frames);
        }
        if writer.is_empty() || add_callers(file, &mut writer).is_err() {
            return Vec::new();
        }
        writer.finish()
    }
}

fn borrowed(frame: &OwnedFrame) -> SourceFrame<'_> {
    SourceFrame { function: &frame.function, file: &frame.file, line: frame.line }
}

/// Adds how callers are found, which the compiler writes down for each instruction that changes it.
fn add_callers(file: &object::File<'_>, writer: &mut CodeMapWriter) -> Result<(), gimli::Error> {
    const RBP: gimli::Register = gimli::Register(6);
    const RSP: gimli::Register = gimli::Register(7);
    let Some(frames) = file.section_by_name(".eh_frame") else { return Ok(()) };
    let bases = gimli::BaseAddresses::default().set_eh_frame(frames.address());
    let section = gimli::EhFrame::new(frames.data().unwrap_or_default(), LittleEndian);
    let mut context = gimli::UnwindContext::new();
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next()? {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let function = partial.parse(|_, bases, offset| section.cie_from_offset(bases, offset))?;
        let mut rows = function.rows(&section, &bases, &mut context)?;
        while let Some(row) = rows.next_row()? {
            let Ok(address) = u32::try_from(row.start_address()) else { continue };
            writer.add_caller(address, rule_of(row.cfa(), row.register(RBP), (RBP, RSP)));
        }
        if let Ok(end) = u32::try_from(function.end_address()) {
            writer.add_caller_end(end);
        }
    }
    Ok(())
}

/// The rule of a row; the default where it is of a kind that no compiled Rust has.
fn rule_of(
    frame: &gimli::CfaRule<usize>,
    rbp: Option<gimli::RegisterRule<usize>>,
    (by_rbp, by_rsp): (gimli::Register, gimli::Register),
) -> CallerRule {
    let gimli::CfaRule::RegisterAndOffset { register, offset } = frame else { return CallerRule::default() };
    let rbp_words = match rbp {
        None | Some(gimli::RegisterRule::Undefined | gimli::RegisterRule::SameValue) => Some(0),
        Some(gimli::RegisterRule::Offset(offset)) if offset % 8 == 0 => u8::try_from(-offset / 8).ok(),
        Some(_) => None,
    };
    let (Ok(frame_bytes), Some(rbp_words)) = (u32::try_from(*offset), rbp_words) else { return CallerRule::default() };
    if *register != by_rbp && *register != by_rsp {
        return CallerRule::default();
    }
    CallerRule { by_rbp: *register == by_rbp, frame_bytes, rbp_words }
}

/// Takes symbols and debug information out of a linked library: what the loader does not map. Their sections come last,
/// so all numbers and places of the others stay.
pub(super) fn without_debug_sections(mut library: Vec<u8>) -> Vec<u8> {
    let stripped = strip(&library);
    stripped.inspect(|kept| library.clone_from(kept));
    library
}

/// Bytes of an entry in the table of sections.
const SECTION_ENTRY_BYTES: usize = 64;

/// The library without the sections that are not loaded; `None`: it is not laid out as the linker does.
fn strip(library: &[u8]) -> Option<Vec<u8>> {
    const NAMES: &[u8] = b"\0.shstrtab\0";
    let word =
        |at: usize| library.get(at..at + 8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()));
    let half =
        |at: usize| library.get(at..at + 2).map(|bytes| u16::from_le_bytes(bytes.try_into().unwrap_or_default()));
    let (table, count) = (word(0x28)? as usize, half(0x3c)? as usize);
    let header =
        |index: usize| library.get(table + index * SECTION_ENTRY_BYTES..table + (index + 1) * SECTION_ENTRY_BYTES);
    let (mut kept, mut end) = (1, 0);
    for index in 1..count {
        let entry = header(index)?;
        let field = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap_or_default());
        let (kind, flags) = (u32::from_le_bytes(entry[4..8].try_into().ok()?), field(8));
        const NO_BITS: u32 = 8;
        const LOADED: u64 = 2;
        if flags & LOADED != 0 {
            kept = index + 1;
            let bytes = if kind == NO_BITS { 0 } else { field(0x20) };
            end = end.max(usize::try_from(field(0x18)).ok()?.checked_add(usize::try_from(bytes).ok()?)?);
        }
    }
    let mut out = library.get(..end)?.to_vec();
    let names_at = out.len() as u64;
    out.extend_from_slice(NAMES);
    out.resize(out.len().next_multiple_of(8), 0);
    let new_table = out.len() as u64;
    for index in 0..kept {
        let mut entry = header(index)?.to_vec();
        // Sections have no names any more: the loader reads none.
        entry[..4].copy_from_slice(&0_u32.to_le_bytes());
        out.extend(entry);
    }
    let mut names = [0_u8; SECTION_ENTRY_BYTES];
    const STRING_TABLE: u32 = 3;
    names[..4].copy_from_slice(&1_u32.to_le_bytes());
    names[4..8].copy_from_slice(&STRING_TABLE.to_le_bytes());
    names[0x18..0x20].copy_from_slice(&names_at.to_le_bytes());
    names[0x20..0x28].copy_from_slice(&(NAMES.len() as u64).to_le_bytes());
    names[0x30..0x38].copy_from_slice(&1_u64.to_le_bytes());
    out.extend(names);
    out[0x28..0x30].copy_from_slice(&new_table.to_le_bytes());
    out[0x3c..0x3e].copy_from_slice(&(kept as u16 + 1).to_le_bytes());
    out[0x3e..0x40].copy_from_slice(&(kept as u16).to_le_bytes());
    Some(out)
}
