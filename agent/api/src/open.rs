//! Values that a newer agent may add to a closed set.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A value of a set that may grow. A client keeps a value that it does not know unchanged, instead of rejecting the
/// whole answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Open<T> {
    /// A value that this version knows.
    Known(T),
    /// Any other value, unchanged.
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
