//! The messages of a gRPC stream, unread: a header of five bytes, and the content.

use std::pin::Pin;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures_util::future::poll_fn;
use http_body::Body as _;
use tonic::Status;
use tonic::body::Body;

/// A byte that says whether the message is compressed, and four of its length.
const HEADER: usize = 5;

/// Reads messages off a body.
pub(super) struct Messages {
    body: Body,
    arrived: BytesMut,
    /// The longest that is taken, bytes.
    longest: usize,
}

impl Messages {
    pub(super) fn new(body: Body, longest: usize) -> Self {
        Self { body, arrived: BytesMut::new(), longest }
    }

    /// The next message; `None` at the end. Cancel safe.
    ///
    /// # Errors
    ///
    /// What the sender is told; nothing can be read after it.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.arrived()? {
                return Ok(Some(message));
            }
            let frame = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await;
            match frame.transpose()? {
                None => return Ok(None),
                // Trailers say nothing here.
                Some(frame) => self.arrived.extend(frame.into_data().unwrap_or_default()),
            }
        }
    }

    /// A message that is there whole.
    fn arrived(&mut self) -> Result<Option<Bytes>, Status> {
        let Some((header, _)) = self.arrived.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [compressed, length @ ..] = *header;
        let length = u32::from_be_bytes(length) as usize;
        if compressed != 0 {
            return Err(Status::unimplemented("compressed messages are not taken"));
        }
        if length > self.longest {
            let longest = self.longest;
            let why = format!("a message has {length} bytes; the limit is {longest} bytes");
            return Err(Status::invalid_argument(why));
        }
        if self.arrived.len() < HEADER + length {
            return Ok(None);
        }
        self.arrived.advance(HEADER);
        Ok(Some(self.arrived.split_to(length).freeze()))
    }
}

/// A message with its header.
pub(super) fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(HEADER + message.len());
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.freeze()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::{Context, Poll};

    use http_body::Frame;

    use super::*;

    /// A body in these pieces.
    struct Pieces(VecDeque<Bytes>);

    impl http_body::Body for Pieces {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
        }
    }

    fn body(pieces: impl IntoIterator<Item = Bytes>) -> Body {
        Body::new(Pieces(pieces.into_iter().collect()))
    }

    #[tokio::test]
    async fn messages_come_whole_however_their_bytes_are_cut() {
        let all = [framed(b""), framed(b"abc"), framed(&[9; 300])].concat();
        for piece in [1, 2, 5, 7, 64, 400] {
            let pieces = all.chunks(piece).map(Bytes::copy_from_slice);
            let mut messages = Messages::new(body(pieces), 300);
            let mut lengths = Vec::new();
            while let Some(message) = messages.next().await.unwrap() {
                lengths.push(message.len());
            }
            assert_eq!(lengths, [0, 3, 300], "in pieces of {piece}");
        }
    }

    #[tokio::test]
    async fn long_and_compressed_messages_are_refused_by_what_is_wrong() {
        let refusal = async |bytes: &'static [u8]| {
            let mut messages = Messages::new(body([Bytes::from_static(bytes)]), 300);
            messages.next().await.unwrap_err().message().to_owned()
        };
        assert_eq!(
            refusal(&[0, 0, 0, 1, 45]).await,
            "a message has 301 bytes; the limit is 300 bytes"
        );
        assert_eq!(refusal(&[1, 0, 0, 0, 0]).await, "compressed messages are not taken");
    }
}
