//! Builds a [`Story`] from records.

use std::collections::{BTreeMap, BTreeSet};

use super::story::{
    Answer, Client, Fate, Fence, Grant, Hold, Import, Look, Over, Queued, ReleaseTold, Request,
    Right, Seen, State, Story, Write,
};
use super::violation;
use super::watches::Watched;
use crate::history::{Asked, ClientId, Kept, LostCause, Record, Shown, What};

/// Refusals of a copy of a request, which mean nothing for the request itself.
const ABOUT_A_COPY: [&str; 2] = ["request_gone", "request_reused"];

/// What a request asks for.
struct Asking {
    items: BTreeMap<String, Asked>,
    any: Option<u32>,
    wait: bool,
    claims: Option<String>,
}

impl Story {
    pub(super) fn tell(records: &[Record]) -> Self {
        let mut story = Self::default();
        for record in records {
            story.take(record);
        }
        story.facts.end_ns = records.last().map_or(0, |record| record.at_ns);
        story
    }

    fn take(&mut self, record: &Record) {
        let (at_ns, client) = (record.at_ns, record.client);
        match &record.what {
            What::Acquire { .. } => self.asked(record),
            What::SetValue { .. } => self.writing(record),
            What::Claim { .. } => self.claiming(record),
            What::Import { .. } | What::Imported { .. } => self.take_import(record),
            What::Queued { request, index, .. } => {
                self.answered(at_ns, client, *request, Answer::Queued);
                self.queued(at_ns, client, *request, *index);
            }
            What::Granted { request, token, names, values } => {
                let names: BTreeSet<String> = names.iter().cloned().collect();
                let answer = Answer::Granted { token: *token, names: names.clone() };
                self.answered(at_ns, client, *request, answer);
                self.granted(client, *request, Grant { at_ns, token: *token, names }, values);
            }
            What::Denied { request } => self.answered(at_ns, client, *request, Answer::Denied),
            What::Refused { request, reason } => {
                self.answered(at_ns, client, *request, Answer::Refused(reason.clone()));
            }
            What::Cancelled { request } => {
                self.answered(at_ns, client, *request, Answer::Cancelled);
            }
            What::SessionLost { request } => {
                self.answered(at_ns, client, *request, Answer::SessionLost);
            }
            What::Unknown { request } => self.answered(at_ns, client, *request, Answer::Unknown),
            What::ValueSet { request } => self.written(at_ns, client, *request, Fate::Done),
            What::Cancel { request } => self.cancelling(at_ns, client, *request),
            What::Moved { request, .. } => self.must_be_asked(client, *request, "moved"),
            _ => self.take_rest(record),
        }
    }

    /// Takes the records that are not about a request.
    fn take_rest(&mut self, record: &Record) {
        let (at_ns, client) = (record.at_ns, record.client);
        match &record.what {
            What::Release { token, names } => self.releasing(at_ns, client, *token, names),
            What::Released { token, names } => self.released(at_ns, client, *token, names),
            What::NotHolder { token } => {
                self.release_failed(at_ns, client, *token, ReleaseTold::NotHolder);
            }
            What::ReleaseUnknown { token } => {
                self.release_failed(at_ns, client, *token, ReleaseTold::Unknown);
            }
            What::Lost { token, cause } => {
                self.must_be_told(client, *token, "lost");
                self.end_grant(at_ns, client, *token, Over::Told(*cause));
            }
            What::Contended { token } => self.must_be_told(client, *token, "contended"),
            What::Safe { until_ns } => self.safe(at_ns, client, *until_ns),
            What::SafeGrant { token, until_ns } => {
                self.must_be_told(client, *token, "safe");
                let holds = self.named(client, *token, &[]);
                self.certain(at_ns, holds, *until_ns);
            }
            What::IsSafe { token, safe: true, names } => {
                self.seen_safe(at_ns, client, *token, names);
            }
            What::Close => self.closing(at_ns, client),
            What::SessionEnded { cause } => self.session_ended(at_ns, client, *cause),
            What::State { requests, next_request } => {
                self.state(at_ns, client, requests, *next_request);
            }
            What::Acknowledged { session, until_ns } => {
                let right = Right { at_ns, session: *session, until_ns: *until_ns };
                self.acknowledged(client, right);
            }
            What::Killed => self.client(client).killed_ns = Some(at_ns),
            What::Opened { ttl_ms } => {
                let opened = self.client(client);
                opened.ttl_ns = Some(ttl_ms.saturating_mul(1_000_000));
                opened.opened_ns = at_ns;
            }
            What::Read { .. }
            | What::ReadDone { .. }
            | What::Fenced { .. }
            | What::Accepted { .. } => self.take_look(record),
            What::Watch { .. } | What::WatchTold { .. } | What::WatchOver { .. } => {
                self.take_watch(record);
            }
            _ => self.facts.take(record),
        }
    }

