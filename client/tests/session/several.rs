//! Shared locks, several names at once, and whichever of them are free.

use futures_util::FutureExt;
use holdfast::{Acquire, Client, Error, Guard, LockItem, LostReason, Mode, RefusalReason};
use holdfast_proto::v1::{self, refused::Subject, server_frame::Body};

use super::scripted::{
    Net, SAFE, Server, granted_names, ms, refusal, refused, released, released_names,
    state_granted_names, texts,
};
use super::start;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// A client that holds `a`, `b` and `c` under token 41, as request 1.
async fn holding_three(net: &mut Net) -> (Client, Server, Guard) {
    let (client, mut server) = net.connected().await;
    let guard = granted_as(net, &mut server, client.lock_all(NAMES), &NAMES).await;
    (client, server, guard.unwrap())
}

/// The result of an acquire that is granted under token 41 with these names.
async fn granted_as(
    net: &Net,
    server: &mut Server,
    acquire: Acquire,
    names: &[&str],
) -> holdfast::Result<Guard> {
    let (_task, outcome) = start(net, acquire);
    let id = server.acquire().await.request_id;
    server.say(granted_names(id, 41, names)).await;
    outcome.await.unwrap()
}

fn asked(acquire: &v1::Acquire) -> Vec<(String, v1::Mode)> {
    let item = |item: &v1::Item| (String::from_utf8_lossy(&item.name).into_owned(), item.mode());
    acquire.items.iter().map(item).collect()
}

#[tokio::test(start_paused = true)]
async fn a_set_is_one_request_with_a_mode_for_each_name() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let items = [LockItem::exclusive("a"), LockItem::shared("b")];
    let (_task, outcome) = start(&net, client.lock_all(items));

    let acquire = server.acquire().await;
    assert_eq!(
        asked(&acquire),
        [("a".into(), v1::Mode::Exclusive), ("b".into(), v1::Mode::Shared)]
    );
    assert!(acquire.wait && acquire.any.is_none());
    server.say(granted_names(1, 41, &["a", "b"])).await;

    let guard = outcome.await.unwrap().unwrap();
    assert!(guard.names().eq(["a", "b"]));
    assert_eq!(
        (guard.lock("a").mode(), guard.lock("b").mode()),
        (Some(Mode::Exclusive), Some(Mode::Shared))
    );
    assert_eq!((guard.name(), guard.lock("c").mode(), guard.holds("c")), ("a", None, false));
}

#[tokio::test(start_paused = true)]
async fn a_shared_acquire_shares_every_name_it_has() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;

    let _place = client.try_lock_all(["a", "b"]).shared().into_future();

    let acquire = server.acquire().await;
    assert_eq!(asked(&acquire), [("a".into(), v1::Mode::Shared), ("b".into(), v1::Mode::Shared)]);
    assert!(!acquire.wait);
}

/// The batch of the Scylla article: busy keys are not part of the guard.
#[tokio::test(start_paused = true)]
async fn a_guard_of_any_holds_what_the_grant_names_and_not_what_was_asked() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.any_of(NAMES));
    let acquire = server.acquire().await;
    assert_eq!((acquire.any, acquire.wait), (Some(v1::AnyOf { min: 1 }), true));

    server.say(granted_names(1, 41, &["c", "a"])).await;

    let guard = outcome.await.unwrap().unwrap();
    assert!(guard.names().eq(["a", "c"]), "{guard:?}");
    assert!(guard.holds("c") && !guard.holds("b"));
}

#[tokio::test(start_paused = true)]
async fn a_grant_of_nothing_that_was_asked_for_is_given_back() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;

    let error = granted_as(&net, &mut server, client.any_of(NAMES), &["x"]).await.unwrap_err();

    assert!(matches!(error, Error::Refused { reason: RefusalReason::Protocol, .. }), "{error}");
    assert_eq!(server.release().await, 41);
}

#[tokio::test(start_paused = true)]
async fn any_of_what_is_free_now_never_waits() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.try_any_of(NAMES).answered_within(ms(60_000)));
    let acquire = server.acquire().await;
    assert_eq!((acquire.any, acquire.wait), (Some(v1::AnyOf { min: 0 }), false));

    let refusal = Some(refusal(v1::RefusalReason::NothingFree, "nothing is free"));
    server.say(Body::Denied(v1::Denied { request_id: 1, refusal })).await;

    let error = outcome.await.unwrap().unwrap_err();
    assert!(matches!(&error, Error::NotGranted { names, .. } if names == &NAMES), "{error}");
    assert!(error.may_retry());
}

