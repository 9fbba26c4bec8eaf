//! The folder of an extension, as commands take it.

use std::path::PathBuf;

use clap::Args;

/// Where an extension's source is.
#[derive(Debug, Args)]
pub(super) struct FolderArg {
    /// Folder with extension.toml and src/
    #[arg(default_value = ".")]
    pub(super) folder: PathBuf,
}
