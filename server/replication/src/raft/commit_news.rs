//! Tells followers about a commit together with the next entry, where there is one.
//!
//! openraft tells each follower about each commit at once, by a request without entries, which is
//! answered like any other: four of the ten messages of a commit. No caller waits for it: a
//! follower applies what it then knows to be committed, and answers no client from that. So such a
//! request is held back for a moment, and dropped if another one follows: that one says the same of
//! the log before it, and names a commit that is at least as new.
//!
//! openraft does not pair answers with requests: an answer settles all requests up to the entry
//! where the follower's log matches. So the answer to the next request also settles one that was
//! dropped.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use holdfast_runtime::Clock;

/// How long news of a commit waits for an entry to travel with. Long enough for the next request of
/// a client that was just answered, short compared with an election.
const HELD_BACK: Duration = Duration::from_millis(5);

/// The requests, without those that have no entries and are overtaken by another one.
pub(super) fn with_next_entry<S, T>(
    requests: S,
    has_entries: fn(&T) -> bool,
    clock: Arc<dyn Clock>,
) -> impl Stream<Item = T> + Send
where
    S: Stream<Item = T> + Send + Unpin,
    T: Send,
{
    stream::unfold((requests.fuse(), clock), move |(mut requests, clock)| async move {
        let mut next = requests.next().await?;
        let until = clock.now() + HELD_BACK;
        while !has_entries(&next) {
            holdfast_runtime::select! {
                later = requests.next() => match later {
                    Some(later) => next = later,
                    None => break,
                },
                () = clock.sleep_until(until) => break,
            }
        }
        Some((next, (requests, clock)))
    })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use holdfast_runtime::simulated;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    /// A request: the number of entries, and the commit that it names.
    type Request = (usize, u64);

    fn asked() -> (mpsc::Sender<Request>, impl Stream<Item = Request> + Unpin) {
        asked_by(simulated::runtime(1, 0).clock)
    }

    fn asked_by(
        clock: Arc<dyn Clock>,
    ) -> (mpsc::Sender<Request>, impl Stream<Item = Request> + Unpin) {
        let (ask, requests) = mpsc::channel(8);
        let kept =
            with_next_entry(ReceiverStream::new(requests), |(entries, _)| *entries > 0, clock);
        (ask, kept.boxed())
    }

    #[tokio::test(start_paused = true)]
    async fn news_of_a_commit_is_left_out_when_an_entry_follows() {
        let (ask, mut kept) = asked();
        for request in [(0, 1), (0, 2), (3, 2)] {
            ask.send(request).await.expect("it is read");
        }

        assert_eq!(kept.next().now_or_never(), Some(Some((3, 2))));
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_is_never_held_back_or_left_out() {
        let (ask, mut kept) = asked();
        for request in [(1, 0), (1, 0), (1, 1)] {
            ask.send(request).await.expect("it is read");
        }

        assert_eq!(kept.next().now_or_never(), Some(Some((1, 0))));
        assert_eq!(kept.next().now_or_never(), Some(Some((1, 0))));
        assert_eq!(kept.next().now_or_never(), Some(Some((1, 1))));
    }

    /// Also while commits go on: the time counts from the first.
    #[tokio::test(start_paused = true)]
    async fn news_that_nothing_follows_is_told_after_a_moment() {
        let clock = simulated::runtime(1, 0).clock;
        let (ask, mut kept) = asked_by(Arc::clone(&clock));
        let begun = clock.now();
        ask.send((0, 1)).await.expect("it is read");
        assert_eq!(kept.next().now_or_never(), None, "it is held back");
        tokio::time::advance(HELD_BACK / 2).await;
        ask.send((0, 2)).await.expect("it is read");

        assert_eq!(kept.next().await, Some((0, 2)));
        let waited = clock.now().saturating_since(begun);
        assert!((HELD_BACK..HELD_BACK * 3 / 2).contains(&waited), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_news_is_told_when_the_requests_end() {
        let (ask, mut kept) = asked();
        ask.send((0, 1)).await.expect("it is read");
        drop(ask);

        assert_eq!(kept.next().now_or_never(), Some(Some((0, 1))));
        assert_eq!(kept.next().now_or_never(), Some(None));
    }
}
