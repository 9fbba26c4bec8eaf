//! Every rule is held to its own examples.

use super::super::tests::{job, source, toolchain};
use super::super::{BuildError, compile};
use super::rules::{RULES, Rule};
use super::*;

/// An example as a whole source. `REPEAT(n, x)` stands for x n times.
fn example(text: &str) -> Source {
    let mut text = text.to_owned();
    if let Some(start) = text.find("REPEAT(") {
        let end = start + text[start..].find(')').expect("a closing bracket");
        let (count, what) = text[start + 7..end].split_once(", ").expect("two arguments");
        let repeated = what.repeat(count.parse().expect("a number"));
        text.replace_range(start..=end, &repeated);
    }
    let head = if text.starts_with("#![") { "" } else { "#![no_std]\n" };
    let attributes: Vec<&str> = text.lines().take_while(|line| line.starts_with("#![")).collect();
    let rest = &text[attributes.iter().map(|line| line.len() + 1).sum::<usize>().min(text.len())..];
    source(&format!(
        "{head}{}\n#![allow(warnings)]\nuse sandstorm_api::prelude::*;\n{rest}\n\
         pub async fn run(_: Db<'_>, _: &[u8]) -> Result<(), Error> {{ Ok(()) }}\n",
        attributes.join("\n")
    ))
}

fn refusals(text: &str) -> Vec<String> {
    match check(&example(text), &["hmac_sha256".to_owned()]) {
        Ok(()) => Vec::new(),
        Err(BuildError::Refused(found)) => found.into_iter().filter_map(|one| one.rule).collect(),
        Err(other) => panic!("{other}"),
    }
}

fn checked(rule: &Rule) -> Result<(), String> {
    let found = refusals(rule.refused);
    if !found.iter().any(|id| id == rule.id) {
        return Err(format!("{}: `{}` is refused by {found:?}", rule.id, rule.refused));
    }
    let found = refusals(rule.passes);
    if !found.is_empty() {
        return Err(format!("{}: `{}` must pass, but is refused by {found:?}", rule.id, rule.passes));
    }
    compile(toolchain(), &example(rule.passes), &job())
        .map(|_| ())
        .map_err(|error| format!("{}: `{}` must compile: {error}", rule.id, rule.passes))
}

#[test]
fn every_rule_refuses_its_example_and_passes_the_one_near_it() {
    let wrong: Vec<String> = RULES.iter().filter_map(|rule| checked(rule).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
