//! What a newer agent may add to a closed set.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A value of a set that may grow. A client that meets one it does not know keeps it as it came, instead of refusing the
/// whole answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Open<T> {
    /// A value that this version knows.
    Known(T),
    /// Anything else, as it came.
    Newer(Value),
}

impl<T> Open<T> {
    /// The value, if this version knows it.
    pub fn known(self) -> Option<T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Newer(_) => None,
        }
    }
}

impl<T> From<T> for Open<T> {
    fn from(value: T) -> Self {
        Self::Known(value)
    }
}
