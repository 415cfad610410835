//! A name of one store is a name of the other, so that a lock can move.

use holdfast_core::LockName;
use holdfast_recipes::check_lock_name;

/// Every character, and every length around the limit.
#[test]
fn a_locker_on_cassandra_takes_the_names_that_the_server_takes_and_no_others() {
    let agree = |name: &str| {
        let (here, there) = (check_lock_name(name), LockName::parse(name));
        assert_eq!(here.is_ok(), there.is_ok(), "{name:?}: {here:?}, {there:?}");
    };
    for character in '\0'..=char::MAX {
        agree(character.encode_utf8(&mut [0; 4]));
    }
    for length in 0..600 {
        agree(&"x".repeat(length));
        agree(&"é".repeat(length));
    }
}