    fn take_look(&mut self, record: &Record) {
        match &record.what {
            What::Read { read, name } => {
                self.look_of.insert((record.client, *read), self.reads.len());
                self.reads.push(Look {
                    client: record.client,
                    name: name.clone(),
                    called_ns: record.at_ns,
                    done: None,
                });
            }
            What::ReadDone { read, holders, value, waiting, closed, frozen } => {
                let Some(look) = self.look_of.remove(&(record.client, *read)) else { return };
                let (holders, value) = (holders.clone(), value.clone());
                let (at_ns, waiting, closed, frozen) = (record.at_ns, *waiting, *closed, *frozen);
                let seen = Seen { at_ns, holders, value, waiting, closed, frozen };
                self.reads[look].done = Some(seen);
            }
            What::Fenced { token, name, newest } => {
                self.must_be_told(record.client, *token, "fenced off");
                self.fence(record, (*token, name), Some(*newest));
            }
            What::Accepted { token, name } => self.fence(record, (*token, name), None),
            _ => {}
        }
    }

    fn take_watch(&mut self, record: &Record) {
        let (client, at_ns) = (record.client, record.at_ns);
        match &record.what {
            What::Watch { watch, prefix } => {
                self.watch_of.insert((client, *watch), self.watches.len());
                let (prefix, told) = (prefix.clone(), Vec::new());
                let watched = Watched { client, prefix, begun_ns: at_ns, told, stopped_ns: None };
                self.watches.push(watched);
            }
            What::WatchTold { watch, news } => {
                let Some(&watch) = self.watch_of.get(&(client, *watch)) else { return };
                self.watches[watch].told.push((at_ns, news.clone()));
            }
            What::WatchOver { watch, failed: false } => {
                let Some(&watch) = self.watch_of.get(&(client, *watch)) else { return };
                self.watches[watch].stopped_ns = Some(at_ns);
            }
            _ => {}
        }
    }

    fn fence(&mut self, record: &Record, (token, name): (u64, &str), refused_for: Option<u64>) {
        let (client, at_ns) = (record.client, record.at_ns);
        self.fences.push(Fence { client, at_ns, token, name: name.into(), refused_for });
    }

    fn client(&mut self, client: ClientId) -> &mut Client {
        self.clients.entry(client).or_default()
    }

    fn asked(&mut self, record: &Record) {
        let What::Acquire { request, items, any, wait, within_ms } = &record.what else { return };
        let items = items.iter().map(|item| (item.name.clone(), item.clone())).collect();
        let asking = Asking { items, any: *any, wait: *wait, claims: None };
        self.asking(record, *request, asking, *within_ms);
    }

    fn claiming(&mut self, record: &Record) {
        let What::Claim { request, name, owner, within_ms } = &record.what else { return };
        let items = BTreeMap::from([(name.clone(), Asked::exclusive(name))]);
        let asking = Asking { items, any: None, wait: true, claims: Some(owner.clone()) };
        self.asking(record, *request, asking, *within_ms);
    }

    fn asking(&mut self, record: &Record, number: u64, asking: Asking, within_ms: Option<u64>) {
        let Asking { items, any, wait, claims } = asking;
        let key = (record.client, number);
        if let Some(&known) = self.request_of.get(&key) {
            let request = &mut self.requests[known];
            // An identical request is a retry, which opens the call again. Another payload under a
            // used number is no request at all.
            let same = request.items == items && request.any == any && request.wait == wait;
            if same && request.claims == claims && request.granted.is_none() {
                request.ended_ns = None;
            }
            return;
        }
        let limit_ns =
            within_ms.map(|ms| record.at_ns.saturating_add(ms.saturating_mul(1_000_000)));
        self.request_of.insert(key, self.requests.len());
        self.requests.push(Request {
            client: record.client,
            number,
            items,
            any,
            wait,
            claims,
            called_ns: record.at_ns,
            limit_ns,
            queued: None,
            granted: None,
            answers: Vec::new(),
            cancel_ns: None,
            ended_ns: None,
        });
    }

