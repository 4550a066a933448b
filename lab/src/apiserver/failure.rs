//! Errors as the API reports them: a `Status` object and an HTTP status.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

/// A request that was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiFailure {
    pub code: u16,
    /// The machine-readable reason, such as `NotFound`.
    pub reason: &'static str,
    pub message: String,
}

impl ApiFailure {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into() }
    }

    pub(super) fn not_found(what: &str, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{what} {name:?} not found"))
    }

    pub(super) fn exists(what: &str, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{what} {name:?} already exists"))
    }

    pub(super) fn conflict(message: impl Into<String>) -> Self {
        Self::new(409, "Conflict", message)
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(422, "Invalid", message)
    }

    pub(super) fn method(verb: &str) -> Self {
        Self::new(405, "MethodNotAllowed", format!("{verb} is not allowed on this resource"))
    }

    pub(super) fn expired(asked: u64, oldest: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {asked} ({oldest})"))
    }

    pub(super) fn forbidden(verb: &str, resource: &str) -> Self {
        let message =
            format!("{resource} is forbidden: the agent's ClusterRole does not allow {verb}");
        Self::new(403, "Forbidden", message)
    }

    pub(super) fn unavailable() -> Self {
        Self::new(503, "ServiceUnavailable", "the lab's apiserver is away")
    }

    pub(super) fn status(&self) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        })
    }
}

impl IntoResponse for ApiFailure {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (code, Json(self.status())).into_response()
    }
}
