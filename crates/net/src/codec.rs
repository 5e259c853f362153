//! The codec: the one file that knows which library turns messages into bytes.
//!
//! It is gate one for hostile input. A frame is a little-endian `u32` length and that many bytes of CBOR. The length is
//! compared with the limit of the message before a byte of the body is read or memory for it is reserved. The body decodes
//! into typed structs that refuse unknown fields, and no byte may follow it.
//!
//! ```text
//!   ┌────────────┬───────────────────────┐
//!   │ length u32 │ CBOR of one message   │     length ≤ limit of the message, or nothing is read
//!   └────────────┴───────────────────────┘
//! ```
//!
//! The runtime writes the records of its files with the same two functions.
//!
//! `serde_cbor` is complete but unmaintained. It is used in this file only, so that replacing it changes one file.

use std::io;

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of the length prefix.
const PREFIX_BYTES: usize = 4;

/// Tells why bytes are not the message they should be.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The message is larger than its kind may be.
    #[error("a message of {size} bytes where at most {limit} are allowed")]
    TooLarge {
        /// Bytes announced or present.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The bytes are not a well-formed message of this kind.
    #[error("a malformed message: {0}")]
    Malformed(String),
    /// The connection failed or ended in the middle of a message.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

impl From<CodecError> for io::Error {
    fn from(error: CodecError) -> Self {
        match error {
            CodecError::Io(error) => error,
            other => Self::new(io::ErrorKind::InvalidData, other),
        }
    }
}

/// Encodes a message, or a record of a file.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    serde_cbor::to_vec(message)
        .expect("messages are plain structs and memory does not fail to be written")
}

/// Decodes a message that must fill `bytes` exactly.
///
/// # Errors
/// Refuses what is larger than `limit`, malformed, or followed by anything.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<T, CodecError> {
    if bytes.len() > limit {
        return Err(CodecError::TooLarge {
            size: bytes.len(),
            limit,
        });
    }
    serde_cbor::from_slice(bytes).map_err(|error| CodecError::Malformed(error.to_string()))
}

