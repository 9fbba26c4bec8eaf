//! The tenants of a load: found, or created where that was asked for, and deleted again.

use std::collections::BTreeMap;

use sandstorm_client::Config;
use sandstorm_client::control::{TableMode, TableSpec, TableStatus, TenantSpec, TenantStatus};

use super::super::local_server::ExampleExtension;
use super::super::output::CliError;
use super::super::session::CliSession;

/// A tenant that is ready for the load.
pub(super) struct TargetTenant {
    pub(super) name: String,
    pub(super) config: Config,
    pub(super) table: TableStatus,
    /// The table of a graph's sorted lists, where the load is one.
    pub(super) lists: Option<TableStatus>,
    /// The server is one of several, and counts its own records.
    pub(super) is_part: bool,
}

impl TargetTenant {
    /// Returns whether records may be evicted: the table is a cache.
    pub(super) fn evicts(&self) -> bool {
        self.table.mode == TableMode::Cache
    }

    /// # Errors
    /// The table has fewer records than the load asks for.
    pub(super) fn check_filled(&self, wanted: u64) -> Result<(), CliError> {
        if self.is_part || self.evicts() || self.table.records >= wanted {
            return Ok(());
        }
        let TargetTenant { name, table, .. } = self;
        let text =
            format!("table {:?} of tenant {name:?} has {} records, the load needs {wanted}", table.name, table.records);
        Err(CliError::new(text).hint("--fill writes them, over what is there; or say --records").code("not_filled"))
    }
}

/// Finds and creates tenants, and remembers what it created.
pub(super) struct LoadTenants<'s> {
    session: &'s CliSession,
    create: bool,
    /// Tenants that were created here.
    made: Vec<String>,
    /// Tables that were created for existing tenants.
    created_tables: Vec<(String, String)>,
    /// Extensions that were pushed for existing tenants.
    pushed: Vec<(String, &'static str)>,
}

impl<'s> LoadTenants<'s> {
    pub(super) fn new(session: &'s CliSession, create: bool) -> LoadTenants<'s> {
        LoadTenants { session, create, made: Vec::new(), created_tables: Vec::new(), pushed: Vec::new() }
    }

    /// Prepares all of these tenants with their table and extensions, and with an ordered table if it has a name.
    ///
    /// # Errors
    /// Where something is missing that may not be created, nothing is created.
    pub(super) fn prepare(
        &mut self,
        names: &[String],
        (table, lists): (&str, Option<&str>),
        extensions: &[&'static str],
        progress: &dyn Fn(&str),
    ) -> Result<Vec<TargetTenant>, CliError> {
        let control = self.session.control();
        let is_part = control.cluster().is_ok_and(|cluster| cluster.servers.len() > 1);
        let mut there: BTreeMap<String, TenantStatus> =
            control.tenants()?.into_iter().map(|tenant| (tenant.name.clone(), tenant)).collect();
        let lacking: Vec<&String> = names.iter().filter(|name| !there.contains_key(*name)).collect();
        if let (Some(first), false) = (lacking.first(), self.create) {
            let text = match lacking.len() {
                1 => format!("there is no tenant {first:?}"),
                more => format!("{more} of {} tenants are not there: {first:?} …", names.len()),
            };
            return Err(CliError::new(text).hint("--create makes them (and tables, and pushes)").code("not_found"));
        }
        let address = self.session.data_address()?;
        let mut targets = Vec::new();
        for name in names {
            let (tenant, token) = match there.remove(name) {
                // With many tenants a given token is the operator's, not that of a single tenant.
                Some(tenant) => (tenant, self.session.saved_token(name).filter(|_| names.len() > 1)),
                None => self.make(name)?,
            };
            let config = match token {
                Some(token) => self.session.config_with(address, &tenant, token),
                None => self.session.config(address, &tenant)?,
            };
            let table = self.table(name, table, false)?;
            let lists = lists.map(|lists| self.table(name, lists, true)).transpose()?;
            self.extensions(name, extensions, progress)?;
            targets.push(TargetTenant { name: name.clone(), config, table, lists, is_part });
        }
        let (tenants, tables, pushed) = (self.made.len(), self.created_tables.len(), self.pushed.len());
        if tenants + tables + pushed > 0 {
            progress(&format!("created: {tenants} tenants, {tables} tables of others, {pushed} extensions pushed"));
        }
        Ok(targets)
    }

    /// The number of the server's workers.
    pub(super) fn workers(&self) -> Result<u32, CliError> {
        Ok(self.session.control().health()?.workers)
    }

    fn make(&mut self, name: &str) -> Result<(TenantStatus, Option<String>), CliError> {
        let new = TenantSpec { name: name.to_owned(), ..TenantSpec::default() };
        let created = self.session.control().create_tenant(&new)?;
        self.session.save_token(name, &created.token);
        self.made.push(name.to_owned());
        Ok((created.tenant, Some(created.token)))
    }

    fn table(&mut self, tenant: &str, table: &str, ordered: bool) -> Result<TableStatus, CliError> {
        let control = self.session.control();
        if let Some(found) = control.tables(tenant)?.into_iter().find(|one| one.name == table) {
            return Ok(found);
        }
        if !self.create {
            let options = if ordered { " --ordered" } else { "" };
            let hint =
                format!("--create makes it, as does `sandstorm table create {table} --tenant {tenant}{options}`");
            let text = format!("tenant {tenant:?} has no table {table:?}");
            return Err(CliError::new(text).hint(hint).code("not_found"));
        }
        let create = TableSpec { name: table.to_owned(), ordered, ..TableSpec::default() };
        let made = control.create_table(tenant, &create)?;
        if !self.made.iter().any(|name| name == tenant) {
            self.created_tables.push((tenant.to_owned(), table.to_owned()));
        }
        Ok(made)
    }

    fn extensions(&mut self, tenant: &str, names: &[&'static str], progress: &dyn Fn(&str)) -> Result<(), CliError> {
        if names.is_empty() {
            return Ok(());
        }
        let control = self.session.control();
        let there = control.extensions(tenant)?;
        for name in names.iter().copied().filter(|name| !there.iter().any(|one| one.name == *name)) {
            let example = ExampleExtension::named(name).filter(|_| self.create).ok_or_else(|| {
                CliError::new(format!("tenant {tenant:?} has no extension {name:?}, and the mix calls it"))
                    .hint("--create pushes it, as does `sandstorm ext push` with its folder in ext/")
                    .code("unknown_extension")
            })?;
            progress(&format!("{tenant}: pushing {name}"));
            control.push(tenant, name, &example.push())?;
            if !self.made.iter().any(|made| made == tenant) {
                self.pushed.push((tenant.to_owned(), name));
            }
        }
        Ok(())
    }

    /// Deletes everything that was created.
    ///
    /// # Errors
    /// The first failed deletion; the others are still tried.
    pub(super) fn remove(self, progress: &dyn Fn(&str)) -> Result<(), CliError> {
        let control = self.session.control();
        let mut result = Ok(());
        for (tenant, name) in &self.pushed {
            result = result.and(control.unload(tenant, name).map(|_| ()));
        }
        for (tenant, table) in &self.created_tables {
            result = result.and(control.drop_table(tenant, table));
        }
        for tenant in &self.made {
            result = result.and(control.delete_tenant(tenant));
            self.session.forget_token(tenant);
        }
        progress(&format!("removed: {} tenants, {} tables of others", self.made.len(), self.created_tables.len()));
        result.map_err(CliError::from)
    }
}
