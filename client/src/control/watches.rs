//! What is counted while a caller asks: hot keys, heat maps, profiles; and large records.

use std::time::Duration;

use serde::de::DeserializeOwned;

use super::{BigReport, Control, ControlError, HeatMapReport, HotReport, HotSpotsReport, ProfileReport, path_segment};

impl Control {
    /// The keys of a table that are used most, at most `limit` of each kind: counts for so many seconds, then answers.
    pub fn hot(&self, tenant: &str, table: &str, seconds: u64, limit: usize) -> Result<HotReport, ControlError> {
        let (tenant, table) = (path_segment(tenant), path_segment(table));
        self.get_after(&format!("/v1/tenants/{tenant}/tables/{table}/hot?seconds={seconds}&limit={limit}"), seconds)
    }

    /// The keys that take much of their table's accesses now, at most `limit`: of all tables that the token sees, or of
    /// a tenant's. They are known without counting.
    pub fn hot_spots(&self, tenant: Option<&str>, limit: usize) -> Result<HotSpotsReport, ControlError> {
        let tenant = tenant.map_or_else(String::new, |tenant| format!("&tenant={}", path_segment(tenant)));
        self.get(&format!("/v1/hot?limit={limit}{tenant}"))
    }

    /// Accesses of a table over so many key ranges and so many seconds: counts, then answers.
    pub fn heat(&self, tenant: &str, table: &str, seconds: u64, ranges: usize) -> Result<HeatMapReport, ControlError> {
        let (tenant, table) = (path_segment(tenant), path_segment(table));
        let query = format!("seconds={seconds}&ranges={ranges}");
        self.get_after(&format!("/v1/tenants/{tenant}/tables/{table}/heat?{query}"), seconds)
    }

    /// The largest records of a table, at most `limit`.
    pub fn big(&self, tenant: &str, table: &str, limit: usize) -> Result<BigReport, ControlError> {
        self.get(&format!("/v1/tenants/{}/tables/{}/big?limit={limit}", path_segment(tenant), path_segment(table)))
    }

    /// Where an extension's code spends its time: samples it for so many seconds, then answers.
    pub fn profile(&self, tenant: &str, extension: &str, seconds: u64) -> Result<ProfileReport, ControlError> {
        let (tenant, extension) = (path_segment(tenant), path_segment(extension));
        self.get_after(&format!("/v1/tenants/{tenant}/extensions/{extension}/profile?seconds={seconds}"), seconds)
    }

    /// Reads an answer that comes after so many seconds of counting.
    fn get_after<T: DeserializeOwned>(&self, path: &str, seconds: u64) -> Result<T, ControlError> {
        let timeout = self.timeout + Duration::from_secs(seconds);
        let request = self.agent.get(self.url(path)).config().timeout_global(Some(timeout)).build();
        self.finish(timeout, self.with_token(request).call())
    }
}
