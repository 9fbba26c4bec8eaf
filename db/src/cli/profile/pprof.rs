//! A profile in pprof's format: protocol buffers, uncompressed, which `go tool pprof` reads as well as gzip.
//!
//! Numbers of fields are those of `profile.proto` of google/pprof.

use std::collections::HashMap;

use sandstorm_client::control::{CodePlaceReport, ProfileReport};

use super::stack_tree::{HOST_CALL, UNKNOWN};

/// Bytes of a message that grows.
#[derive(Debug, Default)]
struct ProtoMessage(Vec<u8>);

impl ProtoMessage {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// A field of a number.
    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    /// A field of bytes: a text, or a message.
    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    /// A field of many numbers.
    fn numbers(&mut self, field: u64, values: impl IntoIterator<Item = u64>) {
        let mut packed = ProtoMessage::default();
        values.into_iter().for_each(|value| packed.varint(value));
        self.bytes(field, &packed.0);
    }
}

/// The texts that messages name by their number; the first is empty.
#[derive(Debug)]
struct TextTable {
    texts: Vec<String>,
    numbers: HashMap<String, u64>,
}

impl TextTable {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.texts.len() as u64;
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

/// A message of a type and a unit.
fn value_type(texts: &mut TextTable, kind: &str, unit: &str) -> Vec<u8> {
    let mut message = ProtoMessage::default();
    message.number(1, texts.number(kind));
    message.number(2, texts.number(unit));
    message.0
}

pub(super) fn encode(report: &ProfileReport) -> Vec<u8> {
    let mut texts = TextTable { texts: vec![String::new()], numbers: HashMap::from([(String::new(), 0)]) };
    let mut profile = ProtoMessage::default();
    let period_ns = 1_000_000_000 / report.samples_per_s.max(1);
    for (kind, unit) in [("samples", "count"), ("cpu", "nanoseconds")] {
        let message = value_type(&mut texts, kind, unit);
        profile.bytes(1, &message);
    }
    // Locations by the number of their place, from 1; two more for what has no place.
    let (host, unknown) = (report.places.len() as u64 + 1, report.places.len() as u64 + 2);
    for stack in &report.stacks {
        let mut locations: Vec<u64> = stack.in_host.then_some(host).into_iter().collect();
        locations
            .extend(stack.places.iter().filter(|place| **place < report.places.len()).map(|place| *place as u64 + 1));
        if locations.is_empty() {
            locations.push(unknown);
        }
        let mut sample = ProtoMessage::default();
        sample.numbers(1, locations);
        sample.numbers(2, [stack.samples, stack.samples.saturating_mul(period_ns)]);
        profile.bytes(2, &sample.0);
    }
    let own = |name: &str| CodePlaceReport { function: name.to_owned(), ..CodePlaceReport::default() };
    let places: Vec<CodePlaceReport> = report.places.iter().cloned().chain([own(HOST_CALL), own(UNKNOWN)]).collect();
    let mut functions: HashMap<(&str, &str), u64> = HashMap::new();
    let mut function_messages = Vec::new();
    for (number, place) in (1..).zip(&places) {
        let next = functions.len() as u64 + 1;
        let function = *functions.entry((&place.function, &place.file)).or_insert(next);
        if function == next {
            let (name, file) = (texts.number(&place.function), texts.number(&place.file));
            let mut message = ProtoMessage::default();
            message.number(1, function);
            message.number(2, name);
            // No system name: of a name that is the system's, too, pprof takes what stands between `<` and `>` for
            // C++'s parameters, and leaves it out. `<two::Key as PartialOrd>::lt` would be `::lt`.
            message.number(4, file);
            function_messages.push(message.0);
        }
        let mut line = ProtoMessage::default();
        line.number(1, function);
        line.number(2, place.line.into());
        let mut location = ProtoMessage::default();
        location.number(1, number);
        location.bytes(4, &line.0);
        profile.bytes(4, &location.0);
    }
    function_messages.iter().for_each(|message| profile.bytes(5, message));
    let period_type = value_type(&mut texts, "cpu", "nanoseconds");
    texts.texts.iter().for_each(|text| profile.bytes(6, text.as_bytes()));
    profile.number(10, report.seconds.saturating_mul(1_000_000_000));
    profile.bytes(11, &period_type);
    profile.number(12, period_ns);
    profile.0
}
