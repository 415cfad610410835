//! Who calls, and whether they may (DESIGN §14).
//!
//! # Invariants
//!
//! - A token that is shown decides: a wrong one is refused, never passed over for the certificate.
//! - What cannot be read lets nobody in: a header, a certificate's names.
//! - What reaches the log is decided where it is proposed (I26); here are decided reads, what changes no
//!   table, and whether an administrative act is worth a line before it is proposed.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast_core::{Caller, Identity, LockTable, Missing, Quantity, Rejection, SessionId, Verb};
use holdfast_proto::v1::{RefusalReason, SessionKey};
use holdfast_runtime::Instant;
use sha2::{Digest, Sha256};
use tonic::codegen::http::HeaderMap;
use tonic::{Extensions, Request, Status};

use super::status;
use crate::incoming::Peer;
use crate::session::{Hub, StreamError, refusals};

/// The scheme of a bearer token in the metadata `authorization`.
const BEARER: &str = "Bearer ";
/// What each token begins with, so that one that is found somewhere is known for what it is.
const TOKEN_PREFIX: &str = "hft_";
/// How often a stream looks at the end of its token, which goes by a clock that may be set.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How long a stream goes on without its token, to tell its client what comes with the end of that.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How often unknown tokens may cost a quorum round: whoever shows one has proved nothing.
const ROUND_EVERY: Duration = Duration::from_millis(50);
/// Random bytes of a token.
pub(super) const TOKEN_BYTES: usize = 32;

/// The door of a port.
#[derive(Clone, Debug)]
pub struct Door {
    hub: Arc<Hub>,
    admins: Arc<BTreeSet<Identity>>,
    rounds: Arc<Rounds>,
}

impl Door {
    /// The door to a hub; `admins` have every right.
    pub(crate) fn new(hub: Arc<Hub>, admins: &BTreeSet<Identity>) -> Self {
        Self { hub, admins: Arc::new(admins.clone()), rounds: Arc::default() }
    }

    /// The configured administrators of this node.
    pub(super) fn admins(&self) -> &BTreeSet<Identity> {
        &self.admins
    }

