//! What operators import, how it runs out, and how it is claimed.

use holdfast_core::Caller;
use holdfast_mutants::{Mutant, while_armed};
use holdfast_proto::v1::import_fate::Fate;
use holdfast_proto::v1::import_row::Has;
use holdfast_proto::v1::{
    self, ImportGroup, ImportHold, ImportPlace, ImportRequest, ImportRow, Queued, RefusalReason,
};

use super::calls::{asked, refusal};
use super::*;
use crate::session::error::CallError;

const REMAINING: Duration = Duration::from_mins(1);

fn row(name: &str, has: Has) -> ImportRow {
    ImportRow { name: Bytes::copy_from_slice(name.as_bytes()), has: Some(has) }
}

fn held(name: &str) -> ImportRow {
    row(name, Has::Hold(ImportHold { value: None }))
}

fn with_value(name: &str, value: &[u8]) -> ImportRow {
    row(name, Has::Hold(ImportHold { value: Some(Bytes::copy_from_slice(value)) }))
}

fn waited_for(name: &str) -> ImportRow {
    row(name, Has::Place(ImportPlace {}))
}

fn group(owner: &str, rows: Vec<ImportRow>) -> ImportGroup {
    let remaining_ms = u64::try_from(REMAINING.as_millis()).unwrap();
    ImportGroup { owner: owner.to_owned(), remaining_ms, rows }
}

fn claim(request_id: u64, name: &str, owner: &str) -> Ask {
    let Ask::Acquire(acquire) = acquire(request_id, name) else { unreachable!() };
    Ask::Acquire(Acquire { claim_owner: Some(owner.to_owned()), ..acquire })
}

impl World {
    async fn import(&self, groups: Vec<ImportGroup>) -> Result<Vec<Vec<Fate>>, CallError> {
        let response = self.hub.import(&ImportRequest { groups }, &Caller::default()).await?;
        let fates = |group: v1::ImportedGroup| group.rows.into_iter().map(|row| row.fate.unwrap());
        Ok(response.groups.into_iter().map(|group| fates(group).collect()).collect())
    }
}

async fn queued(client: &mut Client) -> Queued {
    match client.next().await {
        Body::Queued(queued) => queued,
        other => panic!("not queued: {other:?}"),
    }
}

/// I25.
#[tokio::test(start_paused = true)]
async fn what_is_imported_is_held_until_it_is_claimed_and_then_by_the_claimer() {
    let world = World::new().await;
    let groups = vec![
        group("old/1", vec![with_value("jobs", b"half"), held("other")]),
        group("old/2", vec![waited_for("jobs")]),
        group("old/1", vec![held("jobs")]),
    ];
    let fates = world.import(groups).await.unwrap();
    let token = |fate: &Fate| match *fate {
        Fate::Held(token) => token,
        ref other => panic!("not held: {other:?}"),
    };
    let imported = token(&fates[0][0]);
    assert_eq!(fates[1], [Fate::Queued(0)]);
    assert_eq!(fates[2], [Fate::Known(v1::ImportKnown {})]);

    let (mut waiter, _) = world.session().await;
    waiter.send(acquire(1, "jobs")).await;
    let place = queued(&mut waiter).await;
    assert_eq!(place.place, 1, "behind who waited in the other store");
    assert!(place.holders[0].imported && place.holders[0].label == "old/1", "{place:?}");

    let (mut owner, _) = world.session().await;
    owner.send(claim(1, "jobs", "old/1")).await;
    let granted = owner.granted().await;

    assert!(granted.token > imported);
    assert_eq!(granted.values[0].value.as_ref().unwrap().value, &b"half"[..]);
    let Body::Contended(_) = owner.next().await else { panic!("not told of who waits") };
    let (mut second, _) = world.session().await;
    second.send(claim(1, "jobs", "old/2")).await;
    assert_eq!(queued(&mut second).await.place, 0);
    owner.send(release(granted.token)).await;
    assert!(second.granted().await.token > granted.token);
}

