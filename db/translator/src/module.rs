//! A module's sections, validated, as the facts that its text is made of.

use sandstorm_sandbox::layout::{MAX_VARIABLES, MEMORY_MAX_BYTES, WASM_PAGE_BYTES};
use sandstorm_sandbox::limits::DATA_SEGMENTS_MAX;
use sandstorm_sandbox::{DataSegment, HostFunction, IMPORT_MODULE, ModuleLayout, NumberType};
use wasmparser::{
    ConstExpr, Data, DataKind, Element, ElementItems, ElementKind, ExternalKind, FuncType, FunctionBody, GlobalType,
    KnownCustom, Name, Operator, Parser, Payload, TypeRef, ValType, Validator, WasmFeatures,
};

use crate::error::{RefusalReason, TranslateError, at_most, refuse};
use crate::limits::{
    CODE_MAX_BYTES, FUNCTION_MAX_BYTES, FUNCTIONS_MAX, MODULE_MAX_BYTES, PARAMETERS_MAX, TABLE_MAX, TYPES_MAX,
};
use crate::names::{SectionName, data_ranges, function_names};

/// The extensions of WebAssembly 1.0 that a module may use.
fn features() -> WasmFeatures {
    WasmFeatures::WASM1
        | WasmFeatures::MUTABLE_GLOBAL
        | WasmFeatures::SATURATING_FLOAT_TO_INT
        | WasmFeatures::SIGN_EXTENSION
        | WasmFeatures::BULK_MEMORY
        | WasmFeatures::BULK_MEMORY_OPT
        | WasmFeatures::MULTI_VALUE
        | WasmFeatures::REFERENCE_TYPES
        | WasmFeatures::CALL_INDIRECT_OVERLONG
}

/// A global variable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Global {
    pub(crate) kind: ValType,
    /// Its number among the variables that change; `None`: it is a constant.
    pub(crate) variable: Option<usize>,
    pub(crate) value: u64,
}

/// A function that the module calls indirectly or exports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exports {
    pub(crate) start: Option<u32>,
    pub(crate) poll: Option<u32>,
    pub(crate) initialize: Option<u32>,
    /// All others.
    #[cfg(feature = "testing")]
    pub(crate) others: Vec<(String, u32)>,
}

/// All that the text is made of.
#[derive(Debug)]
pub(crate) struct ModuleFacts<'a> {
    pub(crate) types: Vec<FuncType>,
    /// For each type the first one that is the same: what is called indirectly by either is found by both.
    pub(crate) first_same: Vec<u32>,
    /// The imported functions come first in the numbering.
    pub(crate) imports: Vec<HostFunction>,
    /// Type of each function, imported ones too.
    pub(crate) functions: Vec<u32>,
    pub(crate) bodies: Vec<FunctionBody<'a>>,
    /// Where the code section begins in the module.
    pub(crate) code_at: u64,
    /// Names of functions, by their number.
    pub(crate) function_names: Vec<(u32, String)>,
    pub(crate) globals: Vec<Global>,
    /// The functions that can be called indirectly, by their place in the table.
    pub(crate) table: Vec<Option<u32>>,
    pub(crate) exports: Exports,
    pub(crate) start_section: Option<u32>,
    pub(crate) layout: ModuleLayout,
    names: Vec<(SectionName, std::ops::Range<u32>)>,
}

/// Where a section, or a function's body, begins.
fn begin_of(payload: &Payload<'_>) -> Option<u64> {
    match payload {
        Payload::CodeSectionEntry(body) => Some(body.range().start),
        payload => payload.as_section().map(|(_, range)| range.start),
    }
}