    /// The caller that sends a request.
    ///
    /// # Errors
    ///
    /// `UNAUTHENTICATED`: the token or the certificate cannot be used. `UNAVAILABLE`: a node that does not
    /// lead does not know the token, which may be newer than its table. `RESOURCE_EXHAUSTED`: it has as many
    /// connections to this node as its quota allows.
    pub(super) async fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        let (headers, extensions) = (request.metadata().as_ref(), request.extensions());
        let shown = self.shown(headers, extensions)?;
        let caller = self.identified(shown, &Origin::of(extensions)).await?;
        self.count(&caller, extensions.get())?;
        Ok(caller)
    }

    /// The caller of a stream that a member carries.
    ///
    /// # Errors
    ///
    /// As of [`Door::caller`].
    pub(super) async fn caller_through(&self, passed_on: PassedOn) -> Result<Caller, Status> {
        self.identified(passed_on.shown.clone(), &Origin::PassedOn(passed_on)).await
    }

    async fn identified(&self, shown: Shown, from: &Origin) -> Result<Caller, Status> {
        let identity = match shown {
            Shown::Identity(identity) => identity,
            Shown::Token(hash) => self.owner_of(&hash, from).await?,
        };
        let is_admin = self.admins.contains(&identity);
        Ok(Caller { identity, is_admin })
    }

    /// What a call shows of its caller; that of a call that a member has passed on, to that member.
    ///
    /// # Errors
    ///
    /// `UNAUTHENTICATED`: it cannot be used.
    pub(super) fn shown(
        &self,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Result<Shown, Status> {
        if let Some(passed_on) = extensions.get::<PassedOn>() {
            return Ok(passed_on.shown.clone());
        }
        match headers.get("authorization") {
            Some(header) => {
                let hash = hash_in(header.as_bytes());
                let wrong = || self.wrong_token(&Origin::of(extensions));
                hash.map(Shown::Token).ok_or_else(wrong)
            }
            None => certified(extensions.get()).map(Shown::Identity),
        }
    }

    /// Counts the connection of a call that is passed on, for its caller if this node's table knows whose the
    /// token is.
    ///
    /// # Errors
    ///
    /// `RESOURCE_EXHAUSTED`.
    pub(super) fn count_passed_on(
        &self,
        shown: &Shown,
        extensions: &Extensions,
    ) -> Result<(), Status> {
        let identity = match shown {
            Shown::Identity(identity) => Some(identity.clone()),
            Shown::Token(hash) => self.known_token(hash),
        };
        let Some(identity) = identity else { return Ok(()) };
        let is_admin = self.admins.contains(&identity);
        self.count(&Caller { identity, is_admin }, extensions.get())
    }

    /// Counts the connection for its caller, whose quota may not allow it. A configured administrator always
    /// gets in.
    ///
    /// # Errors
    ///
    /// `RESOURCE_EXHAUSTED`.
    fn count(&self, caller: &Caller, peer: Option<&Peer>) -> Result<(), Status> {
        let (identity, Some(peer)) = (&caller.identity, peer) else { return Ok(()) };
        let mut limit = None;
        self.hub.consensus().read(&mut |table, _| {
            limit = table.rules().quota_of(identity).connections.filter(|_| !caller.is_admin);
        });
        match (peer.counted.note(identity, limit, self.hub.connections()), limit) {
            (false, Some(limit)) => {
                let (identity, what) = (identity.clone(), Quantity::Connections);
                let over = Rejection::OverQuota { identity, what, limit };
                Err(status::of_refusal(&refusals::of_rejection(&over)))
            }
            _ => Ok(()),
        }
    }

    /// As [`Door::caller`], with where the request came from: for the log of an administrative act.
    ///
    /// # Errors
    ///
    /// Those of [`Door::caller`].
    pub(super) async fn by<T>(&self, request: &Request<T>) -> Result<By, Status> {
        let from = Origin::of(request.extensions());
        Ok(By { caller: self.caller(request).await?, from })
    }

    /// Serves a stream for as long as the token counts that its request showed, if it showed one.
    ///
    /// # Errors
    ///
    /// That of `serve`, or [`StreamError::TokenOver`].
    pub(super) fn while_it_counts<S>(
        &self,
        token: Option<[u8; 32]>,
        serve: S,
    ) -> impl Future<Output = Result<(), StreamError>> + use<S>
    where
        S: Future<Output = Result<(), StreamError>>,
    {
        let door = self.clone();
        async move {
            let Some(hash) = token else { return serve.await };
            let mut serve = std::pin::pin!(serve);
            holdfast_runtime::select! {
                end = &mut serve => return end,
                () = door.token_is_over(&hash) => {}
            }
            // An identity that is cut off loses its sessions with its token, and is told so.
            let last = door.hub.runtime().timeout(LAST_WORDS, serve).await;
            last.unwrap_or(Err(StreamError::TokenOver))
        }
    }

    /// Waits until a token is revoked, or has ended.
    async fn token_is_over(&self, hash: &[u8; 32]) {
        let mut changes = self.hub.rules_changes();
        while let Some(left) = self.token_left(hash) {
            holdfast_runtime::select! {
                // The sender lives as long as the hub.
                _ = changes.changed() => {}
                () = self.hub.runtime().sleep(left.min(LOOK_AGAIN)) => {}
            }
        }
    }

    /// How long a token counts on; `None` if it does not count.
    fn token_left(&self, hash: &[u8; 32]) -> Option<Duration> {
        let now_ms = self.hub.runtime().clock.wall_ms();
        let mut left_ms = None;
        self.hub.consensus().read(&mut |table, _| {
            let token = table.rules().token_of(hash).map(|(_, token)| token);
            let ends_ms = token.map(|token| token.ends_ms.unwrap_or(u64::MAX));
            left_ms = ends_ms.and_then(|ends_ms| ends_ms.checked_sub(now_ms)).filter(|ms| *ms > 0);
        });
        left_ms.map(Duration::from_millis)
    }

    /// Whose token it is. Before a leader calls one unknown, a quorum round makes sure that its table is
    /// not an old one. All who show one wait for few rounds, however many they are.
    async fn owner_of(&self, hash: &[u8; 32], from: &Origin) -> Result<Identity, Status> {
        if let Some(identity) = self.known_token(hash) {
            return Ok(identity);
        }
        let clock = &self.hub.runtime().clock;
        clock.sleep_until(self.rounds.turn(clock.now())).await;
        let confirmed = self.hub.consensus().confirm().await;
        confirmed.map_err(|error| status::of_propose_error(&error))?;
        self.known_token(hash).ok_or_else(|| self.wrong_token(from))
    }

    fn wrong_token(&self, from: &Origin) -> Status {
        self.hub.note_wrong_token(from);
        Status::unauthenticated(
            "the bearer token is not valid: it is unknown, revoked, or has ended",
        )
    }

    fn known_token(&self, hash: &[u8; 32]) -> Option<Identity> {
        let now_ms = self.hub.runtime().clock.wall_ms();
        let mut owner = None;
        self.hub.consensus().read(&mut |table, _| {
            let found = table.rules().token_of(hash);
            let valid = found.filter(|(_, token)| token.ends_ms.is_none_or(|ends| now_ms < ends));
            owner = valid.map(|(name, _)| Identity::of_token(name));
        });
        owner
    }

    /// Whether the caller may do `verb`, by this node's table as it is: for what is about no lock.
    ///
    /// # Errors
    ///
    /// `PERMISSION_DENIED`.
    pub(super) fn allow(&self, caller: &Caller, verb: Verb) -> Result<(), Status> {
        self.ask(caller, &|table| table.rules().allows(caller, verb, []))
    }

    /// The same for the names that begin with a prefix.
    ///
    /// # Errors
    ///
    /// `PERMISSION_DENIED`.
    pub(super) fn allow_on(&self, caller: &Caller, verb: Verb, name: &str) -> Result<(), Status> {
        self.ask(caller, &|table| table.rules().allows(caller, verb, [name]))
    }

    /// As [`Door::allow_on`], for what the table decides again: a refusal is not noted, and on a node that
    /// does not lead it may come from an old table.
    pub(super) fn may(&self, caller: &Caller, verb: Verb, name: &str) -> bool {
        self.decide(caller, &|table| table.rules().allows(caller, verb, [name])).is_ok()
    }

    fn ask(
        &self,
        caller: &Caller,
        rules: &dyn Fn(&LockTable) -> Result<(), Missing>,
    ) -> Result<(), Status> {
        let decided = self.decide(caller, rules);
        decided.map_err(|missing| forbidden(&self.hub, caller, missing))
    }

    fn decide(
        &self,
        caller: &Caller,
        rules: &dyn Fn(&LockTable) -> Result<(), Missing>,
    ) -> Result<(), Missing> {
        // Without a table nothing is allowed. Before its first entry it has no rules because this node does not
        // know its cluster's, which may be on if the settings name who may change them.
        let mut answer = Err(Missing::Any);
        self.hub.consensus().read(&mut |table, applied| {
            let knows_rules = applied.get() > 0 || self.admins.is_empty() || caller.is_admin;
            answer = if knows_rules { rules(table) } else { Err(Missing::Any) };
        });
        answer
    }

    /// Whether the caller has any right at all.
    ///
    /// # Errors
    ///
    /// `PERMISSION_DENIED`.
    pub(super) fn allow_any(&self, caller: &Caller) -> Result<(), Status> {
        self.ask(caller, &|table| table.rules().allows_any(caller))
    }

    /// The caller that sends a request, if the caller may do `verb`.
    ///
    /// # Errors
    ///
    /// As of [`Door::caller`] and [`Door::allow`].
    pub(super) async fn admit<T>(
        &self,
        request: &Request<T>,
        verb: Verb,
    ) -> Result<Caller, Status> {
        let caller = self.caller(request).await?;
        self.allow(&caller, verb)?;
        Ok(caller)
    }

    /// As [`Door::admit`], for the log of an administrative act.
    ///
    /// # Errors
    ///
    /// Those of [`Door::admit`].
    pub(super) async fn admit_by<T>(&self, request: &Request<T>, verb: Verb) -> Result<By, Status> {
        let by = self.by(request).await?;
        self.allow(&by.caller, verb)?;
        Ok(by)
    }

    /// As [`Door::admit`], where nothing can be waited for: a token is unknown that this node's table does
    /// not have yet.
    ///
    /// # Errors
    ///
    /// `UNAUTHENTICATED`, `PERMISSION_DENIED`, `RESOURCE_EXHAUSTED`.
    pub(crate) fn admit_now(
        &self,
        authorization: Option<&[u8]>,
        peer: Option<&Peer>,
        verb: Verb,
    ) -> Result<(), Status> {
        let identity = match authorization {
            Some(header) => {
                let owner = hash_in(header).and_then(|hash| self.known_token(&hash));
                owner.ok_or_else(|| self.wrong_token(&Origin::of_peer(peer)))?
            }
            None => certified(peer)?,
        };
        let is_admin = self.admins.contains(&identity);
        let caller = Caller { identity, is_admin };
        self.count(&caller, peer)?;
        self.allow(&caller, verb)
    }

    /// Whether a session whose key a request shows is its caller's own.
    ///
    /// # Errors
    ///
    /// `NOT_FOUND`, as for a session that never was.
    pub(super) async fn owner<T>(
        &self,
        request: &Request<T>,
        key: Option<&SessionKey>,
    ) -> Result<(), Status> {
        let caller = self.caller(request).await?;
        let session = key.map(|key| SessionId::new(key.session_id));
        if let Some(session) = session.filter(|session| self.hub.is_anothers(*session, &caller)) {
            return Err(status::of_refusal(&refusals::unknown_session(session)));
        }
        if let Some(key) = key {
            self.hub.own_by_key(key, &caller).await;
        }
        Ok(())
    }
}

