//! A slow request over a restart.

use serde::{Deserialize, Serialize};

use super::types::SlowRequestResponse;

/// A slow request as a file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptSlowRequest {
    /// The request without its key, and without a digest, which means nothing to another run of the server.
    #[serde(flatten)]
    pub(super) shown: SlowRequestResponse,
    /// The beginning of its key, if the records of its table are on the disk as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) key_prefix: Vec<u8>,
}
