//! `holdfast auth`: who may do what.

use std::time::Duration;

use clap::{Args, Subcommand};
use holdfast::{Admin, AuthStatus, Right, Rules};
use holdfast_cli::block_on;
use holdfast_runtime::Runtime;
use serde_json::{Value, json};

use crate::args::{EndArgs, Global, duration};
use crate::failure::Failure;
use crate::quota::{self, QuotaCommand};
use crate::{cut_off, show};

/// The exit code of `auth test` for an identity that may not.
const MAY_NOT: u8 = 1;
/// Added where members may connect without TLS.
const PASSED_BY: &str = "\nwarning: the port for members takes connections without TLS: whoever reaches it acts past all \
                         rules (tls_cert, and no insecure)";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum AuthCommand {
    /// Whether the rules are on, and who the servers take you for.
    Status,
    /// Turn the rules on: from then on only what a role grants is allowed.
    ///
    /// Give yourself a role with the verb `rules` before, or be named among the `admins` of the settings.
    Enable,
    /// Turn the rules off: everybody who can connect may do everything.
    Disable,
    /// Roles: what each allows.
    #[command(subcommand)]
    Role(RoleCommand),
    /// Give an identity these roles, and take all others from it.
    Assign {
        /// token:NAME, uri:NAME, dns:NAME, cn:NAME, uid:NUMBER, or anonymous.
        identity: String,
        /// The roles; none: it has no right any more. What it holds or waits for stays.
        roles: Vec<String>,
    },
    /// Bearer tokens, each with an identity of its own: token:NAME.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Quotas: how much an identity may have.
    #[command(subcommand)]
    Quota(QuotaCommand),
    /// Cut an identity off: take its roles, its token if it is one, and end its sessions.
    ///
    /// Its locks pass on when its clients have let go, or their leases have run out; its clients are told.
    /// An administrator in the settings of the servers cannot be cut off. Needs the verb `revoke`.
    Revoke {
        /// The identity.
        identity: String,
        #[command(flatten)]
        how: EndArgs,
    },
    /// Whether an identity may do something. Exit codes: 0 it may; 1 it may not.
    Test {
        /// The identity.
        identity: String,
        /// The verb.
        verb: String,
        /// A lock's name, or a prefix, of a verb that has names.
        name: Option<String>,
    },
}

/// Of `auth role`.
#[derive(Debug, Subcommand)]
pub(crate) enum RoleCommand {
    /// Make a role, or give one other rights.
    Set {
        /// Its name.
        role: String,
        /// All that it allows, each as VERB:PREFIX, or as VERB for all names: acquire, read, history, import,
        /// scope, force, limit, freeze, sequence; without a prefix status, metrics, reflect, members, rules, revoke, now, backup.
        #[arg(required = true, value_parser = right)]
        rights: Vec<Right>,
    },
    /// Remove a role that no identity has.
    Remove {
        /// Its name.
        role: String,
    },
    /// Every role, and who has it.
    List,
}

/// Of `auth token`.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print it, this once: the servers keep its SHA-256 only.
    ///
    /// Keep it in a file that its owner alone can read, and name that with --token-file.
    Create(CreateArgs),
    /// Every token, without its secret.
    List,
    /// Remove a token and the roles of its owner.
    ///
    /// Requests with it are refused from then on, and what is connected with it is cut. The locks of its
    /// owner pass on when the leases have run out: `auth revoke token:NAME` also tells the clients at once.
    Revoke {
        /// Its name.
        name: String,
    },
}

/// Of `auth token create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Its name.
    name: String,
    /// A role of its owner; may be repeated.
    #[arg(long = "role", required = true)]
    roles: Vec<String>,
    /// It is not taken any more after this long, e.g. 720h [default: it has no end].
    #[arg(long, value_parser = duration)]
    lasts: Option<Duration>,
}