/// When unknown tokens may cost a quorum round.
#[derive(Debug, Default)]
struct Rounds {
    /// A call that comes before this instant waits until then.
    next: Mutex<Option<Instant>>,
}

impl Rounds {
    /// When a caller who comes now may ask for a round: at once if nobody has within [`ROUND_EVERY`], else
    /// together with all who wait. Those who ask at one instant share a round, or two.
    fn turn(&self, now: Instant) -> Instant {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        match *next {
            Some(at) if now < at => at,
            Some(_) | None => {
                *next = Some(now + ROUND_EVERY);
                now
            }
        }
    }
}

/// Notes that a call lacks a right, and refuses it.
pub(super) fn forbidden(hub: &Hub, caller: &Caller, missing: Missing) -> Status {
    hub.note_missing(caller, &missing);
    status::of_refusal(&refusals::of_rejection(&Rejection::Forbidden(missing)))
}

/// The identity that the other end of the connection has proved.
fn certified(peer: Option<&Peer>) -> Result<Identity, Status> {
    let Some(peer) = peer else { return Ok(Identity::default()) };
    let of_certificate = peer.certificate.as_ref().and_then(|certificate| certificate.identity());
    let Some(text) = of_certificate.or_else(|| peer.uid.map(|uid| format!("uid:{uid}"))) else {
        return Ok(Identity::default());
    };
    Identity::parse(&text).map_err(|error| {
        Status::unauthenticated(format!("the certificate names nobody: {text:?}: {error}"))
    })
}

