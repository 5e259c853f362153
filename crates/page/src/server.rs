//! The server: routes, headers, and the stream of events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use futures::stream::{self, Stream};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::board::{Board, Cursor, Viewer};
use crate::door::{Door, TICKET};
use crate::events::Event;
use crate::listener::Bounded;
use crate::watched::{Kind, Watched};
use crate::{assets, look, run};

/// Nothing from elsewhere, nothing inline, and no other page may frame this one.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Headers of every answer.
const HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    // A page of an older version must not be kept.
    (header::CACHE_CONTROL, "no-cache"),
];
/// What somebody reads who has no link.
const LOCKED: &str = "This page opens with the link that `dashboard` has printed in the terminal. A link works once; \
                      after that the terminal shows the next one.\n";
/// How long browsers may take to hear the end.
const LAST_PATIENCE: Duration = Duration::from_millis(500);
/// Changes within this time are told together.
const GATHER: Duration = Duration::from_millis(100);

/// Called with every new link.
type OnLink = Box<dyn Fn(&str) + Send + Sync>;

/// How a page is served.
pub struct Settings {
    /// Where it listens; port 0 for one that the system chooses.
    pub bind: SocketAddr,
    /// Called with the link at the start, and with the next one whenever a link was used.
    pub on_link: OnLink,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("bind", &self.bind)
            .finish_non_exhaustive()
    }
}

/// Tells why a page cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {address}: {source}; name another with --bind")]
pub struct StartError {
    /// The address.
    pub address: SocketAddr,
    /// Why not.
    pub source: io::Error,
}

/// A page that is served; it ends when this is dropped.
#[derive(Debug)]
pub struct Page {
    address: SocketAddr,
    board: Arc<Board>,
    stop: CancellationToken,
    server: AbortOnDropHandle<()>,
    /// Those that look.
    tasks: JoinSet<()>,
}

/// Says what a link is for, to whoever sees it in a terminal.
pub fn sentence(link: &str) -> String {
    format!("the page is at {link} (a link works once)")
}

/// Says what is to be known of an address that others can reach.
pub fn warning(bind: SocketAddr) -> Option<String> {
    let is_open = !bind.ip().is_loopback();
    is_open.then(|| {
        format!(
            "the page is not encrypted, and {bind} can be reached from other machines: whoever listens on the way can read it; \
             `ssh -L` to an address of this machine is safer"
        )
    })
}

struct Shared {
    door: Door,
    board: Arc<Board>,
    address: SocketAddr,
    on_link: OnLink,
}

impl Shared {
    /// Hands out the link that works now.
    fn hand_out_link(&self) {
        let (address, ticket) = (self.address, self.door.ticket());
        (self.on_link)(&format!("http://{address}/?{TICKET}={ticket}"));
    }
}

impl Page {
    /// Binds the address, hands out the first link and starts to serve.
    ///
    /// # Errors
    /// Fails if the address cannot be bound.
    pub async fn start(watched: Watched, settings: Settings) -> Result<Self, StartError> {
        let Settings { bind, on_link } = settings;
        let failed = |source| StartError {
            address: bind,
            source,
        };
        let listener = TcpListener::bind(bind).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let mut tasks = JoinSet::new();
        let board = watch_all(watched, &mut tasks);
        let shared = Arc::new(Shared {
            door: Door::new(address.port()),
            board: Arc::clone(&board),
            address,
            on_link,
        });
        shared.hand_out_link();
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let server = tokio::spawn(async move {
            let serving =
                axum::serve(Bounded::new(listener), router(shared)).with_graceful_shutdown(stopped);
            if let Err(error) = serving.await {
                tracing::warn!(%error, "the page stopped");
            }
        });
        Ok(Self {
            address,
            board,
            stop,
            server: AbortOnDropHandle::new(server),
            tasks,
        })
    }

    /// Returns where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Tells all browsers that this is the end, and waits a moment until they have heard it.
    pub async fn stop(mut self) {
        self.board.end();
        self.stop.cancel();
        _ = tokio::time::timeout(LAST_PATIENCE, &mut self.server).await;
        self.tasks.shutdown().await;
    }
}

