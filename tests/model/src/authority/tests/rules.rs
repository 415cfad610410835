//! Without any one of the rules something bad is found.

use super::super::{Action, Bounds, Durations, Rule, Start, Who};
use super::course::*;
use super::{ONE_TICK, RETURN, SMALL, TWO_CLIENTS, TWO_LEADERS, TWO_TICKS, TWO_W};

#[test]
fn a_take_over_has_to_wait() {
    is_missed(Rule::TakeOverWaits, SMALL, &[]);
}

#[test]
fn a_take_over_has_to_wait_from_the_end_of_the_read() {
    is_missed(Rule::WaitFromReadEnd, SMALL, &[]);
}

#[test]
fn a_take_over_has_to_compare_the_beat() {
    is_missed(Rule::BeatCompared, SMALL, &[]);
}

#[test]
fn a_take_over_of_unknown_outcome_gives_nothing() {
    is_missed(Rule::UnknownTakeOverFails, SMALL, &[]);
}

/// Client 1 read while Cassandra served, and enters when client 0 has taken over again.
#[test]
fn a_take_over_from_draining_has_to_wait() {
    let bounds = Bounds { epochs: 4, ..TWO_CLIENTS };
    let script = [takes_over(0, 1), client_reads(1), drains(0)].concat();
    is_missed(Rule::DrainTakeOverWaits, bounds, &script);
}

/// A take-over of the first epoch comes when the scope is native again, under the same beat.
#[test]
fn a_write_for_an_earlier_epoch_must_not_apply() {
    let client = Who::Client(0);
    let left = [Action::TakeOver { client: 0 }, Action::LeaveBehind(client)];
    let late = [bumps(0), client_reads(0), vec![Action::Tick], left.to_vec()].concat();
    let back = [drains(0), returns(0), raises(0), bumps(0), holds_natively(0, 0)].concat();
    let bounds = Bounds { late: 1, ..RETURN };
    is_missed(Rule::EpochCompared, bounds, &[late, takes_over(0, 1), back].concat());
}

#[test]
fn authority_has_to_count_from_the_start_of_the_bump() {
    is_missed(Rule::AuthorityFromBumpStart, SMALL, &[]);
}

#[test]
fn a_bump_of_unknown_outcome_gives_no_authority() {
    is_missed(Rule::UnknownBumpFails, SMALL, &[]);
}

#[test]
fn a_read_does_not_settle_a_bump() {
    is_missed(Rule::ReadSettlesNoBump, Bounds { late: 1, ..SMALL }, &[]);
}

#[test]
fn a_read_does_not_give_the_authority_of_a_bump() {
    is_missed(Rule::ReadGivesNoAuthority, SMALL, &[]);
}

#[test]
fn a_leader_has_to_count_the_time_it_was_suspended() {
    is_missed(Rule::SuspendedTimeCounts, SMALL, &[]);
}

#[test]
fn a_native_client_has_to_count_from_when_it_sent() {
    is_missed(Rule::CoverFromSendTime, SMALL, &[]);
}

#[test]
fn authority_of_a_later_epoch_does_not_cover_an_old_guard() {
    is_missed(Rule::CoverOfOwnEpoch, RETURN, &[]);
}

#[test]
fn a_hold_in_cassandra_has_to_count_from_the_start_of_the_read() {
    is_missed(Rule::HoldFromReadStart, RETURN, &takes_over(0, 1));
}

/// Client 1 read in the second epoch, and Cassandra serves again in the fourth.
#[test]
fn a_read_of_another_epoch_does_not_extend_a_hold() {
    let bounds = Bounds { epochs: 4, ..TWO_CLIENTS };
    let again = [client_reads(0), vec![Action::Tick]].concat();
    let again = [again, done(Who::Client(0), Action::TakeOver { client: 0 })].concat();
    let script = [takes_over(0, 1), client_reads(1), drains(0), again].concat();
    is_missed(Rule::ReadOfOwnEpoch, bounds, &script);
}

/// Client 0 read that it drains, and acquires when client 1 took over and held; then it hears.
#[test]
fn a_read_that_began_before_a_hold_does_not_extend_it() {
    let bounds = Bounds { epochs: 4, ..TWO_CLIENTS };
    let begun = [takes_over(1, 1), client_reads(0), drains(0), client_reads(1)].concat();
    let client = Who::Client(0);
    let reads = vec![Action::Tick, Action::Read(client), Action::CarryOut(client)];
    let again = done(Who::Client(1), Action::TakeOver { client: 1 });
    let script = [begun, reads, again, client_reads(1)].concat();
    is_missed(Rule::ReadOfHeld, bounds, &script);
}

