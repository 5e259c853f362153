//! How a request fails: a status, and one line of JSON.

use axum::Json;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::model::Refused;
use crate::queue::Lost;
use crate::request::MOST_BYTES;

/// What may be answered before a body is read. The connection is closed then, and whoever would use it again hears so.
const LEAVES_THE_BODY: [StatusCode; 7] = [
    StatusCode::UNAUTHORIZED,
    StatusCode::NOT_FOUND,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    StatusCode::SERVICE_UNAVAILABLE,
];

/// Why a request has no other answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    status: StatusCode,
    error: String,
}

#[derive(Debug, Serialize)]
struct Body<'a> {
    error: &'a str,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, error: impl Into<String>) -> Self {
        // A cause may quote what was sent, with its lines.
        let error: String = error.into();
        let words: Vec<&str> = error.split_whitespace().collect();
        Self {
            status,
            error: words.join(" "),
        }
    }

    pub(crate) fn busy() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "as many requests wait as may: try again later",
        )
    }

    pub(crate) fn too_large() -> Self {
        let most = MOST_BYTES >> 20;
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is larger than {most} MiB: divide it among several requests"),
        )
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let status = match &refused {
            Refused::Malformed(_) => StatusCode::BAD_REQUEST,
            Refused::Unfit(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Refused::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
        };
        Self::new(status, refused.to_string())
    }
}

impl From<Lost> for Problem {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Full => Self::busy(),
            Lost::Stopped => Self::new(StatusCode::SERVICE_UNAVAILABLE, "the server stops"),
            Lost::Failed(cause) => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("the model failed: {cause}"),
            ),
        }
    }
}

impl From<BytesRejection> for Problem {
    fn from(rejection: BytesRejection) -> Self {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Self::too_large(),
            status => Self::new(status, "the body ended early"),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = Json(Body { error: &self.error });
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        if LEAVES_THE_BODY.contains(&self.status) {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_line_whatever_it_quotes() {
        let problem = Problem::from(Refused::Malformed("holds `a\nb`,  which\tis none".into()));
        assert_eq!(problem.error, "holds `a b`, which is none");
        assert_eq!(problem.status, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn who_is_answered_before_its_body_is_read_hears_that_the_connection_ends() {
        let closes = |problem: Problem| {
            let response = problem.into_response();
            let said = response.headers().get(header::CONNECTION).cloned();
            said.is_some_and(|said| said == "close")
        };
        assert!(closes(Problem::busy()) && closes(Problem::too_large()));
        assert!(!closes(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "no such column"
        )));
    }
}
