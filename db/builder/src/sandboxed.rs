//! The second half of the sandboxed tier: a WebAssembly module becomes machine code that the verifier has passed.
//!
//! The module is written down as Rust, which the compiler makes a library of, in the same confinement as a tenant's
//! crate. The code and the constants of that library are the image. The server verifies it once more when it loads it.

use std::ffi::OsString;
use std::fs;

use object::{Object, ObjectSection, ObjectSymbol, SectionKind};
use sandstorm_sandbox::code_map::with_code_map;
use sandstorm_sandbox::layout::PAGE_BYTES;
use sandstorm_sandbox::{ModuleLayout, SandboxImage, verify};
use sandstorm_translator::{TranslateError, Translation, split_debug_sections};

use super::compile::BuiltLibrary;
use super::compiler_run::{CompileJob, CompilerSession};
use super::debug_info::{TEXT_FILE, sandboxed_map};
use super::diagnostic::Diagnostic;
use super::sysroot::Toolchain;
use super::wasm_module::build_module_in_session;
use super::{BuildError, Manifest, PushedSource};

/// The linked library.
const LIBRARY_FILE: &str = "libmodule.so";

/// Flags of the compilation to machine code, beside those of every native crate: nothing that the verifier could not
/// follow, and no frame pointers, which would be a second name for the stack.
const MACHINE_CODE: [&str; 7] = [
    "-Cjump-tables=no",
    "-Cforce-frame-pointers=no",
    "-Copt-level=2",
    "-Clinker-flavor=ld.lld",
    "-Clinker=rust-lld",
    "-Clink-arg=--threads=1",
    "-Cstrip=none",
];

/// Compiles a source that the checker has passed for the sandboxed tier, and returns the image and the warnings.
///
/// # Errors
/// As for [`build_module`](super::build_module()); `Refused` with what the translator or the verifier has found.
pub fn build_sandboxed(
    toolchain: &Toolchain,
    source: &PushedSource,
    job: &CompileJob,
) -> Result<BuiltLibrary, BuildError> {
    let (module, session) = build_module_in_session(toolchain, source, job)?;
    let session = session.next(toolchain.native())?;
    let elf = image_of(&session, &module.wasm, &source.manifest)?;
    Ok(BuiltLibrary { elf, warnings: module.warnings })
}

/// As [`build_sandboxed()`], of a source that may contain unsafe code and that no checker has seen: the sandbox has to
/// confine it all the same.
///
/// # Errors
/// As for [`build_sandboxed()`].
#[cfg(any(test, feature = "testing"))]
pub fn build_sandboxed_unsafe(
    toolchain: &Toolchain,
    source: &PushedSource,
    job: &CompileJob,
) -> Result<BuiltLibrary, BuildError> {
    let build = super::compiler_run::BuildRun::begin(toolchain, toolchain.module()?, source, job, "")?.allow_unsafe();
    let (module, session) = super::wasm_module::link_module(build)?;
    let elf = image_of(&session.next(toolchain.native())?, &module.wasm, &source.manifest)?;
    Ok(BuiltLibrary { elf, warnings: module.warnings })
}

/// As [`build_sandboxed()`], with arithmetic that wraps around: to measure what its checks cost.
///
/// # Errors
/// As for [`build_sandboxed()`].
#[cfg(any(test, feature = "testing"))]
pub fn build_sandboxed_unchecked(
    toolchain: &Toolchain,
    source: &PushedSource,
    job: &CompileJob,
) -> Result<BuiltLibrary, BuildError> {
    let build = super::compiler_run::BuildRun::begin(toolchain, toolchain.module()?, source, job, "")?;
    let (module, session) = super::wasm_module::link_module(build.without_overflow_checks())?;
    let elf = image_of(&session.next(toolchain.native())?, &module.wasm, &source.manifest)?;
    Ok(BuiltLibrary { elf, warnings: module.warnings })
}

/// Compiles a module that was made elsewhere.
///
/// # Errors
/// `Refused` with what the translator or the verifier has found; `Limit`, `Sandbox` and `Internal` for the compiler.
pub fn build_uploaded_module(toolchain: &Toolchain, wasm: &[u8], job: &CompileJob) -> Result<BuiltLibrary, BuildError> {
    let (wasm, debug) = split_debug_sections(wasm);
    let mut translated = sandstorm_translator::translate(&wasm).map_err(refused_module)?;
    if translated.layout.api_fingerprint != 0 {
        return Err(BuildError::Refused(vec![Diagnostic::plain(
            "the module is refused: it has a section named \"sandstorm\", which says that a server's own builder made it",
        )]));
    }
    // Whatever else the module says of itself, it is not of this builder's making.
    translated.layout.future_size = 0;
    build_with_debug(toolchain, translated, &debug, job)
}

