//! Promise: the samples in TypeScript and Go on the pages compile with the clients that `ext generate` writes.

use std::fs;

use super::common::root;
use super::generated::{go_command, has, succeeds, type_script_command, type_script_compiler, written};

/// The blocks of a language on the page about types.
fn samples(language: &str) -> Vec<String> {
    let page = fs::read_to_string(root().join("docs/types.md")).expect("the page");
    let mark = format!("\n```{language}\n");
    let blocks = page.split(&mark).skip(1).map(|rest| rest.split("```").next().unwrap_or_default().to_owned());
    let blocks: Vec<String> = blocks.collect();
    assert!(!blocks.is_empty(), "no sample in {language}");
    blocks
}

#[test]
fn the_samples_in_typescript_compile() {
    let compiler = type_script_compiler();
    if !has(&compiler, "--version") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("package.json"), "{\"type\": \"module\"}").expect("a file");
    fs::write(folder.path().join("bank.ts"), written("typescript")).expect("a file");
    for (number, sample) in samples("ts").iter().enumerate() {
        let file = format!("sample{number}.ts");
        fs::write(folder.path().join(&file), format!("{sample}\ndeclare const token: string;\n")).expect("a file");
        succeeds(type_script_command(&compiler, folder.path(), &file).arg("--noEmit"));
    }
}

#[test]
fn the_samples_in_go_compile() {
    if !has("go", "version") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("go.mod"), "module samples\n\ngo 1.18\n").expect("a file");
    fs::create_dir(folder.path().join("bank")).expect("a folder");
    fs::write(folder.path().join("bank/bank.go"), written("go")).expect("a file");
    let mut program =
        "package samples\n\nimport (\n\"context\"\n\"errors\"\n\"log\"\n\n\"samples/bank\"\n)\n".to_owned();
    for (number, sample) in samples("go").iter().enumerate() {
        program.push_str(&format!(
            "\nfunc sample{number}(ctx context.Context, token string) error {{\n{sample}\nreturn nil\n}}\n\nvar _ = sample{number}\n"
        ));
    }
    fs::write(folder.path().join("samples.go"), program).expect("a file");
    succeeds(&mut go_command(folder.path(), &["vet", "./..."]));
}