fn right(text: &str) -> Result<Right, String> {
    let (verb, prefix) = text.split_once(':').unwrap_or((text, ""));
    if verb.is_empty() {
        return Err("write VERB or VERB:PREFIX, as acquire:jobs/".to_owned());
    }
    Ok(Right { verb: verb.to_owned(), prefix: prefix.to_owned() })
}

/// `holdfast auth`.
pub(crate) fn run(global: &Global, command: &AuthCommand, limit: Duration) -> Result<u8, Failure> {
    let admin = global.builder()?.admin(limit)?;
    let done = block_on(answer(&admin, command, global.json))?;
    let (code, text) = done.map_err(|error: holdfast::Error| Failure::from(error))?;
    show::line(text);
    Ok(code)
}

type Answered = Result<(u8, String), holdfast::Error>;

/// For programs, or for people.
fn said(as_json: bool, json: &Value, text: String) -> String {
    if as_json { json.to_string() } else { text }
}

async fn answer(admin: &Admin, command: &AuthCommand, as_json: bool) -> Answered {
    match command {
        AuthCommand::Status => Ok((0, status(&admin.auth_status().await?, as_json))),
        AuthCommand::Enable => turn(admin, true, as_json).await,
        AuthCommand::Disable => turn(admin, false, as_json).await,
        AuthCommand::Role(command) => role(admin, command, as_json).await,
        AuthCommand::Token(command) => token(admin, command, as_json).await,
        AuthCommand::Assign { identity, roles } => {
            admin.set_roles(identity, roles).await?;
            let has = if roles.is_empty() { "no role".to_owned() } else { roles.join(" ") };
            let text = format!("{} has {}", show::escaped(identity), show::escaped(&has));
            Ok((0, said(as_json, &json!({ "identity": identity, "roles": roles }), text)))
        }
        AuthCommand::Quota(command) => {
            let (json, text) = quota::run(admin, command).await?;
            Ok((0, said(as_json, &json, text)))
        }
        AuthCommand::Revoke { identity, how } => {
            let (json, text) = cut_off::identity(admin, identity, how).await?;
            Ok((0, said(as_json, &json, text)))
        }
        AuthCommand::Test { identity, verb, name } => {
            let missing = admin.test_right(identity, verb, name.as_deref()).await?;
            let (code, text) = match &missing {
                None => (0, "allowed".to_owned()),
                Some(missing) => (MAY_NOT, format!("not allowed: {}", show::escaped(missing))),
            };
            let json = json!({ "allowed": code == 0, "missing": missing });
            Ok((code, said(as_json, &json, text)))
        }
    }
}

async fn turn(admin: &Admin, on: bool, as_json: bool) -> Answered {
    admin.turn_rules(on).await?;
    if !on {
        let text = "the rules are off: everything is allowed".to_owned();
        return Ok((0, said(as_json, &json!({ "on": false }), text)));
    }
    // The rules are on, whether or not anybody answers this.
    let passed_by = admin.auth_status().await.is_ok_and(|status| status.members_without_tls);
    let mut text = "the rules are on: only what a role grants is allowed".to_owned();
    if passed_by {
        text += PASSED_BY;
    }
    Ok((0, said(as_json, &json!({ "on": true, "members_without_tls": passed_by }), text)))
}

async fn role(admin: &Admin, command: &RoleCommand, as_json: bool) -> Answered {
    match command {
        RoleCommand::Set { role, rights } => {
            admin.set_role(role, rights).await?;
            let all = rights.iter().map(right_text).collect::<Vec<_>>();
            let text = format!("the role {} allows {}", show::escaped(role), all.join(" "));
            Ok((0, said(as_json, &json!({ "role": role, "rights": all }), text)))
        }
        RoleCommand::Remove { role } => {
            admin.remove_role(role).await?;
            let text = format!("there is no role {} any more", show::escaped(role));
            Ok((0, said(as_json, &json!({ "role": role, "is": "removed" }), text)))
        }
        RoleCommand::List => Ok((0, list_roles(&admin.rules().await?, as_json))),
    }
}

