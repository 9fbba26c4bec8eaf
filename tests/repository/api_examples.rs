//! Promise: every function of the extension API that is open to extensions shows how it is used, in an example that the
//! documentation's tests run.

use std::fs;
use std::path::Path;

use super::root;

/// Modules that extensions may not name, and the one that generated code calls.
const HIDDEN: [&str; 5] = ["abi", "export", "host", "rt", "typed"];

/// The functions of a file that have no example, and how many there are in all.
fn without_example(text: &str) -> (Vec<String>, usize) {
    let (mut has_example, mut missing, mut all) = (false, Vec::new(), 0);
    for line in text.lines() {
        let line = line.trim_start();
        if line.starts_with("///") {
            has_example |= line.contains("```");
        } else if !line.starts_with("#[") {
            let words =
                line.strip_prefix("pub ").map(|rest| rest.trim_start_matches("const ").trim_start_matches("async "));
            if let Some(name) = words.and_then(|rest| rest.strip_prefix("fn ")) {
                all += 1;
                let end = name.find(['(', '<']).unwrap_or(name.len());
                missing.extend((!has_example).then(|| name[..end].to_owned()));
            }
            has_example = false;
        }
    }
    (missing, all)
}

fn look(folder: &Path, missing: &mut Vec<String>) -> usize {
    let mut all = 0;
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        let stem = entry.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        if HIDDEN.contains(&stem.as_str()) {
            continue;
        }
        if entry.is_dir() {
            all += look(&entry, missing);
        } else {
            let (found, count) = without_example(&fs::read_to_string(&entry).expect("text"));
            missing.extend(found.into_iter().map(|name| format!("{stem}: {name}")));
            all += count;
        }
    }
    all
}

#[test]
fn every_function_of_the_extension_api_has_an_example() {
    let sample =
        "/// One.\n///\n/// ```\n/// x\n/// ```\n#[inline]\npub fn one() {}\n/// Two.\npub const fn two<T>() {}\n";
    assert_eq!(without_example(sample), (vec!["two".to_owned()], 2));
    let mut missing = Vec::new();
    let all = look(&root().join("sandstorm-api/src"), &mut missing);
    assert!(all > 100, "the functions are found");
    assert!(missing.is_empty(), "without an example: {missing:#?}");
}
