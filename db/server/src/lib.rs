//! The data plane: workers with their ports and connections, and the threads for their background work.
#![forbid(unsafe_code)]

pub mod checkpointer;
pub mod cpu_affinity;
pub mod home_balance;
pub mod home_balancer;
pub mod janitor;
pub mod limits;
pub mod workers;
