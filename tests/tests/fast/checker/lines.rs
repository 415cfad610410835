//! Histories as text: one record a line, milliseconds, client, what.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_tests::check::{Options, Report, check};
use holdfast_tests::history::{
    Asked, Became, Brought, Change, ClientId, Happened, Holding, Kept, KeptState, LostCause, News,
    Order, Record, Shown, What,
};

const MS: u64 = 1_000_000;
pub(crate) const RIGHT: [u8; 0] = [];

pub(crate) fn judge(history: &str) -> Report {
    let mut reader = Reader::default();
    let lines = history.lines().map(str::trim).filter(|line| !line.is_empty());
    let records: Vec<Record> = lines.map(|line| reader.record(line)).collect();
    assert!(records.is_sorted_by_key(|record| record.at_ns), "the test's own lines are in order");
    let (grace, settle) = (Duration::from_millis(100), Duration::from_millis(100));
    check(&records, Options { grace, settle })
}

pub(crate) fn broken(history: &str) -> Vec<u8> {
    judge(history).broken()
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("{word} is no number"))
}

fn names(word: &str) -> Vec<String> {
    word.split(['+', '|']).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn items(word: &str) -> Vec<Asked> {
    let item = |name: String| match name.split_once('~') {
        Some((name, "")) => Asked::shared(name),
        Some((name, permits)) => {
            let (count, limit) = permits.split_once('/').unwrap();
            Asked::permits(name, count.parse().unwrap(), limit.parse().unwrap())
        }
        None => Asked::exclusive(name),
    };
    names(word).into_iter().map(item).collect()
}

/// The word after `key=`.
fn option<'a>(words: &[&'a str], key: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// Reads lines. If a line leaves out the names, they are those that were asked for, or granted.
#[derive(Default)]
struct Reader {
    asked: BTreeMap<(ClientId, u64), Vec<String>>,
    granted: BTreeMap<(ClientId, u64), Vec<String>>,
}

impl Reader {
    fn record(&mut self, line: &str) -> Record {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at_ns = number(words[0]) * MS;
        let client = client(words[1]);
        Record { at_ns, client, what: self.what(client, &words[2..]) }
    }

    fn what(&mut self, client: ClientId, words: &[&str]) -> What {
        match words {
            ["asks", request, wanted, rest @ ..] => {
                let ms = |key| option(rest, key).map_or(0, number);
                let items = items(wanted)
                    .into_iter()
                    .map(|item| item.ahead(ms("head-start")).bound(ms("max-hold"), ms("at-least")));
                let (request, items) = (number(request), items.collect::<Vec<_>>());
                let names = items.iter().map(|item| item.name.clone()).collect();
                self.asked.insert((client, request), names);
                What::Acquire {
                    request,
                    items,
                    any: option(rest, "any").map(|min| min.parse().unwrap()),
                    wait: !rest.contains(&"try"),
                    within_ms: option(rest, "within").map(number),
                }
            }
            ["granted", request, token, rest @ ..] => {
                let (request, token) = (number(request), number(token));
                let names =
                    option(rest, "names").map_or_else(|| self.asked(client, request), names);
                self.granted.insert((client, token), names.clone());
                let values = rest.iter().filter_map(|word| shown(word)).collect();
                What::Granted { request, token, names, values }
            }
            ["claims", request, name, owner, rest @ ..] => {
                let request = number(request);
                self.asked.insert((client, request), names(name));
                What::Claim {
                    request,
                    name: (*name).into(),
                    owner: (*owner).into(),
                    within_ms: option(rest, "within").map(number),
                }
            }
            ["imports", import, owner, remaining, rows @ ..] => What::Import {
                import: number(import),
                owner: (*owner).into(),
                remaining_ms: number(remaining),
                rows: rows.iter().map(|row| brought(row)).collect(),
            },
            ["imported", import, fates @ ..] => What::Imported {
                import: number(import),
                fates: fates.iter().map(|fate| became(fate)).collect(),
            },
            ["is-safe", token, rest @ ..] => {
                let token = number(token);
                let held = || self.granted.get(&(client, token)).cloned().unwrap_or_default();
                let names = option(rest, "names").map_or_else(held, names);
                What::IsSafe { token, safe: true, names }
            }
            ["state", next, kept @ ..] => What::State {
                requests: kept.iter().map(|word| self.kept(client, word)).collect(),
                next_request: number(next),
            },
            _ => what(words),
        }
    }

    fn asked(&self, client: ClientId, request: u64) -> Vec<String> {
        self.asked.get(&(client, request)).cloned().unwrap_or_default()
    }

