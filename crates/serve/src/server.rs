//! The server: routes, the token, and the way of a request through the queue.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::access::{AccessFile, AccessGuard, equal_in_constant_time};
use crate::connections::{self, Bounds};
use crate::model::{Answer, Batch, Predictor, Reader, Refused};
use crate::problem::Problem;
use crate::queue::{Queue, WAITING};
use crate::request::{Asked, Form, MOST_BYTES, check_count};

/// The description of all requests, OpenAPI 3.1.
pub const OPENAPI: &str = include_str!("openapi.json");

/// The one request that needs no token.
const HEALTH: &str = "/healthz";
/// How long a body may take to arrive: whoever sends it holds a place.
const BODY_PATIENCE: Duration = Duration::from_secs(30);
/// How long requests under way may take when the server stops.
const LAST_PATIENCE: Duration = Duration::from_secs(5);
/// Bodies up to this size are read in well under a millisecond, so they need no thread for that.
const SMALL_BYTES: usize = 16 << 10;
/// Large bodies that are read at a time: what they become in memory is many times their size.
const LARGE_AT_A_TIME: usize = 2;

/// How a server is reached.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where it listens; port 0 for one that the system chooses.
    pub bind: SocketAddr,
    /// The file for address and token.
    pub access_file: PathBuf,
}

/// Tells why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be had.
    #[error("cannot listen at {address}: {source}; name another with --bind")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The access file cannot be had, or another server has it.
    #[error("cannot write `{}`: {source}", path.display())]
    Access {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The system refuses a thread.
    #[error("cannot start the thread that predicts: {0}")]
    Thread(#[source] io::Error),
}

/// A running server; it stops when this is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    _file: AccessGuard,
    stop: DropGuard,
    task: JoinHandle<()>,
}

struct Shared<R: Reader> {
    reader: R,
    queue: Queue<R::Samples>,
    token: String,
    /// Places for requests: who has one is sure of a place in the queue.
    places: Semaphore,
    large: Semaphore,
}

impl Server {
    /// Binds the address, starts the thread that predicts, writes the access file and starts to serve.
    ///
    /// # Errors
    /// Fails if the address cannot be bound, if another server has the access file, or if it cannot be written.
    pub async fn start<R: Reader>(
        reader: R,
        predictor: impl Predictor<R::Samples>,
        settings: &Settings,
    ) -> Result<Self, StartError> {
        let address = settings.bind;
        let bind = |source| StartError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(bind)?;
        let content = AccessFile::new(listener.local_addr().map_err(bind)?);
        let path = &settings.access_file;
        let file = AccessGuard::write(path, &content).map_err(|source| StartError::Access {
            path: path.clone(),
            source,
        })?;
        let shared = Arc::new(Shared {
            reader,
            queue: Queue::start(predictor).map_err(StartError::Thread)?,
            token: content.token,
            places: Semaphore::new(WAITING),
            large: Semaphore::new(LARGE_AT_A_TIME),
        });
        let stop = CancellationToken::new();
        let serving = connections::serve(listener, router(shared), stop.clone(), Bounds::default());
        let task = tokio::spawn(serving);
        Ok(Self {
            address: content.address,
            _file: file,
            stop: stop.drop_guard(),
            task,
        })
    }

    /// Returns where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more requests, and waits a while for those under way.
    pub async fn stop(self) {
        drop(self.stop);
        let mut task = self.task;
        // Connections that a client keeps open would hold the end up for ever.
        if tokio::time::timeout(LAST_PATIENCE, &mut task)
            .await
            .is_err()
        {
            task.abort();
        }
    }
}

/// One row of the table of requests.
struct Route<R: Reader> {
    path: &'static str,
    /// As OpenAPI names it.
    #[cfg_attr(not(test), allow(dead_code, reason = "the description is held to it"))]
    method: &'static str,
    handler: MethodRouter<Arc<Shared<R>>>,
}

/// All requests.
fn routes<R: Reader>() -> [Route<R>; 4] {
    let route = |path, method, handler| Route {
        path,
        method,
        handler,
    };
    [
        route("/v1/predict", "post", post(predict::<R>)),
        route("/v1/model", "get", get(model::<R>)),
        route("/v1/openapi.json", "get", get(openapi)),
        route(HEALTH, "get", get(health)),
    ]
}

