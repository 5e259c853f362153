//! The request-response protocols (hello, sync, peers): framing, limits, accounting.

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures::{AsyncRead, AsyncWrite, AsyncWriteExt};
use libp2p::StreamProtocol;
use libp2p::request_response::{self, ProtocolSupport};

use crate::codec;
use crate::traffic::Traffic;
use crate::wire::Call;

/// Time for a whole exchange: a full sync reply over one megabit per second takes ten seconds.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Exchanges of one protocol at once on one connection. Honest peers have one or two.
const MAX_CONCURRENT: usize = 8;

/// Reads and writes the messages of one protocol.
#[derive(Debug)]
pub(crate) struct Rpc<C> {
    traffic: Arc<Traffic>,
    call: PhantomData<fn() -> C>,
}

impl<C> Clone for Rpc<C> {
    fn clone(&self) -> Self {
        Self {
            traffic: self.traffic.clone(),
            call: PhantomData,
        }
    }
}

/// Makes the behaviour of one protocol.
pub(crate) fn behaviour<C: Call>(traffic: Arc<Traffic>) -> request_response::Behaviour<Rpc<C>> {
    let config = request_response::Config::default()
        .with_request_timeout(REQUEST_TIMEOUT)
        .with_max_concurrent_streams(MAX_CONCURRENT);
    let protocol = (StreamProtocol::new(C::PROTOCOL), ProtocolSupport::Full);
    request_response::Behaviour::with_codec(
        Rpc {
            traffic,
            call: PhantomData,
        },
        [protocol],
        config,
    )
}

impl<C: Call> request_response::Codec for Rpc<C> {
    type Protocol = StreamProtocol;
    type Request = C::Request;
    type Response = C::Reply;

    async fn read_request<T>(&mut self, _: &StreamProtocol, io: &mut T) -> io::Result<C::Request>
    where
        T: AsyncRead + Unpin + Send,
    {
        // Counted only when whole and well formed. What breaks off shows in the bytes on the wire alone.
        let (request, bytes) = codec::read(io, C::MAX_REQUEST).await?;
        self.traffic.control_received(bytes);
        Ok(request)
    }

    async fn read_response<T>(&mut self, _: &StreamProtocol, io: &mut T) -> io::Result<C::Reply>
    where
        T: AsyncRead + Unpin + Send,
    {
        let (reply, bytes) = codec::read(io, C::MAX_REPLY).await?;
        self.traffic.control_received(bytes);
        Ok(reply)
    }

    async fn write_request<T>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
        request: C::Request,
    ) -> io::Result<()>
    where
        T: AsyncWrite + Unpin + Send,
    {
        let bytes = codec::write(io, &request, C::MAX_REQUEST).await?;
        self.traffic.control_sent(bytes);
        // Closing flushes, and tells the other side that nothing follows.
        io.close().await
    }

    async fn write_response<T>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
        reply: C::Reply,
    ) -> io::Result<()>
    where
        T: AsyncWrite + Unpin + Send,
    {
        let bytes = codec::write(io, &reply, C::MAX_REPLY).await?;
        self.traffic.control_sent(bytes);
        io.close().await
    }
}
