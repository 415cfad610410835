//! The one decision answers always yes, and always no: nothing passes beside it, and nothing is refused beside it (I36).

use holdfast_core::{RuleChange, Verb};
use holdfast_mutants::{Mutant, while_armed};
use holdfast_proto::v1;

use super::rights::{Call, Owned, calls, next, stream_of, wants, with};
use super::*;

/// A caller with a session and a hold, both from before the rules were on.
struct Client {
    header: &'static str,
    session: Owned,
    token: u64,
}

impl Client {
    async fn new(node: &Node, header: &'static str, lock: &str) -> Self {
        let mut session = Owned::open(node, header).await;
        let token = session.acquire(Some(header), 1, lock).await.unwrap();
        Self { header, session, token }
    }

    /// Everything that needs a right, and whether it is refused for want of one.
    async fn told(&mut self, node: &Node) -> Vec<(&'static str, bool)> {
        let channel = node.channel().await;
        let who = Some(self.header);
        let mut told = Vec::new();
        for Call { path, send, .. } in calls() {
            told.push((path, is_forbidden(send(channel.clone(), who).await)));
        }
        let acquired = self.session.acquire(who, 7, "jobs/7").await.map(drop);
        told.push(("LockService/Acquire", is_forbidden(acquired)));
        let set = self.session.set_value(who, self.token).await;
        told.push(("LockService/SetValue", is_forbidden(set)));
        told.push(("reflection", is_forbidden(self.reflect(node).await)));
        let (_open, mut incoming) = stream_of(node, who, Ask::Open(Open::default())).await;
        told.push(("open", refuses(&next(&mut incoming).await)));
        told.push(("acquire", self.frame_is_refused(node).await));
        told
    }

    async fn reflect(&self, node: &Node) -> Result<(), Status> {
        let list = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let request = with(tokio_stream::once(list), Some(self.header));
        let mut client = ServerReflectionClient::new(node.channel().await);
        client.server_reflection_info(request).await.map(drop)
    }

    /// A stream that resumes the session, which needs no right, asks for a lock.
    async fn frame_is_refused(&self, node: &Node) -> bool {
        const REQUEST: u64 = 8;
        let key = self.session.session.clone().unwrap();
        let resume = v1::Resume {
            session_id: key.session_id,
            secret: key.secret,
            cluster_id: CLUSTER,
            ..v1::Resume::default()
        };
        let open = Open { resume: Some(resume), ..Open::default() };
        let (outgoing, mut incoming) = stream_of(node, Some(self.header), Ask::Open(open)).await;
        outgoing.send(message(Ask::Acquire(wants(REQUEST, "jobs/8")))).await.unwrap();
        loop {
            for frame in incoming.message().await.unwrap().unwrap().frames {
                match frame.body.unwrap() {
                    Body::Granted(granted) if granted.request_id == REQUEST => return false,
                    refused @ Body::Refused(_) => return refuses(&refused),
                    _ => {}
                }
            }
        }
    }
}

fn is_forbidden(answer: Result<(), Status>) -> bool {
    answer.is_err_and(|status| status.code() == Code::PermissionDenied)
}

fn refuses(answer: &Body) -> bool {
    let Body::Refused(refused) = answer else { return false };
    let refusal = refused.refusal.as_ref();
    refusal.is_some_and(|refusal| refusal.reason() == v1::RefusalReason::Forbidden)
}

/// Without the mutants the same callers get the opposite: `each_call_is_for_those_alone_who_have_its_right`.
#[test]
fn every_call_and_frame_gets_what_the_one_decision_says() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (node, mut with_all, mut with_none) = runtime.block_on(async {
        let node = node().await;
        let all: Vec<_> = Verb::ALL.into_iter().map(|verb| (verb, "")).collect();
        let with_all = Client::new(&node, node.token(1, &all, None), "jobs/1").await;
        let with_none = Client::new(&node, node.token(2, &[], None), "jobs/2").await;
        node.rule(RuleChange::Turn { on: true });
        (node, with_all, with_none)
    });

    for (mutant, client, is_refused) in [
        (Mutant::RulesAllowNothing, &mut with_all, true),
        (Mutant::RulesAllowAll, &mut with_none, false),
    ] {
        let told = while_armed(mutant, || runtime.block_on(client.told(&node)));
        let beside: Vec<_> = told.iter().filter(|(_, refused)| *refused != is_refused).collect();
        assert!(beside.is_empty(), "{mutant}: {beside:?}");
    }
}
