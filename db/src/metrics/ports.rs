//! What the ports for connections are in want of.

use super::Metrics;
use crate::tenants::Snapshot;
use crate::workers::ListenAt;

impl Metrics {
    /// Says which ports for connections there are.
    pub fn ports_are(&self, ports: &[ListenAt]) {
        // It is said once, when the workers have started.
        let _said_before = self.ports.set(ports.to_vec());
    }

    /// Those of them whose tenant or table is not there, in a line each that says what to do.
    pub fn ports_in_want(&self, snapshot: &Snapshot) -> Vec<String> {
        let ports = self.ports.get().into_iter().flatten();
        let said = |port: &ListenAt| Some(format!("{}: {}", port.address, port.entrance.missing(snapshot)?));
        ports.filter_map(said).collect()
    }
}
