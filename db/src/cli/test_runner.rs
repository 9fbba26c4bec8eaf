//! Runs an extension's tests in the sandboxed tier: each is a call of its own, in fresh memory, of the image that was
//! made of them, with the engine that the server runs extensions with.

use std::ffi::OsString;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use sandstorm_catalog::{Directory, NewTenant, QuotaChanges, TenantView};
use sandstorm_extension::{Budget, BudgetOverride, CodeTier, ExtensionLibrary, KillCause, LoadedExtension};
use sandstorm_runtime::{Engine, PollOutcome, Watchdog};
use sandstorm_store::{Epochs, Participant};

use super::output::CliError;

/// Bytes of memory of one test: the stand-in of the store keeps records there.
const TEST_MEMORY_BYTES: usize = 512 << 20;
/// CPU time of one test, microseconds: a test that takes longer than a minute is taken for one that does not end.
const TEST_TOTAL_US: u64 = 60_000_000;
/// Bytes that the names of the tests may have.
const REPLY_BYTES: usize = 8 << 20;

/// A test, as the module names it.
struct NamedTest {
    name: String,
    ignored: bool,
    should_panic: bool,
}

/// Which tests are run.
#[derive(Debug, Default)]
struct TestSelection {
    filters: Vec<String>,
    exact: bool,
    /// Only those that are ignored otherwise, or these as well.
    ignored: bool,
    include_ignored: bool,
}

/// The engine with the tests.
struct TestRunner {
    engine: Engine,
    participant: Participant,
    view: Arc<TenantView>,
    extension: Arc<LoadedExtension>,
    _watchdog: Arc<Watchdog>,
}

impl TestSelection {
    fn parse(arguments: &[OsString]) -> Result<TestSelection, CliError> {
        let mut selection = TestSelection::default();
        for argument in arguments {
            match argument.to_str() {
                Some("--exact") => selection.exact = true,
                Some("--ignored") => selection.ignored = true,
                Some("--include-ignored") => selection.include_ignored = true,
                Some(name) if !name.starts_with('-') => selection.filters.push(name.to_owned()),
                _ => {
                    return Err(CliError::new(format!("{argument:?} is no option of tests in the sandboxed tier"))
                        .hint(
                            "names to filter by, --exact, --ignored, --include-ignored; or test with --code native",
                        ));
                }
            }
        }
        Ok(selection)
    }

    fn names(&self, test: &NamedTest) -> bool {
        let is_of = |filter: &String| if self.exact { *filter == test.name } else { test.name.contains(&**filter) };
        (self.filters.is_empty() || self.filters.iter().any(is_of)) && (!self.ignored || test.ignored)
    }
}

impl TestRunner {
    fn new(image: &[u8]) -> Result<TestRunner, CliError> {
        let failed = |error: &dyn std::fmt::Display| CliError::new(format!("the tests cannot be run: {error}"));
        let library = ExtensionLibrary::load_sandboxed(image, 0).map_err(|error| failed(&error))?;
        let extension = LoadedExtension::new("tests", 1, library, BudgetOverride::default());
        let watchdog = Watchdog::spawn().map_err(|error| failed(&error))?;
        let epochs = Epochs::new();
        let directory = Directory::new(Arc::clone(&epochs));
        let memory = Some(2 * TEST_MEMORY_BYTES as u64);
        let quotas = QuotaChanges { invocation_memory_bytes: memory, ..QuotaChanges::default() };
        let new = NewTenant { quotas, ..NewTenant::named("tests") };
        let (view, _) = directory.create_tenant(new).map_err(|error| failed(&error))?;
        Ok(TestRunner {
            engine: Engine::new(&watchdog, 0).map_err(|error| failed(&error))?,
            participant: epochs.register(),
            view,
            extension: Arc::new(extension.in_tier(CodeTier::Sandboxed)),
            _watchdog: watchdog,
        })
    }

