//! Simulated runs of their own, in which one thing happens again and again: schedules that once broke openraft, and what only
//! locks that move between the store and Cassandra meet.
//!
//! | schedule | what it broke | how it is produced here |
//! |---|---|---|
//! | [`Schedule::UnevenAcks`] | openraft #1802: five voters; of two that are ahead of the quorum one overtakes the other, a third passes both, and entries count as committed that two voters have | two followers are quick, one and the leader are slow, and one loses its connections and catches up in one message; now and then the leader is lost |
//! | [`Schedule::StaleMembers`] | openraft #1808: a node takes a snapshot over a change of members that it had appended, as leader, and no other node has; it goes on with these members | the log streams of a leader are dead when it is asked for a change; then it is cut off until the others have changed members and gone past it with a snapshot |
//! | [`Schedule::OtherLife`] | openraft #1892 and #1894: a node takes in a log or snapshot of an earlier cluster | a node of an earlier cluster, at the same address, comes up as the leader of nodes that are now in another one |
//!
//! Each is counted when it really happens ([`Counts::scheduled`](super::Counts::scheduled)): a run
//! in which it does not happen proves nothing.
//!
//! [`Schedule::Switches`], [`Schedule::Moves`] and [`Schedule::Recipe`] have next to no other clients, so that a run costs little and
//! rare orders of events come soon: leaders of a scope and clients that take it over, a scope on its way through all modes, and
//! a recipe alone with a queue of work. What happened in them is counted as in every run with scopes.

use std::time::Duration;

use holdfast_server::raft::{Change as MemberChange, Members};
use serde::{Deserialize, Serialize};

use super::fault::{Fault, Shape, Who};
use super::membership_faults::{Change, ask, until_made};
use super::plan::{Clocks, Plan, Strike};
use super::scope_plan::ScopesPlan;
use super::stage::{ROGUE, Stage, lock};
use crate::sim::{Crash, Host, World, apart};

/// What happens again and again in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Acknowledgements of five voters overtake each other.
    UnevenAcks,
    /// A change of members that only a deposed leader has is covered by a snapshot.
    StaleMembers,
    /// A node of an earlier cluster comes up among the present ones.
    OtherLife,
    /// Scopes change their store, under leaders with different settings that come and go.
    Switches,
    /// A scope moves through all modes and back.
    Moves,
    /// Clients lock by one recipe, and workers take items of a queue, in Cassandra alone.
    Recipe,
}

/// How long the schedule goes on before the run continues without it.
const LENGTH_MS: u64 = 45_000;
/// How long a run of [`Schedule::Switches`] and those below it is.
const SCOPES_LENGTH_MS: u64 = 90_000;
/// How long syncs take, milliseconds: of a leader, which is the last of the five,
const LEADER_MS: (u64, u64) = (100, 160);
/// of a follower that is ahead,
const QUICK_MS: (u64, u64) = (1, 40);
/// of one that is not,
const SLOW_MS: (u64, u64) = (60, 120);
/// and of the one that loses its connections.
const LOST_MS: (u64, u64) = (1, 3);
/// How often it loses them before the followers change their roles.
const LOSSES_A_ROUND: u64 = 12;
/// How long the others may take to go past entries that only a cut-off leader has.
const PASSED_WITHIN: Duration = Duration::from_secs(15);
/// The interval between two checks whether something has happened.
const LOOK_EVERY: Duration = Duration::from_micros(200);
/// How long the node of the earlier cluster stays.
const STRANGER_STAYS: Duration = Duration::from_secs(5);
/// Entries of the earlier cluster, so that it has a snapshot and its log is purged.
const EARLIER_HOLDS: u64 = 60;

impl Schedule {
    /// Whether it is one of scopes, whose faults the plan has.
    pub(super) fn is_of_scopes(self) -> bool {
        matches!(self, Self::Switches | Self::Moves | Self::Recipe)
    }
}

impl Plan {
    /// A run of a schedule, with no other faults than the schedule needs.
    pub fn of(schedule: Schedule, seed: u64) -> Self {
        if schedule.is_of_scopes() {
            Self::of_scopes(schedule, seed)
        } else {
            Self::of_openraft(schedule, seed)
        }
    }

