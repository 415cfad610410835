//! From what an entry of the log did to records of it.

use holdfast_core::{
    Applied, Caller, Command, Deed, Event, FencingToken, Identity, Items, LockTable, RequestId,
    RequestState, RuleChange, SessionId, Verb,
};
use holdfast_replication::consensus::MemberIds;

use crate::record::{Act, Hold, Over, What, Why};

/// Calls `put` with everything that a history keeps of a batch, in the order in which it happened. `table` is the state after
/// it.
pub(crate) fn of_batch(
    commands: &[Command],
    applied: &[Applied],
    table: &LockTable,
    put: &mut dyn FnMut(What),
) {
    for (command, applied) in commands.iter().zip(applied) {
        of_command(command, applied, table, put);
    }
}

/// The members of the cluster, as they are from here on.
pub(crate) fn of_members(members: &MemberIds) -> What {
    What::Members { voters: members.voters.clone(), learners: members.learners.clone() }
}

fn of_command(command: &Command, applied: &Applied, table: &LockTable, put: &mut dyn FnMut(What)) {
    let was_done = applied.outcome.is_ok();
    if let Some(act) = was_done.then(|| act_of(command)).flatten() {
        put(What::Act(act));
    }
    for event in &applied.events {
        if let Some(what) = of_event(event, table) {
            put(what);
        }
    }
}

fn of_event(event: &Event, table: &LockTable) -> Option<What> {
    Some(match event {
        Event::Granted { session, request, token, items, .. } => {
            let found = table.session(*session);
            let label = found.as_ref().map(|found| found.label.clone());
            let identity = found.as_ref().map(|found| found.caller.identity.clone());
            What::Held(Hold {
                session: *session,
                request: *request,
                token: *token,
                items: items.clone(),
                label: label.unwrap_or_default(),
                identity: identity.unwrap_or_default(),
                note: table.note_of(*session, *request),
                imported: found.is_some_and(|found| found.imported),
            })
        }
        Event::Released { session, token, items, .. } => {
            What::Over(over(*session, *token, items, Why::Released))
        }
        Event::Lost { session, token, items, cause, .. } => {
            What::Over(over(*session, *token, items, Why::from(*cause)))
        }
        Event::HoldClosed { session, request, token, reason } => What::Closed {
            session: *session,
            token: *token,
            items: held(table, *session, *request)?,
            reason: reason.clone(),
        },
        _ => return None,
    })
}

fn over(session: SessionId, token: FencingToken, items: &Items, why: Why) -> Over {
    Over { session, token, items: items.clone(), why }
}

/// What a request holds; nothing if it is over by the end of the entry.
fn held(table: &LockTable, session: SessionId, request: RequestId) -> Option<Items> {
    match table.request(session, request)?.state {
        RequestState::Held { items, .. } => Some(items),
        _ => None,
    }
}

/// The administrative act that a command is, if it is one.
fn act_of(command: &Command) -> Option<Act> {
    let leader = Identity::default();
    match command {
        Command::By { caller, deed } => deed_of(caller, deed),
        Command::SetScope { scope } => Some(act(&leader, Verb::Scope, scope, "set")),
        Command::RemoveScope { scope } => Some(act(&leader, Verb::Scope, scope, "removed")),
        Command::Suspend { scope } => Some(act(&leader, Verb::Scope, scope, "suspended")),
        Command::Resume { scope, epoch } => {
            Some(act(&leader, Verb::Scope, scope, &format!("resumed in epoch {epoch}")))
        }
        Command::RaiseEpoch { scope, epoch } => {
            Some(act(&leader, Verb::Scope, scope, &format!("epoch raised to {epoch}")))
        }
        _ => None,
    }
}

fn deed_of(caller: &Caller, deed: &Deed) -> Option<Act> {
    let by = &caller.identity;
    Some(match deed {
        Deed::OpenSession { .. }
        | Deed::OwnSession { .. }
        | Deed::Import { .. }
        | Deed::LengthenImports { .. }
        | Deed::Advance { .. } => return None,
        Deed::SetScope { scope } => act(by, Verb::Scope, scope, "set"),
        Deed::RemoveScope { scope } => act(by, Verb::Scope, scope, "removed"),
        Deed::Rule { change } => rule(by, change),
        Deed::EndSession { session, reason, now } => {
            act(by, revoke(*now), &format!("session {session}"), reason.as_str())
        }
        Deed::CutOff { identity, reason, now } => {
            act(by, revoke(*now), identity, &format!("cut off: {}", reason.as_str()))
        }
        Deed::CloseHolds { lock, reason, now, .. } => {
            let verb = if *now { Verb::Now } else { Verb::Force };
            act(by, verb, lock, reason.as_str())
        }
        Deed::SetLimit { lock, limit } => {
            let limit = limit.map_or("no limit".to_owned(), |limit| limit.to_string());
            act(by, Verb::Limit, lock, &limit)
        }
        Deed::Freeze { prefix, message } => {
            act(by, Verb::Freeze, prefix, &format!("frozen: {}", message.as_str()))
        }
        Deed::Thaw { prefix } => act(by, Verb::Freeze, prefix, "thawed"),
        Deed::BeginSequence { sequence, at } => {
            act(by, Verb::Sequence, sequence, &format!("begins at {at}"))
        }
    })
}

fn revoke(now: bool) -> Verb {
    if now { Verb::Now } else { Verb::Revoke }
}

fn rule(by: &Identity, change: &RuleChange) -> Act {
    let (on, detail) = match change {
        RuleChange::Turn { on } => {
            ("rules".to_owned(), if *on { "turned on" } else { "turned off" }.to_owned())
        }
        RuleChange::SetRole { role, rights } => {
            (format!("role {role}"), format!("set, with {} rights", rights.len()))
        }
        RuleChange::RemoveRole { role } => (format!("role {role}"), "removed".to_owned()),
        RuleChange::SetRoles { identity, roles } => {
            let roles: Vec<String> = roles.iter().map(ToString::to_string).collect();
            (identity.to_string(), format!("has the roles {}", roles.join(", ")))
        }
        RuleChange::CreateToken { name, .. } => (format!("token {name}"), "made".to_owned()),
        RuleChange::RevokeToken { name } => (format!("token {name}"), "revoked".to_owned()),
        RuleChange::SetQuota { identity, .. } => {
            let whose = identity.as_ref().map_or("everybody".to_owned(), ToString::to_string);
            (whose, "quota set".to_owned())
        }
    };
    act(by, Verb::Rules, &on, &detail)
}

fn act(by: &Identity, verb: Verb, on: &dyn ToString, detail: &str) -> Act {
    Act {
        by: by.clone(),
        verb: verb.name().to_owned(),
        on: on.to_string(),
        detail: detail.to_owned(),
    }
}
