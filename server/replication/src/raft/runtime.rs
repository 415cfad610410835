//! The runtime of openraft: its tasks, timers and random numbers come from tokio or from a
//! simulated machine.
//!
//! openraft takes its runtime as a type, so no value can be passed to it. A task on a simulated
//! process finds that process through [`simulated::current`]; everything else is tokio's.
#![expect(
    clippy::disallowed_methods,
    reason = "openraft takes its runtime as a type, so no value of ours reaches it"
)]

use std::convert::Infallible;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{Either, MapErr};
use futures_util::{FutureExt, TryFutureExt};
use holdfast_runtime::simulated::{self, Process};
use holdfast_runtime::{BoxFuture, Clock as _, Instant, Rng};
use openraft::AsyncRuntime;
use openraft::OptionalSend;
use openraft::impls::TokioRuntime;
use rand::TryRng;
use tokio::sync::oneshot;

/// openraft's runtime.
#[derive(Debug)]
pub(crate) struct RaftRuntime(TokioRuntime);

/// The task ended without a value: it panicked, or its process was killed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct JoinError {
    message: String,
    panicked: bool,
}

/// The time-out passed.
#[derive(Debug, thiserror::Error)]
#[error("the time was over")]
pub(crate) struct TimedOut;

type Mapped<F, From, To> = MapErr<F, fn(From) -> To>;
type TokioJoin<T> = Mapped<tokio::task::JoinHandle<T>, tokio::task::JoinError, JoinError>;
type TokioTimeout<F> = Mapped<tokio::time::Timeout<F>, tokio::time::error::Elapsed, TimedOut>;

impl AsyncRuntime for RaftRuntime {
    type JoinError = JoinError;
    type JoinHandle<T: OptionalSend + 'static> = Either<TokioJoin<T>, SimulatedJoin<T>>;
    type Sleep = Either<tokio::time::Sleep, BoxFuture<'static, ()>>;
    type Instant = RaftInstant;
    type TimeoutError = TimedOut;
    type Timeout<R, T: Future<Output = R> + OptionalSend> =
        Either<TokioTimeout<T>, SimulatedTimeout<T>>;
    type ThreadLocalRng = Randomness;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = <TokioRuntime as AsyncRuntime>::Watch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        match simulated::current() {
            None => Either::Left(tokio::spawn(future).map_err(JoinError::of)),
            Some(process) => Either::Right(SimulatedJoin::spawn(&process, future)),
        }
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        match simulated::current() {
            None => Either::Left(tokio::time::sleep(duration)),
            Some(process) => Either::Right(process.runtime().sleep(duration)),
        }
    }

    fn sleep_until(deadline: RaftInstant) -> Self::Sleep {
        match simulated::current() {
            None => Either::Left(tokio::time::sleep_until(deadline.of_tokio())),
            Some(process) => Either::Right(process.sleep_until(Instant::from_origin(deadline.0))),
        }
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        match simulated::current() {
            None => Either::Left(tokio::time::timeout(duration, future).map_err(TimedOut::of)),
            Some(process) => {
                let sleep = process.runtime().sleep(duration);
                Either::Right(SimulatedTimeout::new(future, sleep))
            }
        }
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: RaftInstant,
        future: F,
    ) -> Self::Timeout<R, F> {
        match simulated::current() {
            None => {
                let at = deadline.of_tokio();
                Either::Left(tokio::time::timeout_at(at, future).map_err(TimedOut::of))
            }
            Some(process) => {
                let sleep = process.sleep_until(Instant::from_origin(deadline.0));
                Either::Right(SimulatedTimeout::new(future, sleep))
            }
        }
    }

    fn is_panic(error: &JoinError) -> bool {
        error.panicked
    }

    fn thread_rng() -> Randomness {
        match (simulated::current(), simulated::draws()) {
            (Some(process), _) => Randomness::Simulated(process),
            (None, Some(rng)) => Randomness::Seeded(rng),
            (None, None) => Randomness::System(TokioRuntime::thread_rng()),
        }
    }

    fn new(threads: usize) -> Self {
        Self(TokioRuntime::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}

impl JoinError {
    #[expect(clippy::needless_pass_by_value, reason = "what `map_err` calls")]
    fn of(error: tokio::task::JoinError) -> Self {
        Self { message: error.to_string(), panicked: error.is_panic() }
    }
}

impl TimedOut {
    fn of(_: tokio::time::error::Elapsed) -> Self {
        Self
    }
}

/// The outcome of a task of a simulated process.
pub(crate) struct SimulatedJoin<T>(oneshot::Receiver<T>);

impl<T: Send + 'static> SimulatedJoin<T> {
    fn spawn(process: &Process, future: impl Future<Output = T> + Send + 'static) -> Self {
        let (tell, told) = oneshot::channel();
        let task = async move {
            // The receiver may be gone.
            let _ = tell.send(future.await);
        };
        process.runtime().spawn("openraft", task).detach();
        Self(told)
    }
}

