//! `holdfast cluster` and `holdfast scope`.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::time::Duration;

use comfy_table::Cell;
use holdfast::{ClusterMember, ClusterStatus, ScopeStatus, Scopes};
use holdfast_cli::{block_on, hex};
use serde_json::{Value, json};

use crate::args::{ClusterCommand, Global, ScopeCommand};
use crate::backup;
use crate::failure::{Failure, OWN_ERROR};
use crate::show::{self, Tone};

/// `holdfast cluster`.
pub(crate) fn cluster(global: &Global, command: &ClusterCommand) -> Result<u8, Failure> {
    let (ClusterCommand::Status(limit)
    | ClusterCommand::Add { limit, .. }
    | ClusterCommand::Promote { limit, .. }
    | ClusterCommand::Remove { limit, .. }
    | ClusterCommand::Backup { limit, .. }
    | ClusterCommand::TransferLeader { limit, .. }) = command;
    if let ClusterCommand::Remove { node, yes: false, .. } = command
        && !is_wanted(&format!("Remove node {node} for ever? Its id is never used again."))?
    {
        return Err(Failure::new(OWN_ERROR, "nothing was removed"));
    }
    let admin = global.builder()?.admin(limit.timeout)?;
    match command {
        ClusterCommand::Backup { file, force, .. } => backup::take(global, &admin, file, *force),
        ClusterCommand::Status(_) => say(async {
            let status = admin.cluster().await?;
            Ok(if global.json { status_json(&status) } else { status_text(&status) })
        }),
        ClusterCommand::Add { node, advertise, peer_advertise, .. } => say(async {
            admin.add_learner(*node, advertise, peer_advertise).await?;
            let done = "node {} is a member and learns; when it has caught up, give it a vote: holdfast cluster promote {}";
            Ok(told(global, "learner", *node, done))
        }),
        ClusterCommand::Promote { node, .. } => say(async {
            admin.promote(*node).await?;
            Ok(told(global, "voter", *node, "node {} is a voter"))
        }),
        ClusterCommand::Remove { node, .. } => say(async {
            admin.remove_member(*node).await?;
            Ok(told(global, "removed", *node, "node {} is no member any more"))
        }),
        ClusterCommand::TransferLeader { to, .. } => say(async {
            admin.transfer_leader(*to).await?;
            let leader = match to {
                Some(leader) => *leader,
                None => admin.cluster().await?.leader,
            };
            Ok(told(global, "leader", leader, "node {} leads"))
        }),
    }
}

/// Prints what was done.
fn say(work: impl Future<Output = holdfast::Result<String>>) -> Result<u8, Failure> {
    show::line(block_on(work)?.map_err(failure)?);
    Ok(0)
}

