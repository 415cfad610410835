//! `WatchResponse` with its events in encoded form.
//!
//! A change goes to thousands of watchers, so its event is encoded once and its bytes are shared. On the wire a
//! message inside a message is its bytes with a length before them, so `repeated bytes` and `repeated WatchEvent`
//! are the same; only Rust sees this type, and `lock.proto` describes the message to everybody.

use bytes::Bytes;
use prost::{DecodeError, Message};

use crate::v1::WatchEvent;

/// `holdfast.v1.WatchResponse`, whose events are encoded already.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchResponse {
    /// Each an encoded [`WatchEvent`].
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub encoded_events: Vec<Bytes>,
    /// Every change up to this log index was sent; 0: nothing new is said about it.
    #[prost(uint64, tag = "2")]
    pub complete_index: u64,
    /// The cluster that the indices belong to.
    #[prost(bytes = "bytes", tag = "3")]
    pub cluster_id: Bytes,
    /// The watch goes on: no state follows.
    #[prost(bool, tag = "4")]
    pub resumed: bool,
}

impl WatchResponse {
    /// A message of these events that says nothing else.
    pub fn of(events: impl IntoIterator<Item = WatchEvent>) -> Self {
        let encoded_events = events.into_iter().map(|event| event.encode_to_vec().into()).collect();
        Self { encoded_events, ..Self::default() }
    }

    /// Its events.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if one of them is no event.
    pub fn events(&self) -> Result<Vec<WatchEvent>, DecodeError> {
        self.encoded_events.iter().map(|event| WatchEvent::decode(event.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::watch_event::Body;
    use crate::v1::{LockChange, Synced};

    /// The message as `lock.proto` describes it, and as every other client decodes it.
    #[derive(Clone, PartialEq, Message)]
    struct AsDescribed {
        #[prost(message, repeated, tag = "1")]
        events: Vec<WatchEvent>,
        #[prost(uint64, tag = "2")]
        complete_index: u64,
        #[prost(bytes = "bytes", tag = "3")]
        cluster_id: Bytes,
        #[prost(bool, tag = "4")]
        resumed: bool,
    }

    #[test]
    fn its_bytes_are_those_of_the_message_that_is_described() {
        let change = LockChange { name: "a".into(), waiting: 300, what: None };
        let events = vec![
            WatchEvent { index: 7, body: Some(Body::Synced(Synced {})) },
            WatchEvent::default(),
            WatchEvent { index: u64::MAX, body: Some(Body::Change(change)) },
        ];
        let (complete_index, cluster_id) = (8, Bytes::from_static(b"own"));
        let described = AsDescribed {
            events: events.clone(),
            complete_index,
            cluster_id: cluster_id.clone(),
            resumed: true,
        };
        let ours = WatchResponse {
            complete_index,
            cluster_id,
            resumed: true,
            ..WatchResponse::of(events.clone())
        };

        assert_eq!(ours.encode_to_vec(), described.encode_to_vec());
        let decoded = WatchResponse::decode(&*described.encode_to_vec()).expect("it is one");
        assert_eq!((decoded.events(), decoded), (Ok(events), ours));
    }

    #[test]
    fn an_event_that_is_none_is_an_error() {
        let response = WatchResponse {
            encoded_events: vec![Bytes::from_static(&[0xFF])],
            ..WatchResponse::default()
        };

        assert!(response.events().is_err());
    }
}