    /// A run with one client of the store alone, on a network without faults of its own. Where no scope falls back one node is enough.
    fn of_scopes(schedule: Schedule, seed: u64) -> Self {
        let mut plan = Self::draw(seed, Clocks::Within).first_stream_alone();
        plan.nodes = if schedule == Schedule::Switches { 3 } else { 1 };
        plan.length_ms = SCOPES_LENGTH_MS;
        plan.clients.truncate(1);
        (plan.rogue, plan.imports) = (false, false);
        (plan.air.lost_per_million, plan.air.twice_per_million) = (0, 0);
        let (mut scopes, mut strikes) = match schedule {
            Schedule::Switches => ScopesPlan::of_switches(seed, SCOPES_LENGTH_MS),
            _ => ScopesPlan::of_moves(seed, SCOPES_LENGTH_MS, schedule == Schedule::Recipe),
        };
        if schedule != Schedule::Recipe {
            scopes.add_wishes(seed);
        }
        strikes.sort_by_key(|strike| strike.at_ms);
        (plan.strikes, plan.scopes, plan.schedule) = (strikes, Some(scopes), Some(schedule));
        plan
    }

    fn of_openraft(schedule: Schedule, seed: u64) -> Self {
        let mut plan = Self::draw(seed, Clocks::Within).first_stream_alone();
        plan.nodes = if schedule == Schedule::UnevenAcks { 5 } else { 3 };
        plan.length_ms = LENGTH_MS + 5_000;
        (plan.knobs.snapshot_every, plan.knobs.log_kept) = (20, 0);
        // Enough work for a log that grows all the time.
        for client in &mut plan.clients {
            (client.hold_ms, client.workers) = (client.hold_ms.min(60), 2);
        }
        plan.strikes = match schedule {
            Schedule::UnevenAcks => losses_of_the_leader(),
            _ => Vec::new(),
        };
        plan.schedule = Some(schedule);
        plan
    }
}

/// A write that was wrongly taken for committed is lost with the node that took it for that.
fn losses_of_the_leader() -> Vec<Strike> {
    let faults = [
        Fault::Partition(Shape::LeaderInMinority),
        Fault::Crash(Who::Leader),
        Fault::Partition(Shape::LeaderAlone),
        Fault::Kill(Who::Leader),
    ];
    let at = (0..).map(|number| 5_000 * (number + 1));
    let strikes = at.zip(faults.into_iter().cycle()).take_while(|(at_ms, _)| *at_ms < LENGTH_MS);
    strikes.map(|(at_ms, fault)| Strike { at_ms, lasts_ms: 2_000, fault }).collect()
}