/// Asks the person at the terminal. Without a terminal it is wanted: nobody is there to ask.
fn is_wanted(question: &str) -> Result<bool, Failure> {
    let (mut input, mut output) = (io::stdin().lock(), io::stderr().lock());
    if !input.is_terminal() || !output.is_terminal() {
        return Ok(true);
    }
    let mut answer = String::new();
    let asked = write!(output, "{question} [y/N] ").and_then(|()| output.flush());
    asked.and_then(|()| input.read_line(&mut answer)).map_err(|e| Failure::own("asking", e))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// The new state; `text` with the node in place of `{}`.
fn told(global: &Global, is: &str, node: u64, text: &str) -> String {
    if global.json {
        json!({ "node": node, "is": is }).to_string()
    } else {
        text.replace("{}", &node.to_string())
    }
}

fn failure(error: holdfast::Error) -> Failure {
    let unknown = matches!(error, holdfast::Error::OutcomeUnknown { .. });
    let mut failure = Failure::from(error);
    if unknown {
        failure.message += "; asking again is harmless";
    }
    failure
}

fn status_json(status: &ClusterStatus) -> String {
    json!({
        "cluster": hex(&status.cluster),
        "leader": status.leader,
        "term": status.term,
        "quorum_ms": status.quorum.map(show::millis),
        "changing": status.changing,
        "highest_node_id": status.highest_node_id,
        "grants_in_ms": status.grants_in.map(show::millis),
        "members": status.members.iter().map(member_json).collect::<Vec<_>>(),
    })
    .to_string()
}

fn member_json(member: &ClusterMember) -> Value {
    json!({
        "node": member.node,
        "role": role(member),
        "advertise": member.advertise,
        "peer_advertise": member.peer_advertise,
        "last_log": member.last_log,
        "applied": member.applied,
        "snapshot": member.snapshot,
        "lag": member.lag,
        "silent_ms": member.silent.map(show::millis),
        "answers": member.answers,
        "version": member.version,
    })
}

fn status_text(status: &ClusterStatus) -> String {
    let quorum = match status.quorum {
        Some(quorum) if quorum < Duration::from_secs(1) => "a quorum answers".to_owned(),
        Some(quorum) => format!("no quorum has answered for {}", show::length(quorum)),
        None => "no quorum has answered yet".to_owned(),
    };
    let changing = if status.changing { "; a change of the members is under way" } else { "" };
    let header = [
        "NODE", "ROLE", "CLIENTS", "MEMBERS", "LOG", "APPLIED", "SNAPSHOT", "BEHIND", "ANSWERS",
        "VERSION",
    ];
    let table = show::table(&header, status.members.iter().map(row));
    let tone = match status.quorum {
        Some(quorum) if quorum < Duration::from_secs(1) => Tone::Good,
        _ => Tone::Wrong,
    };
    let quorum = tone.of(quorum);
    let restored =
        waits(status).map_or_else(String::new, |waits| format!("\n{}", Tone::Wrong.of(waits)));
    format!(
        "cluster {}, term {}: node {} leads, {quorum}{changing}{restored}\n{}\na new member's node id is {} \
         or above",
        hex(&status.cluster),
        status.term,
        status.leader,
        table,
        status.highest_node_id.saturating_add(1),
    )
}

/// That a restored cluster grants nothing yet.
pub(crate) fn waits(status: &ClusterStatus) -> Option<String> {
    let left = status.grants_in?;
    Some(format!(
        "restored from a backup: it grants no lock for another {}, until no client of the old cluster can \
         rely on one",
        show::length(left)
    ))
}

fn row(member: &ClusterMember) -> Vec<Cell> {
    let number = |number: Option<u64>| number.map_or_else(|| "-".into(), |n| n.to_string());
    let answers = match member.silent {
        _ if member.answers => Cell::new("yes"),
        Some(silent) => show::cell(Tone::Wrong, format!("not for {}", show::length(silent))),
        None => show::cell(Tone::Wrong, "not in this term"),
    };
    vec![
        Cell::new(member.node),
        if member.leads { show::cell(Tone::Good, role(member)) } else { Cell::new(role(member)) },
        Cell::new(show::escaped(&member.advertise)),
        Cell::new(show::escaped(&member.peer_advertise)),
        Cell::new(number(member.last_log)),
        Cell::new(number(member.applied)),
        Cell::new(number(member.snapshot)),
        Cell::new(member.lag),
        answers,
        Cell::new(member.version.as_deref().map_or_else(|| "-".to_owned(), show::escaped)),
    ]
}

fn role(member: &ClusterMember) -> &'static str {
    match (member.leads, member.votes) {
        (true, _) => "leader",
        (false, true) => "voter",
        (false, false) => "learner",
    }
}

/// `holdfast scope`.
pub(crate) fn scope(global: &Global, command: &ScopeCommand) -> Result<u8, Failure> {
    let (ScopeCommand::Set { limit, .. }
    | ScopeCommand::Remove { limit, .. }
    | ScopeCommand::List(limit)) = command;
    let admin = global.builder()?.admin(limit.timeout)?;
    let done = block_on(async {
        match command {
            ScopeCommand::Set { prefix, .. } => {
                let epoch = admin.set_scope(prefix).await?;
                Ok(if global.json {
                    json!({ "scope": prefix, "is": "set", "epoch": epoch }).to_string()
                } else {
                    let prefix = show::escaped(prefix);
                    format!("{prefix} is a scope with fallback, in epoch {epoch}")
                })
            }
            ScopeCommand::Remove { prefix, .. } => {
                admin.remove_scope(prefix).await?;
                Ok(if global.json {
                    json!({ "scope": prefix, "is": "removed" }).to_string()
                } else {
                    format!("{} is no scope any more", show::escaped(prefix))
                })
            }
            ScopeCommand::List(_) => {
                let scopes = admin.scopes().await?;
                Ok(if global.json { scopes_json(&scopes) } else { scopes_text(&scopes) })
            }
        }
    })?;
    show::line(done.map_err(|error: holdfast::Error| Failure::from(error))?);
    Ok(0)
}

