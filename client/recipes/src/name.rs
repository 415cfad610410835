//! Every locker on Cassandra refuses a name that the native store would refuse.

use super::*;
use crate::test_support::{cassandra, world};
use crate::{Layout, Lease, LeaseTable, LockerOptions, Recipe, RefusalReason, TokenTables, Tokens};

#[test]
fn a_name_that_is_no_name_is_refused_by_every_locker_before_anything_is_sent() {
    let (machine, model) = world(1);
    let on = cassandra(&model, &machine.process("a"));
    let options = LockerOptions::default();
    let lease = Lease::new(&on, &options, LeaseTable::default()).unwrap();
    let tokens = Tokens::new(&on, &options, TokenTables::default()).unwrap();
    let layout = Layout::default();
    let all = Recipe::ALL.map(|recipe| recipe.locker(&on, &options, &layout).unwrap());
    let refused = |error: Error, says: &str| {
        let invalid = matches!(error, Error::Refused { reason: RefusalReason::Invalid, .. });
        assert!(invalid && error.to_string().contains(says), "{error}");
    };
    let too_long = "é".repeat(256) + "x";
    let cases = [("", "cannot be empty"), (&too_long, "513 bytes"), ("a\nb", "U+000A at byte 1")];
    machine.run(async {
        for (name, says) in cases {
            for locker in &all {
                refused(locker.lock(name).await.unwrap_err(), says);
                refused(locker.try_lock(name).await.unwrap_err(), says);
            }
            refused(lease.leader(name).await.unwrap_err(), says);
            refused(lease.observe(name).next().await.unwrap_err(), says);
            refused(tokens.batch(["good", name]).next().await.unwrap_err(), says);
        }
        assert_eq!(model.arrived(), 0);
    });
}