impl<T> Future for SimulatedJoin<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(|_| JoinError {
            message: "the process was killed".to_owned(),
            panicked: false,
        })
    }
}

/// A future with a time-out on a simulated clock.
pub(crate) struct SimulatedTimeout<F> {
    future: Pin<Box<F>>,
    sleep: BoxFuture<'static, ()>,
}

impl<F> SimulatedTimeout<F> {
    fn new(future: F, sleep: BoxFuture<'static, ()>) -> Self {
        Self { future: Box::pin(future), sleep }
    }
}

impl<F: Future> Future for SimulatedTimeout<F> {
    type Output = Result<F::Output, TimedOut>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        self.sleep.poll_unpin(context).map(|()| Err(TimedOut))
    }
}

/// An instant on the clock of the process it was taken in; as an offset, because tokio's instants
/// cannot be made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RaftInstant(Duration);

impl RaftInstant {
    fn of_tokio(self) -> tokio::time::Instant {
        origin() + self.0
    }
}

/// An instant before every other, so that instants before the first use can be computed.
fn origin() -> tokio::time::Instant {
    static ORIGIN: OnceLock<tokio::time::Instant> = OnceLock::new();
    *ORIGIN.get_or_init(|| {
        let now = tokio::time::Instant::now();
        now.checked_sub(Duration::from_hours(24)).unwrap_or(now)
    })
}

impl openraft::Instant for RaftInstant {
    fn now() -> Self {
        Self(match simulated::current() {
            None => tokio::time::Instant::now().saturating_duration_since(origin()),
            Some(process) => process.now().since_origin(),
        })
    }
}

impl Add<Duration> for RaftInstant {
    type Output = Self;

    fn add(self, length: Duration) -> Self {
        Self(self.0.saturating_add(length))
    }
}

impl AddAssign<Duration> for RaftInstant {
    fn add_assign(&mut self, length: Duration) {
        *self = *self + length;
    }
}

impl Sub<Duration> for RaftInstant {
    type Output = Self;

    fn sub(self, length: Duration) -> Self {
        Self(self.0.saturating_sub(length))
    }
}

impl SubAssign<Duration> for RaftInstant {
    fn sub_assign(&mut self, length: Duration) {
        *self = *self - length;
    }
}

impl Sub for RaftInstant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Random numbers for the process that asks: the system's, or those of the simulated run's seed, of
/// its simulated machine or of the thread.
pub(crate) enum Randomness {
    System(<TokioRuntime as AsyncRuntime>::ThreadLocalRng),
    Simulated(Process),
    Seeded(Arc<dyn Rng>),
}

impl TryRng for Randomness {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let mut bytes = [0; 4];
        self.try_fill_bytes(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let mut bytes = [0; 8];
        self.try_fill_bytes(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        match self {
            Self::System(system) => system.try_fill_bytes(bytes),
            Self::Simulated(process) => {
                process.fill(bytes);
                Ok(())
            }
            Self::Seeded(rng) => {
                rng.fill(bytes);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_runtime::simulated::Machine;
    use openraft::Instant as _;

    use super::*;

    /// A library that received no runtime gets the process's timers, random numbers and tasks.
    #[test]
    fn on_a_simulated_process_time_tasks_and_randomness_are_the_processes() {
        let draw = |seed| {
            let machine = Machine::new(seed);
            machine.run(async {
                let before = RaftInstant::now();
                let timed_out =
                    RaftRuntime::timeout(Duration::from_hours(1), std::future::pending());
                let timed_out: Result<(), TimedOut> = timed_out.await;
                let joined =
                    RaftRuntime::spawn(async { RaftRuntime::sleep(Duration::from_mins(1)).await });
                joined.await.unwrap();
                assert!(timed_out.is_err());
                assert_eq!(RaftInstant::now() - before, Duration::from_mins(61));
                let mut bytes = [0; 16];
                RaftRuntime::thread_rng().try_fill_bytes(&mut bytes).unwrap();
                bytes
            })
        };

        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }

    #[tokio::test(start_paused = true)]
    async fn elsewhere_time_is_tokios() {
        let before = RaftInstant::now();

        RaftRuntime::sleep_until(before + Duration::from_secs(5)).await;
        let late = RaftRuntime::timeout_at(before, std::future::pending::<()>()).await;

        assert!(late.is_err());
        assert_eq!(RaftInstant::now() - before, Duration::from_secs(5));
    }
}
