//! The text of the generated crate around the functions' bodies.

use std::fmt::Write;

use sandstorm_sandbox::{HostFunction, MEMORY_PIECE_BYTES, NumberType};
use wasmparser::FuncType;

use crate::body::BodyWriter;
use crate::error::{TranslateError, at_most};
use crate::limits::TEXT_MAX_BYTES;
use crate::module::ModuleFacts;
use crate::rust_types::rust_signature;
use crate::source_lines::{LineCounter, SourceLines};

/// What every generated crate begins with.
const HEAD: &str = "#![no_std]
#![allow(warnings)]
";

/// The functions that every generated crate has.
const SUPPORT: &str = include_str!("guest_support.rs");

/// The whole crate.
pub(crate) fn module_text(facts: &ModuleFacts<'_>) -> Result<(String, SourceLines), TranslateError> {
    let (mut text, source) = functions_text(facts)?;
    entries(&mut text, facts);
    Ok((text, source))
}

/// All of it but the functions that the host enters.
pub(crate) fn functions_text(facts: &ModuleFacts<'_>) -> Result<(String, SourceLines), TranslateError> {
    let mut text = String::from(HEAD);
    let _ = writeln!(text, "const PIECE_BYTES: u32 = {MEMORY_PIECE_BYTES};");
    text.push_str(SUPPORT);
    for (index, function) in facts.imports.iter().enumerate() {
        host_function(&mut text, &format!("f{index}"), *function);
    }
    host_function(&mut text, "host_copy", HostFunction::MemoryCopy);
    host_function(&mut text, "host_fill", HostFunction::MemoryFill);
    host_function(&mut text, "memory_size", HostFunction::MemorySize);
    host_function(&mut text, "memory_grow", HostFunction::MemoryGrow);
    let mut source = SourceLines { names: facts.function_names.clone(), ..SourceLines::default() };
    let mut lines = LineCounter::default();
    for (index, body) in facts.bodies.iter().enumerate() {
        let function = (facts.imports.len() + index) as u32;
        let kind = facts.function_type(function);
        let _ = writeln!(text, "unsafe fn f{function}{} {{ unsafe {{", rust_signature(kind)?);
        let first_line = lines.next_line(&text);
        let written = BodyWriter::new(facts, kind, &mut text).write(body, &mut lines, &mut source);
        let written =
            written.and_then(|()| at_most("bytes when it is written down as Rust", text.len(), TEXT_MAX_BYTES));
        written.map_err(|error| error.at(body.range().start))?;
        text.push_str("} }\n");
        source.bodies.push((first_line..lines.next_line(&text), function));
    }
    for (index, kind) in (0..).zip(&facts.types) {
        if facts.first_same[index as usize] == index {
            indirect_call(&mut text, facts, index, kind)?;
        }
    }
    Ok((text, source))
}

/// A function that calls one of the host's by its address in the control page.
pub(crate) fn host_function(text: &mut String, name: &str, function: HostFunction) {
    /// Where parameters travel: the last one where a C function would take none.
    const REGISTERS: [&str; 7] = ["rdi", "rsi", "rdx", "rcx", "r8", "r9", "r10"];
    let kind = |number: &NumberType| match number {
        NumberType::I32 => "u32",
        NumberType::I64 => "u64",
    };
    let parameters = function.parameters();
    let list: String = parameters.iter().enumerate().map(|(index, of)| format!("l{index}: {}, ", kind(of))).collect();
    let result = function.result().as_ref().map_or("()", kind);
    let _ = writeln!(text, "#[inline(always)]\nunsafe fn {name}({list}) -> {result} {{");
    let _ = write!(text, "    let value: u64;\n    unsafe {{ asm!(\"call qword ptr gs:[{}]\", ", function.address_at());
    for (index, register) in REGISTERS.iter().enumerate().take(parameters.len()) {
        let _ = write!(text, "in(\"{register}\") l{index} as u64, ");
    }
    let end = if result == "()" { "" } else { "value as _" };
    let _ = writeln!(text, "lateout(\"rax\") value, clobber_abi(\"sysv64\")) }};\n    {end}\n}}");
}

/// The function that finds out which function of a type an entry of the table names, by comparing.
fn indirect_call(
    text: &mut String,
    facts: &ModuleFacts<'_>,
    index: u32,
    kind: &FuncType,
) -> Result<(), TranslateError> {
    let same = |function: &u32| facts.function_type(*function) == kind;
    let arguments: String = (0..kind.params().len()).map(|index| format!("l{index}, ")).collect();
    let mut parameters = rust_signature(kind)?;
    parameters.insert_str(1, "entry: u32, ");
    let _ = writeln!(text, "#[inline(never)]\nunsafe fn t{index}{parameters} {{\n    unsafe {{ match entry {{");
    for (entry, function) in facts.table.iter().enumerate() {
        if let Some(function) = function.filter(same) {
            let _ = writeln!(text, "        {entry} => f{function}({arguments}),");
        }
    }
    text.push_str("        _ => trap(),\n    } }\n}\n");
    Ok(())
}

/// The functions that the host enters.
fn entries(text: &mut String, facts: &ModuleFacts<'_>) {
    for (name, function, first) in
        [("sandstorm_start", facts.exports.start, true), ("sandstorm_poll", facts.exports.poll, false)]
    {
        let _ = writeln!(
            text,
            "#[unsafe(no_mangle)]\npub unsafe extern \"sysv64\" fn {name}(slot: u32, invocation: u32) -> u32 {{\n    unsafe {{"
        );
        if first {
            for function in [facts.start_section, facts.exports.initialize].into_iter().flatten() {
                let _ = writeln!(text, "        f{function}();");
            }
        }
        match function {
            Some(function) => {
                let _ = writeln!(text, "        f{function}(slot, invocation)");
            }
            None => text.push_str("        trap()\n"),
        }
        text.push_str("    }\n}\n");
    }
}
