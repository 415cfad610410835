//! Mutated names and endpoints: the parser refuses them with a message, or accepts them unchanged.

use holdfast_fuzz::{Outcome, Target};
use holdfast_guard::NAME_BYTES_MAX;

use super::*;

/// Names separated by blanks; shared where they begin with a question mark.
#[test]
fn no_names_bring_a_request_down() {
    let seeds = ["a b ?c", "orders/42", "ключ 🔑 a a ?a", ""].map(Into::into);
    Target::new("lock-items", seeds).memory(256, 16 << 10).run(|bytes| {
        let text = String::from_utf8_lossy(bytes);
        let item = |name: &str| match name.strip_prefix('?') {
            Some(name) => LockItem::shared(name),
            None => LockItem::exclusive(name),
        };
        let items: Vec<LockItem> = text.split(' ').map(item).collect();
        let number = items.len();
        let request = AcquireRequest::new(items, Need::Any { min: 1 }, true);
        let checked = request.check();
        if checked.is_ok() {
            let wire = request.to_wire(1).items;
            assert_eq!(wire.len(), number);
            assert!(wire.iter().all(|item| item.name.len() <= NAME_BYTES_MAX));
        }
        Outcome::of(&checked)
    });
}

#[test]
fn no_list_of_endpoints_brings_its_reader_down() {
    let seeds = ["127.0.0.1:7420", "a:1,b:2", "[::1]:65535", "host:99999,:1"].map(Into::into);
    Target::new("endpoints", seeds).memory(64, 16 << 10).run(|bytes| {
        let text = String::from_utf8_lossy(bytes);
        let endpoints: Vec<String> = text.split(',').map(str::to_owned).collect();
        let checked = holdfast_guard::check_endpoints(&endpoints);
        assert!(checked.is_err() || endpoints.iter().all(|one| one.contains(':')));
        Outcome::of(&checked)
    });
}
