//! A lifecycle hook, from the runtime's annotations or from the pod's spec.

use serde::{Deserialize, Serialize};

/// A lifecycle hook: its kind and, for exec, its binary. The arguments are never kept.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Hook {
    /// A process in the container; the file name of its binary.
    Exec(String),
    /// A request by the kubelet: no process in the container.
    HttpGet,
    /// A connection by the kubelet: no process in the container.
    TcpSocket,
    /// The kubelet waits this many seconds: no process in the container.
    Sleep(i64),
}
