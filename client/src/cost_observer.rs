//! What is told the cost of calls.

use sandstorm_net::rpc::CallCost;
use std::sync::Arc;

/// Is told what a call cost.
#[derive(Clone)]
pub(crate) struct CostObserver(pub(crate) Arc<dyn Fn(CallCost) + Send + Sync>);