impl<'a> Stage<'a> {
    /// Prepares what the schedule needs before the run begins: for [`Schedule::OtherLife`] an
    /// earlier cluster.
    pub(super) async fn prepare_schedule(&self) -> Option<World<'a>> {
        (self.plan.schedule == Some(Schedule::OtherLife)).then_some(())?;
        let earlier = self.world.beside(super::stage::settings_of_one(self.plan));
        self.run_earlier(&earlier).await;
        Some(earlier)
    }

    /// Makes the plan's schedule happen for its whole time.
    pub(super) async fn act_schedule(&self, earlier: Option<&World<'a>>) {
        let until = self.runtime.clock.now() + Duration::from_millis(LENGTH_MS);
        let Some(schedule) = self.plan.schedule else { return };
        while self.runtime.clock.now() < until {
            match schedule {
                Schedule::UnevenAcks => self.change_paces().await,
                Schedule::StaleMembers => self.leave_members_behind().await,
                Schedule::OtherLife => self.meet(earlier).await,
                // Their faults are in the plan.
                Schedule::Switches | Schedule::Moves | Schedule::Recipe => return,
            }
        }
        self.counts().scheduled += match schedule {
            Schedule::UnevenAcks => self.world.network().answers().crossings(),
            // Counted when it happens.
            Schedule::StaleMembers | Schedule::Switches | Schedule::Moves | Schedule::Recipe => 0,
            Schedule::OtherLife => {
                self.world.network().answers().strangers().values().copied().sum()
            }
        };
        for id in self.world.nodes() {
            self.usual_pace(id);
        }
    }

    // --- openraft #1802

    /// One round: two followers are quick and overtake each other, one is slow, so that for a while
    /// only those two are ahead; the last one loses its connection again and again, and catches up
    /// with all it missed in one message.
    async fn change_paces(&self) {
        let Some(leader) = self.world.leader() else { return self.look_again().await };
        let mut followers: Vec<u64> =
            self.world.running().into_iter().filter(|id| *id != leader).collect();
        let turn = usize::try_from(self.draw().below(4)).unwrap_or(0) % followers.len().max(1);
        followers.rotate_left(turn);
        let pace = |id: u64, (least, most): (u64, u64)| {
            let ms = Duration::from_millis;
            self.world.disk(id).set_pace(ms(least), ms(most));
        };
        pace(leader, LEADER_MS);
        for (id, of) in followers.iter().zip([QUICK_MS, QUICK_MS, SLOW_MS, LOST_MS]) {
            pace(*id, of);
        }
        for _ in 0..LOSSES_A_ROUND {
            if let [_, _, _, lost] = *followers {
                self.world.network().break_connections(Host::Node(lost));
            }
            let pause = 50 + self.draw().below(150);
            self.runtime.sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn look_again(&self) {
        self.runtime.sleep(Duration::from_millis(20)).await;
    }

    // --- openraft #1808

    /// One round: a leader appends a change of members that no other node gets, and is cut off
    /// until the others have other members and have purged their logs beyond it.
    async fn leave_members_behind(&self) {
        let joined = {
            let _crew = self.crew.lock().await;
            self.join().await
        };
        let (Some(joined), Some(leader)) = (joined, self.world.leader()) else {
            return self.look_again().await;
        };
        // Whatever happens to it, it does not stay a member.
        lock(&self.lost).insert(joined);
        let others: Vec<Host> =
            self.world.nodes().into_iter().filter(|id| *id != leader).map(Host::Node).collect();
        let stale = self.append_alone(leader, &others, joined).await;
        let clients = self.every_client();
        let cuts = apart(&[Host::Node(leader)], &[others, clients].concat());
        self.world.network().cut(cuts.clone());
        let taken = self.world.taken_over();
        let passed = match stale {
            Some(index) => self.others_go_past(leader, joined, index).await,
            None => false,
        };
        self.world.network().mend(&cuts);
        if passed && self.catches_up(leader, taken).await {
            self.counts().scheduled += 1;
            self.has_the_members_of_all(leader).await;
        }
        self.forget(joined).await;
    }

    /// Asks a leader whose log streams are dead to let `joined` vote; returns the index of the last
    /// entry of its log as soon as that is in force there.
    async fn append_alone(&self, leader: u64, others: &[Host], joined: u64) -> Option<u64> {
        for other in others {
            // Its heartbeats pass: they are calls, not messages on a stream.
            self.world.network().half_open(*other, Host::Node(leader));
        }
        let replica = self.world.replica(leader)?;
        let votes_here = || {
            let members = replica.members().ok()?.members;
            members.iter().any(|one| one.member.node_id == joined && one.votes).then_some(())
        };
        let in_force = async {
            while votes_here().is_none() {
                self.runtime.sleep(LOOK_EVERY).await;
            }
        };
        let asked = self.world.ask_leader(move |leader| async move {
            leader.change(MemberChange::Promote { node_id: joined }).await
        });
        holdfast_runtime::select! {
            () = in_force => replica.status().last_log,
            _ = asked => None,
            () = self.runtime.sleep(Duration::from_secs(3)) => None,
        }
    }

    /// Waits until another leader has removed `joined`, and its snapshot lies beyond `index`.
    async fn others_go_past(&self, old: u64, joined: u64, index: u64) -> bool {
        let past = async {
            loop {
                let leader = self.world.leader().filter(|leader| *leader != old);
                if let Some(replica) = leader.and_then(|leader| self.world.replica(leader)) {
                    if self.removed(joined) {
                        if replica.status().snapshot > Some(index) {
                            return;
                        }
                    } else {
                        let _ = ask(&self.world, Change::Remove(joined)).await;
                    }
                }
                self.look_again().await;
            }
        };
        self.runtime.timeout(PASSED_WITHIN, past).await.is_ok()
    }

    /// Whether the leader knows no such member.
    fn removed(&self, id: u64) -> bool {
        let leader = self.world.leader().and_then(|leader| self.world.replica(leader));
        leader.and_then(|leader| leader.members().ok()).is_some_and(|status| {
            !status.changing && status.members.iter().all(|one| one.member.node_id != id)
        })
    }

    /// The node that was cut off takes a snapshot, from any leader.
    async fn catches_up(&self, id: u64, taken: u64) -> bool {
        let caught_up = async {
            while self.world.taken_over() <= taken || !self.is_level(id) {
                self.look_again().await;
            }
        };
        self.runtime.timeout(PASSED_WITHIN, caught_up).await.is_ok()
    }

    /// Whether a node has applied everything in the leader's snapshot.
    fn is_level(&self, id: u64) -> bool {
        let status = |id| self.world.replica(id).map(|replica| replica.status());
        let leader = self.world.leader().and_then(status);
        let node = status(id);
        leader.zip(node).is_some_and(|(leader, node)| node.applied >= leader.snapshot)
    }

    /// No node goes on with members that were never committed: openraft #1808 itself.
    async fn has_the_members_of_all(&self, id: u64) {
        let same = || {
            let members = |id| Some(self.world.replica(id)?.status().members);
            let leader = self.world.leader().and_then(members);
            leader.is_some() && leader == members(id)
        };
        let agree = async {
            while !same() {
                self.look_again().await;
            }
        };
        if self.runtime.timeout(PASSED_WITHIN, agree).await.is_err() {
            self.wrong(format!("I8: node {id} goes on with members nobody agreed on"));
        }
    }

    /// The node that was to vote is removed for good, whether it became a voter or not.
    async fn forget(&self, joined: u64) {
        let _crew = self.crew.lock().await;
        self.remove_lost(joined).await;
    }

    fn every_client(&self) -> Vec<Host> {
        let actors = lock(&self.actors);
        actors.keys().copied().chain([ROGUE]).map(Host::Client).collect()
    }

    // --- openraft #1892, #1894

    /// A cluster of one node, with the other two nodes as its learners: it has a snapshot and a log
    /// that begins behind it. Then all of it stops.
    async fn run_earlier(&self, earlier: &World<'a>) {
        let number = 3_000_000;
        if earlier.start_node(1).await.is_err() || earlier.until_led(PASSED_WITHIN).await.is_none()
        {
            return self.wrong("the earlier cluster has no leader".to_owned());
        }
        for _ in 0..2 {
            let id = earlier.new_node();
            earlier.begin_node(id);
            if !until_made(earlier, Change::Add(id)).await {
                self.wrong(format!("the earlier cluster does not add node {id}"));
            }
        }
        let builder = earlier.client_builder(number);
        let work = async move {
            let client = builder.connect().await.ok()?;
            for _ in 0..EARLIER_HOLDS {
                client.lock("earlier").await.ok()?.release().await.ok()?;
            }
            client.close().await.ok()
        };
        if !matches!(earlier.as_client(number, work).await, Some(Some(()))) {
            self.wrong("the earlier cluster serves nobody".to_owned());
        }
        for id in earlier.nodes() {
            earlier.crash(id, Crash::Process);
        }
    }

    /// The present node 1 goes down, and the earlier one comes up in its place, where no client
    /// finds it. It leads its cluster, and calls the others.
    async fn meet(&self, earlier: Option<&World<'a>>) {
        let Some(earlier) = earlier else { return self.look_again().await };
        self.world.crash(1, Crash::Process);
        let cuts = apart(&[Host::Node(1)], &self.every_client());
        self.world.network().cut(cuts.clone());
        earlier.begin_node(1);
        self.runtime.sleep(STRANGER_STAYS).await;
        earlier.crash(1, Crash::Process);
        self.world.network().mend(&cuts);
        self.returns(1).await;
        self.runtime.sleep(STRANGER_STAYS / 2).await;
    }
}
