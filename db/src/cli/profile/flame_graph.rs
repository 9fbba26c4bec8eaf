//! A flame graph as SVG: a box for each function at a line, above it what that called, as wide as it has samples. No
//! script and nothing from elsewhere: a box says what it is when the pointer rests on it.

use std::fmt::Write;

use sandstorm_client::control::ProfileReport;

use super::stack_tree::{HOST_CALL, StackNode};
use super::summary;

/// Pixels of the whole picture's width, of a box's height, and of a letter.
const WIDTH: f64 = 1200.0;
const BOX_HEIGHT: usize = 17;
const LETTER_WIDTH: f64 = 6.6;
/// Boxes that would be narrower are left out.
const MIN_WIDTH: f64 = 0.3;
/// Pixels above the graph, for its title.
const HEAD: usize = 30;

pub(super) fn svg(report: &ProfileReport) -> String {
    let root = StackNode::of_profile(report);
    let height = HEAD + root.depth() * BOX_HEIGHT + 10;
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fdfdfb\"/>\n<text x=\"6\" y=\"19\" font-size=\"13\">{}</text>\n",
        escaped(&summary(report))
    );
    let scale = WIDTH / root.samples.max(1) as f64;
    draw(&mut text, &root, (0.0, height - 5 - BOX_HEIGHT), scale, report.samples);
    text.push_str("</svg>\n");
    text
}

/// Draws a node and what lies above it, from the left end of its box on.
fn draw(text: &mut String, node: &StackNode, (x, y): (f64, usize), scale: f64, all: u64) {
    let width = node.samples as f64 * scale;
    if width < MIN_WIDTH {
        return;
    }
    let share = 100.0 * node.samples as f64 / all.max(1) as f64;
    let letters = ((width - 6.0) / LETTER_WIDTH).max(0.0) as usize;
    let name: String = match node.label.chars().count() {
        _ if letters < 3 => String::new(),
        count if count <= letters => node.label.clone(),
        _ => node.label.chars().take(letters - 1).chain(['…']).collect(),
    };
    let _ = writeln!(
        text,
        "<g><title>{} ({} samples, {share:.1} %)</title><rect x=\"{x:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{}\" fill=\"{}\" rx=\"1\"/><text x=\"{:.1}\" y=\"{}\">{}</text></g>",
        escaped(&node.label),
        node.samples,
        (width - 0.5).max(0.2),
        BOX_HEIGHT - 1,
        colour(&node.label),
        x + 3.0,
        y + 12,
        escaped(&name)
    );
    let mut left = x;
    for callee in &node.callees {
        draw(text, callee, (left, y.saturating_sub(BOX_HEIGHT)), scale, all);
        left += callee.samples as f64 * scale;
    }
}

/// A colour by the name: warm for code of extensions, blue for the host's.
fn colour(name: &str) -> String {
    let hash = name.bytes().fold(7_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    match name {
        HOST_CALL => "#9db8dd".to_owned(),
        _ => format!("#{:02x}{:02x}{:02x}", 225 + hash % 30, 130 + (hash >> 8) % 90, 70 + (hash >> 16) % 40),
    }
}

/// A text within XML: tenants choose names of functions and files.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for one in text.chars() {
        match one {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            one if one.is_control() => out.push('\u{fffd}'),
            // Numbers that XML has no character for.
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            one => out.push(one),
        }
    }
    out
}
