//! How a client comes back after its server is gone: neither all clients at once, nor again and again.

use holdfast_runtime::simulated;

use super::*;

/// How the follower that a client asks answers while there is no leader.
fn no_leader() -> Body {
    Body::Redirect(v1::Redirect { leader: None })
}

/// SC1: every member answers, and has an election to hold.
#[tokio::test(start_paused = true)]
async fn while_members_elect_a_leader_a_client_asks_a_few_times_and_not_all_of_them_at_once() {
    let mut net = Net::new();
    let (_client, server, guard) = holding(&mut net).await;
    drop(server);
    let broken = net.runtime.clock.now();

    let mut asked = Vec::new();
    while net.runtime.clock.now().saturating_since(broken) < ms(2_000) {
        let mut follower = net.accept().await;
        follower.open().await;
        asked.push(net.runtime.clock.now());
        follower.say(no_leader()).await;
    }
    // After pauses of 50, 100, 200, 400 and then 500 ms, each up to one half shorter.
    assert!((5..=12).contains(&asked.len()), "{} times in two seconds", asked.len());
    let pauses = asked.windows(2).map(|pair| pair[1].saturating_since(pair[0]));
    assert!(pauses.min() >= Some(ms(25)), "there is a pause from the first answer on");

    let _server = net.accept_resume(vec![state_granted(1, 41)], 2).await;
    assert!(guard.is_safe());
}

/// The answer of a leader to which too many clients come back.
fn come_back_after(millis: u64) -> Body {
    let refusal = scripted::refusal(v1::RefusalReason::Unavailable, "too many come back");
    let refusal = v1::Refusal { retry_after_ms: Some(millis), ..refusal };
    Body::Refused(v1::Refused { subject: None, refusal: Some(refusal) })
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_told_when_its_turn_comes_is_back_at_that_server_then() {
    let mut net = Net::new();
    let (_client, server, guard) = holding(&mut net).await;
    drop(server);
    let mut leader = net.accept().await;
    assert!(leader.open().await.resume.is_some());
    leader.say(come_back_after(1_500)).await;
    let told = net.runtime.clock.now();

    let server = net.accept_resume(vec![state_granted(1, 41)], 2).await;
    let after = net.runtime.clock.now().saturating_since(told);
    assert_eq!(server.endpoint, leader.endpoint, "it leads");
    assert!((ms(1_490)..ms(1_900)).contains(&after), "{after:?}");
    assert!(guard.is_safe());
}

/// SC1: the clients of one server notice at the same moment that it is gone.
#[tokio::test(start_paused = true)]
async fn clients_of_a_server_with_many_clients_spread_their_return_and_lose_nothing_by_it() {
    for (spread_ms, at_most) in [(0, ms(2)), (800, ms(802)), (3_600_000, TTL / 8 + ms(2))] {
        let mut returned = Vec::new();
        for seed in 1..=8 {
            let mut net = Net::new();
            net.runtime = simulated::runtime(seed, 0);
            let (client, mut server, guard) = holding(&mut net).await;
            let seq = server.keepalive().await;
            let kept = v1::KeptAlive { seq, spread_ms, ..v1::KeptAlive::default() };
            server.say(Body::KeptAlive(kept)).await;
            drop(server);
            let left = net.runtime.clock.now();
            let server = net.accept_resume(vec![state_granted(1, 41)], 2).await;
            returned.push(net.runtime.clock.now().saturating_since(left));
            assert!(guard.is_safe());
            drop((client, server, guard));
        }
        let (first, last) = (returned.iter().min().unwrap(), returned.iter().max().unwrap());
        assert!(*last <= at_most, "{returned:?}");
        assert!(spread_ms == 0 || *last > *first + at_most / 4, "{returned:?}");
    }
}
