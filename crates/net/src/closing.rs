//! Closing a connection takes two seconds at most.
//!
//! Closing tells the other side, and waits until all that was written is sent. A peer that has gone takes no bytes, and TCP
//! tries for a quarter of an hour. Until the end, libp2p counts the connection and gives it a share of the requests.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use libp2p::core::muxing::{StreamMuxer, StreamMuxerBox, StreamMuxerEvent};
use tokio::time::{Sleep, sleep};

/// A healthy connection sends its last frame in a round trip.
const PATIENCE: Duration = Duration::from_secs(2);

/// A connection that is dropped if closing it takes too long.
pub(crate) struct Closing {
    muxer: StreamMuxerBox,
    /// Set by the first attempt to close.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Closing {
    pub(crate) fn new(muxer: StreamMuxerBox) -> Self {
        Self {
            muxer,
            deadline: None,
        }
    }
}

impl StreamMuxer for Closing {
    type Substream = <StreamMuxerBox as StreamMuxer>::Substream;
    type Error = <StreamMuxerBox as StreamMuxer>::Error;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        Pin::new(&mut self.muxer).poll_inbound(cx)
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        Pin::new(&mut self.muxer).poll_outbound(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        // The muxer before the clock: a connection that closes at once needs no timer.
        if let Poll::Ready(closed) = Pin::new(&mut self.muxer).poll_close(cx) {
            return Poll::Ready(closed);
        }
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        // Dropping the connection afterwards is as good for this side; the other cannot hear it anyway.
        deadline.as_mut().poll(cx).map(Ok)
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<StreamMuxerEvent, Self::Error>> {
        Pin::new(&mut self.muxer).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use futures::AsyncWriteExt;
    use futures::future::poll_fn;
    use libp2p::core::muxing::StreamMuxerExt;
    use libp2p::core::upgrade::{OutboundConnectionUpgrade, UpgradeInfo};
    use tokio::time::timeout;
    use tokio_util::compat::TokioAsyncReadCompatExt;

    use super::*;
    use crate::muxer::Upgrade;

    /// Closes a connection into which `bytes` are written, to a peer that reads nothing. Returns how long that took.
    async fn closing_takes(bytes: usize) -> Duration {
        // The far end stays open and takes no more than the buffer holds.
        let (near, _far) = tokio::io::duplex(4 << 10);
        let upgrade = Upgrade::new();
        let info = upgrade.protocol_info().next().unwrap();
        let muxer = upgrade.upgrade_outbound(near.compat(), info).await.unwrap();
        let mut closing = Closing::new(StreamMuxerBox::new(muxer));
        let mut stream = poll_fn(|cx| closing.poll_outbound_unpin(cx)).await.unwrap();
        let bytes = vec![7; bytes];
        let busy = async {
            let writing = stream.write_all(&bytes);
            let sending = poll_fn(|cx| closing.poll_unpin(cx));
            futures::future::select(Box::pin(writing), Box::pin(sending)).await;
        };
        _ = timeout(Duration::from_millis(200), busy).await;
        let started = Instant::now();
        closing.close().await.unwrap();
        started.elapsed()
    }

    #[tokio::test]
    async fn a_peer_that_takes_no_bytes_holds_up_the_end_for_two_seconds_at_most() {
        assert!(closing_takes(100).await < PATIENCE / 2);
        let stuck = timeout(2 * PATIENCE, closing_takes(64 << 10)).await;
        assert!(stuck.expect("the end is bounded") >= PATIENCE);
    }
}
