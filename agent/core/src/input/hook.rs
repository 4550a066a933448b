//! A lifecycle hook: the runtime's labels and the pod's spec both tell of it.

use serde::{Deserialize, Serialize};

/// A lifecycle hook: its kind, and for exec its binary. Never its arguments.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hook {
    /// A process in the container; the binary's file name.
    Exec(String),
    /// A request by the kubelet: no process in the container.
    HttpGet,
    /// A connection by the kubelet: no process in the container.
    TcpSocket,
    /// The kubelet waits this many seconds: no process in the container.
    Sleep(i64),
}

impl Hook {
    /// An exec hook, reduced to its binary's file name: arguments may hold secrets, also those
    /// that somebody wrote into the same word as the binary.
    pub fn exec(command: &str) -> Self {
        Self::Exec(binary_name(command))
    }
}

/// The file name of the binary in a command's first word, and nothing else of it.
pub fn binary_name(command: &str) -> String {
    let binary = command.split_whitespace().next().unwrap_or_default();
    binary.rsplit('/').next().unwrap_or(binary).to_owned()
}
