//! A translation that runs a script of calls: what WebAssembly's own test suite asks of an implementation.
//!
//! The script is the invocation's arguments: calls, each of a number (u64), then as many words (u64) as the longest
//! list of parameters or results of any function. Results replace parameters, and the whole script is the reply.

use std::fmt::Write;

use sandstorm_sandbox::HostFunction;
use wasmparser::{FuncType, ValType};

use crate::error::TranslateError;
use crate::module::ModuleFacts;
use crate::{Translation, emit};

/// A function that a script may call, by its number.
#[derive(Clone, Debug)]
pub struct ScriptFunction {
    /// The name that it is exported by.
    pub name: String,
    /// Its number of results.
    pub results: usize,
}

/// A module that runs scripts.
#[derive(Clone, Debug)]
pub struct ScriptModule {
    /// The crate.
    pub translation: Translation,
    /// Its functions, by number.
    pub functions: Vec<ScriptFunction>,
    /// Words of each call behind its number.
    pub words: usize,
}

/// Translates a module with any exports.
///
/// # Errors
/// As for [`translate`](crate::translate()).
pub fn translate_script(wasm: &[u8]) -> Result<ScriptModule, TranslateError> {
    let facts = ModuleFacts::collect(wasm)?;
    let (mut text, source) = emit::functions_text(&facts)?;
    emit::host_function(&mut text, "reply", HostFunction::Reply);
    let exported = facts.exports.others.clone();
    let kind = |function: u32| facts.function_type(function);
    let longest = |function: u32| kind(function).params().len().max(kind(function).results().len());
    let words = exported.iter().map(|(_, function)| longest(*function)).max().unwrap_or(0);
    let start = facts.start_section.map(|function| format!("f{function}();")).unwrap_or_default();
    let bytes = 8 * (words + 1);
    let _ = writeln!(
        text,
        "#[unsafe(no_mangle)]
pub unsafe extern \"sysv64\" fn sandstorm_poll(slot: u32, invocation: u32) -> u32 {{ 0 }}
#[unsafe(no_mangle)]
pub unsafe extern \"sysv64\" fn sandstorm_start(slot: u32, invocation: u32) -> u32 {{ unsafe {{
    {start}
    let (first, len) = (load_u32::<4>(invocation), load_u32::<8>(invocation));
    let mut at = first;
    while at < first + len {{
        match load_u64::<0>(at) {{"
    );
    for (number, (_, function)) in exported.iter().enumerate() {
        let _ = writeln!(text, "{number} => {{ {} }}", scripted_call(*function, kind(*function)));
    }
    let _ = writeln!(text, "_ => trap(),\n}}\nat += {bytes};\n}}\nreply(first, len);\n1\n}} }}");
    let function = |(name, function): &(String, u32)| ScriptFunction {
        name: name.clone(),
        results: kind(*function).results().len(),
    };
    let functions = exported.iter().map(function).collect();
    let translation = Translation { rust: text, layout: facts.layout.clone(), source };
    Ok(ScriptModule { translation, functions, words })
}

/// A call whose parameters are read from the script and whose results are written there.
fn scripted_call(function: u32, kind: &FuncType) -> String {
    let mut text = String::new();
    let mut arguments = String::new();
    for (index, parameter) in kind.params().iter().enumerate() {
        let word = format!("load_u64::<{}>(at)", 8 * (index + 1));
        arguments += &match parameter {
            ValType::I32 => format!("{word} as u32, "),
            ValType::F32 => format!("f32::from_bits({word} as u32), "),
            ValType::F64 => format!("f64::from_bits({word}), "),
            _ => format!("{word}, "),
        };
    }
    let _ = write!(text, "let r = f{function}({arguments}); ");
    for (index, result) in kind.results().iter().enumerate() {
        let value = match (index, result) {
            (0, ValType::F32 | ValType::F64) => "r.to_bits() as u64".to_owned(),
            (0, _) => "r as u64".to_owned(),
            _ => format!("get_global::<{}>()", sandstorm_sandbox::layout::further_result_at(index - 1)),
        };
        let _ = write!(text, "store_u64::<{}>(at, {value}); ", 8 * (index + 1));
    }
    text
}