fn router<R: Reader>(shared: Arc<Shared<R>>) -> Router {
    let all = routes().into_iter();
    all.fold(Router::new(), |router, route| {
        router.route(route.path, route.handler)
    })
    .fallback(|| async { Problem::new(StatusCode::NOT_FOUND, "no such page") })
    .method_not_allowed_fallback(|| async {
        let text = "no such method here: GET /v1/openapi.json lists all requests";
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, text)
    })
    .layer(DefaultBodyLimit::max(MOST_BYTES))
    .layer(middleware::from_fn_with_state(
        Arc::clone(&shared),
        authorise::<R>,
    ))
    .with_state(shared)
}

async fn authorise<R: Reader>(
    State(shared): State<Arc<Shared<R>>>,
    request: Request,
    next: Next,
) -> Response {
    let header = request.headers().get(header::AUTHORIZATION);
    let given = header
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "))
        .unwrap_or_default();
    let is_open = request.uri().path() == HEALTH;
    if is_open || equal_in_constant_time(given.as_bytes(), shared.token.as_bytes()) {
        return next.run(request).await;
    }
    let text = "the token of the access file is needed: Authorization: Bearer TOKEN";
    Problem::new(StatusCode::UNAUTHORIZED, text).into_response()
}

#[derive(Debug, Serialize)]
struct Health {
    status: &'static str,
}

async fn health() -> Json<Health> {
    Json(Health { status: "ok" })
}

async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI)
}

async fn model<R: Reader>(State(shared): State<Arc<Shared<R>>>) -> impl IntoResponse {
    let facts = shared.reader.facts();
    Json(&*facts).into_response()
}

async fn predict<R: Reader>(
    State(shared): State<Arc<Shared<R>>>,
    request: Request,
) -> Result<Json<Predictions>, Problem> {
    // The place is taken before the body, so that bodies are bounded too.
    let _place: SemaphorePermit<'_> = shared.places.try_acquire().map_err(|_| Problem::busy())?;
    let asked = Asked::of(request.headers(), request.uri())?;
    // Said before anything is sent, where the client says how much it will be.
    if request.body().size_hint().lower() > MOST_BYTES as u64 {
        return Err(Problem::too_large());
    }
    let body = tokio::time::timeout(BODY_PATIENCE, Bytes::from_request(request, &()));
    let body = body.await.map_err(|_| {
        let seconds = BODY_PATIENCE.as_secs();
        let text = format!("the body took longer than {seconds} s");
        Problem::new(StatusCode::REQUEST_TIMEOUT, text)
    })??;
    let (batch, explain) = read(&shared, asked, body).await?;
    let Batch { samples, len, ids } = batch;
    let answers = shared.queue.predict(samples, len).await?;
    let facts = shared.reader.facts();
    Ok(Json(Predictions::new(
        answers,
        ids,
        &facts.classes,
        explain,
    )))
}

/// Makes samples of a body; a large one on a thread that may take its time.
async fn read<R: Reader>(
    shared: &Arc<Shared<R>>,
    asked: Asked,
    body: Bytes,
) -> Result<(Batch<R::Samples>, Explain), Problem> {
    if body.len() <= SMALL_BYTES && asked.form != Form::Image {
        return Ok(samples(&shared.reader, &asked, &body)?);
    }
    let shared = Arc::clone(shared);
    let stopped = |_| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the server stops");
    let _turn = shared.large.acquire().await.map_err(|_| Problem::busy())?;
    let reading = Arc::clone(&shared);
    let read = tokio::task::spawn_blocking(move || samples(&reading.reader, &asked, &body));
    Ok(read.await.map_err(stopped)??)
}

fn samples<R: Reader>(
    reader: &R,
    asked: &Asked,
    body: &[u8],
) -> Result<(Batch<R::Samples>, Explain), Refused> {
    let facts = reader.facts();
    let said = asked.read(body, &facts.input)?;
    let mut batch = reader.read(said.input)?;
    check_count(Some(batch.len))?;
    if batch.ids.is_empty() {
        batch.ids = said.ids;
    }
    let explain = if said.explain {
        Explain::Yes
    } else {
        Explain::No
    };
    Ok((batch, explain))
}

/// Whether an answer says how it came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Explain {
    Yes,
    No,
}

/// What is answered to a request for predictions.
#[derive(Debug, Serialize)]
struct Predictions {
    predictions: Vec<Prediction>,
}

/// What is answered for one sample.
#[derive(Debug, Serialize)]
struct Prediction {
    /// Which sample of the request, counting from 0.
    sample: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    class: u16,
    name: String,
    probability: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    explanation: Option<Explanation>,
}

