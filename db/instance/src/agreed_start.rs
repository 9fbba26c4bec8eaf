//! The start of a server in a cluster: it takes over the tenants on which the cluster's servers agree, puts what its
//! configuration says over them, and has that agreed.

use std::fs;
use std::sync::Arc;

use sandstorm_catalog::journal::{DirectoryImage, JournalTable};
use sandstorm_catalog::{AgreedImage, Directory, DirectoryAgreement, DirectoryError, TenantOrigin};
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
    let agreement: Arc<dyn DirectoryAgreement> = Arc::new(ClusterDirectory::new(&cluster.endpoint()?));
    for _ in 0..START_TRIES {
        let found = AgreedImage::read(&*agreement, stored).map_err(no_answer)?;
        let was_here = fs::read_to_string(config.state.join(CLUSTER_FILE)).unwrap_or_default();
        let is_member = was_here == cluster.address.prefix();
        // A cluster without tenants takes over those of its first server, also where the first try has left a mark.
        let begun = found.as_ref().filter(|found| is_member || !found.image.tenants.is_empty());
        if let Some(found) = begun.filter(|_| !is_member) {
            check_strangers(cluster, stored, &found.image)?;
        }
        let image = begun.map_or_else(|| stored.clone(), |found| found.image.clone());
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

/// Refuses a server that has tenants or tables of its own which the cluster does not know: they would be dropped. A
/// server that was in this cluster before has some that were dropped since.
fn check_strangers(
    cluster: &ClusterSettings,
    stored: &DirectoryImage,
    agreed: &DirectoryImage,
) -> Result<(), ConfigError> {
    let refusal = |what: String| {
        Err(ConfigError::new(format!(
            "this server has {what}, that cluster {} does not know: it would be dropped. `sandstorm export` the records \
             before, start with another --state, and import them",
            cluster.address
        )))
    };
    for (id, tenant) in &stored.tenants {
        let name = &tenant.name;
        let known = agreed.tenants.get(id).filter(|known| known.name == *name);
        // What the configuration names is made again, but for records on the disk.
        let is_made_again = tenant.origin == TenantOrigin::Configured;
        let is_known = |table: &JournalTable| {
            let is_it = |known: &JournalTable| (known.id, known.serial) == (table.id, table.serial);
            is_made_again && table.log == 0 || known.is_some_and(|known| known.tables.iter().any(is_it))
        };
        if let Some(table) = tenant.tables.iter().find(|table| !is_known(table)) {
            return refusal(format!("a table of its own, {name}/{}", table.name));
        }
        if known.is_none() && !is_made_again {
            return refusal(format!("a tenant of its own, {name}"));
        }
    }
    Ok(())
}