/// Reads one frame and returns the message with the bytes it took on the wire.
pub(crate) async fn read<T, R>(io: &mut R, limit: usize) -> Result<(T, u64), CodecError>
where
    T: DeserializeOwned,
    R: AsyncRead + Unpin + Send,
{
    let mut prefix = [0; PREFIX_BYTES];
    io.read_exact(&mut prefix).await?;
    let size = u32::from_le_bytes(prefix) as usize;
    if size > limit {
        return Err(CodecError::TooLarge { size, limit });
    }
    // The buffer grows as bytes arrive: a peer that announces much and sends little reserves little.
    let mut body = Vec::new();
    io.take(size as u64).read_to_end(&mut body).await?;
    if body.len() < size {
        return Err(CodecError::Io(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok((decode(&body, limit)?, (PREFIX_BYTES + size) as u64))
}

/// Writes one frame and returns the bytes it took on the wire. The caller flushes.
pub(crate) async fn write<T, W>(io: &mut W, message: &T, limit: usize) -> Result<u64, CodecError>
where
    T: Serialize + Sync,
    W: AsyncWrite + Unpin + Send,
{
    let body = encode(message);
    if body.len() > limit {
        return Err(CodecError::TooLarge {
            size: body.len(),
            limit,
        });
    }
    let length = u32::try_from(body.len()).map_err(|_| CodecError::TooLarge {
        size: body.len(),
        limit,
    })?;
    // One write for prefix and body: two would be two encrypted messages.
    let frame = [length.to_le_bytes().as_slice(), &body].concat();
    io.write_all(&frame).await?;
    Ok(frame.len() as u64)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use fednode_core::membership::Statement;
    use fednode_core::{Advert, Greeting, Hello, HelloReply, SignedAdvert, SignedStatement};
    use futures::executor::block_on;
    use futures::io::Cursor;
    use proptest::prelude::*;

    use super::*;
    use crate::join::{Admitted, JoinAsk};
    use crate::presence::Claim;
    use crate::ticket::{Ticket, with_checksum as ticket_of};
    use crate::wire::{BlobAnswer, BlobAsk, PeersReply, PeersRequest, SyncReply, SyncRequest};

    /// Hands out a prefix and fails the test if anyone reads on.
    struct OnlyPrefix(Option<[u8; 4]>);

    impl AsyncRead for OnlyPrefix {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            into: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            let prefix = self
                .0
                .take()
                .expect("the body of an oversized frame must not be read");
            into[..4].copy_from_slice(&prefix);
            Poll::Ready(Ok(4))
        }
    }

    #[test]
    fn refuses_an_oversized_frame_before_its_body() {
        let mut io = OnlyPrefix(Some(1001_u32.to_le_bytes()));
        let error = block_on(read::<BlobAsk, _>(&mut io, 1000)).unwrap_err();
        assert!(
            matches!(
                error,
                CodecError::TooLarge {
                    size: 1001,
                    limit: 1000
                }
            ),
            "{error}"
        );
        let mut io = OnlyPrefix(Some(u32::MAX.to_le_bytes()));
        assert!(block_on(read::<BlobAsk, _>(&mut io, 1 << 20)).is_err());
    }

    #[test]
    fn a_truncated_frame_is_an_error() {
        let mut io = Cursor::new([[8, 0, 0, 0].as_slice(), &[0x80; 5]].concat());
        let error = block_on(read::<Vec<u8>, _>(&mut io, 1000)).unwrap_err();
        assert!(
            matches!(&error, CodecError::Io(cause) if cause.kind() == io::ErrorKind::UnexpectedEof),
            "{error}"
        );
    }

    #[test]
    fn frames_come_back_and_nothing_may_follow() {
        let signed = SignedAdvert {
            payload: vec![1; 300],
            signature: vec![2; 64],
        };
        let mut io = Cursor::new(Vec::new());
        let written = block_on(write(&mut io, &signed, 1000)).unwrap();
        io.set_position(0);
        assert_eq!(
            block_on(read(&mut io, 1000)).unwrap(),
            (signed.clone(), written)
        );
        let mut bytes = encode(&signed);
        bytes.push(0);
        assert!(matches!(
            decode::<SignedAdvert>(&bytes, 1000),
            Err(CodecError::Malformed(_))
        ));
        assert!(
            block_on(write(&mut io, &signed, 300)).is_err(),
            "our own limit binds us too"
        );
    }

    #[test]
    fn unknown_fields_are_refused() {
        #[derive(Serialize)]
        struct Wider {
            id: u32,
            blob: fednode_core::BlobId,
            want: crate::wire::Want,
            extra: u8,
        }
        let blob = fednode_core::BlobId::of(b"x");
        let bytes = encode(&Wider {
            id: 1,
            blob,
            want: crate::wire::Want::List,
            extra: 0,
        });
        assert!(decode::<BlobAsk>(&bytes, 1000).is_err());
    }

    #[test]
    fn deep_nesting_is_refused_without_exhausting_the_stack() {
        assert!(decode::<SignedAdvert>(&vec![0x81; 60_000], 1 << 20).is_err());
        assert!(decode::<SyncReply>(&vec![0xc1; 60_000], 1 << 20).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let _ = decode::<SignedAdvert>(&bytes, 4000);
            let _ = decode::<Advert>(&bytes, 4000);
            let _ = decode::<Hello>(&bytes, 4000);
            let _ = decode::<Greeting>(&bytes, 4000);
            let _ = decode::<HelloReply>(&bytes, 4000);
            let _ = decode::<Statement>(&bytes, 4000);
            let _ = decode::<Vec<SignedStatement>>(&bytes, 4000);
            let _ = decode::<JoinAsk>(&bytes, 4000);
            let _ = decode::<Admitted>(&bytes, 4000);
            let _ = Claim::decode(&bytes).is_ok();
            let _ = ticket_of(&bytes).parse::<Ticket>().is_ok();
            let _ = decode::<SyncRequest>(&bytes, 4000);
            let _ = decode::<SyncReply>(&bytes, 4000);
            let _ = decode::<PeersRequest>(&bytes, 4000);
            let _ = decode::<PeersReply>(&bytes, 4000);
            let _ = decode::<BlobAsk>(&bytes, 4000);
            let _ = decode::<BlobAnswer>(&bytes, 4000);
            let _ = block_on(read::<Hello, _>(&mut Cursor::new(bytes), 1000));
        }

        #[test]
        fn damaged_messages_never_panic(at in 0..400_usize, bit in 0..8_u8, payload in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = encode(&SignedAdvert { payload, signature: vec![7; 64] });
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            let _ = decode::<SignedAdvert>(&bytes, 4000);
            bytes.truncate(at);
            prop_assert!(decode::<SignedAdvert>(&bytes, 4000).is_err());
        }
    }
}