/// How an answer came about.
#[derive(Debug, Serialize)]
struct Explanation {
    classes: Vec<ClassShare>,
    /// The expert that decided; null if there are none.
    expert: Option<u16>,
}

#[derive(Debug, Serialize)]
struct ClassShare {
    name: String,
    probability: f32,
}

impl Predictions {
    fn new(
        answers: Vec<Answer>,
        ids: Vec<Option<String>>,
        classes: &[String],
        explain: Explain,
    ) -> Self {
        let name = |class: usize| classes.get(class).cloned().unwrap_or(class.to_string());
        let ids = ids.into_iter().chain(std::iter::repeat(None));
        let prediction = |(sample, (answer, id)): (usize, (Answer, Option<String>))| {
            let class = usize::from(answer.class);
            Prediction {
                sample,
                id,
                class: answer.class,
                name: name(class),
                probability: answer.probabilities.get(class).copied(),
                number: answer.number,
                explanation: (explain == Explain::Yes).then(|| Explanation {
                    expert: answer.expert,
                    classes: (0..)
                        .zip(answer.probabilities)
                        .map(|(class, probability)| ClassShare {
                            name: name(class),
                            probability,
                        })
                        .collect(),
                }),
            }
        };
        let answers = answers.into_iter().zip(ids).enumerate();
        Self {
            predictions: answers.map(prediction).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Input, ModelFacts, Piece};
    use serde_json::Value;
    use std::collections::BTreeSet;

    struct Nothing;

    impl Reader for Nothing {
        type Samples = ();
        fn facts(&self) -> Arc<ModelFacts> {
            unreachable!("no request is made")
        }
        fn read(&self, _: Input<'_>) -> Result<Batch<()>, Refused> {
            unreachable!("no request is made")
        }
    }

    impl Predictor<()> for Nothing {
        fn predict(&mut self, _: &[Piece<'_, ()>]) -> Result<Vec<Answer>, String> {
            unreachable!("no request is made")
        }
    }

    #[test]
    fn the_description_has_every_route_and_no_other() {
        let described: Value = serde_json::from_str(OPENAPI).unwrap();
        let paths = described["paths"].as_object().unwrap();
        let described: BTreeSet<(&str, &str)> = paths
            .iter()
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().unwrap().keys();
                methods.map(|method| (path.as_str(), method.as_str()))
            })
            .collect();
        let routes = routes::<Nothing>();
        let there: BTreeSet<(&str, &str)> = routes
            .iter()
            .map(|route| (route.path, route.method))
            .collect();
        assert_eq!(described, there);
    }

    /// Every value below a key, wherever it is.
    fn under<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
        match value {
            Value::Object(map) => {
                for (name, inner) in map {
                    if name == key {
                        found.push(inner);
                    }
                    under(inner, key, found);
                }
            }
            Value::Array(list) => list.iter().for_each(|inner| under(inner, key, found)),
            _ => {}
        }
    }

    #[test]
    fn the_description_is_well_formed() {
        let described: Value = serde_json::from_str(OPENAPI).unwrap();
        assert!(described["openapi"].as_str().unwrap().starts_with("3.1"));
        assert_eq!(described["info"]["version"], env!("CARGO_PKG_VERSION"));
        let mut references = Vec::new();
        under(&described, "$ref", &mut references);
        assert!(references.len() > 5);
        for reference in references {
            let path = reference.as_str().unwrap().strip_prefix('#').unwrap();
            assert!(described.pointer(path).is_some(), "{path} leads nowhere");
        }
        let mut operations = Vec::new();
        under(&described, "operationId", &mut operations);
        let distinct: BTreeSet<String> = operations.iter().map(ToString::to_string).collect();
        assert_eq!((operations.len(), distinct.len()), (4, 4));
        let mut responses = Vec::new();
        under(&described["paths"], "responses", &mut responses);
        for answers in responses {
            for (status, answer) in answers.as_object().unwrap() {
                assert!(status.parse::<u16>().is_ok(), "{status}");
                let is_described = answer["description"].is_string() || answer["$ref"].is_string();
                assert!(is_described, "{status}: {answer}");
            }
        }
        let limit = &described["components"]["schemas"]["Rows"]["properties"]["rows"]["maxItems"];
        assert_eq!(limit, crate::MOST_SAMPLES);
    }
}
