//! Records the frames of a wire in a history.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use holdfast_proto::v1::client_frame::Body as Ask;
use holdfast_proto::v1::refused::Subject;
use holdfast_proto::v1::request_state::State as Known;
use holdfast_proto::v1::server_frame::Body as Told;
use holdfast_proto::v1::set_value::Change as Wanted;
use holdfast_proto::v1::{
    Acquire, Granted, LostReason, Mode, Refusal, RefusalReason, SetValue, State,
};

use crate::history::{Asked, Change, ClientId, Kept, KeptState, LostCause, Recorder, Shown, What};

/// Records the frames of a wire in a history.
#[derive(Debug)]
pub(super) struct Notes {
    recorder: Recorder,
    client: ClientId,
    ttl: Duration,
    /// Keepalives under way: seq and the instant before it was sent.
    sent: VecDeque<(u64, u64)>,
    opened_ns: u64,
}

impl Notes {
    /// Writes as `client`, whose stream is opened from now on.
    pub(super) fn new(recorder: Recorder, client: ClientId) -> Self {
        let opened_ns = recorder.now_ns();
        Self { recorder, client, ttl: Duration::ZERO, sent: VecDeque::new(), opened_ns }
    }

    fn write(&self, what: What) {
        self.recorder.write(self.client, what);
    }

    /// Records a frame that is about to be sent.
    pub(super) fn asked(&mut self, ask: &Ask) {
        let what = match ask {
            Ask::Acquire(acquire) => what_is_acquired(acquire),
            Ask::SetValue(change) => what_is_changed(change),
            Ask::Cancel(cancel) => What::Cancel { request: cancel.request_id },
            Ask::Release(release) => {
                What::Release { token: release.token, names: texts(&release.names) }
            }
            Ask::Close(_) => What::Close,
            Ask::KeepAlive(keep_alive) => {
                self.sent.push_back((keep_alive.seq, self.recorder.now_ns()));
                return;
            }
            Ask::Open(_) => {
                self.opened_ns = self.recorder.now_ns();
                return;
            }
        };
        self.write(what);
    }

    /// Records a frame that was received.
    pub(super) fn told(&mut self, index: u64, told: &Told) {
        match told {
            Told::Opened(opened) => {
                self.ttl = Duration::from_millis(opened.ttl_ms);
                if !opened.lease_unmoved {
                    self.safe_from(self.opened_ns);
                }
            }
            Told::KeptAlive(kept) => self.kept_alive(kept.seq),
            Told::State(state) => self.state(state),
            _ => {
                if let Some(what) = what_was_told(index, told) {
                    self.write(what);
                }
            }
        }
    }

    fn kept_alive(&mut self, seq: u64) {
        while let Some((sent, at_ns)) = self.sent.pop_front() {
            if sent == seq {
                return self.safe_from(at_ns);
            }
        }
    }

    /// DESIGN §5.4: send time + TTL·(1 − a) − 20 ms.
    fn safe_from(&self, sent_ns: u64) {
        let safe = (self.ttl * 9 / 10).saturating_sub(Duration::from_millis(20));
        let until_ns = sent_ns + u64::try_from(safe.as_nanos()).unwrap_or(u64::MAX);
        self.write(What::Safe { until_ns });
    }