    fn take_import(&mut self, record: &Record) {
        let at_ns = record.at_ns;
        match &record.what {
            What::Import { import, owner, remaining_ms, rows } => {
                let (imports, next) = (&mut self.imports, self.import_of.len());
                self.import_of.entry((record.client, *import)).or_insert_with(|| {
                    imports.push(Import {
                        owner: owner.clone(),
                        remaining_ns: remaining_ms.saturating_mul(1_000_000),
                        rows: rows.clone(),
                        called_ns: at_ns,
                        told: None,
                    });
                    next
                });
            }
            What::Imported { import, fates } => {
                let known = self.import_of.get(&(record.client, *import));
                let import = known.and_then(|&known| self.imports.get_mut(known));
                if let Some(import) = import.filter(|import| import.told.is_none()) {
                    import.told = Some((at_ns, fates.clone()));
                }
            }
            _ => {}
        }
    }

    fn writing(&mut self, record: &Record) {
        let What::SetValue { request, token, name, change } = &record.what else { return };
        let key = (record.client, *request);
        // An identical change is a retry; another payload under a used number is no change at all.
        if self.write_of.contains_key(&key) || self.request_of.contains_key(&key) {
            return;
        }
        self.write_of.insert(key, self.writes.len());
        self.writes.push(Write {
            client: record.client,
            token: *token,
            name: name.clone(),
            change: change.clone(),
            asked_ns: record.at_ns,
            told_ns: None,
            fate: Fate::Unknown,
        });
    }

    fn written(&mut self, at_ns: u64, client: ClientId, number: u64, fate: Fate) {
        let Some(&known) = self.write_of.get(&(client, number)) else {
            let message = format!("{client} was told of a change {number} of a value, never asked");
            self.contradictions.push(violation(23, message));
            return;
        };
        let write = &mut self.writes[known];
        if write.fate == Fate::Unknown {
            write.fate = fate;
            write.told_ns = Some(at_ns);
        }
    }

    fn answered(&mut self, at_ns: u64, client: ClientId, number: u64, answer: Answer) {
        self.must_be_asked(client, number, "answered");
        let about_a_copy = matches!(
            &answer,
            Answer::Refused(reason) if ABOUT_A_COPY.contains(&reason.as_str())
        );
        if self.write_of.contains_key(&(client, number)) {
            let refused = matches!(answer, Answer::Refused(_)) && !about_a_copy;
            self.written(
                at_ns,
                client,
                number,
                if refused { Fate::Refused } else { Fate::Unknown },
            );
            return;
        }
        let Some(&known) = self.request_of.get(&(client, number)) else { return };
        let request = &mut self.requests[known];
        if about_a_copy {
            // The call that sent the copy is over; the request is unchanged.
            request.ended_ns = request.ended_ns.or(Some(at_ns));
            return;
        }
        if answer != Answer::Queued {
            request.ended_ns = Some(at_ns);
        }
        request.answers.push((at_ns, answer));
    }

    fn queued(&mut self, at_ns: u64, client: ClientId, number: u64, index: Option<u64>) {
        let Some(&known) = self.request_of.get(&(client, number)) else { return };
        let request = &mut self.requests[known];
        if request.queued.is_none() && request.granted.is_none() {
            request.queued = Some(Queued { at_ns, index });
        }
    }

    fn granted(&mut self, client: ClientId, number: u64, grant: Grant, values: &[Shown]) {
        let Some(&known) = self.request_of.get(&(client, number)) else { return };
        let request = &mut self.requests[known];
        if request.granted.is_some() {
            return;
        }
        let given_up = request.cancel_ns.is_some();
        let teller = self.clients.entry(client).or_default();
        for name in &grant.names {
            let ns_of = |ms: fn(&Asked) -> u64| {
                request.items.get(name).map_or(0, ms).saturating_mul(1_000_000)
            };
            let hold = self.holds.len();
            self.holds_of.entry((client, grant.token)).or_default().push(hold);
            if !given_up {
                teller.open_holds.insert(hold);
            }
            self.holds.push(Hold {
                client,
                name: name.clone(),
                shared: request.items.get(name).is_some_and(|asked| asked.shared),
                permits: request.items.get(name).and_then(|asked| asked.permits),
                token: grant.token,
                called_ns: request.called_ns,
                from_ns: grant.at_ns,
                most_ns: ns_of(|asked| asked.max_hold_ms),
                least_ns: ns_of(|asked| asked.hold_at_least_ms),
                value: values.iter().find(|shown| shown.name == *name).cloned(),
                until_ns: teller.leases.newest_until().filter(|until| *until > grant.at_ns),
                over: given_up.then_some((grant.at_ns, Over::GivenUp)),
                releases: 0,
                in_part: false,
                release_told: None,
            });
        }
        request.granted = Some(grant);
    }

