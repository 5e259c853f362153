//! The server of the control API.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request as HttpRequest, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::ControlGuard;
use crate::error::RunError;
use crate::status::{ControlFile, Experts, Peer, Problem, Status};
use crate::{metrics, records, token};

/// Requests that may wait for the driver.
const WAITING: usize = 32;
/// How long the driver may take to answer; it never blocks, so this is long.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the last answers may take to be sent.
const LAST_ANSWERS: Duration = Duration::from_millis(250);

/// The figures for Prometheus.
const METRICS: &str = "/metrics";

/// What the server asks the driver.
#[derive(Debug)]
pub(crate) enum Request {
    Status(oneshot::Sender<Status>),
    Peers(oneshot::Sender<Vec<Peer>>),
    Experts(oneshot::Sender<Experts>),
    Leave(oneshot::Sender<()>),
    Withdraw(oneshot::Sender<()>),
    Stop(oneshot::Sender<()>),
}

/// The file in the state folder with the token that opens the figures for Prometheus.
const METRICS_TOKEN: &str = "metrics.token";

/// Opens the control API of the member with this state folder.
///
/// # Errors
/// Fails if its address cannot be bound or a file of it cannot be written.
pub(crate) async fn start(address: SocketAddr, state: &Path) -> Result<Server, RunError> {
    let unserved = |error: io::Error| {
        let is_taken = matches!(
            error.kind(),
            ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable
        );
        let way_out = if is_taken {
            ". Choose another `network.control`: with port 0 it takes one that is free"
        } else {
            ""
        };
        RunError::Network(format!(
            "the control API cannot be served at {address}: {error}{way_out}"
        ))
    };
    let token = token::kept(&state.join(METRICS_TOKEN)).map_err(|error| {
        RunError::StateContent(format!("{METRICS_TOKEN} in the state folder: {error}"))
    })?;
    Server::start(address, state, token).await.map_err(unserved)
}

impl Request {
    /// Tells whether nobody waits for the answer any more.
    fn is_given_up(&self) -> bool {
        match self {
            Self::Status(answer) => answer.is_closed(),
            Self::Peers(answer) => answer.is_closed(),
            Self::Experts(answer) => answer.is_closed(),
            Self::Leave(answer) | Self::Withdraw(answer) | Self::Stop(answer) => answer.is_closed(),
        }
    }
}

/// A running server; it stops at once when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    requests: mpsc::Receiver<Request>,
    _file: ControlGuard,
    stop: DropGuard,
    task: JoinHandle<()>,
}

struct Shared {
    token: String,
    /// Opens the figures for Prometheus only, and stays the same from start to start.
    metrics_token: String,
    records: PathBuf,
    driver: mpsc::Sender<Request>,
}

impl Server {
    /// Binds the address, writes `control.json` and starts to serve.
    ///
    /// # Errors
    /// Fails if the address cannot be bound or the file cannot be written.
    async fn start(address: SocketAddr, state: &Path, metrics_token: String) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let content = ControlFile {
            address: listener.local_addr()?,
            token: token::new(),
            pid: std::process::id(),
        };
        // After the port is open, because whoever reads the file may ask at once.
        let file = ControlGuard::write(state, &content)?;
        let (driver, requests) = mpsc::channel(WAITING);
        let shared = Arc::new(Shared {
            token: content.token,
            metrics_token,
            records: records::path_in(state),
            driver,
        });
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let task = tokio::spawn(async move {
            let serving = axum::serve(listener, router(shared)).with_graceful_shutdown(stopped);
            if let Err(error) = serving.await {
                tracing::warn!(%error, "the control API stopped");
            }
        });
        Ok(Self {
            requests,
            _file: file,
            stop: stop.drop_guard(),
            task,
        })
    }

    /// Returns the next request for whose answer somebody waits; never returns if the server has stopped. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Request {
        loop {
            match self.requests.recv().await {
                // Who was told to ask again must not be obeyed twice.
                Some(request) if request.is_given_up() => {}
                Some(request) => return request,
                None => std::future::pending().await,
            }
        }
    }

    /// Stops it once the answers that were given have been sent. Whoever waits for one is told to ask again.
    pub(crate) async fn close(mut self) {
        self.requests.close();
        while self.requests.try_recv().is_ok() {}
        self.stop.token().cancel();
        // Connections that a client keeps open would hold a graceful end up for ever.
        let _ = tokio::time::timeout(LAST_ANSWERS, &mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A client that keeps its connection open would keep the task alive for ever.
        self.task.abort();
    }
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/peers", get(peers))
        .route("/v1/experts", get(experts))
        .route("/v1/rounds", get(rounds))
        .route("/v1/leave", post(leave))
        .route("/v1/withdraw", post(withdraw))
        .route("/v1/stop", post(stop))
        .route(METRICS, get(prometheus))
        .fallback(|| async { problem(StatusCode::NOT_FOUND, "no such page") })
        // After the fallback, which asks for the token, too: strangers do not learn which pages there are.
        .layer(middleware::from_fn_with_state(
            Arc::clone(&shared),
            authorise,
        ))
        .with_state(shared)
}

