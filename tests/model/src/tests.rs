//! The rules together allow nothing bad; without any one of them something bad is found.

use stateright::{Checker, HasDiscoveries, Model};

use super::*;

/// Two terms: a leader, and one after it.
const SMALL: Bounds = Bounds { terms: 2, log: 3, ttl: 2, keep_alives: 1, questions: 1 };
/// Three: a leader, another one, and the first again.
const REGAINED: Bounds = Bounds { terms: 3, log: 4, ttl: 2, keep_alives: 1, questions: 1 };
/// The same with two keepalives, which may overtake each other.
const OVERTAKING: Bounds = Bounds { keep_alives: 2, ..REGAINED };
/// Two questions of quorum rounds, which may overtake each other, or be answered after an election.
const LATE: Bounds = Bounds { questions: 2, ..SMALL };
/// Four terms and a longer log.
const LARGE: Bounds = Bounds { terms: 4, log: 5, ttl: 2, keep_alives: 2, questions: 1 };

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// Searches all there is, and finds nothing.
#[track_caller]
fn holds(bounds: Bounds) {
    let world = World { bounds, without: None };
    let checker = world.checker().threads(threads()).spawn_bfs().join();
    println!("{bounds:?}: {} states", checker.unique_state_count());
    assert!(checker.is_done(), "the search was cut short");
    if let Some(path) = checker.discovery(EXCLUSIVE) {
        panic!("two holders after {path}");
    }
}

/// Searches until two holders are found.
#[track_caller]
fn is_missed(rule: Rule, bounds: Bounds) {
    let world = World { bounds, without: Some(rule) };
    let checker = world.checker().threads(threads()).finish_when(HasDiscoveries::Any);
    let checker = checker.spawn_bfs().join();
    let states = checker.unique_state_count();
    let path = checker.discovery(EXCLUSIVE).expect("nothing bad without that rule");
    let actions = path.into_actions();
    println!("without {rule:?}: {} steps, found after {states} states", actions.len());
    for action in actions {
        println!("  {action:?}");
    }
}

#[test]
fn with_all_rules_nobody_is_granted_what_another_one_is_sure_to_hold() {
    holds(SMALL);
}

#[test]
fn with_all_rules_a_leader_that_leads_again_does_no_harm_either() {
    holds(REGAINED);
}

/// In a run for a change the test below stands in for it, which has two keepalives under way as well.
#[test]
#[ignore = "long: half a minute of one core"]
fn with_all_rules_keepalives_that_overtake_each_other_do_no_harm() {
    holds(OVERTAKING);
}

#[test]
fn with_all_rules_answers_to_two_questions_may_come_late_and_in_any_order() {
    holds(LATE);
    holds(Bounds { keep_alives: 2, ..LATE });
}

#[test]
#[ignore = "minutes, and some gigabytes"]
fn with_all_rules_four_terms_do_no_harm() {
    holds(LARGE);
}

#[test]
fn a_keepalive_needs_a_quorum_round() {
    is_missed(Rule::QuorumRound, SMALL);
}

#[test]
fn a_round_from_before_the_keepalive_does_not_count() {
    is_missed(Rule::RoundAfterReceipt, SMALL);
}

/// Finding S1 of `docs/reliability.md`: an answer that was on its way across an election.
#[test]
fn an_answer_to_an_older_question_does_not_count() {
    is_missed(Rule::AnswerToThisRound, LATE);
}

#[test]
fn a_new_tenure_has_to_give_a_full_ttl() {
    is_missed(Rule::FullTtl, SMALL);
}

#[test]
fn a_leader_that_leads_again_has_to_forget_its_deadlines() {
    is_missed(Rule::NoOldDeadlines, REGAINED);
}

#[test]
fn an_expiry_of_another_tenure_has_to_be_refused() {
    is_missed(Rule::TenureCheck, REGAINED);
}

#[test]
fn a_client_has_to_count_from_when_it_sent() {
    is_missed(Rule::SafeFromSendTime, SMALL);
}

#[test]
fn a_leader_has_to_commit_an_entry_of_its_own_first() {
    is_missed(Rule::OwnEntryCommitted, SMALL);
}

#[test]
fn a_leader_has_to_apply_that_entry_first() {
    is_missed(Rule::OwnEntryApplied, SMALL);
}

#[test]
fn a_keepalive_during_an_expiry_must_wait() {
    is_missed(Rule::NoAckDuringExpiry, SMALL);
}

#[test]
fn a_number_must_not_be_sent_twice() {
    is_missed(Rule::FreshSeq, SMALL);
}

#[test]
fn a_node_that_lost_its_data_must_not_come_back() {
    is_missed(Rule::DataLossIsFinal, SMALL);
}