impl<'a> ModuleFacts<'a> {
    /// Validates a module and collects its facts.
    pub(crate) fn read(wasm: &'a [u8]) -> Result<ModuleFacts<'a>, TranslateError> {
        let facts = ModuleFacts::collect(wasm)?;
        facts.check_entries()?;
        Ok(facts)
    }

    /// As [`ModuleFacts::read`], for a module of any exports.
    pub(crate) fn collect(wasm: &'a [u8]) -> Result<ModuleFacts<'a>, TranslateError> {
        at_most("bytes", wasm.len(), MODULE_MAX_BYTES)?;
        Validator::new_with_features(features()).validate_all(wasm)?;
        let mut facts = ModuleFacts {
            types: Vec::new(),
            first_same: Vec::new(),
            imports: Vec::new(),
            functions: Vec::new(),
            bodies: Vec::new(),
            code_at: 0,
            function_names: Vec::new(),
            globals: Vec::new(),
            table: Vec::new(),
            exports: Exports::default(),
            start_section: None,
            layout: ModuleLayout::default(),
            names: Vec::new(),
        };
        for payload in Parser::new(0).parse_all(wasm) {
            let payload = payload?;
            let begins_at = begin_of(&payload);
            facts.add(payload).map_err(|error| begins_at.map_or(error.clone(), |offset| error.at(offset)))?;
        }
        facts.finish()?;
        Ok(facts)
    }

    /// The type of a function.
    pub(crate) fn function_type(&self, function: u32) -> &FuncType {
        &self.types[self.functions[function as usize] as usize]
    }

    fn add(&mut self, payload: Payload<'a>) -> Result<(), TranslateError> {
        match payload {
            Payload::TypeSection(section) => {
                for kind in section.into_iter_err_on_gc_types() {
                    self.types.push(kind?);
                }
                self.check_types()?;
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports_with_offsets() {
                    let (offset, import) = import?;
                    self.add_import(import.module, import.name, import.ty).map_err(|error| error.at(offset))?;
                }
            }
            Payload::FunctionSection(section) => {
                for function in section {
                    self.functions.push(function?);
                }
                at_most("functions", self.functions.len(), FUNCTIONS_MAX)?;
            }
            Payload::TableSection(section) => {
                for table in section {
                    let table = table?;
                    self.set_table_len(table.ty.initial as usize)?;
                }
            }
            Payload::MemorySection(section) => {
                for memory in section {
                    let memory = memory?;
                    self.set_memory(memory.initial, memory.maximum)?;
                }
            }
            Payload::GlobalSection(section) => {
                for global in section.into_iter_with_offsets() {
                    let (offset, global) = global?;
                    self.add_global(global.ty, &global.init_expr).map_err(|error| error.at(offset))?;
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export?;
                    self.add_export(export.name, export.kind, export.index);
                }
            }
            Payload::StartSection { func, .. } => self.start_section = Some(func),
            Payload::ElementSection(section) => {
                for element in section.into_iter_with_offsets() {
                    let (offset, element) = element?;
                    self.add_element(element).map_err(|error| error.at(offset))?;
                }
            }
            Payload::DataSection(section) => {
                at_most("data segments", section.count() as usize, DATA_SEGMENTS_MAX)?;
                for data in section.into_iter_with_offsets() {
                    let (offset, data) = data?;
                    self.add_data(data).map_err(|error| error.at(offset))?;
                }
            }
            Payload::CodeSectionStart { size, unchecked_range, .. } => self.begin_code(size, unchecked_range.start)?,
            Payload::CodeSectionEntry(body) => {
                let bytes = body.range();
                at_most("bytes in a function", (bytes.end - bytes.start) as usize, FUNCTION_MAX_BYTES)?;
                self.bodies.push(body);
            }
            Payload::CustomSection(section) => self.add_custom(section.name(), section.data(), section.as_known()),
            _ => {}
        }
        Ok(())
    }

    fn begin_code(&mut self, bytes: u32, at: u64) -> Result<(), TranslateError> {
        self.code_at = at;
        at_most("bytes of code", bytes as usize, CODE_MAX_BYTES)
    }

    fn check_types(&mut self) -> Result<(), TranslateError> {
        at_most("types of functions", self.types.len(), TYPES_MAX)?;
        for kind in &self.types {
            at_most("parameters in a function", kind.params().len(), PARAMETERS_MAX)?;
        }
        let first = |kind: &FuncType| self.types.iter().position(|other| other == kind).unwrap_or_default();
        self.first_same = self.types.iter().map(|kind| first(kind) as u32).collect();
        Ok(())
    }

    fn add_import(&mut self, module: &str, name: &str, kind: TypeRef) -> Result<(), TranslateError> {
        let TypeRef::Func(index) = kind else {
            return refuse(format!("it imports {module}.{name}, which is no function: only functions may be imported"));
        };
        if module != IMPORT_MODULE {
            return refuse(format!(
                "it imports the function {module}.{name}; only those of the module \"{IMPORT_MODULE}\" are there \
                 (no WASI, no env)"
            ));
        }
        let Some(function) = HostFunction::by_name(name) else {
            return refuse(format!("it imports {module}.{name}, which the host does not have"));
        };
        let number = |kind: &ValType| match kind {
            ValType::I32 => Some(NumberType::I32),
            ValType::I64 => Some(NumberType::I64),
            _ => None,
        };
        let found = &self.types[index as usize];
        let parameters = found.params().iter().map(number).collect::<Option<Vec<_>>>();
        let results = found.results().iter().map(number).collect::<Option<Vec<_>>>();
        if parameters.as_deref() != Some(function.parameters())
            || results.as_deref() != Some(function.result().as_slice())
        {
            return refuse(format!("it imports {module}.{name} with other parameters or results than it has"));
        }
        self.imports.push(function);
        self.functions.push(index);
        Ok(())
    }

    fn set_table_len(&mut self, len: usize) -> Result<(), TranslateError> {
        at_most("functions in its table", len, TABLE_MAX)?;
        if !self.table.is_empty() {
            return refuse("it has more than one table");
        }
        self.table = vec![None; len];
        Ok(())
    }

    fn set_memory(&mut self, initial: u64, maximum: Option<u64>) -> Result<(), TranslateError> {
        let most = (MEMORY_MAX_BYTES / WASM_PAGE_BYTES) as u64 - 1;
        at_most("pages of memory", initial as usize, most as usize)?;
        self.layout.memory_bytes = (initial as usize * WASM_PAGE_BYTES) as u32;
        self.layout.memory_max_bytes = (maximum.unwrap_or(most).min(most) as usize * WASM_PAGE_BYTES) as u32;
        Ok(())
    }

    fn add_global(&mut self, kind: GlobalType, value: &ConstExpr<'_>) -> Result<(), TranslateError> {
        if !matches!(kind.content_type, ValType::I32 | ValType::I64 | ValType::F32 | ValType::F64) {
            return refuse("it has a global that is no number");
        }
        let value = self.constant(value)?;
        let variable = kind.mutable.then_some(self.layout.variables.len());
        if variable.is_some() {
            self.layout.variables.push(value);
            at_most("globals", self.layout.variables.len(), MAX_VARIABLES)?;
        }
        self.globals.push(Global { kind: kind.content_type, variable, value });
        Ok(())
    }

    /// The value of an expression that the format allows where it wants a constant.
    fn constant(&self, expression: &ConstExpr<'_>) -> Result<u64, TranslateError> {
        let mut reader = expression.get_operators_reader();
        let value = match reader.read()? {
            Operator::I32Const { value } => u64::from(value as u32),
            Operator::I64Const { value } => value as u64,
            Operator::F32Const { value } => u64::from(value.bits()),
            Operator::F64Const { value } => value.bits(),
            Operator::GlobalGet { global_index } => self.globals[global_index as usize].value,
            other => return refuse(format!("it has a constant of a form that is not known: {other:?}")),
        };
        match reader.read()? {
            Operator::End => Ok(value),
            other => refuse(format!("it has a constant of a form that is not known: {other:?}")),
        }
    }

    fn add_export(&mut self, name: &str, kind: ExternalKind, index: u32) {
        match (name, kind) {
            ("sandstorm_start", ExternalKind::Func) => self.exports.start = Some(index),
            ("sandstorm_poll", ExternalKind::Func) => self.exports.poll = Some(index),
            ("_initialize", ExternalKind::Func) => self.exports.initialize = Some(index),
            #[cfg(feature = "testing")]
            (name, ExternalKind::Func) => self.exports.others.push((name.to_owned(), index)),
            ("__heap_base", ExternalKind::Global) => {
                self.layout.heap_base = self.globals.get(index as usize).map_or(0, |global| global.value as u32);
            }
            _ => {}
        }
    }

    fn add_element(&mut self, element: Element<'_>) -> Result<(), TranslateError> {
        let ElementKind::Active { offset_expr, .. } = element.kind else { return Ok(()) };
        let mut at = self.constant(&offset_expr)? as usize;
        let mut set = |function: Option<u32>| match self.table.get_mut(at) {
            Some(entry) => {
                *entry = function;
                at += 1;
                Ok(())
            }
            None => refuse("its table is shorter than what is put into it"),
        };
        match element.items {
            ElementItems::Functions(functions) => {
                for function in functions {
                    set(Some(function?))?;
                }
            }
            ElementItems::Expressions(_, expressions) => {
                for expression in expressions {
                    let mut reader = expression?.get_operators_reader();
                    match reader.read()? {
                        Operator::RefFunc { function_index } => set(Some(function_index))?,
                        Operator::RefNull { .. } => set(None)?,
                        other => return refuse(format!("its table has an entry of an unknown form: {other:?}")),
                    }
                }
            }
        }
        Ok(())
    }

    fn add_data(&mut self, data: Data<'_>) -> Result<(), TranslateError> {
        let DataKind::Active { offset_expr, .. } = data.kind else {
            return refuse("it has a passive data segment; link it so that its data is put into memory at the start");
        };
        let address = self.constant(&offset_expr)? as u32;
        self.layout.segments.push(DataSegment { address, writable: true, bytes: data.data.to_vec() });
        Ok(())
    }

    fn add_custom(&mut self, name: &str, data: &[u8], known: KnownCustom<'_>) {
        if name == "sandstorm" && data.len() == 24 {
            let field = |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().unwrap_or_default());
            (self.layout.future_size, self.layout.future_align) = (field(4), field(8));
            self.layout.api_fingerprint = u64::from(field(16)) | u64::from(field(20)) << 32;
        }
        if let KnownCustom::Name(names) = known {
            for subsection in names.into_iter().flatten() {
                match subsection {
                    Name::Data(names) => self.names = data_ranges(names, &self.layout.segments),
                    Name::Function(names) => self.function_names = function_names(names),
                    _ => {}
                }
            }
        }
    }

    /// Checks the functions that the host enters.
    fn check_entries(&self) -> Result<(), TranslateError> {
        let Some(start) = self.exports.start else {
            return refuse("it exports no function sandstorm_start(slot: i32, invocation: i32) -> i32");
        };
        for function in [Some(start), self.exports.poll].into_iter().flatten() {
            let kind = self.function_type(function);
            if kind.params() != [ValType::I32, ValType::I32] || kind.results() != [ValType::I32] {
                return refuse("its sandstorm_start or sandstorm_poll is not (slot: i32, invocation: i32) -> i32");
            }
        }
        Ok(())
    }

    /// What can only be said once all sections have been seen.
    fn finish(&mut self) -> Result<(), TranslateError> {
        for function in [self.start_section, self.exports.initialize].into_iter().flatten() {
            let kind = self.function_type(function);
            if !kind.params().is_empty() || !kind.results().is_empty() {
                return refuse("its _initialize has parameters or results");
            }
        }
        if self.layout.is_ours() {
            for (name, range) in std::mem::take(&mut self.names) {
                self.mark(name, range);
            }
            self.layout.zeroed = self.zeroed();
        }
        self.layout.check().map_err(|error| RefusalReason::Refused(error.0.to_owned()).into())
    }

    /// The variables that are zero at the start (`.bss`): the linker puts them last, and no segment is of them.
    fn zeroed(&self) -> std::ops::Range<u32> {
        let end_of = |segment: &DataSegment| segment.address.saturating_add(segment.bytes.len() as u32);
        let data_end = self.layout.segments.iter().map(end_of).max();
        let stack_end = self.layout.stack_bytes() as u32;
        let start = data_end.unwrap_or(stack_end).max(stack_end);
        start.min(self.layout.heap_base)..self.layout.heap_base
    }

    /// Notes what a data segment is for, as the linker named it. Only modules of the server's own builder are believed:
    /// a wrong name would only let one call of a tenant see what the one before has changed.
    fn mark(&mut self, name: SectionName, range: std::ops::Range<u32>) {
        match name {
            SectionName::ReadOnly => {
                let of_range = |segment: &&mut DataSegment| segment.address == range.start;
                self.layout.segments.iter_mut().filter(of_range).for_each(|segment| segment.writable = false);
            }
            SectionName::Writable => {}
        }
    }
}
