//! A push: from source to an extension that is loaded. Blocks while the compiler works.

use std::time::Instant;

use std::sync::Arc;

use sandstorm_api::abi::ABI_VERSION;

use super::error::Failure;
use super::history::About;
use super::types::{Push, Pushed};
use super::{Control, now_ms};
use crate::builder::{
    Artifact, BuildError, Builder, BuilderHandle, Diagnostic, Expected, PublicKey, Source, api_fingerprint,
};
use crate::extensions::{BudgetOverride, Extension, Library, LoadError};
use crate::tenants::TenantView;

/// What makes a signed library of a source: the builder's process, or a builder in this one.
pub trait Build: Send + Sync {
    /// Checks, compiles and signs; gives the compiler's warnings as well.
    ///
    /// # Errors
    /// What is wrong with the source, or why it could not be compiled.
    fn build(&self, tenant: u32, version: u64, source: &Source) -> Result<(Artifact, Vec<Diagnostic>), BuildError>;

    /// The key that signs, and the fingerprint of the compiler.
    fn identity(&self) -> (PublicKey, u64);

    /// The compiler's version, for people.
    fn release(&self) -> String;
}

impl Build for BuilderHandle {
    fn build(&self, tenant: u32, version: u64, source: &Source) -> Result<(Artifact, Vec<Diagnostic>), BuildError> {
        self.build_with_warnings(tenant, version, source)
    }

    fn identity(&self) -> (PublicKey, u64) {
        (self.public_key(), self.compiler())
    }

    fn release(&self) -> String {
        BuilderHandle::release(self).to_owned()
    }
}

impl Build for Builder {
    fn build(&self, tenant: u32, version: u64, source: &Source) -> Result<(Artifact, Vec<Diagnostic>), BuildError> {
        Builder::build(self, tenant, version, source)
    }

    fn identity(&self) -> (PublicKey, u64) {
        (self.public_key(), self.compiler())
    }

    fn release(&self) -> String {
        self.toolchain().rustc.release.clone()
    }
}

/// Builds and loads a push that the directory has admitted; `view` is the tenant as it was then.
pub(super) fn push(control: &Control, view: &TenantView, name: &str, push: &Push) -> Result<Pushed, Failure> {
    let started = Instant::now();
    let builder = control.builder.as_ref().map_err(|reason| Failure::no_builder(reason))?;
    let source = Source::new(&push.manifest, push.files.clone()).map_err(|error| Failure::build(&error))?;
    if source.manifest.name != name {
        let message = format!("the manifest's name is {:?}, but {name:?} was pushed", source.manifest.name);
        return Err(Failure::invalid(message).hint("push it under the name in extension.toml"));
    }
    let tenant = &view.tenant;
    let version = control.history.next_version(tenant.id, name);
    let (artifact, diagnostics) = builder.build(tenant.id, version, &source).map_err(|error| Failure::build(&error))?;
    let (key, compiler) = builder.identity();
    let expected = Expected {
        tenant: tenant.id,
        compiler,
        api_fingerprint: api_fingerprint(),
        abi_version: ABI_VERSION,
        loaded_version: view.extension(name).map(|loaded| loaded.version),
    };
    artifact.verify(&key, &expected).map_err(|error| Failure::internal(format!("the builder's artifact: {error}")))?;
    let library = Library::load(&artifact.elf, api_fingerprint()).map_err(|error| load_failure(&error))?;
    let extension = Arc::new(Extension::new(name, version, library, BudgetOverride::default()));
    let about = About {
        manifest_version: source.manifest.version.clone(),
        source_digest: artifact.header.source_digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        library_bytes: artifact.elf.len() as u64,
        loaded_at_ms: now_ms(),
    };
    load(control, view, extension, about).map(|extension| Pushed {
        extension,
        diagnostics,
        build_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
    })
}

fn load(
    control: &Control,
    view: &TenantView,
    extension: Arc<Extension>,
    about: About,
) -> Result<super::types::Extension, Failure> {
    let id = view.tenant.id;
    // While the compiler worked, the tenant may have been deleted and another one created under its id.
    let same = |now: &Arc<TenantView>| Arc::ptr_eq(&now.tenant.usage, &view.tenant.usage);
    if !control.directory.snapshot().tenant(id).is_some_and(same) {
        return Err(Failure::not_found(format!("tenant {:?} was deleted during the push", view.tenant.name)));
    }
    let replaced = control.directory.put_extension(id, extension.clone())?;
    control.history.loaded(id, &extension, about, replaced);
    let now = control.directory.snapshot();
    Ok(control.history.show(now.find(id)?, &extension))
}

fn load_failure(error: &LoadError) -> Failure {
    match error {
        LoadError::Refused(_) | LoadError::TooLarge { .. } => {
            Failure::build(&BuildError::Refused(vec![Diagnostic::plain(&error.to_string())]))
        }
        _ => Failure::internal(error.to_string()),
    }
}
