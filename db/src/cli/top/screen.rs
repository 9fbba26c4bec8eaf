//! Draws the screen of `sandstorm top`. Only the rows that fit are formatted, however many there are.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};
use sandstorm_catalog::format_utc;
use sandstorm_terminal::escape_one_line;

use super::model::TopModel;
use super::rows::{GRAPHS, TABLE_GRAPHS, TopColumn, TopRow, TopView};

/// Lines of a graph.
const GRAPH_LINES: u16 = 4;
/// Blocks of an eighth to a whole character.
const BLOCKS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// Columns of texts that may be wider than they say, if there is room.
const WIDEST_NAME: u16 = 32;

const PLAIN: Style = Style::new();
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().fg(Color::DarkGray);
const TROUBLE: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Writes a text; what does not fit is left out.
fn put(buffer: &mut Buffer, (x, y): (u16, u16), text: &str, width: u16, style: Style) {
    if buffer.area.contains((x, y).into()) && width > 0 {
        buffer.set_stringn(x, y, text, usize::from(width), style);
    }
}

/// Draws the whole screen. Returns the number of rows that were formatted.
pub(super) fn draw(model: &TopModel, buffer: &mut Buffer) -> usize {
    let area = buffer.area;
    if area.height < 4 || area.width < 20 {
        put(buffer, (area.x, area.y), "too small", area.width, PLAIN);
        return 0;
    }
    heading(model, buffer);
    let body = Rect { y: area.y + 2, height: area.height - 3, ..area };
    let formatted = match model.selected_row().filter(|_| model.page) {
        Some(row) => {
            page(model, row, body, buffer);
            1
        }
        None => list(model, body, buffer),
    };
    let help = if model.editing {
        format!("filter: {}_   Enter keeps it, Esc clears it", escape_one_line(&model.filter))
    } else if model.page {
        "Esc back  ↑↓ the next one  p pause  q quit".to_owned()
    } else {
        "1 tenants  2 extensions  3 tables  ←→ order  r reverse  / filter  ↑↓ Enter one  p pause  q quit".to_owned()
    };
    put(buffer, (area.x, area.bottom() - 1), &help, area.width, if model.editing { BOLD } else { DIM });
    formatted
}

fn heading(model: &TopModel, buffer: &mut Buffer) {
    let area = buffer.area;
    let what = match model.view {
        TopView::Tenants => "tenants",
        TopView::Extensions => "extensions",
        TopView::Tables => "tables",
    };
    let mut text = format!("sandstorm: {} {what}", model.rows.len());
    if let Some(now) = &model.now {
        let all = now.tenants.len() + now.extensions.len() + now.tables.len();
        if all != model.rows.len() {
            text.push_str(&format!(" of {all}"));
        }
        text.push_str(&format!(", {} workers, {} (UTC)", now.workers, format_utc(now.at_ms)));
    }
    if !model.filter.is_empty() {
        text.push_str(&format!(", with {:?}", escape_one_line(&model.filter)));
    }
    if model.paused {
        text.push_str(", paused");
    }
    put(buffer, (area.x, area.y), &text, area.width, BOLD);
    let (text, style) = if !model.trouble.is_empty() {
        (format!("no answer, and asked again each time: {}", escape_one_line(&model.trouble)), TROUBLE)
    } else if model.now.is_none() {
        ("asking the server".to_owned(), DIM)
    } else {
        (String::new(), PLAIN)
    };
    put(buffer, (area.x, area.y + 1), &text, area.width, style);
}

/// The columns that fit, with their widths: names get what is left.
fn widths(view: TopView, width: u16) -> Vec<(usize, &'static TopColumn, u16)> {
    let mut left = width;
    let mut fitting = Vec::new();
    for (number, column) in view.columns().iter().enumerate() {
        let Some(rest) = left.checked_sub(column.width) else { break };
        fitting.push((number, column, column.width));
        left = rest.saturating_sub(1);
    }
    let names = if view == TopView::Tenants { 1 } else { 2 };
    for (_, column, width) in fitting.iter_mut().take(names) {
        let more = left.min(WIDEST_NAME - column.width);
        *width += more;
        left -= more;
    }
    fitting
}

