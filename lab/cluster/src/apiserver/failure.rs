//! Errors, as the API says them: a `Status` object and an HTTP status.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

/// A request that was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The HTTP status, such as 404.
    pub code: u16,
    /// The machine-readable reason, such as `NotFound`.
    pub reason: &'static str,
    /// For a person.
    pub message: String,
}

impl Failure {
    pub(super) fn not_found(resource: &str, name: &str) -> Failure {
        Failure { code: 404, reason: "NotFound", message: format!("{resource} {name:?} not found") }
    }

    pub(super) fn no_path(path: &str) -> Failure {
        Failure {
            code: 404,
            reason: "NotFound",
            message: format!("the server could not find the requested resource: {path}"),
        }
    }

    pub(super) fn exists(resource: &str, name: &str) -> Failure {
        let message = format!("{resource} {name:?} already exists");
        Failure { code: 409, reason: "AlreadyExists", message }
    }

    pub(super) fn conflict(message: impl Into<String>) -> Failure {
        Failure { code: 409, reason: "Conflict", message: message.into() }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Failure {
        Failure { code: 400, reason: "BadRequest", message: message.into() }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Failure {
        Failure { code: 422, reason: "Invalid", message: message.into() }
    }

    pub(super) fn method(method: &str) -> Failure {
        let message = format!("{method} is not allowed on this resource");
        Failure { code: 405, reason: "MethodNotAllowed", message }
    }

    pub(super) fn media_type(given: &str) -> Failure {
        let message = format!("the body of the request was in an unknown format: {given:?}");
        Failure { code: 415, reason: "UnsupportedMediaType", message }
    }

    pub(super) fn expired(asked: u64, oldest: u64) -> Failure {
        let message = format!("too old resource version: {asked} ({oldest})");
        Failure { code: 410, reason: "Expired", message }
    }

    pub(super) fn unavailable() -> Failure {
        let message = "the lab's apiserver was told to fail".into();
        Failure { code: 503, reason: "ServiceUnavailable", message }
    }

    /// The `Status` object.
    pub(super) fn status(&self) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        })
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (code, Json(self.status())).into_response()
    }
}
