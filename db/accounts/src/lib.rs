//! The use of each tenant: counters, the admission of its invocations, its request rate, its pushes, its recent kills,
//! its Redis and memcached clients. Also tokens. It outlives changes of the tenant's settings.
#![forbid(unsafe_code)]

mod call_pauses;
mod client_list;
mod client_registration;
mod command_stats;
mod home_move_record;
mod kill_record;
pub mod limits;
mod memcached_stats;
mod recent_entries;
mod slow_log;
mod slow_requests;
mod tenant_log;
pub mod token;
mod usage;

pub use call_pauses::{CallPauses, WaitSum};
pub use client_list::{ClientList, RedisClientEntry, RedisClientStatus};
pub use client_registration::ClientRegistration;
pub use command_stats::CommandStat;
pub use home_move_record::HomeMoveRecord;
pub use kill_record::{CodePlace, KillRecord};
pub use memcached_stats::{MemcachedTotals, Tally, WorkerMemcachedCounts};
pub use recent_entries::NewEntries;
pub use slow_log::{CommandPreview, SlowCommand, SlowLog};
pub use slow_requests::{RequestSubject, RequestWaits, SlowCall, SlowRequest, SlowRequests, TurnShare};
pub use tenant_log::{LineLevel, LogFilter, LogLine, LogPage, NewLogLine, TenantLog};
pub use token::TokenHash;
pub use usage::{MEMORY_TEXT, PolicyEvent, TenantUsage, UsageTotals, memory_units};