    /// `3=queued`, `3=ended`, `3=TOKEN` or `3=TOKEN:NAMES`.
    fn kept(&self, client: ClientId, word: &str) -> Kept {
        let (request, state) = word.split_once('=').unwrap();
        let request = number(request);
        let state = match (state, state.split_once(':')) {
            ("queued", _) => KeptState::Queued,
            ("denied", _) => KeptState::Denied,
            ("ended", _) => KeptState::Ended,
            (_, Some((token, held))) => {
                KeptState::Granted { token: number(token), names: names(held) }
            }
            (token, None) => {
                KeptState::Granted { token: number(token), names: self.asked(client, request) }
            }
        };
        Kept { request, state }
    }
}

/// `+NAME` or `+NAME:VALUE`, held in the other store; `?NAME`, waited for.
fn brought(word: &str) -> Brought {
    let (name, value) = match word[1..].split_once(':') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (&word[1..], None),
    };
    Brought { name: name.into(), waits: word.starts_with('?'), value }
}

fn became(word: &str) -> Became {
    match word {
        "queued" => Became::Queued,
        "known" => Became::Known,
        "refused" => Became::Refused,
        token => Became::Held(number(token)),
    }
}

/// `NAME:VALUE@TOKEN`, with `?` at its end if it is suspect.
fn shown(word: &str) -> Option<Shown> {
    let (name, value) = word.split_once(':')?;
    let (value, token) = value.split_once('@')?;
    let (token, suspect) = match token.strip_suffix('?') {
        Some(token) => (token, true),
        None => (token, false),
    };
    Some(Shown { name: name.into(), value: value.into(), token: number(token), suspect })
}

fn what(words: &[&str]) -> What {
    match words {
        ["queued", request, rest @ ..] => What::Queued {
            request: number(request),
            place: 0,
            index: option(rest, "index").map(number),
        },
        ["denied", request] => What::Denied { request: number(request) },
        ["refused", request, reason] => {
            What::Refused { request: number(request), reason: (*reason).into() }
        }
        ["cancels", request] => What::Cancel { request: number(request) },
        ["cancelled", request] => What::Cancelled { request: number(request) },
        ["session-lost", request] => What::SessionLost { request: number(request) },
        ["unknown", request] => What::Unknown { request: number(request) },
        ["moved", request] => What::Moved { request: number(request), place: 0 },
        ["sets", request, token, name, value] => What::SetValue {
            request: number(request),
            token: number(token),
            name: (*name).into(),
            change: change(value),
        },
        ["set", request] => What::ValueSet { request: number(request) },
        _ => what_else(words),
    }
}

fn change(word: &str) -> Change {
    match word {
        "CLEAR" => Change::Clear,
        "CONFIRM" => Change::Confirm,
        value => Change::Set(value.into()),
    }
}

fn what_else(words: &[&str]) -> What {
    match words {
        ["releases", token] => What::Release { token: number(token), names: Vec::new() },
        ["releases", token, some] => What::Release { token: number(token), names: names(some) },
        ["released", token] => What::Released { token: number(token), names: Vec::new() },
        ["released", token, some] => What::Released { token: number(token), names: names(some) },
        ["not-holder", token] => What::NotHolder { token: number(token) },
        ["release-unknown", token] => What::ReleaseUnknown { token: number(token) },
        ["lost", token, why] => What::Lost { token: number(token), cause: cause(why) },
        ["contended", token] => What::Contended { token: number(token) },
        ["ended", why] => What::SessionEnded { cause: cause(why) },
        ["closes"] => What::Close,
        ["safe-until", token, ms] => {
            What::SafeGrant { token: number(token), until_ns: number(ms) * MS }
        }
        ["safe-until", ms] => What::Safe { until_ns: number(ms) * MS },
        ["reads", read, name] => What::Read { read: number(read), name: (*name).into() },
        ["read", read, holders, rest @ ..] => What::ReadDone {
            read: number(read),
            holders: holding(holders),
            value: rest.iter().find_map(|word| shown(word)),
            waiting: option(rest, "waiting").map_or(0, number),
            closed: option(rest, "closed").map(number),
            frozen: rest.contains(&"frozen"),
        },
        ["fenced", token, name, newest] => {
            What::Fenced { token: number(token), name: (*name).into(), newest: number(newest) }
        }
        ["accepted", token, name] => What::Accepted { token: number(token), name: (*name).into() },
        ["takes", take, name, count] => What::TakeNumbers {
            take: number(take),
            name: (*name).into(),
            count: u32::try_from(number(count)).unwrap(),
        },
        ["took", take, rest @ ..] => What::NumbersTaken {
            take: number(take),
            first: rest.first().map(|first| number(first)),
        },
        ["killed"] => What::Killed,
        ["fault"] => What::Fault { note: String::new() },
        ["healed"] => What::Healed,
        ["leaves-work", until] => What::WorkLeft { until_ns: Some(number(until) * MS) },
        ["scopes", prefixes @ ..] => {
            What::Scopes { prefixes: prefixes.iter().map(|prefix| (*prefix).to_owned()).collect() }
        }
        _ => what_was_seen(words),
    }
}

