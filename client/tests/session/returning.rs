//! How a client comes back after its server is gone: neither all clients at once, nor again and again.

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
    assert!((4..=8).contains(&asked.len()), "{} times in two seconds", asked.len());
    let pauses = asked.windows(2).map(|pair| pair[1].saturating_since(pair[0]));
    assert!(pauses.min() >= Some(ms(25)), "there is a pause from the first answer on");

    let _server = net.accept_resume(vec![state_granted(1, 41)], 2).await;
    assert!(guard.is_safe());
}