async fn token(admin: &Admin, command: &TokenCommand, as_json: bool) -> Answered {
    match command {
        TokenCommand::Create(CreateArgs { name, roles, lasts }) => {
            let secret = admin.create_token(name, roles, *lasts).await?;
            let json = json!({ "token": secret, "identity": format!("token:{name}") });
            Ok((0, said(as_json, &json, secret)))
        }
        TokenCommand::Revoke { name } => {
            admin.revoke_token(name).await?;
            let text = format!("the token {} is revoked", show::escaped(name));
            Ok((0, said(as_json, &json!({ "token": name, "is": "revoked" }), text)))
        }
        TokenCommand::List => Ok((0, list_tokens(&admin.rules().await?, as_json))),
    }
}

fn right_text(right: &Right) -> String {
    if right.prefix.is_empty() {
        right.verb.clone()
    } else {
        format!("{}:{}", right.verb, show::escaped(&right.prefix))
    }
}

fn status(status: &AuthStatus, as_json: bool) -> String {
    let AuthStatus { on, identity, is_admin, admins, members_without_tls, .. } = status;
    if as_json {
        return json!({
            "on": on,
            "identity": identity,
            "is_admin": is_admin,
            "admins": admins,
            "members_without_tls": members_without_tls,
        })
        .to_string();
    }
    let admin = if *is_admin { ", an administrator of the leader's settings" } else { "" };
    let state = if *on { "on" } else { "off: everybody who can connect may do everything" };
    let mut text = format!("you are {}{admin}\nthe rules are {state}", show::escaped(identity));
    if !admins.is_empty() {
        text += "\nadministrators: ";
        text += &show::escaped(&admins.join(", "));
    }
    if *members_without_tls {
        text += PASSED_BY;
    }
    text
}

fn list_roles(rules: &Rules, as_json: bool) -> String {
    let owners = |role: &str| -> Vec<&str> {
        let has = rules.identities.iter().filter(|(_, roles)| roles.iter().any(|has| has == role));
        has.map(|(identity, _)| identity.as_str()).collect()
    };
    if as_json {
        let role = |role: &holdfast::Role| {
            let rights: Vec<_> = role.rights.iter().map(right_text).collect();
            json!({ "role": role.name, "rights": rights, "identities": owners(&role.name) })
        };
        return json!(rules.roles.iter().map(role).collect::<Vec<_>>()).to_string();
    }
    let row = |role: &holdfast::Role| {
        let rights: Vec<_> = role.rights.iter().map(right_text).collect();
        vec![
            show::escaped(&role.name),
            rights.join(" "),
            show::escaped(&owners(&role.name).join(" ")),
        ]
    };
    show::table(&["ROLE", "ALLOWS", "WHO HAS IT"], rules.roles.iter().map(row))
}

/// How far the end of a token is, by this machine's clock.
fn ends(ends_ms: u64) -> String {
    let left_ms = ends_ms.saturating_sub(Runtime::system().clock.wall_ms());
    match left_ms {
        0 => "has ended".to_owned(),
        left_ms => format!("in {}", show::length(Duration::from_millis(left_ms))),
    }
}

fn list_tokens(rules: &Rules, as_json: bool) -> String {
    let roles_of = |name: &str| -> String {
        let owner = format!("token:{name}");
        let found = rules.identities.iter().find(|(identity, _)| *identity == owner);
        found.map(|(_, roles)| roles.join(" ")).unwrap_or_default()
    };
    if as_json {
        let token = |token: &holdfast::TokenInfo| {
            let given = roles_of(&token.name);
            json!({ "token": token.name, "ends_ms": token.ends_ms, "roles": given })
        };
        return json!(rules.tokens.iter().map(token).collect::<Vec<_>>()).to_string();
    }
    let row = |token: &holdfast::TokenInfo| {
        vec![
            show::escaped(&token.name),
            show::escaped(&roles_of(&token.name)),
            token.ends_ms.map_or_else(|| "-".to_owned(), ends),
        ]
    };
    show::table(&["TOKEN", "ROLES", "ENDS"], rules.tokens.iter().map(row))
}
