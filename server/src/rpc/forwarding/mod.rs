//! Any node serves (DESIGN §15): a node that does not lead passes calls on to the leader.
//!
//! ```text
//!   client ──▶ port for clients ─ PassesOn ──▶ the leader's port for members ─ TakesIn ──▶ service
//!              verifies the caller             admits members, with what they say of the caller
//! ```
//!
//! Calls are passed on, never commands: the leader decides about each as if it had come to its own port for
//! clients. The bytes go through unread, both ways.
//!
//! The streams of sessions are many and mostly silent, and each would be a stream of HTTP/2 at the leader. They share
//! one call instead, [`Carry`], whose batches have the messages of all of them:
//!
//! ```text
//!   clients ══▶ PassesOn ─ carrier ═══ batches of (stream, message) ═══▶ carried ─ session streams
//! ```
//!
//! [`Carry`]: holdfast_proto::v1::relay_service_server::RelayService::carry
//!
//! # Invariants
//!
//! - One hop only: what comes to the port for members is never passed on again. A node there that does not
//!   lead answers as it does to clients.
//! - A call is passed on once. If the connection breaks after it was sent, its outcome is not known, and the
//!   caller is told that; the caller may ask again, this node may not.
//! - Whose call it is counts only from a member, on the port for members, and only as that member's word on
//!   what the caller has shown to it. The leader looks up tokens and rules itself.
//! - Links are connections of their own: clients that do not read, or send a lot, hold up no message of Raft.
//!   No call of a link holds up another: the window of a link has room for all of theirs. What comes on a
//!   [`Carry`] is taken off at once; each of its streams has a window of its own.
//!
//! A client that goes to the leader itself says so ([`REDIRECT`]), and is told where the leader is, unless that is where
//! it has just failed to get.

mod batches;
mod carried;
mod carrier;
mod links;
mod messages;
mod passes_on;
mod takes_in;
#[cfg(test)]
pub(super) mod tests;

use std::sync::Arc;

use bytes::Bytes;
use holdfast_core::Identity;
use holdfast_proto::v1::{Forwarded, forwarded};
use http_body::Frame;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prost::Message;
use tonic::Status;
use tonic::codegen::http::{HeaderMap, HeaderName, HeaderValue};
use tonic::metadata::{Binary, MetadataMap, MetadataValue};

use super::access::{PassedOn, Shown};

pub(super) use batches::BATCH_MAX;
pub(super) use carried::CarriedApi;
pub use links::{Dial, Links};
pub(super) use passes_on::{Passage, PassesOn};
pub(super) use takes_in::{Gate, TakesIn};

/// Metadata of a client that goes to the leader itself: the addresses, separated by commas, at which it has
/// just failed to get there. To any other leader it is sent, not passed on.
pub const REDIRECT: HeaderName = HeaderName::from_static("holdfast-redirect");
/// Metadata of a call that is passed on: a [`Forwarded`].
const FORWARDED: &str = "holdfast-forwarded-bin";
/// Set in the answer to each call that came to the port for members, by the release of the answering node: a
/// node of an older release has no services there.
const TAKEN_IN: HeaderName = HeaderName::from_static("holdfast-taken-in");

/// What is counted of calls that are passed on. Cheap to clone; clones count together.
#[derive(Clone, Debug, Default)]
pub struct ForwardingMetrics {
    /// Calls that this node has passed on.
    pub passed_on: Counter,
    /// Those that could not be passed on, or whose connection broke.
    pub failed: Counter,
    /// Calls and streams that this node passes on at the moment.
    pub open: Gauge,
    /// Calls that came in through other members.
    pub taken_in: Counter,
    /// Bytes that lie here of the streams of sessions, for clients that have not read them.
    pub unread_bytes: Gauge,
}

/// The last frame of an answer, as gRPC ends one.
///
/// # Errors
///
/// The status itself, if it has what no header can carry.
fn last_frame(status: &Status) -> Result<Frame<Bytes>, Status> {
    let mut trailers = HeaderMap::new();
    status.add_header(&mut trailers)?;
    Ok(Frame::trailers(trailers))
}

/// Writes what the leader is told of a call into its headers.
fn announce(headers: &mut HeaderMap, word: &Forwarded) {
    let value: MetadataValue<Binary> = MetadataValue::from_bytes(&word.encode_to_vec());
    let mut metadata = MetadataMap::new();
    metadata.insert_bin(FORWARDED, value);
    for (name, value) in metadata.into_headers() {
        if let Some(name) = name {
            headers.insert(name, value);
        }
    }
}

/// Reads what a member says of a call, and takes it out of the headers.
///
/// # Errors
///
/// `PERMISSION_DENIED`: it is no member's word.
fn announced(headers: &mut HeaderMap) -> Result<Forwarded, Status> {
    let odd = || Status::permission_denied("on this port only members pass on calls");
    let value: HeaderValue = headers.remove(FORWARDED).ok_or_else(odd)?;
    let mut one = HeaderMap::new();
    one.insert(HeaderName::from_static(FORWARDED), value);
    let metadata = MetadataMap::from_headers(one);
    let value = metadata.get_bin(FORWARDED).ok_or_else(odd)?;
    let bytes = value.to_bytes().map_err(|_| odd())?;
    Forwarded::decode(bytes).map_err(|_| odd())
}

/// The caller in the form in which one member names it to another.
fn named(shown: &Shown) -> Option<forwarded::Caller> {
    match shown {
        Shown::Identity(identity) if identity.is_anonymous() => None,
        Shown::Identity(identity) => Some(forwarded::Caller::Identity(identity.to_string())),
        Shown::Token(hash) => Some(forwarded::Caller::TokenHash(hash.to_vec().into())),
    }
}

/// Reads it.
///
/// # Errors
///
/// `UNAUTHENTICATED`: this release does not know such a caller.
fn caller_of(word: Forwarded) -> Result<PassedOn, Status> {
    let shown = match word.caller {
        None => Shown::Identity(Identity::default()),
        Some(forwarded::Caller::Identity(text)) => {
            let identity = Identity::parse(&text);
            let unknown =
                |error| Status::unauthenticated(format!("{text:?} is no identity: {error}"));
            Shown::Identity(identity.map_err(unknown)?)
        }
        Some(forwarded::Caller::TokenHash(hash)) => {
            let hash = <[u8; 32]>::try_from(&*hash);
            Shown::Token(hash.map_err(|_| Status::unauthenticated("a token's hash has 32 bytes"))?)
        }
    };
    let by_node = word.header.map_or(0, |header| header.from_node);
    Ok(PassedOn { shown, from: Arc::from(word.from), by_node })
}