#[test]
fn nobody_may_enter_while_it_drains() {
    is_missed(Rule::NoEntryWhileDraining, TWO_CLIENTS, &[]);
}

#[test]
fn a_return_has_to_wait() {
    is_missed(Rule::ReturnWaits, RETURN, &takes_over(0, 1));
}

#[test]
fn a_return_has_to_wait_to_the_last_tick() {
    let bounds = Bounds { durations: TWO_TICKS, ..RETURN };
    is_missed(Rule::ReturnWaitsToTheEnd, bounds, &takes_over(0, 2));
}

#[test]
fn a_return_has_to_wait_from_the_end_of_its_write() {
    is_missed(Rule::ReturnWaitFromEnd, RETURN, &takes_over(0, 1));
}

#[test]
fn a_leader_that_finds_the_row_native_has_to_wait() {
    is_missed(Rule::AnyLeaderWaits, RETURN, &takes_over(0, 1));
}

/// The write comes when the wait is over; until then a client holds.
#[test]
fn a_return_of_unknown_outcome_starts_no_wait() {
    let left = vec![Action::Return { server: 0 }, Action::LeaveBehind(Who::Server(0))];
    let holds = vec![Action::Acquire { client: 0 }];
    let script = [takes_over(0, 1), holds, drains(0), left].concat();
    is_missed(Rule::UnknownReturnFails, Bounds { late: 1, ..RETURN }, &script);
}

/// A client reads that it drains, when the row was native for as long as the leader waits.
#[test]
fn the_row_has_to_be_read_serial() {
    let holds = vec![Action::Acquire { client: 0 }];
    let script = [takes_over(0, 1), holds, drains(0), returns(0)].concat();
    is_missed(Rule::SerialRead, RETURN, &script);
}

/// The servers were restored to an epoch that the row comes to on its way back: nobody would wait.
#[test]
fn a_leader_has_to_write_epochs_above_the_cores() {
    let start = Start::RestoredBesideCassandra(4);
    let bounds = Bounds { start, epochs: 5, ..RETURN };
    is_missed(Rule::AboveTheCore, bounds, &[]);
}

/// Cut off from the others but not from Cassandra, it would bump for ever.
#[test]
fn a_leader_without_a_quorum_must_not_write() {
    is_missed_in_recovery(Rule::RoundBeforeWrite, TWO_LEADERS);
}

#[test]
fn somebody_has_to_lead_out_of_draining() {
    is_missed_in_recovery(Rule::TakeOverFromDraining, Bounds { epochs: 3, ..SMALL });
}

#[test]
fn a_row_below_the_core_has_to_be_raised() {
    let bounds = Bounds { start: Start::RestoredBesideNative(3), ..RETURN };
    is_missed_in_recovery(Rule::RowIsRaised, bounds);
}

/// Server 1 leads for a while, then server 0 does, which knows the row: W in it is server 1's.
pub(super) fn w_is_longer() -> Vec<Action> {
    let leads = |server| [vec![Action::Elect { server }], server_reads(server)].concat();
    [leads(1), bumps(1), leads(0)].concat()
}

#[test]
fn a_row_has_to_have_a_w_as_long_as_the_one_that_authority_is_counted_by() {
    let leads = [vec![Action::Elect { server: 1 }], server_reads(1), bumps(1)].concat();
    is_missed(Rule::RowWCoversAuthority, TWO_W, &[leads, covers(0, 1)].concat());
}

/// Server 1 has authority of two ticks, and a client of its own.
#[test]
fn a_shorter_w_has_to_wait_for_the_longer_one() {
    is_missed(Rule::ShorterWWaits, TWO_W, &[w_is_longer(), covers(0, 1), bumps(0)].concat());
}

/// Server 1, deposed and not aware of it, bumps once more, when server 0 has bumped for two ticks.
#[test]
fn a_shorter_w_has_to_wait_anew_when_somebody_else_wrote() {
    let late = [vec![Action::Tick; 2], server_reads(1), bumps(1), covers(0, 1)].concat();
    let again = [server_reads(0), bumps(0)].concat();
    is_missed(Rule::ShorterWAlone, TWO_W, &[w_is_longer(), bumps(0), late, again].concat());
}

/// W runs from `draining`, too, where only V keeps those out who read before.
#[test]
fn w_has_to_be_as_long_as_v() {
    let durations = Durations { hold: 2, back: 2, ..ONE_TICK };
    let end = [client_reads(1), drains(0), client_reads(0), vec![Action::Tick]].concat();
    let script = [takes_over(0, 1), end].concat();
    fails(Bounds { epochs: 4, durations, ..TWO_CLIENTS }, &script);
}
