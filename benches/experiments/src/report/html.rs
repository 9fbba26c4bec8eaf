//! The page: one file without scripts or network access, also for narrow and dark screens.

use super::machine::{MachineDescription, format_utc};
use super::text::{escape, number, range};
use super::{BenchReport, ExperimentFindings, RatioResult, ReportTable, RoundSpread, svg};
use sandstorm_terminal::output::format_bytes;

const STYLE: &str = include_str!("report.css");

/// The whole page.
pub(super) fn page(report: &BenchReport) -> String {
    let contents: String = report
        .experiments
        .iter()
        .map(|findings| format!("<li><a href=\"#{0}\">{0}</a></li>", escape(findings.name)))
        .collect();
    let experiments: String = report.experiments.iter().map(experiment).collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Sandstorm: bench report</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>Sandstorm: bench report</h1>\n{}\n{}\n\
         <nav><ul>{contents}</ul></nav>\n{experiments}\n</main>\n</body>\n</html>\n",
        machine(&report.machine, &report.arguments),
        verdicts(report),
    )
}

fn machine(machine: &MachineDescription, arguments: &[String]) -> String {
    let words: Vec<&str> = ["sandstorm bench"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
    let unknown = || "not known".to_owned();
    let facts = [
        ("taken", format!("{} UTC", format_utc(machine.unix_s))),
        ("command", words.join(" ")),
        ("processor", format!("{} ({} usable)", machine.processor, machine.processors)),
        ("memory", format_bytes(machine.memory_bytes)),
        ("kernel", machine.kernel.clone()),
        ("compiler", machine.rustc.clone().unwrap_or_else(unknown)),
        ("commit", machine.commit.clone().unwrap_or_else(unknown)),
        ("version", machine.version.to_owned()),
    ];
    let facts: String =
        facts.iter().map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>\n", escape(value))).collect();
    let warning = if machine.optimised {
        ""
    } else {
        "<p class=\"warning\">This is a build without optimisation: its figures mean nothing. Use <code>--release</code>.</p>\n"
    };
    format!("{warning}<dl>\n{facts}</dl>")
}

/// All ratios that have a target, in one table.
fn verdicts(report: &BenchReport) -> String {
    let ratios: Vec<&RatioResult> = report.experiments.iter().flat_map(|findings| &findings.ratios).collect();
    let with_target: Vec<&RatioResult> = ratios.into_iter().filter(|ratio| ratio.target.is_some()).collect();
    if with_target.is_empty() {
        return String::new();
    }
    let reached = with_target.iter().filter(|ratio| ratio.reached == Some(true)).count();
    format!("<h2>Targets: {reached} of {} reached</h2>\n{}", with_target.len(), ratio_table(&with_target))
}

fn experiment(findings: &ExperimentFindings) -> String {
    let ExperimentFindings { name, about, tables, ratios, plots, notes, seconds } = findings;
    let name = escape(name);
    let mut html = format!(
        "<section id=\"{name}\">\n<h2>{name}</h2>\n<p>{}</p>\n<p class=\"how\"><code>sandstorm bench {name}</code>, {} s</p>\n",
        escape(about),
        number(seconds.round())
    );
    for plot in plots {
        html.push_str(&format!(
            "<figure>\n<figcaption>{}</figcaption>\n{}\n</figure>\n",
            escape(&plot.title),
            svg::plot(plot)
        ));
    }
    tables.iter().for_each(|one| html.push_str(&table(one)));
    if !ratios.is_empty() {
        html.push_str(&ratio_table(&ratios.iter().collect::<Vec<_>>()));
    }
    notes.iter().for_each(|note| html.push_str(&format!("<p class=\"how\">{}</p>\n", escape(note))));
    html.push_str("</section>\n");
    html
}

/// A table that scrolls on its own where the screen is too narrow for it.
fn scrolling(caption: &str, head: &str, rows: &str) -> String {
    let caption = if caption.is_empty() { String::new() } else { format!("<caption>{}</caption>", escape(caption)) };
    format!(
        "<div class=\"wide\"><table>{caption}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}

fn heads<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("<th scope=\"col\">{}</th>", escape(name))).collect()
}

fn table(table: &ReportTable) -> String {
    let head = heads([table.of.as_str()].into_iter().chain(table.columns.iter().map(String::as_str)));
    let rows: String = table
        .rows
        .iter()
        .map(|row| {
            let cells: String = row.cells.iter().map(cell).collect();
            format!("<tr><th scope=\"row\">{}</th>{cells}</tr>\n", escape(&row.name))
        })
        .collect();
    scrolling(&table.title, &head, &rows)
}

fn cell(spread: &RoundSpread) -> String {
    let range = range(spread).map_or(String::new(), |range| format!("<small>{range}</small>"));
    format!("<td>{}{range}</td>", number(spread.median))
}

fn ratio_table(ratios: &[&RatioResult]) -> String {
    let rows: String = ratios
        .iter()
        .map(|one| {
            let RatioResult { what, ratio, sides: [first, second], unit, target, reached } = one;
            let verdict = match reached {
                Some(true) => "<td class=\"yes\">reached</td>",
                Some(false) => "<td class=\"no\">not reached</td>",
                None => "<td>–</td>",
            };
            let target = target.map_or_else(|| "–".to_owned(), |target| target.to_string());
            format!(
                "<tr><th scope=\"row\">{}</th>{}<td>{} and {} {}</td><td>{target}</td>{verdict}</tr>\n",
                escape(what),
                cell(ratio),
                number(*first),
                number(*second),
                escape(unit)
            )
        })
        .collect();
    scrolling("", &heads(["ratio", "median", "sides", "target", ""]), &rows)
}
