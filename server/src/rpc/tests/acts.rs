//! Administrative acts: which are carried out, and what the log has of them (DESIGN §14).

use holdfast_core::{Identity, RuleChange, Verb};
use holdfast_proto::v1;
use holdfast_proto::v1::auth_service_client::AuthServiceClient;
use holdfast_proto::v1::change_rules_request::Change;
use holdfast_proto::v1::cluster_service_client::ClusterServiceClient;
use holdfast_proto::v1::import_row::Has;

use super::rights::with;
use super::*;
use crate::captured_log::Log;

fn change(change: Change) -> v1::ChangeRulesRequest {
    v1::ChangeRulesRequest { change: Some(change) }
}

fn revoke(identity: &str) -> v1::RevokeRequest {
    v1::RevokeRequest { identity: identity.to_owned(), reason: "test".to_owned(), now: false }
}

fn close(name: &str) -> v1::CloseHoldsRequest {
    let (name, reason) = (name.to_owned(), "test".to_owned());
    v1::CloseHoldsRequest { name, token: None, reason, now: false }
}

fn import(name: &str) -> v1::ImportRequest {
    let has = Some(Has::Hold(v1::ImportHold::default()));
    let row = v1::ImportRow { name: name.as_bytes().to_vec().into(), has };
    let group = v1::ImportGroup { owner: "old".to_owned(), remaining_ms: 60_000, rows: vec![row] };
    v1::ImportRequest { groups: vec![group] }
}

impl Node {
    async fn auth(&self) -> AuthServiceClient<Channel> {
        AuthServiceClient::new(self.channel().await)
    }

    /// Cuts an identity off, by the owner of a token.
    async fn cut_off(&self, by: &'static str, identity: &str) -> Result<u64, Status> {
        let answer = self.auth().await.revoke(with(revoke(identity), Some(by))).await?;
        Ok(answer.into_inner().sessions)
    }
}

/// A caller without a right asks a thousand times: it is refused and counted, and the disk does not fill.
#[tokio::test]
async fn acts_that_the_rules_refuse_are_counted_and_write_few_lines() {
    const TIMES: u64 = 250;
    let log = Log::start();
    let node = node().await;
    node.rule(RuleChange::Turn { on: true });
    let clock = node.hub.runtime().clock.clone();
    let began = clock.now();

    let (mut auth, mut locks) = (node.auth().await, node.client().await);
    for _ in 0..TIMES {
        let answers = [
            auth.change_rules(change(Change::On(false))).await.map(drop),
            auth.revoke(revoke("cn:x")).await.map(drop),
            auth.close_holds(close("jobs/1")).await.map(drop),
            locks.import(import("jobs/1")).await.map(drop),
        ];
        for answer in answers {
            assert_eq!(answer.unwrap_err().code(), Code::PermissionDenied);
        }
    }

    let seconds = clock.now().saturating_since(began).as_secs();
    let counted = node.hub.metrics().denials.counted;
    for verb in ["rules", "revoke", "force", "import"] {
        assert_eq!(counted.get_or_create(&[("verb", verb)]).get(), TIMES, "{verb}");
    }
    assert_eq!(log.lines("an administrative act"), Vec::<String>::new());
    // Ten in ten seconds.
    let refused = log.lines("a call was refused").len() as u64;
    assert!((1..=10 * (1 + seconds / 10)).contains(&refused), "{refused} lines");
}

