//! Tests that sources become modules of the form that the rest of the sandboxed tier relies on.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use sandstorm_api::abi;
use wasmparser::{ExternalKind, Name, Operator, Parser, Payload, TypeRef, ValType};

use super::tests::{extensions, job, ordinary, sandboxed, toolchain};
use super::wasm_module::build_module;
use super::{api_fingerprint, limits};

const I32: ValType = ValType::I32;
const I64: ValType = ValType::I64;

/// The host's functions, with their parameters.
const IMPORTS: &[(&str, &[ValType])] = &[
    ("prefetch", &[I64, I32, I32, I32]),
    ("prefetch_record", &[I64, I64]),
    ("get", &[I64, I64, I32, I32, I32]),
    ("put", &[I64, I32, I32, I32, I32, I32, I32]),
    ("delete", &[I64, I32, I32, I32]),
    ("increment", &[I64, I32, I32, I64, I32]),
    ("scan", &[I64, I32, I32, I32, I32]),
    ("table_by_name", &[I32, I32, I32]),
    ("reply", &[I32, I32]),
    ("fail", &[I32, I32, I32]),
    ("abort", &[I32, I32, I32]),
    ("grow", &[I32]),
    ("prefetch_many", &[I64, I32, I32, I32]),
    ("prefetch_records", &[I64, I32, I32]),
    ("get_many", &[I64, I32, I32, I32, I32]),
    ("commit", &[I32, I32, I32, I32, I32, I32]),
    ("range", &[I64, I32, I32, I32, I32]),
    ("range_keys", &[I64, I32, I32]),
    ("count", &[I64, I32, I32]),
    ("nth", &[I64, I64, I32]),
    ("expiry", &[I64, I64, I32, I32, I32]),
    ("touch", &[I64, I32, I32, I64]),
    ("random", &[I32, I32]),
    ("now_us", &[]),
    ("secret", &[I32, I32, I32, I32, I32]),
    ("log_line", &[I32, I32, I32]),
    ("call_begin", &[I32, I32, I32, I32, I32, I32]),
    ("call_end", &[I32]),
    ("call_part", &[I32, I32, I32, I32]),
    ("call_return", &[I32, I32]),
];

/// What a module shows to the outside, as lines of text that tests compare.
#[derive(Debug, Default)]
pub(super) struct ModuleShape {
    /// Names of imports with another module, name or type than the host's functions have.
    pub(super) foreign: Vec<String>,
    imported: BTreeSet<String>,
    exports: BTreeSet<String>,
    section: Vec<u8>,
    segments: BTreeSet<String>,
    /// First address of data, and `__heap_base`.
    first_data: Option<i32>,
    heap_base: Option<i32>,
}

impl ModuleShape {
    /// Notes an import: as one of the host's functions, or as a foreign one. Returns its type if it is a function.
    fn import(&mut self, import: &wasmparser::Import<'_>, types: &[wasmparser::FuncType]) -> Option<u32> {
        let known = IMPORTS.iter().find(|(name, _)| *name == import.name);
        let results: &[ValType] = match import.name {
            "abort" => &[],
            "now_us" => &[I64],
            _ => &[I32],
        };
        let fits = |index: u32| {
            let found = &types[index as usize];
            known.is_some_and(|(_, parameters)| found.params() == *parameters) && found.results() == results
        };
        match import.ty {
            TypeRef::Func(index) if import.module == abi::SANDBOX_IMPORTS && fits(index) => {
                self.imported.insert(import.name.to_owned());
            }
            _ => self.foreign.push(format!("{}.{}: {:?}", import.module, import.name, import.ty)),
        }
        match import.ty {
            TypeRef::Func(index) => Some(index),
            _ => None,
        }
    }
}