/// What a call shows of its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Identity(Identity),
    /// The hash of a token that may count or not.
    Token([u8; 32]),
}

impl Shown {
    /// The token's hash, if it is one.
    pub(super) fn token(&self) -> Option<[u8; 32]> {
        match self {
            Self::Token(hash) => Some(*hash),
            Self::Identity(_) => None,
        }
    }
}

/// A call that a member has passed on to this node, with what the caller has shown to that member. Among the
/// extensions of a request, where only the port for members puts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PassedOn {
    pub(super) shown: Shown,
    /// Where the client connects from, in the member's words.
    pub(super) from: Arc<str>,
    pub(super) by_node: u64,
}

/// Where a request came from.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    Address(SocketAddr),
    /// A process of this user, over the Unix socket.
    User(u32),
    /// Another member.
    PassedOn(PassedOn),
    Unknown,
}

impl Origin {
    pub(super) fn of(extensions: &Extensions) -> Self {
        let passed_on = extensions.get().cloned().map(Self::PassedOn);
        passed_on.unwrap_or_else(|| Self::of_peer(extensions.get()))
    }

    fn of_peer(peer: Option<&Peer>) -> Self {
        let address = peer.and_then(|peer| peer.address).map(Self::Address);
        let user = || peer.and_then(|peer| peer.uid).map(Self::User);
        address.or_else(user).unwrap_or(Self::Unknown)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::User(uid) => write!(f, "the Unix socket, user {uid}"),
            Self::PassedOn(PassedOn { from, by_node, .. }) => {
                write!(f, "{from} through node {by_node}")
            }
            Self::Unknown => f.write_str("an unknown address"),
        }
    }
}

