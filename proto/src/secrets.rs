//! `Debug` of the messages that carry a secret: everything but that.
//!
//! `build.rs` leaves it out of each message with a field `secret`, so a new one does not compile before it
//! stands here. Messages that contain one of these are as silent.

use std::fmt;

use crate::v1::{CreateTokenResponse, Opened, Resume, SessionKey};

/// In place of a secret.
struct Hidden<'a>(&'a [u8]);

impl fmt::Debug for Hidden<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "hidden" })
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session_id, secret } = self;
        f.debug_struct("SessionKey")
            .field("session_id", session_id)
            .field("secret", &Hidden(secret))
            .finish()
    }
}

impl fmt::Debug for Resume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session_id, secret, cluster_id, state_in_pages, attempt } = self;
        f.debug_struct("Resume")
            .field("session_id", session_id)
            .field("secret", &Hidden(secret))
            .field("cluster_id", cluster_id)
            .field("state_in_pages", state_in_pages)
            .field("attempt", attempt)
            .finish()
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session_id, secret, cluster_id, ttl_ms, scopes, lease_unmoved, .. } = self;
        let Self { closed, spread_ms, keeps_many, .. } = self;
        f.debug_struct("Opened")
            .field("session_id", session_id)
            .field("secret", &Hidden(secret))
            .field("cluster_id", cluster_id)
            .field("ttl_ms", ttl_ms)
            .field("scopes", scopes)
            .field("lease_unmoved", lease_unmoved)
            .field("closed", closed)
            .field("spread_ms", spread_ms)
            .field("keeps_many", keeps_many)
            .finish()
    }
}

impl fmt::Debug for CreateTokenResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token } = self;
        f.debug_struct("CreateTokenResponse").field("token", &Hidden(token.as_bytes())).finish()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::v1::client_frame::Body as Ask;
    use crate::v1::server_frame::Body;
    use crate::v1::{
        AcquireRequest, ClientFrame, ClientFrames, Open, OpenSessionResponse, ServerFrame,
        ServerFrames,
    };

    const SECRET: &str = "16 secret bytes.";

    /// As text, as numbers, and in hexadecimal.
    fn shows_it(debug: &str) -> bool {
        let numbers: Vec<String> = SECRET.bytes().map(|byte| byte.to_string()).collect();
        let digits: Vec<String> = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
        [SECRET, &numbers.join(", "), &digits.concat()].iter().any(|form| debug.contains(form))
    }

    #[test]
    fn no_debug_form_of_a_message_shows_a_secret() {
        let secret = || Bytes::from_static(SECRET.as_bytes());
        let key = Some(SessionKey { session_id: 7, secret: secret() });
        let resume = Some(Resume { session_id: 7, secret: secret(), ..Resume::default() });
        let open = Ask::Open(Open { resume, ..Open::default() });
        let opened = Body::Opened(Opened { session_id: 7, secret: secret(), ..Opened::default() });
        let asked = ClientFrames { frames: vec![ClientFrame { done_below: 0, body: Some(open) }] };
        let told = ServerFrames {
            frames: vec![ServerFrame { body: Some(opened), ..ServerFrame::default() }],
        };
        let answer = OpenSessionResponse { session: key.clone(), ..OpenSessionResponse::default() };
        let call = AcquireRequest { session: key, ..AcquireRequest::default() };
        let created = CreateTokenResponse { token: SECRET.to_owned() };
        for debug in [
            format!("{asked:?}"),
            format!("{told:?}"),
            format!("{answer:?}"),
            format!("{call:?}"),
            format!("{created:#?}"),
        ] {
            assert!(debug.contains("hidden") && !shows_it(&debug), "{debug}");
        }
    }
}