/// Reads a module, and validates it with the features that the translator takes.
pub(super) fn shape(wasm: &[u8]) -> ModuleShape {
    let features = wasmparser::WasmFeatures::MVP
        | wasmparser::WasmFeatures::SIGN_EXTENSION
        | wasmparser::WasmFeatures::SATURATING_FLOAT_TO_INT
        | wasmparser::WasmFeatures::BULK_MEMORY
        | wasmparser::WasmFeatures::MUTABLE_GLOBAL
        | wasmparser::WasmFeatures::MULTI_VALUE
        | wasmparser::WasmFeatures::REFERENCE_TYPES;
    wasmparser::Validator::new_with_features(features).validate_all(wasm).expect("a valid module");
    let mut shape = ModuleShape::default();
    let (mut types, mut globals, mut base) = (Vec::new(), Vec::new(), None);
    // Types of functions, the imported ones first.
    let mut functions: Vec<u32> = Vec::new();
    for payload in Parser::new(0).parse_all(wasm) {
        match payload.expect("a module") {
            Payload::TypeSection(section) => {
                types = section.into_iter_err_on_gc_types().map(|found| found.expect("a type")).collect();
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    functions.extend(shape.import(&import.expect("an import"), &types));
                }
            }
            Payload::FunctionSection(section) => {
                functions.extend(section.into_iter().map(|found| found.expect("a type")));
            }
            Payload::GlobalSection(section) => {
                globals = section.into_iter().map(|global| constant(&global.expect("a global").init_expr)).collect();
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export.expect("an export");
                    if export.name == "__heap_base" {
                        base = Some(export.index);
                    }
                    let kind = match export.kind {
                        ExternalKind::Func => types[functions[export.index as usize] as usize].to_string(),
                        kind => format!("{kind:?}"),
                    };
                    shape.exports.insert(format!("{}: {kind}", export.name));
                }
            }
            Payload::DataSection(section) => {
                for data in section {
                    match data.expect("data").kind {
                        wasmparser::DataKind::Active { memory_index: 0, offset_expr } => {
                            let at = constant(&offset_expr).expect("a constant address");
                            shape.first_data = Some(shape.first_data.map_or(at, |first| first.min(at)));
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            Payload::CustomSection(section) if section.name() == abi::MODULE_SECTION => {
                shape.section = section.data().to_vec();
            }
            Payload::CustomSection(section) => {
                // What the map of lines is made of comes along up to the artifact, which has none of it.
                if let wasmparser::KnownCustom::Name(names) = section.as_known() {
                    shape.segments.extend(segments(names));
                }
            }
            _ => {}
        }
    }
    shape.heap_base = base.and_then(|index| globals[index as usize]);
    shape
}

fn constant(expression: &wasmparser::ConstExpr<'_>) -> Option<i32> {
    match expression.get_operators_reader().read() {
        Ok(Operator::I32Const { value }) => Some(value),
        _ => None,
    }
}

/// Names of data segments.
fn segments(names: wasmparser::NameSectionReader<'_>) -> Vec<String> {
    let mut found = Vec::new();
    for name in names {
        if let Name::Data(map) = name.expect("a name") {
            found.extend(map.into_iter().map(|naming| naming.expect("a name").name.to_owned()));
        }
    }
    found
}

/// Checks a module against the interface of modules.
fn is_a_module(name: &str, wasm: &[u8]) {
    let shape = shape(wasm);
    assert!(shape.foreign.is_empty(), "{name}: {:?}", shape.foreign);
    assert!(shape.imported.contains("abort"), "{name} can end");
    // The linker of this target exports the end of the data, too.
    let exports = [
        "__data_end: Global",
        "__heap_base: Global",
        "memory: Memory",
        "sandstorm_poll: (func (param i32 i32) (result i32))",
        "sandstorm_start: (func (param i32 i32) (result i32))",
    ];
    assert!(shape.exports.iter().eq(&exports), "{name}: {:?}", shape.exports);
    let word = |at: usize| u32::from_le_bytes(shape.section[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(shape.section.len(), abi::MODULE_SECTION_BYTES, "{name}");
    assert_eq!((word(0), word(12)), (abi::SANDBOX_ABI_VERSION, 0), "{name}");
    assert!(word(8).is_power_of_two() && word(4) % word(8) == 0, "{name}: {} aligned to {}", word(4), word(8));
    assert_eq!(shape.section[16..], api_fingerprint().to_le_bytes(), "{name}");
    assert!(shape.segments.iter().all(|segment| segment.starts_with('.')), "{name}: {:?}", shape.segments);
    assert!(shape.segments.contains(".rodata"), "{name}: {:?}", shape.segments);
    let stack = limits::MODULE_STACK_BYTES as i32;
    assert!(shape.first_data.is_some_and(|first| first >= stack), "{name}: {:?}", shape.first_data);
    assert!(shape.heap_base > shape.first_data, "{name}: {:?}", shape.heap_base);
}

#[test]
fn every_extension_here_becomes_a_module() {
    let job = sandboxed().unwrap_or_else(job);
    for (name, source) in extensions() {
        let built = build_module(toolchain(), &source, &job).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(built.warnings.is_empty(), "{name}: {:?}", built.warnings);
        is_a_module(&name, &built.wasm);
    }
}

#[test]
fn ordinary_extensions_become_modules() {
    for (name, source) in ordinary() {
        let built = build_module(toolchain(), &source, &job()).unwrap_or_else(|error| panic!("{name}: {error}"));
        is_a_module(&name, &built.wasm);
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(400))]

    /// A real module in which something was overwritten, cut off or repeated is translated or refused.
    #[test]
    fn no_mutant_of_a_module_upsets_the_translator(
        places in proptest::collection::vec(proptest::prelude::any::<(proptest::sample::Index, u8)>(), 1..5),
        cut in proptest::option::of(proptest::prelude::any::<proptest::sample::Index>()),
    ) {
        static MODULE: OnceLock<Vec<u8>> = OnceLock::new();
        let whole = MODULE.get_or_init(|| {
            let (_, source) = extensions().into_iter().find(|(name, _)| name.ends_with("chain")).expect("ext/chain");
            let built = build_module(toolchain(), &source, &job()).expect("it builds");
            // Without the sections of names, which are most of it.
            sandstorm_translator::split_debug_sections(&built.wasm).0
        });
        sandstorm_translator::translate(whole).expect("as it was built it is translated");
        let mut mutant = whole.clone();
        for (place, byte) in places {
            let place = place.index(mutant.len());
            mutant[place] = byte;
        }
        if let Some(cut) = cut {
            mutant.truncate(cut.index(whole.len()));
        }
        let _answer = sandstorm_translator::translate(&mutant);
    }
}
