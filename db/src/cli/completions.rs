//! `sandstorm completions SHELL`: what a shell needs to complete the command line.

use clap::CommandFactory;
use clap_complete::Shell;

use super::CommandLine;
use super::output::CliError;

/// Writes the script of a shell to standard output.
pub(super) fn run(shell: Shell) -> Result<(), CliError> {
    use std::io::Write;
    match std::io::stdout().write_all(&script(shell)) {
        // The reader has closed the pipe.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| CliError::new(format!("writing to standard output: {error}"))),
    }
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut CommandLine::command(), "sandstorm", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_gets_a_script_with_the_commands_and_some_shells_the_values_of_options() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell)).expect("text");
            // Some shells write options without their dashes.
            for word in ["ext", "push", "table", "quota"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
            let has_values = matches!(shell, Shell::Bash | Shell::Fish | Shell::Zsh);
            assert_eq!(script.contains("rate-limiter"), has_values, "{shell}");
        }
    }
}