fn scopes_json(scopes: &Scopes) -> String {
    let scope = |scope: &ScopeStatus| -> Value {
        json!({
            "scope": scope.prefix,
            "epoch": scope.epoch,
            "suspended": scope.suspended,
            "mode": scope.row.as_ref().map(|(mode, _)| mode),
            "row_epoch": scope.row.as_ref().map(|(_, epoch)| epoch),
            "take_over_ms": scope.take_over.map(show::millis),
            "hold_ms": scope.hold.map(show::millis),
            "authority_ms": scope.authority.map(show::millis),
            "beat_age_ms": scope.beat_age.map(show::millis),
            "switches": scope.switches,
            "refused_switches": scope.refused_switches,
            "trouble": scope.trouble,
        })
    };
    let all: Vec<Value> = scopes.scopes.iter().map(scope).collect();
    json!({ "scopes": all, "has_fallback": scopes.has_fallback }).to_string()
}

fn scopes_text(scopes: &Scopes) -> String {
    if scopes.scopes.is_empty() {
        let can = if scopes.has_fallback {
            "set one with holdfast scope set PREFIX --fallback"
        } else {
            "the leader does not know where a fallback would be (setting [fallback])"
        };
        return format!("there is no scope with fallback; {can}");
    }
    let header = ["SCOPE", "EPOCH", "GRANTS", "ROW", "W", "V", "AUTHORITY", "BEAT", "SWITCHES"];
    let table = show::table(&header, scopes.scopes.iter().map(scope_row));
    let troubles = scopes.scopes.iter().filter_map(|scope| {
        let trouble = scope.trouble.as_ref()?;
        Some(format!("\n{}: {trouble}", show::escaped(&scope.prefix)))
    });
    format!("{}{}", table, troubles.collect::<String>())
}

fn scope_row(scope: &ScopeStatus) -> [String; 9] {
    let length = |length: Option<Duration>| length.map_or_else(|| "-".to_owned(), show::length);
    [
        show::escaped(&scope.prefix),
        scope.epoch.to_string(),
        if scope.suspended { "suspended" } else { "yes" }.to_owned(),
        scope.row.as_ref().map_or_else(
            || "unknown".to_owned(),
            |(mode, epoch)| format!("{} in {epoch}", show::escaped(mode)),
        ),
        length(scope.take_over),
        length(scope.hold),
        length(scope.authority),
        length(scope.beat_age),
        scope.switches.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: u64) -> ClusterMember {
        let mut member = ClusterMember::default();
        member.node = node;
        member.advertise = format!("10.0.0.{node}:7420");
        member.peer_advertise = format!("10.0.0.{node}:7421");
        (member.votes, member.leads, member.answers) = (true, node == 1, true);
        (member.last_log, member.applied) = (Some(1_200), Some(1_199));
        member.silent = Some(Duration::ZERO);
        member.version = Some("0.1.0".into());
        member
    }

    #[test]
    fn who_leads_learns_or_is_silent_is_seen_at_a_glance() {
        let mut silent = member(2);
        (silent.answers, silent.silent, silent.lag) = (false, Some(Duration::from_secs(70)), 12);
        let mut learner = member(5);
        (learner.votes, learner.version) = (false, None);
        let mut status = ClusterStatus::default();
        status.cluster = vec![0xab; 16];
        (status.leader, status.term, status.highest_node_id) = (1, 7, 6);
        (status.quorum, status.changing) = (Some(Duration::from_millis(80)), true);
        status.members = vec![member(1), silent, learner];

        let text = anstream::adapter::strip_str(&status_text(&status)).to_string();
        let lines: Vec<&str> = text.lines().collect();

        assert!(lines[0].contains("term 7: node 1 leads, a quorum answers; a change"), "{text}");
        assert!(lines[2].contains("leader") && lines[2].contains("yes"), "{text}");
        assert!(lines[3].contains("voter") && lines[3].contains("not for 1 min 10 s"), "{text}");
        assert!(lines[4].contains("learner"), "{text}");
        assert_eq!(lines[5], "a new member's node id is 7 or above");
        let json: Value = serde_json::from_str(&status_json(&status)).expect("it is JSON");
        assert_eq!(json["members"][1]["lag"], 12);
        assert_eq!(json["members"][2]["role"], "learner");
    }
}
