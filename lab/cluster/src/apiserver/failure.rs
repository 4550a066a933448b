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
pub struct ApiFailure {
    /// The HTTP status, such as 404.
    pub code: u16,
    /// The machine-readable reason, such as `NotFound`.
    pub reason: &'static str,
    /// For a person.
    pub message: String,
}

impl ApiFailure {
    pub(super) fn not_found(resource: &str, name: &str) -> ApiFailure {
        ApiFailure {
            code: 404,
            reason: "NotFound",
            message: format!("{resource} {name:?} not found"),
        }
    }

    pub(super) fn no_path(path: &str) -> ApiFailure {
        ApiFailure {
            code: 404,
            reason: "NotFound",
            message: format!("the server could not find the requested resource: {path}"),
        }
    }

    pub(super) fn exists(resource: &str, name: &str) -> ApiFailure {
        let message = format!("{resource} {name:?} already exists");
        ApiFailure { code: 409, reason: "AlreadyExists", message }
    }

    pub(super) fn conflict(message: impl Into<String>) -> ApiFailure {
        ApiFailure { code: 409, reason: "Conflict", message: message.into() }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> ApiFailure {
        ApiFailure { code: 400, reason: "BadRequest", message: message.into() }
    }

    pub(super) fn invalid(message: impl Into<String>) -> ApiFailure {
        ApiFailure { code: 422, reason: "Invalid", message: message.into() }
    }

    pub(super) fn method(method: &str) -> ApiFailure {
        let message = format!("{method} is not allowed on this resource");
        ApiFailure { code: 405, reason: "MethodNotAllowed", message }
    }

    pub(super) fn media_type(given: &str) -> ApiFailure {
        let message = format!("the body of the request was in an unknown format: {given:?}");
        ApiFailure { code: 415, reason: "UnsupportedMediaType", message }
    }

    pub(super) fn expired(asked: u64, oldest: u64) -> ApiFailure {
        let message = format!("too old resource version: {asked} ({oldest})");
        ApiFailure { code: 410, reason: "Expired", message }
    }

    pub(super) fn terminating(namespace: &str) -> ApiFailure {
        let message = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        ApiFailure { code: 403, reason: "Forbidden", message }
    }

    /// `what` has the resource, its group and where it is.
    pub(super) fn forbidden(user: &str, verb: &str, resource: &str, what: &str) -> ApiFailure {
        let message = format!("{resource} is forbidden: User {user:?} cannot {verb} {what}");
        ApiFailure { code: 403, reason: "Forbidden", message }
    }

    pub(super) fn unavailable() -> ApiFailure {
        let message = "the lab's apiserver was told to fail".into();
        ApiFailure { code: 503, reason: "ServiceUnavailable", message }
    }

    /// The `Status` object.
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
