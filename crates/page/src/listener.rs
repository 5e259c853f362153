//! Connections, bounded: whoever has no link must not use up the files that the process may open.
//!
//! So many connections are open at a time, and one on which no whole request has come for a while after its beginning is closed.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// Connections at a time: a browser takes six.
const MOST: usize = 64;
/// How long a connection may take until its first answer begins.
const PATIENCE: Duration = Duration::from_secs(10);

/// A listener with a bounded number of connections.
#[derive(Debug)]
pub(crate) struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
    patience: Duration,
}

impl Bounded {
    pub(crate) fn new(listener: TcpListener) -> Self {
        Self {
            listener,
            places: Arc::new(Semaphore::new(MOST)),
            patience: PATIENCE,
        }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let place = Arc::clone(&self.places).acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let silence = Some(Box::pin(tokio::time::sleep(self.patience)));
        let connection = Connection {
            stream,
            silence,
            _place: place,
        };
        (connection, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection that gives its place back when it is closed.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    /// Ends the connection, as long as nothing was answered: a request of which a byte comes now and then is none.
    silence: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            return read;
        }
        match &mut self.silence {
            Some(silence) => silence
                .as_mut()
                .poll(context)
                .map(|()| Err(io::ErrorKind::TimedOut.into())),
            None => Poll::Pending,
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.silence = None;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn connections_are_counted_and_a_silent_one_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut bounded = Bounded {
            patience: Duration::from_millis(20),
            ..Bounded::new(listener)
        };
        let address = bounded.local_addr().unwrap();
        let (mut silent, mut held) = (Vec::new(), Vec::new());
        for _ in 0..MOST {
            silent.push(TcpStream::connect(address).await.unwrap());
            held.push(bounded.accept().await.0);
        }
        assert_eq!(bounded.places.available_permits(), 0);
        let read = held[0].read(&mut [0; 8]).await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
        // One byte is no request.
        silent[1].write_all(b"G").await.unwrap();
        assert_eq!(held[1].read(&mut [0; 8]).await.unwrap(), 1);
        let read = held[1].read(&mut [0; 8]).await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
        held.truncate(1);
        assert_eq!(bounded.places.available_permits(), MOST - 1);
    }
}
