//! Scopes over a real connection: set, listed, refused by name.

use holdfast_core::ScopePrefix;
use holdfast_proto::v1::scope_service_client::ScopeServiceClient;
use holdfast_proto::v1::{ListScopesRequest, RemoveScopeRequest, SetScopeRequest};

use super::*;

async fn client(node: &Node) -> ScopeServiceClient<Channel> {
    ScopeServiceClient::new(node.channel().await)
}

/// Without the setting nothing could ever be granted in the scope.
#[tokio::test]
async fn a_scope_is_not_set_where_nobody_knows_of_a_fallback() {
    let node = node().await;
    node.hub.keep_scopes(None);
    let set = SetScopeRequest { scope: "pay/".to_owned() };
    let status = client(&node).await.set_scope(set).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("[fallback]"), "{status}");
    let listed = client(&node).await.list_scopes(ListScopesRequest {}).await.unwrap().into_inner();
    assert!(listed.scopes.is_empty() && !listed.has_fallback);
}

#[tokio::test]
async fn a_prefix_that_is_none_is_refused_and_a_node_that_follows_says_who_leads() {
    let node = node().await;
    for (scope, why) in
        [("", "cannot be empty"), ("a\n", "U+000A"), (&"x".repeat(129), "129 bytes")]
    {
        let set = SetScopeRequest { scope: scope.to_owned() };
        let status = client(&node).await.set_scope(set).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(why), "{status}");
    }
    node.fake.follow(Some("leader:7420"));
    let remove = RemoveScopeRequest { scope: "pay/".to_owned() };
    let status = client(&node).await.remove_scope(remove).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.metadata().get("holdfast-leader").unwrap(), "leader:7420");
}

#[tokio::test]
async fn scopes_are_listed_and_shown_with_a_lock_and_one_that_is_not_there_is_removed_already() {
    let node = node().await;
    let scope = ScopePrefix::parse("pay/").unwrap();
    node.fake.commit(Command::SetScope { scope: scope.clone() }, Tenure::new(1));
    node.fake.commit(Command::Resume { scope, epoch: 1 }, Tenure::new(1));
    node.hold(&["pay/1"]);
    let listed = client(&node).await.list_scopes(ListScopesRequest {}).await.unwrap().into_inner();
    let [scope] = &listed.scopes[..] else { panic!("{listed:?}") };
    assert_eq!((scope.scope.as_str(), scope.epoch, scope.suspended), ("pay/", 1, false));
    let inspect = InspectRequest { name: "pay/1".to_owned() };
    let shown = node.client().await.inspect(inspect).await.unwrap().into_inner().lock.unwrap();
    assert_eq!(shown.scope.map(|scope| (scope.prefix, scope.epoch)), Some(("pay/".to_owned(), 1)));

    let remove = |scope: &str| RemoveScopeRequest { scope: scope.to_owned() };
    client(&node).await.remove_scope(remove("other/")).await.unwrap();
    let status = client(&node).await.remove_scope(remove("pay/")).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "nobody could retire its row");
}
