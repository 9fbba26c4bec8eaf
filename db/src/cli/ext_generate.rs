//! `sandstorm ext generate`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use sandstorm_builder::{PushedSource, schema_of};
use sandstorm_client::schema::{ClientLanguage, ExtensionSchema};

use super::output::{CliError, OutputPrinter};
use super::session::CliSession;

/// What is written.
#[derive(Debug, Args)]
pub(super) struct GenerateArgs {
    /// Name of an extension on the server; without it the source in a folder is read, and no server is asked
    name: Option<String>,
    /// The language
    #[arg(long, value_name = "LANGUAGE",
          value_parser = PossibleValuesParser::new(ClientLanguage::ALL.map(|(name, _)| name))
              .try_map(|name| name.parse::<ClientLanguage>()))]
    lang: ClientLanguage,
    /// In TypeScript: integers of 64 bits are of the type bigint, which is exact, instead of number
    #[arg(long)]
    bigint: bool,
    /// Folder with extension.toml and src/
    #[arg(long, default_value = ".", conflicts_with = "name")]
    folder: PathBuf,
}

pub(super) fn run(session: &impl Fn() -> CliSession, args: &GenerateArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let (name, schema) = match &args.name {
        Some(name) => {
            let session = session();
            (name.clone(), session.control().extension(&session.tenant()?, name)?.schema)
        }
        None => {
            let source = PushedSource::read(&args.folder)?;
            (source.manifest.name.clone(), schema_of(&source)?)
        }
    };
    let schema: ExtensionSchema = schema.ok_or_else(|| {
        CliError::new(format!("extension {name:?} has no typed functions: there is nothing to write"))
            .hint("docs/types.md says what a typed function is")
    })?;
    let language = match (args.lang, args.bigint) {
        (ClientLanguage::TypeScript { .. }, bigints) => ClientLanguage::TypeScript { bigints },
        (_, true) => return Err(CliError::new("--bigint is for TypeScript: integers of other languages are exact")),
        (language, false) => language,
    };
    out.raw(schema.client_source(&name, language).as_bytes())
}
