//! How long things last, in ticks of true time.

/// The durations of §10 as true time sees them.
///
/// A process counts on its own clock. What gives a right lasts longest on a slow clock, what waits
/// for the end of another's right is shortest on a fast one; here both are so in every process at
/// once, which no single clock could be. So nothing is lost by leaving clocks out of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durations {
    /// How long a leader has authority: 0.8 W.
    pub authority: u8,
    /// How long a client waits before it takes over: W.
    pub take_over: u8,
    /// How long a hold in Cassandra is safe: V·(1 − a).
    pub hold: u8,
    /// How long a leader waits before it raises the core's epoch: V·(1 + a) + V/5.
    pub back: u8,
}

impl Durations {
    /// Clocks that are wrong by up to `error` per cent each, in the direction that harms most.
    /// W and V are 30 s and 18 s, a is a tenth, a tick is 9 s, and what is no whole number of ticks
    /// is rounded in the direction that harms most, too.
    ///
    /// What remains of the authority is told to the client and counted there, less a tenth; that
    /// is over no later than the authority on the slowest clock, which is what this model counts.
    pub fn with_clocks_wrong_by(error: u16) -> Self {
        const W: u16 = 30;
        const V: u16 = 18;
        const TICK: u16 = 9;
        let ticks = |count: u16| u8::try_from(count).unwrap_or(u8::MAX);
        let right = |percent: u16| ticks(percent.div_ceil((100 - error) * TICK));
        let wait = |percent: u16| ticks(percent / ((100 + error) * TICK));
        Self {
            authority: right(80 * W),
            take_over: wait(100 * W),
            hold: right(90 * V),
            back: wait(130 * V),
        }
    }

    /// The longest: what is older can give nothing any more.
    pub(crate) fn longest(self) -> u8 {
        self.authority.max(self.take_over).max(self.hold).max(self.back)
    }
}

/// A longer W, as one of two leaders has it in its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Longer {
    /// How long that leader has authority.
    pub authority: u8,
    /// How long a client waits that found it in the row.
    pub take_over: u8,
}