fn list(model: &TopModel, area: Rect, buffer: &mut Buffer) -> usize {
    let widths = widths(model.view, area.width);
    let mut x = area.x;
    for (number, column, width) in &widths {
        let is_number = *number > 0 && !is_text(model, *number);
        let text = if is_number { format!("{:>1$}", column.head, usize::from(*width)) } else { column.head.to_owned() };
        let style = if *number == model.order { BOLD.add_modifier(Modifier::UNDERLINED) } else { BOLD };
        put(buffer, (x, area.y), &text, *width, style);
        x += width + 1;
    }
    let lines = usize::from(area.height - 1);
    // The selected row is always on the screen.
    let first = (model.selected + 1).saturating_sub(lines);
    let shown = model.rows.iter().enumerate().skip(first).take(lines);
    let mut formatted = 0;
    for (line, (number, row)) in (1..).zip(shown) {
        formatted += 1;
        let (mut x, y) = (area.x, area.y + line);
        for (column, _, width) in &widths {
            let Some(cell) = row.cells.get(*column) else { continue };
            let text = cell.shown();
            let text = if cell.is_number() { format!("{text:>0$}", usize::from(*width)) } else { text };
            put(buffer, (x, y), &text, *width, PLAIN);
            x += width + 1;
        }
        if number == model.selected {
            buffer.set_style(Rect { y, height: 1, ..area }, SELECTED);
        }
    }
    formatted
}

fn is_text(model: &TopModel, column: usize) -> bool {
    model.rows.first().and_then(|row| row.cells.get(column)).is_some_and(|cell| !cell.is_number())
}

/// The page of one row: all its values, its past, its latest kills.
fn page(model: &TopModel, row: &TopRow, area: Rect, buffer: &mut Buffer) {
    let mut y = area.y;
    let columns = model.view.columns();
    let half = area.width / 2;
    // Values in two columns.
    let lines = columns.len().div_ceil(2);
    for (number, (column, cell)) in columns.iter().zip(&row.cells).enumerate() {
        let (side, line) = ((number / lines) as u16, (number % lines) as u16);
        let at = (area.x + side * half, y + line);
        put(buffer, at, column.head, 15.min(half), BOLD);
        put(buffer, (at.0 + 15, at.1), &cell.shown(), half.saturating_sub(16), PLAIN);
    }
    y += lines as u16 + 1;
    let names = if model.view == TopView::Tables { TABLE_GRAPHS } else { GRAPHS };
    let points = model.graph(&row.key).map(|points| points.iter().copied().collect::<Vec<_>>()).unwrap_or_default();
    for (which, name) in names.iter().enumerate() {
        let values: Vec<f64> = points.iter().map(|point| point[which]).collect();
        y = graph(buffer, Rect { y, ..area }, name, &values);
    }
    if model.view == TopView::Tables {
        return;
    }
    let title = if model.kills.is_empty() { "no kills are remembered" } else { "latest kills" };
    put(buffer, (area.x, y), title, area.width, BOLD);
    for kill in &model.kills {
        y += 1;
        let (at, cause) = (format_utc(kill.at_ms), &kill.cause);
        let text =
            format!("{at}  {} v{}  {cause}  {} us of CPU  {}", kill.extension, kill.version, kill.cpu_us, kill.text);
        if y < area.bottom() {
            put(buffer, (area.x, y), &escape_one_line(&text), area.width, PLAIN);
        }
    }
}

/// Draws a graph, newest at the right, and returns the line below it.
fn graph(buffer: &mut Buffer, area: Rect, name: &str, values: &[f64]) -> u16 {
    if area.y + GRAPH_LINES + 1 >= buffer.area.bottom() {
        return area.y;
    }
    let width = usize::from(area.width);
    let shown = &values[values.len().saturating_sub(width)..];
    let most = shown.iter().copied().fold(0.0, f64::max);
    let last = shown.last().copied().unwrap_or(0.0);
    put(buffer, (area.x, area.y), &format!("{name}: {last:.1} now, {most:.1} at most"), area.width, BOLD);
    let from = area.right() - shown.len() as u16;
    for (x, value) in (from..).zip(shown) {
        let eighths = if most > 0.0 { (value / most * f64::from(8 * GRAPH_LINES)).round() as usize } else { 0 };
        for line in 0..GRAPH_LINES {
            let below = usize::from(8 * (GRAPH_LINES - 1 - line));
            let block = BLOCKS[eighths.saturating_sub(below).min(8)];
            put(buffer, (x, area.y + 1 + line), block, 1, Style::new().fg(Color::Cyan));
        }
    }
    area.y + GRAPH_LINES + 2
}
