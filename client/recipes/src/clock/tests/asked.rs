//! The client of several replicas.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::{BoxFuture, pending, ready};

use super::*;
use crate::clock::client::Replica;
use crate::clock::grpc::NoTime;

const LIMIT: Duration = ms(2_000);

/// A replica that always gives this answer, or never answers.
fn says(name: &str, answer: Option<Result<u64, NoTime>>) -> (Replica, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let ask = move || -> BoxFuture<'static, Result<u64, NoTime>> {
        counted.fetch_add(1, Ordering::Relaxed);
        match answer.clone() {
            Some(answer) => Box::pin(ready(answer)),
            None => Box::pin(pending()),
        }
    };
    (Replica { name: name.into(), ask: Box::new(ask) }, asked)
}

fn not_now() -> Result<u64, NoTime> {
    Err(NoTime::NotNow("connection refused".into()))
}

#[test]
fn a_silent_replica_and_one_that_is_not_there_are_passed_over_and_not_asked_first_again() {
    let machine = Machine::new(1);
    let runtime = machine.process("client").runtime();
    let (silent, asked_silent) = says("a:1", None);
    let (gone, asked_gone) = says("b:2", Some(not_now()));
    let (answers, asked) = says("c:3", Some(Ok(5)));
    let client = TimeClient::of(vec![silent, gone, answers], runtime.clone());
    machine.run(async {
        let began = runtime.clock.now();
        assert_eq!(client.now_us().await, Ok(5));
        assert_eq!(runtime.clock.now().saturating_since(began), LIMIT);
        assert_eq!(client.now_us().await, Ok(5));
        assert_eq!(runtime.clock.now().saturating_since(began), LIMIT);
    });
    let counts = [asked_silent, asked_gone, asked].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(counts, [1, 1, 2]);
}

/// A replica that is behind, as it might be beside old ones, or after the cell was restored.
#[test]
fn a_clients_own_answers_do_not_go_back() {
    let machine = Machine::new(1);
    let turn = Arc::new(AtomicUsize::new(0));
    let ask = move || -> BoxFuture<'static, Result<u64, NoTime>> {
        let nth = turn.fetch_add(1, Ordering::Relaxed);
        Box::pin(ready(Ok([7, 3, 9][nth % 3])))
    };
    let replica = Replica { name: "a:1".into(), ask: Box::new(ask) };
    let client = TimeClient::of(vec![replica], machine.process("client").runtime());
    machine.run(async {
        let other = client.clone();
        let answers = [client.now_us().await, other.now_us().await, client.now_us().await];
        assert_eq!(answers, [Ok(7), Ok(7), Ok(9)]);
    });
}

#[test]
fn when_nobody_tells_the_time_each_is_named_with_its_reason() {
    let machine = Machine::new(1);
    let runtime = machine.process("client").runtime();
    let refused = || Some(Err(NoTime::Refused("the cell has no time".into())));
    let ask = |answers: Vec<Option<Result<u64, NoTime>>>| {
        let names = ["a:1", "b:2"];
        let replicas = names.iter().zip(answers).map(|(name, answer)| says(name, answer).0);
        let client = TimeClient::of(replicas.collect(), runtime.clone()).answer_limit(ms(500));
        async move { client.now_us().await.unwrap_err() }
    };
    machine.run(async {
        let error = ask(vec![None, refused()]).await;
        let Error::Unreachable { endpoints, waited, last, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!((endpoints.len(), *waited), (2, ms(500)));
        assert_eq!(last, "a:1: no answer within 500ms; b:2: the cell has no time");

        let error = ask(vec![refused(), Some(Ok(u64::MAX))]).await;
        let invalid = matches!(error, Error::Refused { reason: RefusalReason::Invalid, .. });
        assert!(invalid, "{error:?}");
        assert!(error.to_string().contains("b:2: it answers 18446744073709551615"), "{error}");
    });
}

#[tokio::test]
async fn replicas_are_named_by_host_and_port() {
    assert!(matches!(TimeClient::new([""; 0]), Err(Error::InvalidConfig { .. })));
    for wrong in ["", "localhost", "a:99999", "a b:1"] {
        assert!(matches!(TimeClient::new([wrong]), Err(Error::InvalidConfig { .. })), "{wrong:?}");
    }
    assert!(TimeClient::new(["127.0.0.1:1", "[::1]:2"]).is_ok());
}
