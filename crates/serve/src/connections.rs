//! Connections, bounded: whoever has no token must not use up the files that the process may open.
//!
//! So many are open at a time; others wait until one is closed. One on which no whole head of a request comes in time is closed,
//! whether it is new or was used before.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Connections at a time: a usual limit is 1,024 open files.
const MOST: usize = 512;
/// How long the head of a request may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait where the system has no file left for a connection.
const PAUSE: Duration = Duration::from_secs(1);

/// What bounds connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    most: usize,
    patience: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            most: MOST,
            patience: PATIENCE,
        }
    }
}

/// Serves until it is stopped, and then until the requests under way are answered.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
    bounds: Bounds,
) {
    let places = Arc::new(Semaphore::new(bounds.most));
    let under_way = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(bounds.patience);
    let next = async || {
        let place = Arc::clone(&places).acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        (place, accepted(&listener).await.0)
    };
    while let Some((place, stream)) = stop.run_until_cancelled(next()).await {
        // Without a delay, a small answer never waits for the acknowledgement of an earlier one.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let connection = under_way.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            let _place = place;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
    under_way.shutdown().await;
}

async fn accepted(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n";

    async fn start(bounds: Bounds) -> (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let router = Router::new().route("/", get(|| async { "here" }));
        let task = tokio::spawn(serve(listener, router, stop.clone(), bounds));
        (address, stop, task)
    }

    async fn answer(stream: &mut TcpStream) -> String {
        stream.write_all(REQUEST).await.unwrap();
        let mut answer = [0; 1024];
        let n = stream.read(&mut answer).await.unwrap();
        String::from_utf8(answer[..n].to_vec()).unwrap()
    }

    #[tokio::test]
    async fn who_sends_no_whole_head_gives_its_place_to_others() {
        let bounds = Bounds {
            most: 2,
            patience: Duration::from_millis(200),
        };
        let (address, stop, task) = start(bounds).await;
        let silent = TcpStream::connect(address).await.unwrap();
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(&REQUEST[..9]).await.unwrap();
        let mut third = TcpStream::connect(address).await.unwrap();
        assert!(answer(&mut third).await.starts_with("HTTP/1.1 200"));
        assert!(
            answer(&mut third).await.ends_with("here"),
            "it is kept open"
        );
        stop.cancel();
        task.await.unwrap();
        drop(silent);
    }
}