/// Records of observers: what is seen besides the clients.
fn what_was_seen(words: &[&str]) -> What {
    match words {
        ["watches", watch, prefix] => {
            What::Watch { watch: number(watch), prefix: (*prefix).into() }
        }
        ["watch-over", watch] => What::WatchOver { watch: number(watch), failed: false },
        ["told", watch, rest @ ..] => What::WatchTold { watch: number(watch), news: news(rest) },
        ["orders", order, what, of] => {
            let order_of = |of: &str| match *what {
                "freeze" => Order::Freeze(of.into()),
                "thaw" => Order::Thaw(of.into()),
                name => Order::Limit { name: name.into(), permits: of.parse().unwrap() },
            };
            What::Order { number: number(order), order: order_of(of) }
        }
        ["ordered", order] => What::OrderDone { number: number(order) },
        ["revoked", of] => What::Revoked { of: client(of) },
        ["takes-away", of] => What::TakesAway { of: client(of) },
        ["grant-seen", token] => What::GrantSeen { token: number(token) },
        ["all-know", version] => What::AllKnow { version: version.parse().unwrap() },
        ["opened", ms] => What::Opened { ttl_ms: number(ms) },
        ["expired", of] => What::Expired { of: client(of), tokens: None, session: None },
        ["expired", of, "session", session] => {
            let session = Some(number(session));
            What::Expired { of: client(of), tokens: Some(Vec::new()), session }
        }
        ["expired", of, tokens] => {
            let tokens = tokens.split('+').map(|token| token.parse().unwrap()).collect();
            What::Expired { of: client(of), tokens: Some(tokens), session: None }
        }
        ["acknowledged", session, until] => {
            What::Acknowledged { session: number(session), until_ns: number(until) * MS }
        }
        ["applied", node, index, hash, stamp] => What::Applied {
            node: number(node),
            index: number(index),
            hash: (*hash).into(),
            stamp_ms: number(stamp),
        },
        _ => panic!("{words:?} is no record"),
    }
}

/// `lock NAME HOLDERS`, `synced`, `restarted`, or `INDEX NAME` and what happened.
fn news(words: &[&str]) -> News {
    let waiting = option(words, "waiting").map_or(0, number);
    match words {
        ["restarted"] => News::Restarted,
        ["synced"] => News::Synced,
        ["lock", name, holders, rest @ ..] => News::Lock {
            name: (*name).into(),
            holders: holding(holders),
            waiting,
            value: rest.iter().find_map(|word| shown(word)),
        },
        [index, name, what @ ..] => News::Change {
            name: (*name).into(),
            index: number(index),
            waiting,
            what: happened(what),
        },
        _ => panic!("{words:?} is no news"),
    }
}

fn happened(words: &[&str]) -> Happened {
    match words {
        ["queued", ..] => Happened::Queued,
        ["left", ..] => Happened::Left,
        ["granted", holder, ..] => Happened::Granted(holding(holder)[0]),
        ["released", holder, ..] => Happened::Released(holding(holder)[0]),
        ["lost", holder, ..] => Happened::Lost(holding(holder)[0]),
        ["value", rest @ ..] => Happened::Value(rest.iter().find_map(|word| shown(word))),
        _ => panic!("{words:?} is nothing that happens"),
    }
}

/// A client, by a letter.
fn client(word: &str) -> ClientId {
    ClientId(u64::from(word.as_bytes()[0] - b'a'))
}

/// Tokens joined by `+`, shared holds with `~`; `-` means no holder.
fn holding(word: &str) -> Vec<Holding> {
    let holder = |item: Asked| Holding { token: number(&item.name), shared: item.shared };
    items(word.trim_matches('-')).into_iter().map(holder).collect()
}

fn cause(word: &str) -> LostCause {
    match word {
        "expired" => LostCause::Expired,
        "closed" => LostCause::Closed,
        "gone" => LostCause::Gone,
        "too-long" => LostCause::TooLong,
        "taken-away" => LostCause::TakenAway,
        _ => LostCause::Deadline,
    }
}
