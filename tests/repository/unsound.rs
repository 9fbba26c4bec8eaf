//! Promise: `docs/unsound.md` says of each open hole of safe Rust whether it passes today, which rule refuses it, and
//! which program shows that. A number without a program, or without the reason why there is none, fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::root;

/// The columns of the table.
const HEAD: &str = "| number | what | passes native today | what refuses it | test |";
/// The holes must not become fewer unnoticed.
const LEAST_ROWS: usize = 26;

/// Nor the groups of those that cannot be written.
const LEAST_GROUPS: usize = 12;

/// A row of the table.
struct Row<'t> {
    /// The issues' numbers; none for a hole that has no issue.
    numbers: Vec<&'t str>,
    passes: &'t str,
    /// Words in back quotes: rules of the checker.
    rules: Vec<&'t str>,
    refuses: &'t str,
    tests: Vec<&'t str>,
    test: &'t str,
}

/// The words of a cell that stand in back quotes.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

fn row(line: &str) -> Row<'_> {
    let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
    let [number, _, passes, refuses, test] = cells.as_slice() else {
        panic!("a row has five cells, and no ` | ` in them: {line}")
    };
    let numbers = number.split('[').skip(1).filter_map(|link| link.split(']').next()).collect();
    Row { numbers, passes, rules: quoted(refuses), refuses, tests: quoted(test), test }
}

fn rows(page: &str) -> Vec<Row<'_>> {
    let rest = page.split_once(HEAD).unwrap_or_else(|| panic!("docs/unsound.md has no table with the head {HEAD}")).1;
    rest.lines().skip(2).take_while(|line| line.starts_with('|')).map(row).collect()
}

/// The first line of each program of the corpus, by name.
fn programs() -> BTreeMap<String, String> {
    let entries = fs::read_dir(root().join("tests/hostile/soundness")).expect("the corpus");
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("text");
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        (name, text.lines().next().unwrap_or_default().to_owned())
    };
    entries.map(read).collect()
}

/// The ids of the checker's rules, from its table.
fn rule_ids() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("db/builder/src/check/rules.rs")).expect("the rules");
    text.lines().filter_map(rule_id).collect()
}

/// The id in a line as `GUARD: NATIVE "guard", …`.
fn rule_id(line: &str) -> Option<String> {
    let (name, rest) = line.trim().split_once(": ")?;
    let id = ["BOTH \"", "NATIVE \"", "SANDBOXED \""].iter().find_map(|tier| rest.strip_prefix(tier))?;
    let is_name = name.chars().all(|one| one.is_ascii_uppercase() || one == '_');
    id.split('"').next().filter(|_| is_name).map(str::to_owned)
}

/// What is wrong with a program of a row, if anything: its first line says how it ends.
fn mismatch(row: &Row<'_>, name: &str, first: &str) -> Option<String> {
    let ends: Vec<&str> = first.strip_prefix("//! expect: ")?.split(" or ").collect();
    let passes = ends.contains(&"ok");
    if passes && row.passes == "yes" {
        return None;
    }
    let by_rule = ends.iter().filter_map(|end| end.strip_prefix("refused ")).all(|rule| row.rules.contains(&rule));
    let by_compiler = !ends.contains(&"compile-error") || row.refuses.contains("compiler");
    let named = ends.iter().all(|end| end.starts_with("refused ") || *end == "compile-error");
    let right = by_rule && by_compiler && named && row.passes == "no";
    (!right).then(|| format!("{name}: it says `{first}`, its row `{}`, passes: {}", row.refuses, row.passes))
}

/// The rows of the second table: the issues' numbers, and why none of them can be written.
fn groups(page: &str) -> Vec<(Vec<u64>, &str)> {
    let rest = page.split_once("| issues | why not |").expect("the second table").1;
    let rows = rest.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|line| {
        let (issues, why) = line.trim_matches('|').split_once(" | ").expect("two cells");
        (issue_numbers(issues), why.trim())
    })
    .collect()
}

/// The numbers of issues that a text links to.
fn issue_numbers(text: &str) -> Vec<u64> {
    let links = text.split("rust-lang/rust/issues/").skip(1);
    links.filter_map(|link| link.split(')').next()?.parse().ok()).collect()
}

