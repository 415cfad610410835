//! Which clock a replica believes.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::{BoxFuture, ready};

use super::*;
use crate::database::Fault;

const YEAR_MS: i64 = 365 * 24 * 3_600_000;

#[test]
fn a_clock_far_ahead_of_the_nodes_is_not_believed() {
    let (machine, model) = world(4);
    let (mad, right) = (machine.process("mad"), machine.process("right"));
    mad.set_wall_skew(3 * YEAR_MS);
    let replicas = [&mad, &right].map(|process| replica(&model, process));
    let runtime = machine.world().runtime();
    machine.run(async {
        let error = replicas[0].now_us().await.unwrap_err();
        assert!(error.to_string().contains("this replica's clock is not believed"), "{error}");
        let update = replicas[0].update().await.unwrap();
        let ahead = Duration::from_millis((3 * YEAR_MS).unsigned_abs());
        let too_far = ahead.saturating_sub(MINUTE + update.disbelieved);
        assert!(update.time_us.is_none(), "{update:?}");
        assert!(update.disbelieved < ahead && too_far < ms(200), "{update:?}");
        for _ in 0..60 {
            for replica in replicas.iter().rev() {
                replica.update().await.unwrap();
                runtime.sleep(ms(500)).await;
                let ahead = i64::try_from(replica.now_us().await.unwrap() / 1_000).unwrap()
                    - i64::try_from(runtime.clock.wall_ms()).unwrap();
                assert!((-2_000..=100).contains(&ahead), "{ahead} ms");
            }
        }
        // Alone, it goes on at half the rate.
        let before = replicas[0].update().await.unwrap().time_us.unwrap();
        runtime.sleep(MINUTE).await;
        let after = replicas[0].update().await.unwrap().time_us.unwrap();
        assert!((29_500_000..=30_500_000).contains(&(after - before)), "{}", after - before);
    });
}

/// A replica sometimes reads a node whose clock is years behind. The time goes on meanwhile, and is
/// right soon after.
#[test]
fn a_node_with_a_wrong_clock_does_not_stop_the_time() {
    let (machine, model) = world(5);
    model.set_skew(1, -YEAR_MS);
    let process = machine.process("a");
    let replica = replica(&model, &process);
    let runtime = machine.world().runtime();
    machine.run(async {
        let mut disbelieved = 0;
        let mut before = 0;
        for _ in 0..100 {
            let update = replica.update().await.unwrap();
            disbelieved += usize::from(!update.disbelieved.is_zero());
            runtime.sleep(ms(500)).await;
            if let Some(time) = update.time_us {
                assert!(time > before);
                assert!(update.local_us - time < 6_000_000, "{update:?}");
                before = time;
            }
        }
        assert!((10..60).contains(&disbelieved), "{disbelieved} of 100");
    });
}

#[test]
fn a_clock_is_believed_as_far_ahead_as_the_option_says() {
    let (machine, model) = world(6);
    let process = machine.process("a");
    process.set_wall_skew(90_000);
    let cassandra = cassandra(&model, &process);
    let of = |options| TimeReplica::new(&cassandra, TimeTable::default(), options).unwrap();
    let (usual, wide) = (
        of(TimeOptions::default()),
        of(TimeOptions::default().max_ahead(Duration::from_secs(100))),
    );
    machine.run(async {
        assert!(usual.update().await.unwrap().disbelieved > Duration::from_secs(29));
        let update = wide.update().await.unwrap();
        assert_eq!((update.disbelieved, update.time_us), (Duration::ZERO, Some(update.local_us)));
    });
}

/// The model's tables; for a while all writes fail.
struct ReadOnly {
    model: Model,
    is_read_only: Arc<AtomicBool>,
}

impl Database for ReadOnly {
    fn execute(&self, statement: Statement) -> BoxFuture<'static, Result<Answer, Fault>> {
        let is_write = matches!(statement.action, Action::Put { .. });
        if is_write && self.is_read_only.load(Ordering::Relaxed) {
            return Box::pin(ready(Err(Fault::Unknown("write timeout".into()))));
        }
        self.model.execute(statement)
    }

    fn endpoints(&self) -> Vec<String> {
        self.model.endpoints()
    }
}

/// A clock is 50 s ahead for a moment, and what it shows is not written. The time goes on from what is
/// in the cell, not from what this process tried to write there.
#[test]
fn a_time_that_was_not_written_is_not_gone_on_from() {
    let (machine, model) = world(8);
    let process = machine.process("a");
    let is_read_only = Arc::new(AtomicBool::new(true));
    let tables = ReadOnly { model, is_read_only: is_read_only.clone() };
    let cassandra = Cassandra::on(Arc::new(tables), process.runtime());
    let replica =
        TimeReplica::new(&cassandra, TimeTable::default(), TimeOptions::default()).unwrap();
    process.set_wall_skew(50_000);
    machine.run(async {
        let error = replica.update().await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        process.set_wall_skew(0);
        is_read_only.store(false, Ordering::Relaxed);
        let update = replica.update().await.unwrap();
        assert_eq!(update.time_us, Some(update.local_us));
    });
}
