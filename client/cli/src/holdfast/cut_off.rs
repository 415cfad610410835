//! `holdfast session end`, `release --force` and `auth revoke`: ending what others have.

use std::time::Duration;

use holdfast::{Admin, Ending, EndingHold, FencingToken};
use holdfast_cli::block_on;
use serde_json::{Value, json};

use crate::args::{EndArgs, Global, ReleaseArgs, SessionCommand};
use crate::failure::Failure;
use crate::show;

/// What is added to every answer after `--now`.
const BROKEN: &str =
    "at once, as asked: until its client has noticed, two may hold a lock (guarantee 1 is broken)";

/// `holdfast session end`.
pub(crate) fn session(global: &Global, command: &SessionCommand) -> Result<u8, Failure> {
    let SessionCommand::End { id, how, limit } = command;
    let admin = global.builder()?.admin(limit.timeout)?;
    let within = block_on(admin.end_session(*id, &ending(how)))??;
    let json = json!({ "session": id.to_string(), "within_ms": show::millis(within) });
    let text = format!("session {id} {}", is_ending(within, how.now));
    show::either(global.json, marked(json, how.now), text);
    Ok(0)
}

/// `holdfast auth revoke`: the answer for programs, and for people.
pub(crate) async fn identity(
    admin: &Admin,
    identity: &str,
    how: &EndArgs,
) -> Result<(Value, String), holdfast::Error> {
    let sessions = admin.revoke(identity, &ending(how)).await?;
    // It is cut off, whether or not anybody answers this, or may.
    let rules_on = admin.auth_status().await.ok().map(|status| status.on);
    let text = cut_off(identity, sessions, how.now, rules_on);
    let json = json!({ "identity": identity, "sessions": sessions, "rules_on": rules_on });
    Ok((marked(json, how.now), text))
}

/// For people. Without rules nobody needs a right, so an identity that lost all may come back.
fn cut_off(identity: &str, sessions: u64, now: bool, rules_on: Option<bool>) -> String {
    let its = match sessions {
        0 => "it had no session".to_owned(),
        1 => format!("its session {}", ends("ends", now)),
        more => format!("its {more} sessions {}", ends("end", now)),
    };
    let identity = show::escaped(identity);
    match rules_on {
        Some(false) => format!(
            "{identity} has no role any more; {its}\nwarning: the rules are off, so it may connect again and do \
             everything: holdfast auth enable"
        ),
        Some(true) | None => format!("{identity} has no right any more; {its}"),
    }
}

fn ends(verb: &str, now: bool) -> String {
    if now { format!("ended {BROKEN}") } else { format!("{verb} when the lease has run out") }
}

/// `holdfast release --force`.
pub(crate) fn release(global: &Global, args: &ReleaseArgs) -> Result<u8, Failure> {
    let ReleaseArgs { name, token, how, limit, .. } = args;
    let admin = global.builder()?.admin(limit.timeout)?;
    let token = token.map(FencingToken::from_raw);
    let holds = block_on(admin.force_release(name, token, &ending(how)))??;
    let json = json!({ "name": name, "holds": holds.iter().map(hold_json).collect::<Vec<_>>() });
    let name = show::escaped(name);
    let line = |hold: &EndingHold| {
        let EndingHold { session, token, within, .. } = hold;
        format!("{name} of session {session} under token {token} {}", is_ending(*within, how.now))
    };
    let text = holds.iter().map(line).collect::<Vec<_>>().join("\n");
    show::either(global.json, marked(json, how.now), text);
    Ok(0)
}

fn hold_json(hold: &EndingHold) -> Value {
    json!({
        "session": hold.session.to_string(),
        "token": hold.token.to_string(),
        "within_ms": show::millis(hold.within),
    })
}

fn is_ending(within: Duration, now: bool) -> String {
    match within.as_millis().div_ceil(1_000) {
        _ if now => format!("is over {BROKEN}"),
        seconds => {
            format!("is ending: its locks pass on within {seconds} s, or when its client lets go")
        }
    }
}

fn ending(how: &EndArgs) -> Ending {
    let reason = how.reason.clone();
    if how.now { Ending::now(reason) } else { Ending::safely(reason) }
}

/// An answer after which two may hold a lock says so to programs too.
fn marked(mut json: Value, now: bool) -> Value {
    if let Some(fields) = json.as_object_mut() {
        fields.insert("guarantee_1_broken".to_owned(), now.into());
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_rules_nobody_is_said_to_have_no_right() {
        let on = cut_off("cn:app", 1, false, Some(true));
        assert_eq!(on, "cn:app has no right any more; its session ends when the lease has run out");
        assert_eq!(cut_off("cn:app", 1, false, None), on);
        let off = cut_off("cn:app", 0, false, Some(false));
        assert!(
            off.starts_with("cn:app has no role any more; it had no session\nwarning: "),
            "{off}"
        );
    }
}
