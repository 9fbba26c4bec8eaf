//! An extension that a request names.

use std::sync::Arc;

use super::error::ApiError;
use sandstorm_catalog::{DirectoryError, TenantView};
use sandstorm_extension::LoadedExtension;

/// The loaded extension of that name.
pub(super) fn find_extension(view: &TenantView, name: &str) -> Result<Arc<LoadedExtension>, ApiError> {
    let unknown = || DirectoryError::UnknownExtension { tenant: view.tenant.name.clone(), extension: name.to_owned() };
    Ok(view.extension(name).ok_or_else(unknown)?.clone())
}
