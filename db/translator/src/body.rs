//! A function's body: each operator becomes a statement, each value on the stack a variable that is set once.

use std::fmt::Write;

use sandstorm_sandbox::layout::{MAX_FURTHER_RESULTS, MAX_OFFSET, further_result_at, variable_at};
use wasmparser::{BlockType, FuncType, FunctionBody, Operator, ValType};

use crate::control::{Frame, FrameKind, block_signature};
use crate::error::{TranslateError, at_most, refuse};
use crate::limits::{LOCALS_MAX, NESTING_MAX};
use crate::memory::{MemoryOperator, memory};
use crate::module::ModuleFacts;
use crate::numeric::{NumericOperator, numeric};
use crate::rust_types::rust_type;
use crate::source_lines::{LineCounter, SourceLines};

/// A value on the stack: a variable or a literal, and its type.
#[derive(Clone, Debug)]
struct Value {
    text: String,
    kind: ValType,
}

/// Writes one body.
pub(crate) struct BodyWriter<'a> {
    facts: &'a ModuleFacts<'a>,
    kind: &'a FuncType,
    text: &'a mut String,
    locals: Vec<ValType>,
    stack: Vec<Value>,
    frames: Vec<Frame>,
    /// Variables and labels so far.
    values: usize,
    labels: usize,
    /// Blocks within an unreachable part, which are skipped with it.
    skipped: usize,
}

