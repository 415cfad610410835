//! Numbers of a sequence: blocks, answers that are lost, and refusals.

use std::num::NonZeroU32;

use futures_util::future::join_all;
use holdfast::{Error, RefusalReason};
use holdfast_proto::v1;
use holdfast_runtime::TransportError;

use super::scripted::{AskedNumbers, Net};

fn count(numbers: u32) -> NonZeroU32 {
    NonZeroU32::new(numbers).unwrap()
}

impl AskedNumbers {
    fn give(self, first: u64) {
        let answer = v1::AdvanceResponse { index: 9, first };
        self.answer.send(Ok(answer)).expect("the client waits for it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_block_is_asked_for_once_by_all_who_share_it() {
    let mut net = Net::new();
    let numbers = net.builder().sequence("invoices").unwrap().blocks_of(count(3));
    let clones: Vec<_> = (0..5).map(|_| numbers.clone()).collect();
    let asking = join_all(clones.iter().map(holdfast::Sequence::next));

    let serving = async {
        for first in [10, 100] {
            let asked = net.asked_numbers().await;
            assert_eq!((&*asked.request.name, asked.request.by), ("invoices", 3));
            asked.give(first);
        }
    };
    let (given, ()) = tokio::join!(asking, serving);

    let given: Vec<u64> = given.into_iter().map(Result::unwrap).collect();
    assert_eq!(given, [10, 11, 12, 100, 101]);
    assert_eq!(numbers.next().await.unwrap(), 102, "the block has one left");
}

#[tokio::test(start_paused = true)]
async fn the_last_number_of_all_is_given_out() {
    let mut net = Net::new();
    let numbers = net.builder().sequence("last").unwrap().blocks_of(count(2));
    let serving = async { net.asked_numbers().await.give(u64::MAX - 1) };

    let (first, ()) = tokio::join!(numbers.next(), serving);

    assert_eq!(first.unwrap(), u64::MAX - 1);
    assert_eq!(numbers.next().await.unwrap(), u64::MAX);
    let serving = async { net.asked_numbers().await.give(u64::MAX) };
    let (range, ()) = tokio::join!(numbers.take(count(1)), serving);
    assert_eq!(range.unwrap(), u64::MAX..=u64::MAX);
}

#[tokio::test(start_paused = true)]
async fn a_range_comes_from_the_store_and_leaves_the_block_alone() {
    let mut net = Net::new();
    let numbers = net.builder().sequence("invoices").unwrap().blocks_of(count(2));
    let serving = async {
        net.asked_numbers().await.give(1);
        let asked = net.asked_numbers().await;
        assert_eq!(asked.request.by, 7);
        asked.give(3);
    };

    let asking = async {
        assert_eq!(numbers.next().await.unwrap(), 1);
        assert_eq!(numbers.take(count(7)).await.unwrap(), 3..=9);
        assert_eq!(numbers.next().await.unwrap(), 2);
    };
    tokio::join!(asking, serving);
}

/// The store may have given out the numbers of the first call: the client asks for others.
#[tokio::test(start_paused = true)]
async fn numbers_whose_answer_is_lost_are_asked_for_anew_at_another_server() {
    let mut net = Net::new();
    let numbers = net.builder().sequence("invoices").unwrap();
    let serving = async {
        let lost = net.asked_numbers().await;
        let before = lost.endpoint.clone();
        drop(lost);
        let again = net.asked_numbers().await;
        assert_ne!(again.endpoint, before);
        again.give(2);
    };

    let (number, ()) = tokio::join!(numbers.next(), serving);

    assert_eq!(number.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_ends_the_call_and_the_next_one_asks_again() {
    let mut net = Net::new();
    let numbers = net.builder().sequence("invoices").unwrap();
    let refuse = async {
        let reason = v1::RefusalReason::Sequence;
        let message = "invoices is at its end".to_owned();
        let asked = net.asked_numbers().await;
        asked.answer.send(Err(TransportError::Refused { reason, message })).unwrap();
    };
    let (refused, ()) = tokio::join!(numbers.next(), refuse);
    let refused = refused.unwrap_err();
    assert!(
        matches!(&refused, Error::Refused { reason: RefusalReason::Sequence, message, .. }
            if message == "invoices is at its end"),
        "{refused:?}"
    );

    let serving = async { net.asked_numbers().await.give(5) };
    let (number, ()) = tokio::join!(numbers.next(), serving);
    assert_eq!(number.unwrap(), 5);
}

/// Its block may be lost, and the next call takes one of its own.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_leaves_nothing_locked() {
    let mut net = Net::new();
    let numbers = net.builder().sequence("invoices").unwrap();
    let runtime = net.runtime.clone();
    let dropped = runtime.timeout(super::ms(5), numbers.next()).await;
    assert!(dropped.is_err());
    assert!(net.asked_numbers().await.answer.is_closed());

    let serving = async { net.asked_numbers().await.give(8) };
    let (number, ()) = tokio::join!(numbers.next(), serving);
    assert_eq!(number.unwrap(), 8);
}

/// The server that serves is asked first, not the first of the list.
#[tokio::test(start_paused = true)]
async fn the_next_call_begins_at_the_server_that_gave_the_last_number() {
    let mut net = Net::new();
    let numbers = net.builder().sequence("invoices").unwrap();
    let serving = async {
        let first = net.asked_numbers().await;
        assert_eq!(first.endpoint, "a:1");
        let (message, leader) = ("a:1: this node does not lead".to_owned(), Some("c:3".to_owned()));
        first.answer.send(Err(TransportError::Unavailable { message, leader })).unwrap();
        for number in 1..=2 {
            let asked = net.asked_numbers().await;
            assert_eq!(asked.endpoint, "c:3");
            asked.give(number);
        }
    };

    let asking = async {
        assert_eq!(numbers.next().await.unwrap(), 1);
        assert_eq!(numbers.next().await.unwrap(), 2);
    };
    tokio::join!(asking, serving);
}
