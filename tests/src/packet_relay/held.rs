//! Packets by the time at which they go on.

use std::collections::BTreeMap;

use holdfast_runtime::Instant;

/// The packets that are held, each with the number of its port. Of those that are due at the same time
/// the one that came first goes first.
#[derive(Debug, Default)]
pub(super) struct Held {
    packets: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    count: u64,
}

impl Held {
    pub(super) fn hold(&mut self, due: Instant, port: usize, packet: &[u8]) {
        self.count += 1;
        self.packets.insert((due, self.count), (port, packet.to_vec()));
    }

    /// When the next one is due.
    pub(super) fn first_due(&self) -> Option<Instant> {
        self.packets.first_key_value().map(|((due, _), _)| *due)
    }

    /// The next one, if it is due.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<(usize, Vec<u8>)> {
        self.first_due().filter(|due| *due <= now)?;
        self.take_first()
    }

    /// The next one.
    pub(super) fn take_first(&mut self) -> Option<(usize, Vec<u8>)> {
        self.packets.pop_first().map(|(_, packet)| packet)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_origin(Duration::from_millis(ms))
    }

    #[test]
    fn packets_go_on_when_they_are_due_and_in_their_order() {
        let mut held = Held::default();
        for (ms, packet) in [(7, b"a"), (5, b"b"), (7, b"c"), (9, b"d")] {
            held.hold(at(ms), 0, packet);
        }
        let mut due = |ms| {
            let next = std::iter::from_fn(|| Some(held.take_due(at(ms))?.1));
            next.collect::<Vec<_>>()
        };

        assert_eq!(due(4), Vec::<Vec<u8>>::new());
        assert_eq!(due(7), [b"b", b"a", b"c"]);
        assert_eq!(held.first_due(), Some(at(9)));
        assert_eq!(held.take_first(), Some((0, b"d".to_vec())), "also before it is due");
        assert_eq!(held.take_first(), None);
    }
}