#[test]
fn the_page_says_when_the_list_was_read_and_up_to_which_issue() {
    let page = fs::read_to_string(root().join("docs/unsound.md")).expect("the page");
    let said = page.lines().find_map(|line| line.strip_prefix("Last read: ")).expect("when it was read");
    let (date, rest) = said.split_once(", up to issue ").expect("up to which issue");
    let parts: Vec<u32> = date.split('-').map(|part| part.parse().expect("a date as 2026-11-23")).collect();
    assert!(matches!(parts[..], [2026..=2100, 1..=12, 1..=31]), "{date}");
    let highest: u64 = rest.split('.').next().and_then(|number| number.parse().ok()).expect("a number");
    let later: Vec<u64> = issue_numbers(&page).into_iter().filter(|number| *number > highest).collect();
    assert!(later.is_empty(), "read after {date}, up to {highest}: {later:?}; say so there");
    let groups = groups(&page);
    assert!(groups.len() >= LEAST_GROUPS, "{} groups", groups.len());
    for (numbers, why) in groups {
        assert!(why.len() > 15, "{numbers:?}: no reason");
    }
}

/// The functions of tests that a row names: `file.rs: function`.
fn missing_function(test: &str) -> Option<String> {
    let (file, function) = test.split_once(": ")?;
    let folders = ["db/builder/src", "tests/extensions"];
    let text = folders.iter().find_map(|folder| fs::read_to_string(root().join(folder).join(file)).ok());
    let found = text.is_some_and(|text| text.contains(&format!("fn {function}(")));
    (!found).then(|| format!("{test}: there is no such function"))
}

#[test]
fn each_open_hole_has_a_row_with_its_rule_and_its_program() {
    let page = fs::read_to_string(root().join("docs/unsound.md")).expect("the page");
    let (rows, programs, ids) = (rows(&page), programs(), rule_ids());
    assert!(rows.len() >= LEAST_ROWS, "{} rows", rows.len());
    assert!(ids.len() > 30, "{} rules", ids.len());
    let (mut wrong, mut named) = (Vec::new(), BTreeSet::new());
    for row in &rows {
        let number = row.numbers.join(", ");
        if !["yes", "no"].contains(&row.passes) {
            wrong.push(format!("{number}: it passes, yes or no, and not `{}`", row.passes));
        }
        wrong.extend(
            row.rules.iter().filter(|rule| !ids.contains(**rule)).map(|rule| format!("{number}: no rule `{rule}`")),
        );
        if row.rules.is_empty() && row.refuses.len() < 20 {
            wrong.push(format!("{number}: neither a rule nor a reason"));
        }
        // "none: why".
        if row.tests.is_empty() && row.test.strip_prefix("none: ").is_none_or(|why| why.len() <= 20) {
            wrong.push(format!("{number}: neither a program nor the reason why there is none"));
        }
        for test in &row.tests {
            if test.contains(".rs: ") {
                wrong.extend(missing_function(test));
                continue;
            }
            if let Some(path) = test.strip_prefix("tests/") {
                let exists = root().join("tests").join(path).is_file();
                wrong.extend((!exists).then(|| format!("{test}: there is no such program")));
                continue;
            }
            let start = test.strip_suffix('*');
            let matching = programs.iter().filter(|(name, _)| match start {
                Some(start) => name.starts_with(start),
                None => name == test,
            });
            let before = named.len();
            for (name, first) in matching {
                named.insert(name.clone());
                wrong.extend(mismatch(row, name, first));
            }
            if named.len() == before && !programs.contains_key(*test) {
                wrong.push(format!("{number}: `{test}` names no program of tests/hostile/soundness"));
            }
        }
    }
    // `i84366_two` belongs to a row of 84366.
    for name in programs.keys().filter(|name| name.starts_with('i') && !named.contains(*name)) {
        let digits: String = name.chars().skip(1).take_while(char::is_ascii_digit).collect();
        if digits.len() > 4 {
            wrong.push(format!("{name}: no row names it"));
        }
    }
    assert!(wrong.is_empty(), "docs/unsound.md, {} errors:\n{}", wrong.len(), wrong.join("\n"));
}