/// Compiles a module that is written down as Rust.
///
/// # Errors
/// As for [`build_uploaded_module`].
pub fn build_translation(
    toolchain: &Toolchain,
    translated: Translation,
    job: &CompileJob,
) -> Result<BuiltLibrary, BuildError> {
    build_with_debug(toolchain, translated, &[], job)
}

/// As [`build_translation`], with the module's debug information.
fn build_with_debug(
    toolchain: &Toolchain,
    translated: Translation,
    debug: &[(&str, &[u8])],
    job: &CompileJob,
) -> Result<BuiltLibrary, BuildError> {
    let session = CompilerSession::begin(toolchain, toolchain.native(), job)?;
    let manifest = Manifest::of_module();
    let elf = compile_translation(&session, translated, debug, &manifest)?;
    Ok(BuiltLibrary { elf, warnings: Vec::new() })
}

/// Makes an image of a module, and its map.
fn image_of(session: &CompilerSession<'_>, wasm: &[u8], manifest: &Manifest) -> Result<Vec<u8>, BuildError> {
    let (wasm, debug) = split_debug_sections(wasm);
    let translated = sandstorm_translator::translate(&wasm).map_err(refused_module)?;
    compile_translation(session, translated, &debug, manifest)
}

/// Makes an image of a module that is written down as Rust, and its map.
fn compile_translation(
    session: &CompilerSession<'_>,
    translated: Translation,
    debug: &[(&str, &[u8])],
    manifest: &Manifest,
) -> Result<Vec<u8>, BuildError> {
    let path = session.folder().join(TEXT_FILE);
    fs::write(path, &translated.rust).map_err(|error| BuildError::io("writing the translated module", error))?;
    let mut arguments = session.arguments("module", "cdylib");
    arguments.extend(MACHINE_CODE.map(OsString::from));
    arguments.extend([format!("--emit=link={LIBRARY_FILE}"), TEXT_FILE.to_owned()].map(OsString::from));
    match session.rustc(arguments) {
        Ok(_) => {}
        Err(BuildError::Compile(diagnostics)) => {
            let first = diagnostics.first().map_or("no message", |found| found.message.as_str());
            return Err(BuildError::Internal(format!("the translated module does not compile: {first}")));
        }
        Err(error) => return Err(error),
    }
    let library = session.output(LIBRARY_FILE, "library")?;
    let image = read_image(&library, translated.layout)?;
    verify(&image).map_err(|error| {
        BuildError::Refused(vec![Diagnostic::plain(&format!(
            "{error}; this is a bug of the builder: please report it"
        ))])
    })?;
    let map = sandboxed_map(&library, &translated.source, debug, &session.names(manifest));
    Ok(with_code_map(image.encode(), &map))
}

/// What is wrong with a module, for its author.
fn refused_module(error: TranslateError) -> BuildError {
    BuildError::Refused(vec![Diagnostic::plain(&error.to_string())])
}

/// Takes code, constants and entries out of a library.
fn read_image(library: &[u8], layout: ModuleLayout) -> Result<SandboxImage, BuildError> {
    let wrong = |why: String| BuildError::Internal(format!("the library of the module: {why}"));
    let file = object::File::parse(library).map_err(|error| wrong(error.to_string()))?;
    let (mut code, mut constants) = (None, None);
    for section in file.sections() {
        let slot = match (section.kind(), section.name()) {
            (SectionKind::Text, _) => &mut code,
            (SectionKind::ReadOnlyData | SectionKind::ReadOnlyString, Ok(".rodata")) => &mut constants,
            (SectionKind::Data | SectionKind::UninitializedData, _) if section.size() > 0 => {
                // The linker's own padding behind the dynamic table is in a section of this kind.
                if section.name() == Ok(".relro_padding") {
                    continue;
                }
                return Err(wrong("it has variables".to_owned()));
            }
            _ => continue,
        };
        let bytes = section.data().map_err(|error| wrong(error.to_string()))?;
        if slot.replace((section.address(), bytes)).is_some() {
            return Err(wrong("it has two sections of code or of constants".to_owned()));
        }
    }
    let Some((code_address, code_bytes)) = code else { return Err(wrong("it has no code".to_owned())) };
    let (constants_at, constants) = constants.unwrap_or((0, &[]));
    let code_at = code_address / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    let before = (code_address - code_at) as usize;
    let mut code = vec![0xcc; before];
    code.extend_from_slice(code_bytes);
    let entry = |name: &str| {
        let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(name));
        let offset = symbol.and_then(|symbol| symbol.address().checked_sub(code_at));
        offset.map(|offset| offset as u32).ok_or_else(|| wrong(format!("it has no function {name}")))
    };
    let (start, poll) = (entry("sandstorm_start")?, entry("sandstorm_poll")?);
    let (constants_at, code_at) = (constants_at as u32, code_at as u32);
    Ok(SandboxImage { layout, constants_at, constants: constants.to_vec(), code_at, code, start, poll })
}