impl<'a> BodyWriter<'a> {
    pub(crate) fn new(facts: &'a ModuleFacts<'a>, kind: &'a FuncType, text: &'a mut String) -> BodyWriter<'a> {
        BodyWriter {
            facts,
            kind,
            text,
            locals: kind.params().to_vec(),
            stack: Vec::new(),
            frames: Vec::new(),
            values: 0,
            labels: 0,
            skipped: 0,
        }
    }

    /// Writes the body, and notes which lines its operators become.
    pub(crate) fn write(
        mut self,
        body: &FunctionBody<'_>,
        lines: &mut LineCounter,
        source: &mut SourceLines,
    ) -> Result<(), TranslateError> {
        for locals in body.get_locals_reader()? {
            let (count, kind) = locals?;
            at_most("local variables in a function", self.locals.len() + count as usize, LOCALS_MAX)?;
            for _ in 0..count {
                let _ = writeln!(self.text, "let mut l{}: {} = {};", self.locals.len(), rust_type(kind)?, zero(kind));
                self.locals.push(kind);
            }
        }
        at_most("further results of a function", self.kind.results().len().saturating_sub(1), MAX_FURTHER_RESULTS)?;
        self.open(FrameKind::Function, (Vec::new(), self.kind.results().to_vec()), Vec::new())?;
        for operator in body.get_operators_reader()?.into_iter_with_offsets() {
            let (operator, offset) = operator?;
            let line = lines.next_line(self.text);
            // An operator that writes nothing, such as a constant, is part of the next one.
            if source.operators.last().is_some_and(|last| last.0 == line) {
                source.operators.pop();
            }
            source.operators.push((line, offset.saturating_sub(self.facts.code_at) as u32));
            self.operator(&operator).map_err(|error| error.at(offset))?;
        }
        Ok(())
    }

    fn line(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    fn push(&mut self, kind: ValType, text: impl Into<String>) {
        self.stack.push(Value { text: text.into(), kind });
    }

    /// Sets a new variable and pushes it.
    fn define(&mut self, kind: ValType, expression: impl AsRef<str>) -> Result<(), TranslateError> {
        let name = format!("v{}", self.values);
        self.values += 1;
        self.line(format!("let {name}: {} = {};", rust_type(kind)?, expression.as_ref()));
        self.push(kind, name);
        Ok(())
    }

    fn pop(&mut self) -> Result<String, TranslateError> {
        self.stack.pop().map(|value| value.text).map_or_else(|| refuse("its stack is empty"), Ok)
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<String>, TranslateError> {
        let Some(from) = self.stack.len().checked_sub(count) else { return refuse("its stack is empty") };
        Ok(self.stack.drain(from..).map(|value| value.text).collect())
    }

    fn frame(&self) -> Result<&Frame, TranslateError> {
        self.frames.last().map_or_else(|| refuse("it has operators behind its end"), Ok)
    }

    fn target(&self, depth: u32) -> Result<&Frame, TranslateError> {
        let index = self.frames.len().checked_sub(1 + depth as usize);
        index.and_then(|index| self.frames.get(index)).map_or_else(|| refuse("it branches to no block"), Ok)
    }

    fn operator(&mut self, operator: &Operator<'_>) -> Result<(), TranslateError> {
        if self.frame()?.unreachable {
            return self.skip(operator);
        }
        if let Some(found) = numeric(operator) {
            return self.numeric(&found);
        }
        if let Some(found) = memory(operator) {
            return self.memory(&found);
        }
        match operator {
            Operator::Nop => Ok(()),
            Operator::Drop => self.pop().map(drop),
            Operator::I32Const { value } => self.literal(ValType::I32, format!("{}u32", *value as u32)),
            Operator::I64Const { value } => self.literal(ValType::I64, format!("{}u64", *value as u64)),
            Operator::F32Const { value } => self.literal(ValType::F32, format!("f32::from_bits({})", value.bits())),
            Operator::F64Const { value } => self.literal(ValType::F64, format!("f64::from_bits({})", value.bits())),
            Operator::LocalGet { local_index } => {
                let kind = self.locals[*local_index as usize];
                self.define(kind, format!("l{local_index}"))
            }
            Operator::LocalSet { local_index } => {
                let value = self.pop()?;
                self.line(format!("l{local_index} = {value};"));
                Ok(())
            }
            Operator::LocalTee { local_index } => {
                let value = self.stack.last().map_or_else(String::new, |value| value.text.clone());
                self.line(format!("l{local_index} = {value};"));
                Ok(())
            }
            Operator::GlobalGet { global_index } => self.get_global(*global_index),
            Operator::GlobalSet { global_index } => self.set_global(*global_index),
            Operator::Select | Operator::TypedSelect { .. } => self.select(),
            Operator::MemorySize { .. } => self.define(ValType::I32, "memory_size()"),
            Operator::MemoryGrow { .. } => {
                let pages = self.pop()?;
                self.define(ValType::I32, format!("memory_grow({pages})"))
            }
            Operator::MemoryCopy { .. } => self.statement_of(3, "copy_memory"),
            Operator::MemoryFill { .. } => self.statement_of(3, "fill_memory"),
            _ => self.control(operator),
        }
    }

    fn control(&mut self, operator: &Operator<'_>) -> Result<(), TranslateError> {
        match operator {
            Operator::Block { blockty } => self.open_block(FrameKind::Block, *blockty, None),
            Operator::Loop { blockty } => self.open_block(FrameKind::Loop, *blockty, None),
            Operator::If { blockty } => {
                let condition = self.pop()?;
                self.open_block(FrameKind::If, *blockty, Some(condition))
            }
            Operator::Else => self.open_else(),
            Operator::End => self.close(),
            Operator::Br { relative_depth } => {
                self.branch(*relative_depth)?;
                self.end_here()
            }
            Operator::BrIf { relative_depth } => {
                let condition = self.pop()?;
                self.line(format!("if {condition} != 0 {{"));
                self.branch(*relative_depth)?;
                self.line("}");
                Ok(())
            }
            Operator::BrTable { targets } => {
                let entry = self.pop()?;
                self.line(format!("match {entry} {{"));
                for (number, depth) in targets.targets().enumerate() {
                    self.line(format!("{number} => {{"));
                    self.branch(depth?)?;
                    self.line("}");
                }
                self.line("_ => {");
                self.branch(targets.default())?;
                self.line("} }");
                self.end_here()
            }
            Operator::Return => {
                let depth = self.frames.len() as u32 - 1;
                self.branch(depth)?;
                self.end_here()
            }
            Operator::Unreachable => {
                self.line("trap();");
                self.end_here()
            }
            Operator::Call { function_index } => {
                let kind = self.facts.function_type(*function_index);
                self.call(kind, format!("f{function_index}("))
            }
            Operator::CallIndirect { type_index, .. } => {
                let entry = self.pop()?;
                let kind = &self.facts.types[*type_index as usize];
                let function = self.facts.first_same[*type_index as usize];
                self.call(kind, format!("t{function}({entry}, "))
            }
            other => {
                let name = format!("{other:?}");
                let name = name.split([' ', '{']).next().unwrap_or_default();
                refuse(format!("it uses the operator {name}, which is not supported"))
            }
        }
    }

    fn literal(&mut self, kind: ValType, text: String) -> Result<(), TranslateError> {
        self.push(kind, text);
        Ok(())
    }

    fn numeric(&mut self, operator: &NumericOperator) -> Result<(), TranslateError> {
        let operands = self.pop_many(operator.operands)?;
        let mut text = operator.text.to_owned();
        for (name, operand) in ["$a", "$b"].iter().zip(&operands) {
            text = text.replace(name, operand);
        }
        self.define(operator.result, text)
    }

    fn memory(&mut self, operator: &MemoryOperator) -> Result<(), TranslateError> {
        let value = if operator.stores { self.pop()? } else { String::new() };
        let address = self.pop()?;
        if operator.offset > u64::from(MAX_OFFSET) {
            // No address and this offset together are inside of a module's memory.
            self.line("trap_memory();");
            return if operator.stores { Ok(()) } else { self.define(operator.kind, zero(operator.kind)) };
        }
        let call = format!("{}::<{}>({address}", operator.function, operator.offset);
        if operator.stores {
            let value = operator.value.replace("$v", &value);
            self.line(format!("{call}, {value});"));
            return Ok(());
        }
        self.define(operator.kind, operator.value.replace("$v", &format!("{call})")))
    }

    fn select(&mut self) -> Result<(), TranslateError> {
        let condition = self.pop()?;
        let kind = self.stack.last().map_or(ValType::I32, |value| value.kind);
        let (second, first) = (self.pop()?, self.pop()?);
        self.define(kind, format!("if {condition} != 0 {{ {first} }} else {{ {second} }}"))
    }

    fn statement_of(&mut self, operands: usize, function: &str) -> Result<(), TranslateError> {
        let operands = self.pop_many(operands)?.join(", ");
        self.line(format!("{function}({operands});"));
        Ok(())
    }

    fn get_global(&mut self, index: u32) -> Result<(), TranslateError> {
        let global = self.facts.globals[index as usize];
        let text = match (global.variable, global.kind) {
            (None, ValType::I32) => format!("{}u32", global.value as u32),
            (None, ValType::F32) => format!("f32::from_bits({}u32)", global.value as u32),
            (None, ValType::F64) => format!("f64::from_bits({}u64)", global.value),
            (None, _) => format!("{}u64", global.value),
            (Some(variable), ValType::I32) => format!("get_global_u32::<{}>()", variable_at(variable)),
            (Some(variable), kind) => from_bits(kind, &format!("get_global::<{}>()", variable_at(variable))),
        };
        self.define(global.kind, text)
    }

    fn set_global(&mut self, index: u32) -> Result<(), TranslateError> {
        let global = self.facts.globals[index as usize];
        let value = self.pop()?;
        let Some(variable) = global.variable else { return refuse("it sets a global that is a constant") };
        let at = variable_at(variable);
        self.line(match global.kind {
            ValType::I32 => format!("set_global_u32::<{at}>({value});"),
            kind => format!("set_global::<{at}>({});", to_bits(kind, &value)),
        });
        Ok(())
    }

    fn call(&mut self, kind: &FuncType, begin: String) -> Result<(), TranslateError> {
        let arguments = self.pop_many(kind.params().len())?.join(", ");
        match kind.results() {
            [] => self.line(format!("{begin}{arguments});")),
            [first, ..] => self.define(*first, format!("{begin}{arguments})"))?,
        }
        for (index, result) in kind.results().iter().skip(1).enumerate() {
            self.define(*result, from_bits(*result, &format!("get_global::<{}>()", further_result_at(index))))?;
        }
        Ok(())
    }

    fn open_block(&mut self, kind: FrameKind, of: BlockType, condition: Option<String>) -> Result<(), TranslateError> {
        let signature = block_signature(of, &self.facts.types);
        let arguments = self.pop_many(signature.0.len())?;
        let (parameters, results) = signature.clone();
        self.open(kind, signature, arguments.clone())?;
        let label = self.frame()?.label;
        for (index, result) in results.iter().enumerate() {
            self.line(format!("let mut r{label}_{index}: {} = {};", rust_type(*result)?, zero(*result)));
        }
        if kind == FrameKind::Loop {
            for (index, (parameter, argument)) in parameters.iter().zip(&arguments).enumerate() {
                self.line(format!("let mut p{label}_{index}: {} = {argument};", rust_type(*parameter)?));
            }
        }
        self.line(match (kind, condition) {
            (FrameKind::Loop, _) => format!("'b{label}: loop {{"),
            (_, Some(condition)) => format!("'b{label}: {{ if {condition} != 0 {{"),
            (_, None) => format!("'b{label}: {{"),
        });
        for (index, (parameter, argument)) in parameters.iter().zip(arguments).enumerate() {
            match kind {
                FrameKind::Loop => self.define(*parameter, format!("p{label}_{index}"))?,
                _ => self.push(*parameter, argument),
            }
        }
        Ok(())
    }

    fn open(
        &mut self,
        kind: FrameKind,
        (parameters, results): (Vec<ValType>, Vec<ValType>),
        arguments: Vec<String>,
    ) -> Result<(), TranslateError> {
        at_most("blocks within each other", self.frames.len(), NESTING_MAX)?;
        let (label, height) = (self.labels, self.stack.len());
        self.labels += 1;
        self.frames.push(Frame { kind, label, parameters, results, height, unreachable: false, arguments });
        Ok(())
    }

    fn open_else(&mut self) -> Result<(), TranslateError> {
        self.leave_results()?;
        let Some(frame) = self.frames.last_mut() else { return refuse("it has an else without an if") };
        (frame.kind, frame.unreachable) = (FrameKind::Else, false);
        let arguments: Vec<_> = frame.parameters.iter().copied().zip(frame.arguments.clone()).collect();
        self.stack.truncate(frame.height);
        self.line("} else {");
        arguments.into_iter().for_each(|(kind, argument)| self.push(kind, argument));
        Ok(())
    }

    /// The end of a block: its results are in variables afterwards.
    fn close(&mut self) -> Result<(), TranslateError> {
        let frame = self.frame()?;
        if frame.kind == FrameKind::Function {
            let reached = !frame.unreachable;
            if reached {
                self.branch(0)?;
            } else if !self.kind.results().is_empty() {
                self.line("trap()");
            }
            self.frames.pop();
            return Ok(());
        }
        let (kind, label) = (frame.kind, frame.label);
        self.leave_results()?;
        self.line(match kind {
            FrameKind::Loop => format!("break 'b{label}; }}"),
            FrameKind::If => {
                // Without an else, what the if began with is its result.
                let frame = self.frame()?;
                let keep = |(index, argument): (usize, &String)| format!("{} = {argument}; ", frame.result(index));
                format!("}} else {{ {} }} }}", frame.arguments.iter().enumerate().map(keep).collect::<String>())
            }
            FrameKind::Else => "} }".to_owned(),
            FrameKind::Block | FrameKind::Function => "}".to_owned(),
        });
        let Some(frame) = self.frames.pop() else { return refuse("it ends a block that has not begun") };
        self.stack.truncate(frame.height);
        for (index, result) in frame.results.iter().enumerate() {
            self.push(*result, frame.result(index));
        }
        Ok(())
    }

    /// Leaves the values of a block that ends here in the variables of its results.
    fn leave_results(&mut self) -> Result<(), TranslateError> {
        let frame = self.frame()?;
        if frame.unreachable {
            return Ok(());
        }
        let names: Vec<_> = (0..frame.results.len()).map(|index| frame.result(index)).collect();
        let values = self.pop_many(names.len())?;
        for (name, value) in names.iter().zip(values) {
            self.line(format!("{name} = {value};"));
        }
        Ok(())
    }

    /// Branches out of blocks; the values stay on the stack.
    fn branch(&mut self, depth: u32) -> Result<(), TranslateError> {
        let target = self.target(depth)?;
        let (kind, label, count) = (target.kind, target.label, target.branch_types().len());
        let names: Vec<_> = (0..count).map(|index| target.branch_variable(index)).collect();
        let Some(from) = self.stack.len().checked_sub(count) else { return refuse("its stack is empty") };
        let values: Vec<Value> = self.stack[from..].to_vec();
        if kind == FrameKind::Function {
            for (index, value) in values.iter().skip(1).enumerate() {
                let bits = to_bits(value.kind, &value.text);
                self.line(format!("set_global::<{}>({bits});", further_result_at(index)));
            }
            let first = values.first().map(|value| value.text.clone()).unwrap_or_default();
            self.line(format!("return {first};"));
            return Ok(());
        }
        for (name, value) in names.iter().zip(&values) {
            self.line(format!("{name} = {};", value.text));
        }
        let jump = if kind == FrameKind::Loop { "continue" } else { "break" };
        self.line(format!("{jump} 'b{label};"));
        Ok(())
    }

    /// What follows up to the end of the block cannot be reached.
    fn end_here(&mut self) -> Result<(), TranslateError> {
        let Some(frame) = self.frames.last_mut() else { return refuse("it has operators behind its end") };
        frame.unreachable = true;
        self.stack.truncate(frame.height);
        Ok(())
    }

    fn skip(&mut self, operator: &Operator<'_>) -> Result<(), TranslateError> {
        match operator {
            Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => self.skipped += 1,
            Operator::Else if self.skipped == 0 => return self.open_else(),
            Operator::End if self.skipped == 0 => return self.close(),
            Operator::End => self.skipped -= 1,
            _ => {}
        }
        Ok(())
    }
}

/// A value of a type, to begin with.
fn zero(kind: ValType) -> &'static str {
    match kind {
        ValType::F32 | ValType::F64 => "0.0",
        _ => "0",
    }
}

/// A value as 64 bits.
fn to_bits(kind: ValType, value: &str) -> String {
    match kind {
        ValType::I64 => value.to_owned(),
        ValType::F32 | ValType::F64 => format!("{value}.to_bits() as u64"),
        _ => format!("{value} as u64"),
    }
}

/// A value of 64 bits.
fn from_bits(kind: ValType, bits: &str) -> String {
    match kind {
        ValType::F32 => format!("f32::from_bits({bits} as u32)"),
        ValType::F64 => format!("f64::from_bits({bits})"),
        ValType::I32 => format!("{bits} as u32"),
        _ => bits.to_owned(),
    }
}
