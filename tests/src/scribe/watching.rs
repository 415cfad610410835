//! A watch of the real library, recorded in a history.

use std::time::Duration;

use holdfast::{ChangeKind, Holder, LockInfo, Mode, Watch, WatchEvent};
use tokio::sync::watch;

use super::{Scribe, shown};
use crate::history::{Happened, Holding, News, What};

/// The pause before a watch that no node served is begun again.
const AGAIN: Duration = Duration::from_millis(200);

impl Scribe {
    /// Watches the locks below `prefix` and records every report, until `over` is true. A watch
    /// that fails, because no node can be reached, is followed by another one.
    pub async fn watch(&self, prefix: &str, mut over: watch::Receiver<bool>) {
        while !*over.borrow() {
            let number = self.next_request();
            self.write(What::Watch { watch: number, prefix: prefix.to_owned() });
            let telling = self.client.reader().watch(prefix);
            let stopped = holdfast_runtime::select! {
                () = self.write_news(number, telling) => false,
                _ = over.wait_for(|over| *over) => true,
            };
            self.write(What::WatchOver { watch: number, failed: !stopped });
            if !stopped {
                self.runtime.sleep(AGAIN).await;
            }
        }
    }

    async fn write_news(&self, watch: u64, mut telling: Watch) {
        while let Some(Ok(event)) = telling.next().await {
            if let Some(news) = news(event) {
                self.write(What::WatchTold { watch, news });
            }
        }
    }
}

fn news(event: WatchEvent) -> Option<News> {
    Some(match event {
        WatchEvent::Restarted => News::Restarted,
        WatchEvent::Synced => News::Synced,
        WatchEvent::Lock(LockInfo { name, holders, waiting, value, .. }) => News::Lock {
            holders: holders.iter().map(holding).collect(),
            value: value.map(|value| shown(&name, &value)),
            waiting,
            name,
        },
        WatchEvent::Change(change) => {
            let what = happened(&change.name, change.what)?;
            News::Change { name: change.name, index: change.index, waiting: change.waiting, what }
        }
        // The library may report more than this code knows of.
        _ => return None,
    })
}

fn happened(name: &str, what: ChangeKind) -> Option<Happened> {
    Some(match what {
        ChangeKind::Queued(_) => Happened::Queued,
        ChangeKind::Left(_) => Happened::Left,
        ChangeKind::Granted(holder) => Happened::Granted(holding(&holder)),
        ChangeKind::Released(holder) => Happened::Released(holding(&holder)),
        ChangeKind::Lost(holder, _) => Happened::Lost(holding(&holder)),
        ChangeKind::ValueChanged(value) => Happened::Value(value.map(|value| shown(name, &value))),
        _ => return None,
    })
}

fn holding(holder: &Holder) -> Holding {
    Holding { token: holder.token.get(), shared: holder.mode != Mode::Exclusive }
}
