//! The value of a lock.

use std::sync::Arc;

use bytes::Bytes;
use holdfast_proto::v1::{self, set_value};
use holdfast_types::VALUE_BYTES_MAX;

use crate::items::past_limit;
use crate::{FencingToken, Result};

/// The value that a holder left with a lock. It outlives the hold and goes to the next holder with
/// the grant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Value {
    /// As it was set; may be empty.
    pub bytes: Bytes,
    /// The token of the grant under which it was set; confirming the value does not change it.
    pub token: FencingToken,
    /// Whether the lease of an exclusive holder (the one that set it, or a later one) ran out, and
    /// no holder has set or confirmed the value since. That holder may have died in the middle of
    /// the work that the value describes.
    pub is_suspect: bool,
}

impl Value {
    pub(crate) fn from_wire(value: v1::Value) -> Self {
        Self {
            bytes: value.value,
            token: FencingToken::from_raw(value.token),
            is_suspect: value.suspect,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Set(Bytes),
    Clear,
    Confirm,
}

impl Change {
    /// # Errors
    ///
    /// [`Error::Refused`](crate::Error::Refused), in the server's words, for a value that no server
    /// would accept.
    pub(crate) fn set(bytes: Bytes) -> Result<Self> {
        let len = bytes.len();
        if len > VALUE_BYTES_MAX {
            let message =
                format!("a value of {len} bytes is larger than the {VALUE_BYTES_MAX} allowed");
            return Err(past_limit("value_bytes", message));
        }
        Ok(Self::Set(bytes))
    }

    /// Whether it takes no space at the store, or frees some.
    pub(crate) fn frees(&self) -> bool {
        match self {
            Self::Clear | Self::Confirm => true,
            Self::Set(_) => false,
        }
    }

    /// The value after this change under `token`; `before` is the value before it.
    pub(crate) fn after(&self, before: Option<Value>, token: FencingToken) -> Option<Value> {
        match self {
            Self::Set(bytes) => Some(Value { bytes: bytes.clone(), token, is_suspect: false }),
            Self::Clear => None,
            Self::Confirm => before.map(|value| Value { is_suspect: false, ..value }),
        }
    }

    pub(crate) fn to_wire(
        &self,
        request_id: u64,
        token: FencingToken,
        name: &Arc<str>,
    ) -> v1::SetValue {
        let change = match self {
            Self::Set(bytes) => set_value::Change::Value(bytes.clone()),
            Self::Clear => set_value::Change::Clear(v1::Clear {}),
            Self::Confirm => set_value::Change::Confirm(v1::Confirm {}),
        };
        let name = Bytes::copy_from_slice(name.as_bytes());
        v1::SetValue { request_id, token: token.get(), name, change: Some(change) }
    }
}
