//! A profile in the processed format of Firefox' profiler, which <https://profiler.firefox.com> opens from a file.

use std::collections::HashMap;

use sandstorm_client::control::{CodePlaceReport, ProfileReport};
use serde_json::{Value, json};

use super::stack_tree::{HOST_CALL, UNKNOWN};

/// The version of the processed format that is written; later profilers upgrade it.
const PROCESSED_VERSION: u64 = 48;
/// The version of the format that it is made of.
const GECKO_VERSION: u64 = 29;

/// Columns of the thread's tables.
#[derive(Default)]
struct ProfileTables {
    strings: Vec<String>,
    string_numbers: HashMap<String, usize>,
    /// Name and file of each function.
    functions: Vec<(usize, Option<usize>)>,
    function_numbers: HashMap<(usize, Option<usize>), usize>,
    /// Function and line of each frame.
    frames: Vec<(usize, Option<u32>)>,
    frame_numbers: HashMap<(usize, Option<u32>), usize>,
    /// The frame of each stack, and the stack that it was called from.
    stacks: Vec<(usize, Option<usize>)>,
    stack_numbers: HashMap<(usize, Option<usize>), usize>,
}

/// The number of an entry, which is added if it is new.
fn intern<T: Clone + Eq + std::hash::Hash>(all: &mut Vec<T>, numbers: &mut HashMap<T, usize>, entry: T) -> usize {
    *numbers.entry(entry).or_insert_with_key(|entry| {
        all.push(entry.clone());
        all.len() - 1
    })
}

impl ProfileTables {
    fn string(&mut self, text: &str) -> usize {
        intern(&mut self.strings, &mut self.string_numbers, text.to_owned())
    }

    /// The stack of a place that was called from another.
    fn stack(&mut self, place: &CodePlaceReport, caller: Option<usize>) -> usize {
        let name = self.string(&place.function);
        let file = (!place.file.is_empty()).then(|| self.string(&place.file));
        let function = intern(&mut self.functions, &mut self.function_numbers, (name, file));
        let line = (place.line > 0).then_some(place.line);
        let frame = intern(&mut self.frames, &mut self.frame_numbers, (function, line));
        intern(&mut self.stacks, &mut self.stack_numbers, (frame, caller))
    }
}

pub(super) fn json(report: &ProfileReport) -> String {
    let mut tables = ProfileTables::default();
    let own = |name: &str| CodePlaceReport { function: name.to_owned(), ..CodePlaceReport::default() };
    let (mut stacks, mut weights) = (Vec::new(), Vec::new());
    for stack in &report.stacks {
        let mut at = None;
        for place in report.places_of(stack).rev() {
            at = Some(tables.stack(place, at));
        }
        if stack.in_host {
            at = Some(tables.stack(&own(HOST_CALL), at));
        }
        stacks.push(at.unwrap_or_else(|| tables.stack(&own(UNKNOWN), None)));
        weights.push(stack.samples);
    }
    let interval_ms = 1000.0 / report.samples_per_s.max(1) as f64;
    let times: Vec<f64> = (0..stacks.len()).map(|index| index as f64 * interval_ms).collect();
    let thread = thread(report, tables, (stacks, weights, times));
    let profile = json!({
        "meta": {
            "version": GECKO_VERSION,
            "preprocessedProfileVersion": PROCESSED_VERSION,
            "interval": interval_ms,
            "startTime": 0,
            "processType": 0,
            "product": format!("sandstorm: {} version {}", report.extension, report.version),
            "stackwalk": 1,
            "debug": false,
            "symbolicated": true,
            "categories": [{ "name": "Other", "color": "grey", "subcategories": ["Other"] }],
            "markerSchema": [],
        },
        "libs": [],
        "threads": [thread],
    });
    profile.to_string()
}

/// The one thread of the profile.
fn thread(
    report: &ProfileReport,
    tables: ProfileTables,
    (stacks, weights, times): (Vec<usize>, Vec<u64>, Vec<f64>),
) -> Value {
    let ProfileTables { strings, functions, frames, stacks: calls, .. } = tables;
    let nulls = |count: usize| vec![Value::Null; count];
    let (frame_count, function_count) = (frames.len(), functions.len());
    json!({
        "name": report.extension,
        "isMainThread": true,
        "processType": "default",
        "processStartupTime": 0,
        "processShutdownTime": null,
        "registerTime": 0,
        "unregisterTime": null,
        "pausedRanges": [],
        "pid": "0",
        "tid": 0,
        "samples": { "length": stacks.len(), "stack": stacks, "time": times, "weight": weights, "weightType": "samples" },
        "markers": { "length": 0, "data": [], "name": [], "startTime": [], "endTime": [], "phase": [], "category": [] },
        "stackTable": {
            "length": calls.len(),
            "frame": calls.iter().map(|call| call.0).collect::<Vec<_>>(),
            "prefix": calls.iter().map(|call| call.1).collect::<Vec<_>>(),
            "category": vec![0; calls.len()],
            "subcategory": vec![0; calls.len()],
        },
        "frameTable": {
            "length": frame_count,
            "address": vec![-1; frame_count],
            "inlineDepth": vec![0; frame_count],
            "category": vec![0; frame_count],
            "subcategory": vec![0; frame_count],
            "func": frames.iter().map(|frame| frame.0).collect::<Vec<_>>(),
            "nativeSymbol": nulls(frame_count),
            "innerWindowID": nulls(frame_count),
            "implementation": nulls(frame_count),
            "line": frames.iter().map(|frame| frame.1).collect::<Vec<_>>(),
            "column": nulls(frame_count),
        },
        "funcTable": {
            "length": function_count,
            "name": functions.iter().map(|function| function.0).collect::<Vec<_>>(),
            "isJS": vec![false; function_count],
            "relevantForJS": vec![false; function_count],
            "resource": vec![-1; function_count],
            "fileName": functions.iter().map(|function| function.1).collect::<Vec<_>>(),
            "lineNumber": nulls(function_count),
            "columnNumber": nulls(function_count),
        },
        "resourceTable": { "length": 0, "lib": [], "name": [], "host": [], "type": [] },
        "nativeSymbols": { "length": 0, "libIndex": [], "address": [], "name": [], "functionSize": [] },
        "stringArray": strings,
    })
}
