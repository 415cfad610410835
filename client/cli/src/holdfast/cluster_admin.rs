//! `holdfast cluster`.

use std::time::Duration;

use comfy_table::{Table, presets};
use holdfast::{ClusterMember, ClusterStatus};
use serde_json::{Value, json};

use crate::args::{ClusterCommand, Global};
use crate::failure::Failure;
use crate::{runtime, show};

pub(crate) fn run(global: &Global, command: &ClusterCommand) -> Result<u8, Failure> {
    let admin = global.builder().admin(limit(command))?;
    let done = runtime::block_on(async {
        match command {
            ClusterCommand::Status(_) => {
                let status = admin.cluster().await?;
                Ok(if global.json { status_json(&status) } else { status_text(&status) })
            }
            ClusterCommand::Add(args) => {
                admin.add_learner(args.node, &args.advertise, &args.peer_advertise).await?;
                Ok(told(
                    global,
                    "learner",
                    args.node,
                    "node {} is a member and learns; when it has \
                    caught up, give it a vote: holdfast cluster promote {}",
                ))
            }
            ClusterCommand::Promote(args) => {
                admin.promote(args.node).await?;
                Ok(told(global, "voter", args.node, "node {} is a voter"))
            }
            ClusterCommand::Remove(args) => {
                admin.remove_member(args.node).await?;
                Ok(told(global, "removed", args.node, "node {} is no member any more"))
            }
            ClusterCommand::TransferLeader(args) => {
                admin.transfer_leader(args.to).await?;
                let leader = match args.to {
                    Some(leader) => leader,
                    None => admin.cluster().await?.leader,
                };
                Ok(told(global, "leader", leader, "node {} leads"))
            }
        }
    })?;
    show::line(done.map_err(|error: holdfast::Error| failure(error))?);
    Ok(0)
}

fn limit(command: &ClusterCommand) -> Duration {
    match command {
        ClusterCommand::Status(limit) => limit.timeout,
        ClusterCommand::Add(args) => args.limit.timeout,
        ClusterCommand::Promote(args) | ClusterCommand::Remove(args) => args.limit.timeout,
        ClusterCommand::TransferLeader(args) => args.limit.timeout,
    }
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
        "quorum_ms": status.quorum.map(millis),
        "changing": status.changing,
        "highest_node_id": status.highest_node_id,
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
        "silent_ms": member.silent.map(millis),
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
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "NODE", "ROLE", "CLIENTS", "MEMBERS", "LOG", "APPLIED", "SNAPSHOT", "BEHIND", "ANSWERS",
        "VERSION",
    ]);
    for member in &status.members {
        table.add_row(row(member));
    }
    format!(
        "cluster {}, term {}: node {} leads, {quorum}{changing}\n{}\na new member's node id is {} \
         or above",
        hex(&status.cluster),
        status.term,
        status.leader,
        table.trim_fmt(),
        status.highest_node_id.saturating_add(1),
    )
}

fn row(member: &ClusterMember) -> [String; 10] {
    let number = |number: Option<u64>| number.map_or_else(|| "-".into(), |n| n.to_string());
    let answers = match member.silent {
        _ if member.answers => "yes".to_owned(),
        Some(silent) => format!("not for {}", show::length(silent)),
        None => "not yet".to_owned(),
    };
    [
        member.node.to_string(),
        role(member).to_owned(),
        show::escaped(&member.advertise),
        show::escaped(&member.peer_advertise),
        number(member.last_log),
        number(member.applied),
        number(member.snapshot),
        member.lag.to_string(),
        answers,
        member.version.as_deref().map_or_else(|| "-".to_owned(), show::escaped),
    ]
}

fn role(member: &ClusterMember) -> &'static str {
    match (member.leads, member.votes) {
        (true, _) => "leader",
        (false, true) => "voter",
        (false, false) => "learner",
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
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

        let text = status_text(&status);
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