async fn authorise(
    State(shared): State<Arc<Shared>>,
    request: HttpRequest,
    next: Next,
) -> Response {
    let header = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let given = header
        .and_then(|value| value.strip_prefix("Bearer "))
        .unwrap_or_default();
    let asks_for_figures = request.uri().path() == METRICS;
    let is_open = token::equal(given, &shared.token)
        || (asks_for_figures && token::equal(given, &shared.metrics_token));
    if is_open {
        next.run(request).await
    } else {
        problem(
            StatusCode::UNAUTHORIZED,
            "the token of control.json is needed, or for /metrics that of metrics.token",
        )
    }
}

fn problem(status: StatusCode, error: &str) -> Response {
    (
        status,
        Json(Problem {
            error: error.to_owned(),
        }),
    )
        .into_response()
}

/// Asks the driver and waits for its answer.
async fn ask<T>(
    shared: &Shared,
    request: impl FnOnce(oneshot::Sender<T>) -> Request,
) -> Result<T, Response> {
    let busy = || {
        problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "it is busy, or it is about to stop or to go on after an end; ask again",
        )
    };
    let (answer, answered) = oneshot::channel();
    // Never waits for room: a driver with so many requests before this one would answer too late.
    shared
        .driver
        .try_send(request(answer))
        .map_err(|_| busy())?;
    match tokio::time::timeout(PATIENCE, answered).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) | Err(_) => Err(busy()),
    }
}

async fn status(State(shared): State<Arc<Shared>>) -> Result<Json<Status>, Response> {
    ask(&shared, Request::Status).await.map(Json)
}

async fn peers(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<Peer>>, Response> {
    ask(&shared, Request::Peers).await.map(Json)
}

async fn experts(State(shared): State<Arc<Shared>>) -> Result<Json<Experts>, Response> {
    ask(&shared, Request::Experts).await.map(Json)
}

async fn rounds(State(shared): State<Arc<Shared>>) -> Response {
    // Read here, since the driver waits for no disk. A line that is half written is passed over.
    let path = shared.records.clone();
    match tokio::task::spawn_blocking(move || records::read_newest(&path)).await {
        Ok(Ok(records)) => Json(records).into_response(),
        Ok(Err(error)) => problem(
            StatusCode::INTERNAL_SERVER_ERROR,
            &format!("records cannot be read: {error}"),
        ),
        Err(_) => problem(StatusCode::INTERNAL_SERVER_ERROR, "records cannot be read"),
    }
}

async fn leave(State(shared): State<Arc<Shared>>) -> Result<StatusCode, Response> {
    ask(&shared, Request::Leave)
        .await
        .map(|()| StatusCode::ACCEPTED)
}

async fn withdraw(State(shared): State<Arc<Shared>>) -> Result<StatusCode, Response> {
    ask(&shared, Request::Withdraw)
        .await
        .map(|()| StatusCode::ACCEPTED)
}

async fn stop(State(shared): State<Arc<Shared>>) -> Result<StatusCode, Response> {
    ask(&shared, Request::Stop)
        .await
        .map(|()| StatusCode::ACCEPTED)
}

async fn prometheus(State(shared): State<Arc<Shared>>) -> Result<Response, Response> {
    let status = ask(&shared, Request::Status).await?;
    let text = metrics::render(&status);
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_is_taken_names_the_setting() {
        let folder = tempfile::tempdir().unwrap();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let text = start(address, folder.path()).await.unwrap_err().to_string();
        assert!(text.contains("Choose another `network.control`"), "{text}");
        drop(taken);
        assert!(start(address, folder.path()).await.is_ok());
    }
}