/// How long after now a newcomer is granted the lock.
async fn free_after(world: &World, name: &str) -> Duration {
    let begun = world.runtime.clock.now();
    let key = world.key().await;
    let granted = world.begin_acquire(asked(&key, 1, name)).await;
    let renewals = async {
        loop {
            world.runtime.sleep(TTL / 4).await;
            world.keep_alive(&key).await.unwrap();
        }
    };
    let told = async { world.runtime.timeout(REMAINING * 3, granted).await };
    let told = holdfast_runtime::select! {
        told = told => told,
        () = renewals => unreachable!(),
    };
    told.unwrap().unwrap().unwrap();
    world.runtime.clock.now().saturating_since(begun)
}

/// I25, §5.3: not before the rest of its lease is over, and within the bound after that.
#[tokio::test(start_paused = true)]
async fn what_nobody_claims_runs_out_when_it_would_have() {
    let world = World::new().await;
    world.import(vec![group("old/1", vec![held("jobs")])]).await.unwrap();
    let passed = free_after(&world, "jobs").await;
    assert!(passed >= REMAINING + MARGIN, "{passed:?}");
    assert!(passed < REMAINING + Duration::from_secs(1), "{passed:?}");
}

/// I25, B13: the owner renewed its row in the other store, and the row was imported again. Before, the import ran out while the owner could
/// still hold there.
async fn an_import_of_a_row_with_so_much_left_again_lasts_as_long(left: Duration) {
    const MEANWHILE: Duration = Duration::from_secs(50);
    let world = World::new().await;
    let rows = || vec![held("jobs"), held("mails")];
    world.import(vec![group("old/1", rows())]).await.unwrap();
    world.runtime.sleep(MEANWHILE).await;
    let known = Fate::Known(v1::ImportKnown {});
    let remaining_ms = u64::try_from(left.as_millis()).unwrap();
    let renewed = ImportGroup { remaining_ms, ..group("old/1", rows()) };
    let again = vec![renewed, group("old/2", vec![held("files")])];
    let fates = world.import(again).await.unwrap();
    assert_eq!(fates[0], [known.clone(), known.clone()]);
    // What remains there is shorter than here: nothing changes.
    let shorter = ImportGroup { remaining_ms: 1, ..group("old/1", vec![held("jobs")]) };
    assert_eq!(world.import(vec![shorter]).await.unwrap(), [[known]]);
    let passed = free_after(&world, "jobs").await;
    assert!(passed >= left, "{passed:?}");
    assert!(passed < left + Duration::from_secs(1), "{passed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_renewed_in_the_other_store_lasts_as_long_here() {
    // The lease of the first import is enough for any later leader, and is not.
    for left in [REMAINING / 2, REMAINING, REMAINING * 2] {
        an_import_of_a_row_with_so_much_left_again_lasts_as_long(left).await;
    }
}

#[test]
fn an_import_that_keeps_its_lease_is_noticed() {
    let run = while_armed(Mutant::ImportKeepsItsLease, || {
        std::panic::catch_unwind(|| {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().start_paused(true).build().unwrap();
            let test = an_import_of_a_row_with_so_much_left_again_lasts_as_long(REMAINING * 2);
            runtime.block_on(test);
        })
    });
    assert!(run.is_err(), "nothing showed that the mutant was armed");
}

#[tokio::test(start_paused = true)]
async fn what_was_never_imported_or_is_over_cannot_be_claimed() {
    let world = World::new().await;
    world.import(vec![group("old/1", vec![held("jobs")])]).await.unwrap();
    let key = world.key().await;
    let claimed = |request_id, name, owner: &str| {
        let mut asked = asked(&key, request_id, name);
        asked.acquire.as_mut().unwrap().claim_owner = Some(owner.to_owned());
        world.hub.acquire(asked)
    };

    assert_eq!(refusal(claimed(1, "jobs", "old/2").await).reason(), RefusalReason::NotImported);
    assert_eq!(refusal(claimed(2, "free", "old/1").await).reason(), RefusalReason::NotImported);
    claimed(3, "jobs", "old/1").await.unwrap();
    assert_eq!(refusal(claimed(4, "jobs", "old/1").await).reason(), RefusalReason::NotImported);
    let again = claimed(3, "jobs", "old/1").await.unwrap();
    assert!(again.granted.is_some(), "the same claim again");
}

/// A session without a secret: no client can show one.
#[tokio::test(start_paused = true)]
async fn nobody_acts_for_an_import_but_by_a_claim() {
    let world = World::new().await;
    world.import(vec![group("old/1", vec![held("jobs")])]).await.unwrap();

    for secret in [vec![0; 16], vec![255; 16]] {
        let mut taken_up = world.resume(&Ticket { session_id: 1, secret: secret.into() }).await;
        let Body::Refused(refused) = taken_up.next().await else { panic!("not refused") };
        assert_eq!(refused.refusal.unwrap().reason(), RefusalReason::SessionUnknown);
    }
}

#[tokio::test(start_paused = true)]
async fn an_import_that_makes_no_sense_is_refused_before_anything_is_brought_in() {
    let world = World::new().await;
    let good = || group("old/1", vec![held("jobs")]);
    let nameless = ImportRow { name: Bytes::new(), has: Some(Has::Place(ImportPlace {})) };
    let bad = [
        (group("", vec![held("jobs")]), "the owner is not usable: it is empty"),
        (group("a\u{1b}", vec![held("jobs")]), "U+001B"),
        (group(&"o".repeat(257), vec![held("jobs")]), "257 bytes is longer than the 256"),
        (group("old/2", Vec::new()), "0 rows in a group; it has 1 to 64"),
        (group("old/2", (0..65).map(|_| held("jobs")).collect()), "65 rows in a group"),
        (ImportGroup { remaining_ms: 0, ..good() }, "0 ms remaining is outside 1 to 31622400000"),
        (ImportGroup { remaining_ms: 31_622_400_001, ..good() }, "31622400001 ms remaining"),
        (group("old/2", vec![nameless]), "a lock name cannot be empty"),
        (
            group("old/2", vec![ImportRow { has: None, ..held("jobs") }]),
            "the row of jobs says neither that it is held nor waited for",
        ),
        (group("old/2", vec![with_value("jobs", &[0; 4_097])]), "4097 bytes, over 4096"),
        (
            group("old/2", (0..9).map(|_| with_value("jobs", &[0; 4_000])).collect()),
            "the names and values of a group take 36036 bytes, over 32768",
        ),
    ];
    for (group, words) in bad {
        let refused = refusal(world.import(vec![good(), group]).await);
        assert!(refused.message.contains(words), "{:?} does not say {words:?}", refused.message);
    }
    let many = refusal(world.import(vec![good(); 1_001]).await);
    assert!(many.message.contains("1001 groups are more than the 1000 allowed"), "{many:?}");

    let fates = world.import(vec![good()]).await.unwrap();
    assert!(matches!(fates[0][0], Fate::Held(_)), "{fates:?}");
}

/// Groups that are lost with a tenure must not be overtaken by those proposed in the next.
#[tokio::test(start_paused = true)]
async fn an_import_ends_with_the_tenure_it_began_in() {
    let world = World::new().await;
    world.fake.hold_commits();
    let groups: Vec<_> =
        (0..600).map(|number| group("old/1", vec![held(&format!("jobs/{number}"))])).collect();
    let hub = world.hub.clone();
    let (tell, told) = oneshot::channel();
    let import = async move {
        let _ = tell.send(hub.import(&ImportRequest { groups }, &Caller::default()).await);
    };
    world.runtime.spawn("import", import).detach();
    world.settle().await;

    // The same node leads again: what it would propose now comes after what was lost.
    world.fake.lead(2);
    world.settle().await;
    world.fake.let_commits_go();
    let answer = world.runtime.timeout(Duration::from_mins(1), told).await.unwrap().unwrap();

    assert!(matches!(answer, Err(CallError::Unavailable { .. })), "{answer:?}");
}
