//! The start of a server in a cluster: it takes over the tenants on which the cluster's servers agree, puts what its
//! configuration says over them, and has that agreed.

use std::fs;
use std::sync::Arc;

use sandstorm_catalog::journal::DirectoryImage;
use sandstorm_catalog::{AgreedImage, Directory, DirectoryAgreement, DirectoryError};
use sandstorm_cluster::member::MemberError;
use sandstorm_cluster::metadata::NoAnswer;
use sandstorm_cluster::{ClusterDirectory, ClusterStartError, server_id};
use sandstorm_control::config::{ClusterSettings, ConfigError, ServerSettings, write_private};
use sandstorm_store::Epochs;
use sandstorm_store::slots::SlotOwnership;

use super::{StartError, restore_directory};

/// Name of the file in the state directory that names the cluster whose tenants this server has.
const CLUSTER_FILE: &str = "cluster.directory";
/// Times that a server begins anew because others have changed something meanwhile. Of those that start at the same
/// moment one succeeds each time.
const START_TRIES: usize = 70;

/// The directory of a server of a cluster, without records.
pub(super) fn restore_agreed(
    config: &ServerSettings,
    cluster: &ClusterSettings,
    epochs: &Arc<Epochs>,
    stored: &DirectoryImage,
) -> Result<Arc<Directory>, StartError> {
    let no_answer = |why: String| {
        let why = MemberError::NoAnswer(NoAnswer(why));
        StartError::Cluster(ClusterStartError::State(cluster.address.clone(), why))
    };
    // It owns everything until its own records are restored.
    let slots = Arc::new(SlotOwnership::new(server_id(&config.state).map_err(ConfigError::new)?));
    let agreement: Arc<dyn DirectoryAgreement> = Arc::new(ClusterDirectory::new(&cluster.address));
    for _ in 0..START_TRIES {
        let found = AgreedImage::read(&*agreement, stored).map_err(no_answer)?;
        if let Some(found) = &found {
            check_origin(config, cluster, stored, &found.image)?;
        }
        let image = found.as_ref().map_or_else(|| stored.clone(), |found| found.image.clone());
        let directory = restore_directory(config, epochs, Some(&slots), image)?;
        match directory.agree_with(&agreement, found.as_ref()) {
            Ok(()) => {
                let prefix = cluster.address.prefix();
                write_private(&config.state.join(CLUSTER_FILE), prefix.as_bytes())?;
                return Ok(directory);
            }
            Err(DirectoryError::OutdatedChange) => {}
            Err(error) => return Err(no_answer(error.to_string())),
        }
    }
    Err(no_answer(DirectoryError::OutdatedChange.to_string()))
}

/// Refuses a server that has tables with records which the cluster does not know: they would be dropped. A server that
/// was in this cluster before has tables that were dropped since.
fn check_origin(
    config: &ServerSettings,
    cluster: &ClusterSettings,
    stored: &DirectoryImage,
    agreed: &DirectoryImage,
) -> Result<(), ConfigError> {
    let of = fs::read_to_string(config.state.join(CLUSTER_FILE)).unwrap_or_default();
    if of == cluster.address.prefix() {
        return Ok(());
    }
    let tables = |image: &DirectoryImage| -> Vec<(u64, String)> {
        let of_tenant = |tenant: &sandstorm_catalog::journal::JournalTenant| -> Vec<(u64, String)> {
            let logged = tenant.tables.iter().filter(|table| table.log != 0);
            logged.map(|table| (table.log, format!("{}/{}", tenant.name, table.name))).collect()
        };
        image.tenants.values().flat_map(of_tenant).collect()
    };
    let known = tables(agreed);
    match tables(stored).into_iter().find(|(number, _)| known.iter().all(|(other, _)| other != number)) {
        None => Ok(()),
        Some((_, name)) => Err(ConfigError::new(format!(
            "this server has tables of its own, such as {name}, that cluster {} does not know: they would be dropped. \
             `sandstorm export` the records before, start with another --state, and import them",
            cluster.address
        ))),
    }
}