#[tokio::test(start_paused = true)]
async fn what_no_server_would_take_is_refused_here_in_its_words() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let many = (0..65).map(|number| format!("n{number}"));
    let wrong = [
        (client.lock_all(["a", "b", "a"]), "a is named twice in one request"),
        (
            client.lock_all([LockItem::exclusive("a"), LockItem::shared("a")]),
            "a is asked for both exclusive and shared; ask for it once",
        ),
        (client.lock_all(many), "65 names are more than the 64 allowed in one request"),
        (client.lock_all(Vec::<String>::new()), "a request names at least one lock"),
    ];

    for (acquire, words) in wrong {
        let error = acquire.await.unwrap_err();
        assert_eq!(error.to_string(), format!("refused: {words}"));
        assert!(!error.may_retry() || words.contains("64"), "{error}");
    }
    server.keep_alive_for(ms(3_000)).await;
}

#[tokio::test(start_paused = true)]
async fn names_that_are_given_back_leave_the_others_held() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding_three(&mut net).await;
    let mut release = Box::pin(guard.release_names(["c", "a"]));

    assert!((&mut release).now_or_never().is_none());
    assert!(guard.names().eq(["b"]), "none of ours before anything was sent");
    assert!(guard.holds("b") && !guard.holds("a"));
    assert_eq!(server.release_of_names().await, (41, vec!["a".into(), "c".into()]));
    server.say(released_names(1, 41, &["a", "c"])).await;

    assert_eq!(release.await, Ok(()));
    assert!(guard.is_safe());
    drop(guard);
    assert_eq!(server.release_of_names().await, (41, vec![]), "what is left, whole");
}

#[tokio::test(start_paused = true)]
async fn the_last_names_given_back_are_the_whole() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding_three(&mut net).await;
    let mut release = Box::pin(guard.release_names(["a", "b", "c", "a"]));

    assert!((&mut release).now_or_never().is_none());
    assert!(!guard.is_safe());
    assert_eq!(server.release_of_names().await, (41, vec![]));
    server.say(released(1, 41)).await;

    assert_eq!(release.await, Ok(()));
}

/// On the wire an empty list means everything.
#[tokio::test(start_paused = true)]
async fn no_names_give_back_nothing() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding_three(&mut net).await;

    assert_eq!(guard.release_names(Vec::<&str>::new()).await, Ok(()));

    assert!(guard.names().eq(NAMES));
    server.keep_alive_for(ms(3_000)).await;
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_not_ours_is_refused_and_gives_back_nothing() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding_three(&mut net).await;

    let error = guard.release_names(["a", "x"]).await.unwrap_err();

    assert_eq!(error.to_string(), "refused: x is not held by this guard");
    assert!(guard.names().eq(NAMES));
    server.keep_alive_for(ms(3_000)).await;
}

/// DESIGN §5.6 for a part of a set, and §6: one way heals all.
#[tokio::test(start_paused = true)]
async fn a_part_that_the_state_still_shows_is_given_back_again_and_never_revived() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding_three(&mut net).await;
    let mut release = Box::pin(guard.release_names(["a"]));
    assert!((&mut release).now_or_never().is_none());
    server.release().await;
    drop(server);

    let mut server = net.accept_resume(vec![state_granted_names(1, 41, &NAMES)], 2).await;

    assert!(guard.names().eq(["b", "c"]));
    assert_eq!(server.release_of_names().await, (41, vec!["a".into()]));
    server.say(refused(Some(Subject::Token(41)), v1::RefusalReason::NotHolder)).await;
    assert_eq!(release.await, Ok(()), "the first copy had done it");
    assert!(guard.holds("b"), "a part that is gone says nothing about the rest");
}

#[tokio::test(start_paused = true)]
async fn a_part_asked_while_no_server_was_there_is_given_back_after_the_resume() {
    let mut net = Net::new();
    let (_client, server, guard) = holding_three(&mut net).await;
    drop(server);
    let mut release = Box::pin(guard.release_names(["b"]));
    assert!((&mut release).now_or_never().is_none());

    let mut server = net.accept_resume(vec![state_granted_names(1, 41, &NAMES)], 2).await;

    assert_eq!(server.release_of_names().await, (41, vec!["b".into()]));
    server.say(released_names(1, 41, &["b"])).await;
    assert_eq!(release.await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_part_found_done_in_the_state_is_done() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding_three(&mut net).await;
    let mut release = Box::pin(guard.release_names(["a"]));
    assert!((&mut release).now_or_never().is_none());
    server.release().await;
    drop(server);

    let mut server = net.accept_resume(vec![state_granted_names(1, 41, &["b", "c"])], 2).await;

    assert_eq!(release.await, Ok(()));
    assert!(guard.names().eq(["b", "c"]) && guard.is_safe());
    server.keep_alive_for(ms(3_000)).await;
}

#[tokio::test(start_paused = true)]
async fn the_whole_given_back_over_a_part_is_sent_again_alone_and_answers_both() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding_three(&mut net).await;
    let mut part = Box::pin(guard.release_names(["a"]));
    assert!((&mut part).now_or_never().is_none());
    server.release().await;
    drop(part);
    let mut whole = Box::pin(guard.release());
    assert!((&mut whole).now_or_never().is_none());
    drop(server);

    let mut server = net.accept_resume(vec![state_granted_names(1, 41, &NAMES)], 2).await;

    assert_eq!(server.release_of_names().await, (41, vec![]));
    server.say(released(1, 41)).await;
    assert_eq!(whole.await, Ok(()));
}