    /// Records the state itself, then as news whatever it contains that was lost on the way.
    fn state(&self, state: &State) {
        let mut requests = Vec::new();
        let mut news = Vec::new();
        for shown in &state.requests {
            let request = shown.request_id;
            let kept = match &shown.state {
                Some(Known::Queued(queued)) => {
                    news.push(What::Queued { request, place: queued.place, index: None });
                    KeptState::Queued
                }
                Some(Known::Granted(granted)) => {
                    news.push(what_is_granted(request, granted));
                    KeptState::Granted { token: granted.token, names: texts(&granted.names) }
                }
                Some(Known::Denied(_)) => KeptState::Denied,
                Some(Known::ValueSet(_)) => {
                    news.push(What::ValueSet { request });
                    KeptState::ValueSet
                }
                Some(Known::Ended(_)) | None => KeptState::Ended,
            };
            requests.push(Kept { request, state: kept });
        }
        self.write(What::State { requests, next_request: state.next_request_id });
        for what in news {
            self.write(what);
        }
    }
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn texts(names: &[Bytes]) -> Vec<String> {
    names.iter().map(text).collect()
}

fn what_is_acquired(acquire: &Acquire) -> What {
    let on = acquire.on.as_ref();
    let head_start_ms = on.map_or(0, |on| on.head_start_ms);
    let items = on.map_or(&acquire.items, |on| &on.items).iter().map(|item| match item.mode() {
        Mode::Permits => Asked::permits(text(&item.name), item.permits, item.limit),
        mode => Asked::read_if(mode == Mode::Shared, text(&item.name)),
    });
    let items = items.map(|item| item.ahead(head_start_ms));
    What::Acquire {
        request: acquire.request_id,
        items: items.collect(),
        any: acquire.any.map(|any| any.min),
        wait: acquire.wait,
        within_ms: None,
    }
}

fn what_is_changed(change: &SetValue) -> What {
    What::SetValue {
        request: change.request_id,
        token: change.token,
        name: text(&change.name),
        change: match &change.change {
            Some(Wanted::Value(value)) => Change::Set(text(value)),
            Some(Wanted::Clear(_)) => Change::Clear,
            // A frame without a change is refused and changes nothing.
            Some(Wanted::Confirm(_)) | None => Change::Confirm,
        },
    }
}

/// The grant of `request`, which is given separately: a grant in State does not name it.
fn what_is_granted(request: u64, granted: &Granted) -> What {
    let values = granted.values.iter().filter_map(|named| {
        let value = named.value.as_ref()?;
        Some(Shown {
            name: text(&named.name),
            value: text(&value.value),
            token: value.token,
            suspect: value.suspect,
        })
    });
    What::Granted {
        request,
        token: granted.token,
        names: texts(&granted.names),
        values: values.collect(),
    }
}

fn what_was_told(index: u64, told: &Told) -> Option<What> {
    Some(match told {
        Told::Queued(queued) => {
            What::Queued { request: queued.request_id, place: queued.place, index: Some(index) }
        }
        Told::Moved(moved) => What::Moved { request: moved.request_id, place: moved.place },
        Told::Granted(granted) => what_is_granted(granted.request_id, granted),
        Told::ValueSet(set) => What::ValueSet { request: set.request_id },
        Told::Denied(denied) => What::Denied { request: denied.request_id },
        Told::Released(released) => {
            What::Released { token: released.token, names: texts(&released.names) }
        }
        Told::Cancelled(cancelled) => What::Cancelled { request: cancelled.request_id },
        Told::Lost(lost) => What::Lost { token: lost.token, cause: cause(lost.reason) },
        Told::Contended(contended) => What::Contended { token: contended.token },
        Told::SessionEnded(ended) => What::SessionEnded { cause: cause(ended.reason) },
        Told::Refused(refused) => {
            return refused
                .subject
                .and_then(|subject| what_was_refused(subject, refused.refusal.as_ref()));
        }
        _ => return None,
    })
}

fn what_was_refused(subject: Subject, refusal: Option<&Refusal>) -> Option<What> {
    let refusal = refusal?;
    match subject {
        Subject::RequestId(request) if refusal.outcome_unknown => Some(What::Unknown { request }),
        Subject::RequestId(request) => Some(What::Refused { request, reason: reason(refusal) }),
        Subject::Token(token) if refusal.reason() == RefusalReason::NotHolder => {
            Some(What::NotHolder { token })
        }
        Subject::Token(token) => Some(What::ReleaseUnknown { token }),
    }
}

/// A refusal's reason, in the terms of histories.
fn reason(refusal: &Refusal) -> String {
    refusal.reason().as_str_name().trim_start_matches("REFUSAL_REASON_").to_lowercase()
}

fn cause(reason: i32) -> LostCause {
    match LostReason::try_from(reason) {
        Ok(LostReason::SessionExpired) => LostCause::Expired,
        Ok(LostReason::SessionClosed) => LostCause::Closed,
        Ok(LostReason::Revoked | LostReason::Forced) => LostCause::TakenAway,
        Ok(LostReason::EpochRaised | LostReason::Unspecified) | Err(_) => LostCause::Gone,
    }
}
