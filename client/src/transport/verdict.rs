//! The meaning of a gRPC status for a client: one table for sessions, reads and operators' calls.

use std::error::Error;

use holdfast_proto::v1::RefusalReason;
use tonic::{Code, Status};

/// The metadata in which a node that does not lead names the leader.
const LEADER_METADATA: &str = "holdfast-leader";
/// The metadata by which a server says that a watch cannot go on. tonic's decoder returns `OUT_OF_RANGE` too, for a
/// message that is too long.
const COMPACTED_METADATA: &str = "holdfast-compacted";
/// The server's settings whose overflow cuts a slow reader's stream or watch; the message contains
/// the setting's name.
const READER_LIMITS: [&str; 3] = ["outbox_frames", "outbox_bytes", "watch_backlog"];

/// What is certain after a call or stream ended with a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The server does not lead or has no quorum. It did nothing; another may succeed, and so may
    /// this one later.
    NotHere {
        /// The leader's endpoint for clients, if the server knows it.
        leader: Option<String>,
    },
    /// A newer stream resumed the session with its secret.
    TakenOver,
    /// This client did not read fast enough, and the server cut it.
    TooSlow,
    /// The changes after the index from which a watch was to go on are not all kept.
    Compacted,
    /// The server did nothing, and the same call will not succeed later.
    Refused(RefusalReason),
    /// Nothing is certain: the connection broke, or the server does not know the outcome.
    Unknown,
}

impl Verdict {
    pub(super) fn of(status: &Status) -> Self {
        match status.code() {
            // tonic returns an UNAVAILABLE of its own when a connection breaks, with a source; a
            // server's has none.
            Code::Unavailable if status.source().is_none() => {
                Self::NotHere { leader: leader_of(status) }
            }
            Code::Aborted => Self::TakenOver,
            Code::ResourceExhausted
                if READER_LIMITS.iter().any(|limit| status.message().contains(limit)) =>
            {
                Self::TooSlow
            }
            Code::OutOfRange if status.metadata().contains_key(COMPACTED_METADATA) => {
                Self::Compacted
            }
            Code::InvalidArgument | Code::OutOfRange => Self::Refused(RefusalReason::Invalid),
            Code::PermissionDenied | Code::Unauthenticated => {
                Self::Refused(RefusalReason::Forbidden)
            }
            Code::ResourceExhausted => Self::Refused(RefusalReason::Limit),
            Code::Unimplemented => Self::Refused(RefusalReason::Unsupported),
            Code::FailedPrecondition | Code::NotFound | Code::AlreadyExists => {
                Self::Refused(RefusalReason::Unspecified)
            }
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::Internal
            | Code::DataLoss
            | Code::Unavailable => Self::Unknown,
        }
    }
}

fn leader_of(status: &Status) -> Option<String> {
    let leader = status.metadata().get(LEADER_METADATA)?;
    leader.to_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_server_that_is_unavailable_may_name_the_leader() {
        let mut status = Status::unavailable("this node follows");
        assert_eq!(Verdict::of(&status), Verdict::NotHere { leader: None });

        status.metadata_mut().insert(LEADER_METADATA, "leader:7420".parse().expect("it is ascii"));

        let leader = Some("leader:7420".to_owned());
        assert_eq!(Verdict::of(&status), Verdict::NotHere { leader });
    }

    /// The call may have arrived, so it is not certain that nothing was done.
    #[test]
    fn a_connection_that_broke_is_no_word_of_the_server() {
        let mut status = Status::unavailable("transport error");
        status.set_source(Arc::new(io::Error::from(io::ErrorKind::BrokenPipe)));

        assert_eq!(Verdict::of(&status), Verdict::Unknown);
    }

    #[test]
    fn being_cut_for_reading_slowly_is_told_from_other_limits() {
        let cut = Status::resource_exhausted("8192 frames are unread (outbox_frames)");
        let watch = Status::resource_exhausted("it was not read (watch_backlog = 8192)");
        let limit = Status::resource_exhausted("100000 sessions are open (max_sessions)");

        assert_eq!(Verdict::of(&cut), Verdict::TooSlow);
        assert_eq!(Verdict::of(&watch), Verdict::TooSlow);
        assert_eq!(Verdict::of(&limit), Verdict::Refused(RefusalReason::Limit));
    }

    #[test]
    fn a_watch_that_cannot_go_on_is_told_from_a_message_that_is_too_long() {
        let mut status = Status::out_of_range("the changes after index 3 are not all kept");
        assert_eq!(Verdict::of(&status), Verdict::Refused(RefusalReason::Invalid));

        status.metadata_mut().insert(COMPACTED_METADATA, "true".parse().expect("it is ascii"));

        assert_eq!(Verdict::of(&status), Verdict::Compacted);
    }

    /// Every code, as servers send it.
    #[test]
    fn only_codes_by_which_nothing_was_done_are_refusals() {
        let refused = [
            (Code::InvalidArgument, RefusalReason::Invalid),
            (Code::OutOfRange, RefusalReason::Invalid),
            (Code::PermissionDenied, RefusalReason::Forbidden),
            (Code::Unauthenticated, RefusalReason::Forbidden),
            (Code::ResourceExhausted, RefusalReason::Limit),
            (Code::Unimplemented, RefusalReason::Unsupported),
            (Code::FailedPrecondition, RefusalReason::Unspecified),
            (Code::NotFound, RefusalReason::Unspecified),
            (Code::AlreadyExists, RefusalReason::Unspecified),
        ];
        for code in (0..17).map(Code::from_i32) {
            let reason = refused.iter().find(|(refused, _)| *refused == code);
            let expected = match (code, reason) {
                (_, Some((_, reason))) => Verdict::Refused(*reason),
                (Code::Unavailable, None) => Verdict::NotHere { leader: None },
                (Code::Aborted, None) => Verdict::TakenOver,
                (_, None) => Verdict::Unknown,
            };
            assert_eq!(Verdict::of(&Status::new(code, "why")), expected, "{code:?}");
        }
    }
}