/// DESIGN §4, values: the part was given back in time, and only the values of the rest are suspect.
#[tokio::test(start_paused = true)]
async fn a_part_given_back_in_time_is_given_back_before_the_rest_that_is_lost() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding_three(&mut net).await;
    let mut part = Box::pin(guard.release_names(["a"]));
    assert!((&mut part).now_or_never().is_none());
    server.release().await;
    net.runtime.sleep(SAFE).await;
    assert!(!guard.is_safe());
    drop(server);

    let mut server = net.accept_resume(vec![state_granted_names(1, 41, &NAMES)], 2).await;

    let first = server.release_frame().await;
    assert_eq!((texts(&first.names), first.lost), (vec!["a".into()], false));
    let second = server.release_frame().await;
    assert_eq!((texts(&second.names), second.lost), (vec![], true));
    server.say(released_names(2, 41, &["a"])).await;
    assert_eq!(part.await, Ok(()));
}

/// I23, I14: a set without one of its names is no set.
#[tokio::test(start_paused = true)]
async fn a_name_missing_from_the_state_loses_the_whole_guard_and_gives_back_the_rest() {
    let mut net = Net::new();
    let (_client, server, guard) = holding_three(&mut net).await;
    drop(server);

    let mut server = net.accept_resume(vec![state_granted_names(1, 41, &["a", "b"])], 2).await;

    assert!(!guard.is_safe() && !guard.holds("a"));
    assert_eq!(guard.lost().await, LostReason::Revoked);
    assert_eq!(server.release_of_names().await, (41, vec![]));
}

/// DESIGN §5.6 for sets.
#[tokio::test(start_paused = true)]
async fn a_set_whose_deadline_passed_is_lost_for_ever_whatever_a_state_shows() {
    let mut net = Net::new();
    let (_client, server, guard) = holding_three(&mut net).await;
    net.runtime.sleep(SAFE).await;
    assert!(!guard.is_safe());
    drop(server);

    let mut server = net.accept_resume(vec![state_granted_names(1, 41, &NAMES)], 2).await;

    assert_eq!(server.release_of_names().await, (41, vec![]));
    assert!(!guard.is_safe() && !guard.holds("a"));
    assert_eq!(
        guard.release_names(["a"]).await,
        Err(Error::Lost { reason: LostReason::DeadlinePassed })
    );
}

#[tokio::test(start_paused = true)]
async fn a_part_whose_session_ends_is_lost_with_the_rest() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding_three(&mut net).await;
    let mut part = Box::pin(guard.release_names(["a"]));
    assert!((&mut part).now_or_never().is_none());
    let ended =
        v1::SessionEnded { reason: v1::LostReason::SessionExpired.into(), why: String::new() };
    server.say(Body::SessionEnded(ended)).await;

    assert_eq!(part.await, Err(Error::Lost { reason: LostReason::SessionExpired }));
    assert_eq!(guard.lost().await, LostReason::SessionExpired);
}

#[tokio::test(start_paused = true)]
async fn a_request_for_any_is_sent_again_as_it_was() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, _outcome) = start(&net, client.any_of(NAMES).shared());
    let first = server.acquire().await;
    drop(server);

    let mut server = net.accept_resume(vec![], 1).await;

    let again = server.acquire().await;
    assert_eq!(again, first);
    let names: Vec<_> = again.items.iter().map(|item| item.name.clone()).collect();
    assert_eq!(texts(&names), NAMES);
}

#[tokio::test(start_paused = true)]
async fn a_floor_goes_with_the_request_and_one_that_makes_no_sense_is_refused_here() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.any_of(NAMES).at_least(2));
    let any = server.acquire().await.any.unwrap();
    assert_eq!(any.min, 2);
    server.say(granted_names(1, 41, &NAMES[..2])).await;
    assert_eq!(outcome.await.unwrap().unwrap().names().count(), 2);

    let (some, all) = (|| client.any_of(NAMES), client.lock_all(NAMES).at_least(2).await);
    let above = u32::try_from(NAMES.len()).unwrap() + 1;
    for refused in [all, some().at_least(0).await, some().at_least(above).await] {
        let refused = refused.unwrap_err();
        let is_invalid = matches!(refused, Error::Refused { reason: RefusalReason::Invalid, .. });
        assert!(is_invalid, "{refused:?}");
    }
}