    /// Calls the module; the reply, or how else it ended, with its text.
    fn call(&mut self, arguments: &[u8]) -> Result<Result<Vec<u8>, (PollOutcome, String)>, CliError> {
        let budget = Budget {
            slice_us: TEST_TOTAL_US,
            total_us: TEST_TOTAL_US,
            memory_bytes: TEST_MEMORY_BYTES,
            reply_bytes: REPLY_BYTES,
        };
        let begun = self.engine.begin(&self.view, &self.extension, arguments, budget);
        let mut invocation = begun.map_err(|error| CliError::new(format!("a test cannot be run: {error}")))?;
        let end = loop {
            match self.engine.poll(&self.participant, &mut invocation, 0, false) {
                PollOutcome::Pending | PollOutcome::Preempted => {}
                end => break end,
            }
        };
        let (reply, text) = (invocation.reply().to_vec(), String::from_utf8_lossy(invocation.text()).into_owned());
        self.engine.finish(&self.participant, invocation);
        Ok(if end == PollOutcome::Done { Ok(reply) } else { Err((end, text)) })
    }

    /// The tests by their numbers.
    fn list(&mut self) -> Result<Vec<NamedTest>, CliError> {
        let reply =
            self.call(&[])?.map_err(|(end, text)| CliError::new(format!("the tests end at once: {end:?}: {text}")))?;
        let (mut tests, mut rest) = (Vec::new(), reply.as_slice());
        while let Some((len, behind)) = rest.split_first_chunk::<4>() {
            let parts = behind.split_at_checked(u32::from_le_bytes(*len) as usize);
            let Some((name, (flags, behind))) = parts.and_then(|(name, behind)| Some((name, behind.split_first()?)))
            else {
                return Err(CliError::new("the list of the tests is cut short"));
            };
            let name = String::from_utf8_lossy(name).into_owned();
            tests.push(NamedTest { name, ignored: flags & 1 != 0, should_panic: flags & 2 != 0 });
            rest = behind;
        }
        Ok(tests)
    }

    /// Runs a test; `None`: it passed, else the reason.
    fn run(&mut self, number: usize, test: &NamedTest) -> Result<Option<String>, CliError> {
        let ended = self.call(&(number as u32).to_le_bytes())?;
        Ok(match (ended, test.should_panic) {
            (Ok(_), false) => None,
            (Ok(_), true) => Some("it did not panic as it should".to_owned()),
            (Err((PollOutcome::Killed(KillCause::Panic), text)), should_panic) => {
                match (should_panic, text.split_at_checked(1)) {
                    (true, Some(("+", _))) => None,
                    (true, Some((_, text))) => Some(format!("it panicked with another text than it should: {text}")),
                    (false, Some((_, text))) => Some(text.to_owned()),
                    (_, None) => Some("a panic".to_owned()),
                }
            }
            (Err((end, text)), _) => Some(format!("ended: {end:?} {text}")),
        })
    }
}

/// Runs the tests of an image and prints as Rust's own tests do; returns whether all have passed. `arguments` are names
/// to filter by and a few options of Rust's.
///
/// # Errors
/// The reason why no test could be run.
pub(super) fn run_tests(image: &[u8], arguments: &[OsString], out: &mut impl Write) -> Result<bool, CliError> {
    let selection = TestSelection::parse(arguments)?;
    let mut runner = TestRunner::new(image)?;
    let all = runner.list()?;
    let begun = Instant::now();
    let chosen: Vec<(usize, &NamedTest)> = all.iter().enumerate().filter(|(_, test)| selection.names(test)).collect();
    let plural = if chosen.len() == 1 { "test" } else { "tests" };
    writeln!(out, "\nrunning {} {plural}, sandboxed", chosen.len())?;
    let (mut passed, mut ignored, mut failures) = (0, 0, Vec::new());
    for (number, test) in &chosen {
        let name = &test.name;
        if test.ignored && !selection.ignored && !selection.include_ignored {
            ignored += 1;
            writeln!(out, "test {name} ... ignored")?;
            continue;
        }
        match runner.run(*number, test)? {
            None => {
                passed += 1;
                writeln!(out, "test {name} ... ok")?;
            }
            Some(why) => {
                writeln!(out, "test {name} ... FAILED")?;
                failures.push((name, why));
            }
        }
    }
    for (name, why) in &failures {
        writeln!(out, "\n---- {name} ----\n{why}")?;
    }
    let (verdict, failed) = (if failures.is_empty() { "ok" } else { "FAILED" }, failures.len());
    let (others, seconds) = (all.len() - chosen.len(), begun.elapsed().as_secs_f64());
    writeln!(
        out,
        "\ntest result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored; {others} filtered out; finished in \
         {seconds:.2}s\n"
    )?;
    Ok(failures.is_empty())
}
