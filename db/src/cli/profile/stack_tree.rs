//! The stacks of a profile as a tree: what was called from where.

use sandstorm_client::control::{CodePlaceReport, ProfileReport};

/// What stands for the host's functions.
pub(super) const HOST_CALL: &str = "[host call]";
/// What stands for a place that is not known.
pub(super) const UNKNOWN: &str = "[unknown]";

/// A place as it is shown.
pub(super) fn label(place: &CodePlaceReport) -> String {
    match (place.file.as_str(), place.line) {
        ("", _) => place.function.clone(),
        (file, 0) => format!("{} {file}", place.function),
        (file, line) => format!("{} {file}:{line}", place.function),
    }
}

/// A function at a line, with what it called.
#[derive(Debug, Default)]
pub(super) struct StackNode {
    pub(super) label: String,
    pub(super) samples: u64,
    pub(super) callees: Vec<StackNode>,
}

impl StackNode {
    /// All stacks of a profile, below one node.
    pub(super) fn of_profile(report: &ProfileReport) -> StackNode {
        let mut root = StackNode { label: report.extension.clone(), ..StackNode::default() };
        for stack in &report.stacks {
            let mut names: Vec<String> = report.places_of(stack).rev().map(label).collect();
            names.extend(stack.in_host.then(|| HOST_CALL.to_owned()));
            if names.is_empty() {
                names.push(UNKNOWN.to_owned());
            }
            root.add(&names, stack.samples);
        }
        root
    }

    fn add(&mut self, names: &[String], samples: u64) {
        let mut node = self;
        node.samples += samples;
        for name in names {
            let at = match node.callees.iter().position(|callee| callee.label == *name) {
                Some(at) => at,
                None => {
                    node.callees.push(StackNode { label: name.clone(), ..StackNode::default() });
                    node.callees.len() - 1
                }
            };
            node = &mut node.callees[at];
            node.samples += samples;
        }
    }

    /// Levels of calls, this one included.
    pub(super) fn depth(&self) -> usize {
        1 + self.callees.iter().map(StackNode::depth).max().unwrap_or(0)
    }
}