/// A caller of an administrative act, for the log.
#[derive(Debug)]
pub(super) struct By {
    pub(super) caller: Caller,
    from: Origin,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {}", self.caller.identity, self.from)
    }
}

/// The hash of the token that a request shows, if it shows one that could be.
pub(super) fn token_of<T>(request: &Request<T>) -> Option<[u8; 32]> {
    if let Some(passed_on) = request.extensions().get::<PassedOn>() {
        return passed_on.shown.token();
    }
    hash_in(request.metadata().get("authorization")?.as_bytes())
}

/// The hash of the token in a header `authorization`.
fn hash_in(header: &[u8]) -> Option<[u8; 32]> {
    str::from_utf8(header).ok()?.strip_prefix(BEARER).and_then(hash_of)
}

/// A token as text.
pub(super) fn token_text(bytes: &[u8; TOKEN_BYTES]) -> String {
    format!("{TOKEN_PREFIX}{}", hex::encode(bytes))
}

/// The hash of a token; `None` if the text is none.
pub(super) fn hash_of(token: &str) -> Option<[u8; 32]> {
    let bytes = hex::decode(token.strip_prefix(TOKEN_PREFIX)?).ok()?;
    let bytes = <[u8; TOKEN_BYTES]>::try_from(bytes).ok()?;
    Some(Sha256::digest(bytes).into())
}

/// A refusal of a field of a request.
pub(super) fn unusable(field: &str, error: &dyn std::fmt::Display) -> Status {
    let message = format!("the {field} is not usable: {error}");
    status::of_refusal(&refusals::refusal(RefusalReason::Invalid, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A caller with an unknown token has proved nothing, and each round is work for all members.
    #[test]
    fn unknown_tokens_cost_few_rounds_and_nobody_waits_long() {
        let rounds = Rounds::default();
        let mut asked = BTreeSet::new();
        for millis in 0..1_000 {
            let now = Instant::from_origin(Duration::from_millis(millis));
            for _ in 0..10 {
                let at = rounds.turn(now);
                assert!((now..=now + ROUND_EVERY).contains(&at), "{at:?} at {now:?}");
                asked.insert(at);
            }
        }
        assert!(asked.len() <= 21, "{asked:?}");
    }
}