/// Starts a task for everything that is looked at.
fn watch_all(watched: Watched, tasks: &mut JoinSet<()>) -> Arc<Board> {
    let folder = &watched.folder;
    let shown = folder.display().to_string();
    let name = folder.file_name().map(|name| name.to_string_lossy());
    let title = run::spec(folder)
        .map(|spec| spec.name)
        .or_else(|| Some(name?.into_owned()));
    let board = Board::new(watched.kind.name(), title.unwrap_or_default(), shown);
    let board = Arc::new(board);
    if let Some(summary) = watched.summary() {
        tasks.spawn(run::watch_summary(Arc::clone(&board), summary));
    }
    if watched.kind == Kind::Simulation {
        let folder = folder.clone();
        tasks.spawn(run::watch_simulation(Arc::clone(&board), folder));
    }
    let places = watched.places.len();
    for place in watched.places {
        let index = board.add_node(place.name.clone(), place.role);
        tasks.spawn(look::watch(Arc::clone(&board), index, place, places));
    }
    board
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/assets/{*path}", get(asset))
        .route("/events", get(events))
        .fallback(|| async { (StatusCode::NOT_FOUND, "no such page\n") })
        .layer(middleware::from_fn_with_state(
            Arc::clone(&shared),
            authorise,
        ))
        .layer(middleware::map_response(with_headers))
        .with_state(shared)
}

async fn with_headers(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Lets in who has the cookie, and gives it to who has a ticket.
async fn authorise(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let mut cookies = request.headers().get_all(header::COOKIE).iter();
    let is_known = cookies.any(|cookies| {
        // Another program's cookie may be no text.
        shared
            .door
            .is_open_to(&String::from_utf8_lossy(cookies.as_bytes()))
    });
    let query = request.uri().query().unwrap_or_default();
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    let ticket = pairs.find(|(name, _)| name == TICKET);
    let opens = request.method() == Method::GET && request.uri().path() == "/";
    match ticket {
        Some((_, ticket)) if opens && shared.door.spend(&ticket) => {
            shared.hand_out_link();
            let cookie = [(header::SET_COOKIE, shared.door.cookie())];
            (cookie, Redirect::to("/")).into_response()
        }
        // Who is inside may open an old link again: the ticket goes from the address, and nothing else happens.
        Some(_) if is_known => Redirect::to("/").into_response(),
        None if is_known => next.run(request).await,
        _ => (StatusCode::UNAUTHORIZED, LOCKED).into_response(),
    }
}

async fn page() -> Response {
    found("index.html")
}

async fn asset(Path(path): Path<String>) -> Response {
    found(&path)
}

fn found(path: &str) -> Response {
    match assets::find(path) {
        Some((kind, bytes)) => ([(header::CONTENT_TYPE, kind)], bytes).into_response(),
        None => (StatusCode::NOT_FOUND, "no such page\n").into_response(),
    }
}

async fn events(
    State(shared): State<Arc<Shared>>,
) -> Sse<impl Stream<Item = Result<sse::Event, Infallible>>> {
    Sse::new(told(Arc::clone(&shared.board))).keep_alive(KeepAlive::default())
}

/// What is told to one browser, and what waits to be.
struct Teller {
    board: Arc<Board>,
    cursor: Cursor,
    changes: watch::Receiver<u64>,
    waiting: VecDeque<Event>,
    /// While this lives, everybody is asked.
    _viewer: Viewer,
}

impl Teller {
    /// Returns the next event; `None` after the last. Cancel-safe.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            self.changes.borrow_and_update();
            let unseen = self.board.unseen(&mut self.cursor)?;
            if unseen.is_empty() {
                self.changes.changed().await.ok()?;
                tokio::time::sleep(GATHER).await;
            }
            self.waiting.extend(unseen);
        }
    }
}

fn told(board: Arc<Board>) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let teller = Teller {
        changes: board.changes(),
        _viewer: board.view(),
        cursor: Cursor::default(),
        waiting: VecDeque::new(),
        board,
    };
    stream::unfold(teller, |mut teller| async move {
        let Event { name, data } = teller.next().await?;
        Some((Ok(sse::Event::default().event(name).data(data)), teller))
    })
}
