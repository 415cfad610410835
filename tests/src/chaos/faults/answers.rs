//! Answers, or calls, that are held back on live connections and come late: after an election, or
//! after the lease of the client that waits for them.

use std::sync::Arc;
use std::time::Duration;

use super::{Broken, Undo, lines};
use crate::chaos::hold::{Held, Holding, Lateness};
use crate::chaos::stage::{HeldBack, Stage};
use crate::draw::Draw;
use crate::net::{Host, Rule};

/// How late a packet is at most when each has a delay of its own.
const LATE_BY: Duration = Duration::from_secs(4);
/// Another leader is mostly elected within this time of the last call of the old one.
const ELECTED_WITHIN: Duration = Duration::from_millis(2_500);

/// The messages that are held back.
#[derive(Debug)]
pub(super) struct Answers {
    holdings: Vec<Holding>,
    from_ns: u64,
    /// The cut that follows once the calls of the leader have arrived for a while.
    then: Option<Then>,
    /// The rules of that cut.
    cut: Vec<Rule>,
}

/// No node receives the leader's messages any more, for so long: another one is elected.
#[derive(Debug)]
struct Then {
    leader: usize,
    lasts: Duration,
}

pub(super) fn hold(stage: &mut Stage) -> Option<Broken> {
    let leader = stage.idle_leader()?;
    let mut others = stage.members();
    others.retain(|node| *node != leader);
    let hosts = stage.hosts.clone()?;
    let [leader_host, other_hosts] = [&[leader][..], &others]
        .map(|nodes| nodes.iter().map(|node| hosts[*node].clone()).collect::<Vec<_>>());
    let name = stage.name(leader);
    let lasts = held_for(stage);
    let first = Duration::from_millis(stage.draw.between(200, 1_000));
    let begun =
        |stage: &mut Stage, from: &[_], to: &[_], words: &str| begin(stage, from, to, lasts, words);
    Some(match stage.draw.below(5) {
        0 => begun(stage, &other_hosts, &leader_host, &format!("to {name}")),
        1 => begun(stage, &leader_host, &other_hosts, &format!("from {name} to the other nodes")),
        2 => {
            let (client, to) = a_client(stage)?;
            let all: Vec<_> = leader_host.into_iter().chain(other_hosts).collect();
            begun(stage, &all, &[to], &format!("to client process {client}"))
        }
        _ => {
            let words = format!("to {name}, which then is not heard by the other nodes");
            let broken = begun(stage, &other_hosts, &leader_host, &words);
            and_then_cut(broken, first, Then { leader, lasts: lasts.max(ELECTED_WITHIN) })
        }
    })
}

/// Mostly so short that a connection between nodes lives: it ends 3 to 6 s after its pings go
/// unanswered.
fn held_for(stage: &mut Stage) -> Duration {
    let longest = if stage.draw.below(3) == 0 { 8_000 } else { 4_000 };
    Duration::from_millis(stage.draw.between(1_000, longest))
}

fn a_client(stage: &mut Stage) -> Option<(usize, Arc<Host>)> {
    let client = usize::try_from(stage.draw.below(stage.clients.count() as u64)).ok()?;
    Some((client, stage.clients.host(client)?.clone()))
}

/// Holds back the traffic from each host of `from` to each host of `to`.
fn begin(
    stage: &mut Stage,
    from: &[Arc<Host>],
    to: &[Arc<Host>],
    lasts: Duration,
    note: &str,
) -> Broken {
    let (lateness, how) = match stage.draw.below(3) {
        0 => (Lateness::EachUpTo(LATE_BY), "each packet late by another time"),
        _ => (Lateness::UntilTheEnd, "all until the end"),
    };
    let from_ns = stage.recorder.now_ns();
    let holdings = from
        .iter()
        .map(|host| {
            let draw = Draw::new(stage.draw.below(u64::MAX));
            Holding::begin(host, to, lateness, draw)
                .unwrap_or_else(|error| panic!("packets cannot be held back: {error}"))
        })
        .collect();
    let answers = Answers { holdings, from_ns, then: None, cut: Vec::new() };
    Broken::new(format!("{note}, {how}"), lasts, Undo::Deliver(answers))
}

fn and_then_cut(mut broken: Broken, first: Duration, then: Then) -> Broken {
    if let Undo::Deliver(answers) = &mut broken.undo {
        answers.then = Some(then);
    }
    broken.lasts = first;
    broken
}

/// Goes on to the cut if there is one, and otherwise delivers.
pub(super) fn deliver(stage: &mut Stage, mut answers: Answers, note: String) -> Option<Broken> {
    if let Some(Then { leader, lasts }) = answers.then.take_if(|_| !stage.is_ending) {
        answers.cut = lines::unheard(stage, leader);
        return Some(Broken::new(note, lasts, Undo::Deliver(answers)));
    }
    let Answers { holdings, from_ns, cut, .. } = answers;
    // The held messages arrive before the leader is heard again.
    let held: Vec<Held> = holdings
        .into_iter()
        .map(|holding| {
            holding.deliver().unwrap_or_else(|error| panic!("held packets are lost: {error}"))
        })
        .collect();
    lines::lift(cut);
    let until_ns = stage.recorder.now_ns();
    stage.held.push(HeldBack {
        from_ns,
        until_ns,
        packets: held.iter().map(|held| held.packets).sum(),
        connections: held.iter().map(|held| held.connections).sum(),
        lived: held.iter().map(|held| held.lived).sum(),
    });
    None
}
