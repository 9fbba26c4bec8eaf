//! Changes of the triggers on which the servers of a cluster agree.

use std::sync::Arc;

use super::agreed_trigger::AgreedTriggers;
use super::directory::Directory;
use super::error::DirectoryError;
use super::tenant_ref::TenantRef;

impl Directory {
    /// Changes the triggers of a tenant on which the servers agree. The change may be made anew on what another server
    /// has changed meanwhile; what the last one returns counts.
    ///
    /// # Errors
    /// No such tenant; the servers cannot agree.
    pub fn change_triggers<'a, T>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        mut change: impl FnMut(&mut AgreedTriggers) -> T,
    ) -> Result<T, DirectoryError> {
        self.change_view(tenant, |_, view| {
            let mut triggers = view.triggers.as_ref().clone();
            let done = change(&mut triggers);
            view.triggers = Arc::new(triggers);
            Ok(done)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agreed_in_memory::AgreedInMemory;
    use crate::agreed_trigger::AgreedTrigger;
    use crate::{AgreedImage, DirectoryAgreement, DirectoryOptions, NewTenant};
    use sandstorm_store::Epochs;

    fn server(agreement: &Arc<dyn DirectoryAgreement>) -> Arc<Directory> {
        let directory = Directory::with_options(Epochs::new(), DirectoryOptions::default());
        let found = AgreedImage::read(&**agreement, &crate::journal::DirectoryImage::default()).unwrap();
        found.iter().for_each(|found| directory.restore(&found.image).unwrap());
        directory.agree_with(agreement, found.as_ref()).unwrap();
        directory
    }

    fn names(directory: &Directory) -> Vec<String> {
        directory.snapshot().find("shop").unwrap().triggers.keys().cloned().collect()
    }

    #[test]
    fn triggers_that_two_servers_change_are_the_same_at_all_of_them() {
        let agreement: Arc<dyn DirectoryAgreement> = Arc::new(AgreedInMemory::default());
        let here = server(&agreement);
        here.create_tenant(NewTenant::named("shop")).unwrap();
        let there = server(&agreement);
        let trigger = |serial| AgreedTrigger { serial, definition: "{}".to_owned(), paused: false, resumed: 0 };
        here.change_triggers("shop", |all| all.insert("a".to_owned(), trigger(1))).unwrap();
        // The other server has not read that yet: its change stands on it all the same.
        let had = there.change_triggers("shop", |all| all.insert("b".to_owned(), trigger(2)).is_some()).unwrap();
        assert!(!had && names(&there) == ["a", "b"]);
        here.change_triggers("shop", |all| all.remove("a")).unwrap();
        there.catch_up().unwrap();
        assert_eq!([names(&here), names(&there)], [["b"], ["b"]]);
        assert_eq!(names(&server(&agreement)), ["b"], "one that joins has them, too");
    }
}