    fn cancelling(&mut self, at_ns: u64, client: ClientId, number: u64) {
        let Some(&known) = self.request_of.get(&(client, number)) else { return };
        let request = &mut self.requests[known];
        request.cancel_ns = request.cancel_ns.or(Some(at_ns));
        if let Some(token) = request.token() {
            self.end_grant(at_ns, client, token, Over::GivenUp);
        }
    }

    /// The indexes of a grant's holds that have one of these names; of all its holds, if none is
    /// named.
    fn named(&self, client: ClientId, token: u64, names: &[String]) -> Vec<usize> {
        let mut holds = self.holds_of.get(&(client, token)).cloned().unwrap_or_default();
        holds.retain(|&hold| names.is_empty() || names.contains(&self.holds[hold].name));
        holds
    }

    fn releasing(&mut self, at_ns: u64, client: ClientId, token: u64, names: &[String]) {
        for index in self.named(client, token, names) {
            let hold = &mut self.holds[index];
            if matches!(hold.release_told, Some((_, ReleaseTold::Released))) && names.is_empty() {
                // No name stands for all that are left; this hold is already released.
                continue;
            }
            hold.releases += 1;
            hold.in_part = !names.is_empty();
            self.end_hold(at_ns, index, Over::GivenUp);
        }
    }

    fn released(&mut self, at_ns: u64, client: ClientId, token: u64, names: &[String]) {
        self.must_be_told(client, token, "released");
        for name in names {
            if self.named(client, token, std::slice::from_ref(name)).is_empty() {
                let message = format!("{client}: token {token} gave back {name}, never held by it");
                self.contradictions.push(violation(23, message));
            }
        }
        for index in self.named(client, token, names) {
            self.holds[index].release_is_told(at_ns, ReleaseTold::Released);
        }
    }

    /// The answer names a grant; it concerns those of its names whose release was asked for.
    fn release_failed(&mut self, at_ns: u64, client: ClientId, token: u64, told: ReleaseTold) {
        for index in self.named(client, token, &[]) {
            let hold = &mut self.holds[index];
            if hold.releases > 0 {
                hold.release_is_told(at_ns, told);
            }
        }
    }

    fn end_grant(&mut self, at_ns: u64, client: ClientId, token: u64, over: Over) {
        for hold in self.named(client, token, &[]) {
            self.end_hold(at_ns, hold, over);
        }
    }

    fn end_hold(&mut self, at_ns: u64, hold: usize, over: Over) {
        let ended = &mut self.holds[hold];
        ended.over = ended.over.or(Some((at_ns, over)));
        let client = ended.client;
        self.client(client).open_holds.remove(&hold);
    }

    fn acknowledged(&mut self, client: ClientId, right: Right) {
        let client = self.client(client);
        let before = client.rights.given.last().map(|before| before.session);
        // Only what is granted from here on is of the new session, and made any safer by it.
        if before.is_some_and(|before| before != right.session) {
            client.open_holds.clear();
        }
        client.rights.given.push(right);
    }

    /// A belief about the lease of the session, so about all its holds.
    fn safe(&mut self, at_ns: u64, client: ClientId, until_ns: u64) {
        let client = self.client(client);
        client.leases.renewed(at_ns, until_ns);
        client.rights.beliefs.push((at_ns, until_ns));
        let holds = client.open_holds.iter().copied().collect();
        self.certain(at_ns, holds, until_ns);
    }

    /// Extends the belief in these holds; a hold that is over never comes back.
    fn certain(&mut self, at_ns: u64, holds: Vec<usize>, until_ns: u64) {
        let mut lapsed = Vec::new();
        for index in holds {
            let hold = &mut self.holds[index];
            if hold.over.is_some() {
                continue;
            }
            match hold.until_ns {
                // Passing the deadline ends a hold for ever, whatever is learned later (§5.6).
                Some(until) if until < at_ns => lapsed.push((until, index)),
                Some(until) => hold.until_ns = Some(until.max(until_ns)),
                None => hold.until_ns = Some(until_ns),
            }
        }
        for (until, index) in lapsed {
            self.end_hold(until, index, Over::Lapsed);
        }
    }

