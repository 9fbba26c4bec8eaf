//! Tables for Redis clients that select a database by a number.
//!
//! A change of the directory is written to the journal, so a worker cannot wait for it. A thread makes the tables, one
//! after the other, while there are requests. A connection has one request at most, so the queue is bounded by them.

use std::io;
use std::sync::Arc;

use sandstorm_catalog::{Directory, DirectoryError, NewTable};
use sandstorm_dialects::WantedDatabase;
use sandstorm_net::rpc::RpcStatus;

use super::connections::inbox::InboxMessage;
use super::database_queue::DatabaseRequest;
use super::shared::SharedWorkerState;

/// Requests a table. The connection's worker gets the answer as an invocation's result.
///
/// # Errors
/// When the system gives no thread.
pub(super) fn request(shared: &Arc<SharedWorkerState>, request: DatabaseRequest) -> io::Result<()> {
    let mut queue = shared.databases.0.lock();
    if !queue.1 {
        let maker = Arc::clone(shared);
        std::thread::Builder::new().name("databases".into()).spawn(move || work(&maker))?;
        queue.1 = true;
    }
    queue.0.push_back(request);
    Ok(())
}

fn work(shared: &SharedWorkerState) {
    loop {
        let request = {
            let mut queue = shared.databases.0.lock();
            let Some(request) = queue.0.pop_front() else {
                queue.1 = false;
                return;
            };
            request
        };
        let (status, value) = match make(&shared.directory, request.tenant, &request.wanted) {
            Ok(()) => (RpcStatus::Ok, Vec::new()),
            Err(error) => (RpcStatus::Failed, error.to_string().into_bytes()),
        };
        let connection = request.connection;
        let (number, shown, cost, ready) = (0, 0, None, None);
        let message = InboxMessage::InvocationResult { connection, status, number, value, shown, cost, ready };
        shared.send_to_inbox(request.worker, message);
    }
}

fn make(directory: &Directory, tenant: u32, wanted: &WantedDatabase) -> Result<(), DirectoryError> {
    let mut new = NewTable { id: Some(wanted.number), ..NewTable::named(&wanted.table_name()) };
    let snapshot = directory.snapshot();
    let like = snapshot.tenant(tenant).and_then(|view| view.table(wanted.like?));
    if let Some(like) = like {
        (new.mode, new.durability) = (like.table.mode(), Some(like.durability()));
    }
    let made = directory.create_table(tenant, new);
    // Another connection may have been first.
    let is_there = || directory.snapshot().tenant(tenant).is_some_and(|view| view.table(wanted.number).is_some());
    match made {
        Err(error) if !is_there() => Err(error),
        _ => Ok(()),
    }
}
