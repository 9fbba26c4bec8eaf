//! A digest of the state that servers of a cluster have in common: tenants, tables, names of extensions.

use data_encoding::HEXLOWER;
use ring::digest::{Context, SHA256};

use super::Directory;
use super::snapshot::DirectorySnapshot;

/// Bytes of a digest. It tells apart what people made different, and is no proof against forgers.
const DIGEST_BYTES: usize = 8;

impl Directory {
    /// The number of the newest change, and the digest of what there is after it.
    pub fn digest(&self) -> (u64, String) {
        let snapshot = self.snapshot();
        (snapshot.generation(), digest(&snapshot))
    }
}

fn digest(snapshot: &DirectorySnapshot) -> String {
    let mut context = Context::new(&SHA256);
    let mut add = |bytes: &[u8]| {
        context.update(&(bytes.len() as u64).to_le_bytes());
        context.update(bytes);
    };
    for view in snapshot.sorted() {
        add(&view.tenant.id.to_le_bytes());
        add(view.tenant.name.as_bytes());
        for entry in view.sorted_tables() {
            add(&entry.id.to_le_bytes());
            add(entry.name().as_bytes());
        }
        let mut extensions: Vec<&str> = view.extensions.keys().map(|name| &**name).collect();
        extensions.sort_unstable();
        add(b"extensions");
        extensions.iter().for_each(|name| add(name.as_bytes()));
    }
    let all = context.finish();
    HEXLOWER.encode(all.as_ref().get(..DIGEST_BYTES).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::{Directory, NewTable, NewTenant};
    use sandstorm_store::Epochs;

    fn with(tenant: &str, tables: &[(&str, u64)]) -> String {
        let directory = Directory::new(Epochs::new());
        let new = NewTenant { name: tenant.into(), ..NewTenant::default() };
        directory.create_tenant(new).unwrap();
        for (name, id) in tables {
            directory.create_table(tenant, NewTable { id: Some(*id), ..NewTable::named(name) }).unwrap();
        }
        directory.digest().1
    }

    #[test]
    fn servers_with_the_same_names_and_ids_have_one_digest() {
        let one = with("shop", &[("a", 1), ("b", 2)]);
        // Tokens differ, and the order in which the tables were made.
        assert_eq!(with("shop", &[("b", 2), ("a", 1)]), one);
        for other in
            [with("shop", &[("a", 1)]), with("shop", &[("a", 2), ("b", 1)]), with("store", &[("a", 1), ("b", 2)])]
        {
            assert_ne!(other, one);
        }
    }
}