    /// The client believes in these names of the grant, and in no others of it.
    fn seen_safe(&mut self, at_ns: u64, client: ClientId, token: u64, names: &[String]) {
        for index in self.named(client, token, &[]) {
            let hold = &mut self.holds[index];
            if !names.contains(&hold.name) {
                self.end_hold(at_ns, index, Over::Lapsed);
                continue;
            }
            hold.until_ns = Some(hold.until_ns.map_or(at_ns, |until| until.max(at_ns)));
            if let Some((over_ns, over @ (Over::GivenUp | Over::Told(_)))) = hold.over {
                let message = format!(
                    "{}: {client} believes in token {token} at {}, over since {} ({over:?})",
                    hold.name,
                    super::at(at_ns),
                    super::at(over_ns)
                );
                self.contradictions.push(violation(24, message));
            }
        }
        self.believed_beyond_the_grant(client, token, names);
        self.believed_beyond_the_deadline(at_ns, client, token);
    }

    /// I6: a client that reports its deadline and, at the same instant, that it is safe claims that
    /// the deadline lies ahead. Reports at two instants prove nothing: the deadline may have moved.
    fn believed_beyond_the_deadline(&mut self, at_ns: u64, client: ClientId, token: u64) {
        let said = self.client(client).rights.beliefs.last().copied();
        let over = |(said_ns, until_ns): &(u64, u64)| *said_ns == at_ns && *until_ns <= at_ns;
        if let Some((_, until_ns)) = said.filter(over) {
            let message = format!(
                "{client} takes token {token} for safe at {}, and its deadline was {}",
                super::at(at_ns),
                super::at(until_ns)
            );
            self.contradictions.push(violation(6, message));
        }
    }

    fn believed_beyond_the_grant(&mut self, client: ClientId, token: u64, names: &[String]) {
        let Some(holds) = self.holds_of.get(&(client, token)) else { return };
        let held = |name: &String| holds.iter().any(|&hold| self.holds[hold].name == *name);
        for name in names.iter().filter(|name| !held(name)) {
            let message =
                format!("{name}: {client} believes in it under token {token}, not granted");
            self.contradictions.push(violation(24, message));
        }
    }

    fn closing(&mut self, at_ns: u64, client: ClientId) {
        let closing = self.client(client);
        closing.closed_ns = closing.closed_ns.or(Some(at_ns));
        let holds = std::mem::take(&mut closing.open_holds);
        for hold in holds {
            self.end_hold(at_ns, hold, Over::GivenUp);
        }
    }

    fn session_ended(&mut self, at_ns: u64, client: ClientId, cause: LostCause) {
        let ending = self.client(client);
        ending.ended_ns = ending.ended_ns.or(Some(at_ns));
        let holds = std::mem::take(&mut ending.open_holds);
        for hold in holds {
            self.end_hold(at_ns, hold, Over::Told(cause));
        }
    }

    fn state(&mut self, at_ns: u64, client: ClientId, kept: &[Kept], next_request: u64) {
        for kept in kept {
            self.must_be_asked(client, kept.request, "kept");
        }
        let kept = kept.iter().map(|kept| (kept.request, kept.clone())).collect();
        self.states.push(State { client, at_ns, kept, next_request });
    }

    /// No answer concerns a request that was never made (I23).
    fn must_be_asked(&mut self, client: ClientId, number: u64, told: &str) {
        let key = (client, number);
        if !self.request_of.contains_key(&key) && !self.write_of.contains_key(&key) {
            let message = format!("{client} was told of request {number} ({told}), never asked");
            self.contradictions.push(violation(23, message));
        }
    }

    /// No answer concerns a grant that its client never received (I23).
    fn must_be_told(&mut self, client: ClientId, token: u64, told: &str) {
        if !self.holds_of.contains_key(&(client, token)) {
            let message = format!("{client} was told of token {token} ({told}), never granted");
            self.contradictions.push(violation(23, message));
        }
    }
}

impl Hold {
    fn release_is_told(&mut self, at_ns: u64, told: ReleaseTold) {
        if self.release_told.is_none_or(|(_, before)| before == ReleaseTold::Unknown) {
            self.release_told = Some((at_ns, told));
        }
    }
}