#[tokio::test]
async fn each_act_is_logged_with_its_caller_and_with_what_came_of_it() {
    let log = Log::start();
    let node = node().await;
    node.hold(&["jobs/1"]);
    let (mut auth, mut locks) = (node.auth().await, node.client().await);
    let right = v1::Right { verb: "acquire".to_owned(), prefix: "jobs/".to_owned() };
    let role = v1::Role { name: "worker".to_owned(), rights: vec![right] };
    auth.change_rules(change(Change::SetRole(role))).await.unwrap();
    let roles = vec!["worker".to_owned()];
    let create = v1::CreateTokenRequest { name: "ci".to_owned(), roles, lasts_ms: None };
    let token = auth.create_token(create).await.unwrap().into_inner().token;
    auth.close_holds(close("jobs/1")).await.unwrap();
    let end = v1::EndSessionRequest { session_id: 1, reason: "test".to_owned(), now: false };
    auth.end_session(end).await.unwrap();
    auth.revoke(revoke("token:ci")).await.unwrap();
    locks.import(import("old/1")).await.unwrap();
    let mut members = ClusterServiceClient::new(node.channel().await);
    members.promote(v1::PromoteRequest { node_id: 9 }).await.unwrap();

    for (act, is_in_the_log) in [
        (r#"act=Rule { change: SetRole { role: "worker", rights: {Right { verb: Acquire, "#, true),
        (r#"act=Rule { change: CreateToken { name: "ci", "#, true),
        ("act=CloseHolds { lock: ", true),
        ("act=EndSession { session: ", true),
        (r#"act=CutOff { identity: "token:ci", "#, true),
        ("act=Import { groups: 1 }", false),
        ("act=Promote { node_id: 9 }", false),
    ] {
        let lines = log.lines(act);
        let [asked, done] = &lines[..] else { panic!("{act} in {}", log.text()) };
        assert!(asked.contains("is asked for") && done.contains("is done"), "{lines:?}");
        assert_eq!(done.contains(" index="), is_in_the_log, "{done}");
        let by = "by=anonymous from an unknown address";
        assert!(lines.iter().all(|line| line.contains(by)), "{lines:?}");
    }
    let roles = vec!["nobody".to_owned()];
    let odd = v1::IdentityRoles { identity: "cn:x".to_owned(), roles };
    auth.change_rules(change(Change::SetRoles(odd))).await.unwrap_err();
    let failed = log.lines("an administrative act failed");
    assert!(failed.len() == 1 && failed[0].contains("there is no role nobody"), "{failed:?}");
    assert!(!log.text().contains(&token), "a token is in the log");
}

/// The core keeps a caller from losing its own way back only; the leader asks for everybody's.
#[tokio::test]
async fn the_last_who_can_change_the_rules_is_not_cut_off_and_administrators_never_are() {
    let rules = [(Verb::Rules, "")];
    let alone = node().await;
    alone.token(1, &rules, None);
    let by = alone.token(2, &[(Verb::Revoke, "")], None);
    // Its end has come.
    alone.token(3, &rules, Some(1));
    alone.rule(RuleChange::Turn { on: true });
    let refused = alone.cut_off(by, "token:t1").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("token:t1 is the last"), "{refused}");
    alone.token(4, &rules, None);
    alone.cut_off(by, "token:t1").await.unwrap();

    let admins = [Identity::parse("cn:ops").unwrap()].into();
    let rpc = RpcSettings { admins, ..RpcSettings::default() };
    let node = node_of(SessionSettings::default(), &rpc).await;
    node.token(1, &rules, None);
    let by = node.token(2, &[(Verb::Revoke, "")], None);
    let nobody = node.token(3, &[], None);
    node.rule(RuleChange::Turn { on: true });
    node.cut_off(by, "token:t1").await.unwrap();
    let refused = node.cut_off(by, "cn:ops").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    // A caller without the right does not learn which identities are administrators.
    for identity in ["cn:ops", "cn:x"] {
        let refused = node.cut_off(nobody, identity).await.unwrap_err();
        assert_eq!(refused.message(), "not allowed: revoke", "{identity}");
    }
}

#[tokio::test]
async fn who_may_change_the_rules_is_told_that_members_need_no_tls() {
    for open in [false, true] {
        let rpc = RpcSettings { members_without_tls: open, ..RpcSettings::default() };
        let node = node_of(SessionSettings::default(), &rpc).await;
        let ops = node.token(1, &[(Verb::Rules, "")], None);
        let other = node.token(2, &[(Verb::Status, "")], None);
        node.rule(RuleChange::Turn { on: true });
        for (who, told) in [(ops, open), (other, false)] {
            let request = with(v1::AuthStatusRequest {}, Some(who));
            let status = node.auth().await.auth_status(request).await.unwrap().into_inner();
            assert_eq!(status.members_without_tls, told, "{who}");
        }
    }
}
