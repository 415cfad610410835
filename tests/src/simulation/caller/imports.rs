//! The importer, which imports holds of another store, and their owners, which claim them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_proto::v1::import_fate::Fate;
use holdfast_proto::v1::import_row::Has;
use holdfast_proto::v1::{
    ImportGroup, ImportHold, ImportPlace, ImportRequest, ImportResponse, ImportRow,
};

use super::{
    AGAIN, ANSWERED_WITHIN, Caller, Holding, Session, Wish, is_of_one_copy, may_be_asked_again,
};
use crate::history::{Asked, Became, Brought, What};
use crate::simulation::stage::lock;

/// How often one import is sent; after that its outcome is unknown.
const TRIES: u64 = 20;

/// Locks and owners that were imported, or nearly, for the claimers.
pub(in crate::simulation) type Board = Arc<Mutex<VecDeque<(String, String)>>>;

/// The rows of one owner.
struct Group {
    owner: String,
    remaining_ms: u64,
    row: Brought,
}

impl Caller {
    /// Imports one lock after the other, each with a holder and two waiters, until it has to stop.
    /// Some are imported twice; of some the waiter comes first, and must be refused.
    pub(in crate::simulation) async fn import(mut self, board: Board) {
        let mut before: Option<Vec<Group>> = None;
        for lock_number in 0_u64.. {
            if *self.stopped.borrow() {
                return;
            }
            let groups = self.groups(lock_number);
            if self.draw.below(4) == 0 {
                self.bring_in(&groups[1..2]).await;
            }
            self.bring_in(&groups).await;
            let claimable =
                groups.iter().map(|group| (group.row.name.clone(), group.owner.clone()));
            lock(&board).extend(claimable);
            if let Some(before) = before.take().filter(|_| self.draw.below(2) == 0) {
                self.bring_in(&before).await;
            }
            before = Some(groups);
            self.runtime.sleep(Duration::from_millis(1_000 + self.draw.below(5_000))).await;
        }
    }

    fn groups(&mut self, lock_number: u64) -> Vec<Group> {
        let value = (self.draw.below(2) == 0).then(|| format!("left {lock_number}"));
        let owners = ["holder", "first", "second"];
        let groups = owners.iter().enumerate().map(|(place, owner)| Group {
            owner: format!("old/{lock_number}/{owner}"),
            remaining_ms: 1_500 + self.draw.below(4_500),
            row: Brought {
                name: format!("imports/{lock_number}"),
                waits: place > 0,
                value: value.clone().filter(|_| place == 0),
            },
        });
        groups.collect()
    }

    /// One import call, repeated until it is answered.
    async fn bring_in(&mut self, groups: &[Group]) {
        let numbers: Vec<u64> = groups.iter().map(|group| self.asks_to_import(group)).collect();
        for _ in 0..TRIES {
            let asked = ImportRequest { groups: groups.iter().map(on_the_wire).collect() };
            let call = self.line.ask(ANSWERED_WITHIN, |calls, node| async move {
                calls.import(&node, asked).await
            });
            match call.await {
                Ok(answer) => return self.told_of_import(&numbers, answer),
                // Also a member that some other member does not know yet (I29).
                Err(status)
                    if may_be_asked_again(&status)
                        || is_of_one_copy(&status)
                        || status.code() == tonic::Code::Unimplemented =>
                {
                    self.runtime.sleep(AGAIN).await;
                }
                Err(_) => return,
            }
        }
    }

    fn asks_to_import(&mut self, group: &Group) -> u64 {
        let import = self.number();
        self.write(What::Import {
            import,
            owner: group.owner.clone(),
            remaining_ms: group.remaining_ms,
            rows: vec![group.row.clone()],
        });
        import
    }

    fn told_of_import(&self, numbers: &[u64], answer: ImportResponse) {
        for (&import, group) in numbers.iter().zip(answer.groups) {
            let fates = group.rows.into_iter().map(|row| match row.fate {
                Some(Fate::Held(token)) => Became::Held(token),
                Some(Fate::Queued(_)) => Became::Queued,
                Some(Fate::Known(_)) => Became::Known,
                Some(Fate::Refused(_)) | None => Became::Refused,
            });
            self.write(What::Imported { import, fates: fates.collect() });
        }
    }

    /// Claims what is on the board, in some order, holds it and releases it, until it has to stop.
    /// Some of it is claimed again.
    pub(in crate::simulation) async fn claim_all(mut self, board: Board) {
        while let Some(session) = self.next_session().await {
            while session.is_safe() && !*self.stopped.borrow() {
                match self.claim_one(&session, &board).await {
                    Some(holding) => self.hold(&session, holding).await,
                    None => self.runtime.sleep(Duration::from_millis(50)).await,
                }
            }
            self.leave(session).await;
        }
    }

    async fn claim_one(&mut self, session: &Session, board: &Board) -> Option<Holding> {
        let (name, owner) = {
            let mut board = lock(board);
            let among = u64::try_from(board.len()).unwrap_or(0).min(3);
            let chosen = usize::try_from(self.draw.below(among.max(1))).unwrap_or(0);
            if self.draw.below(4) == 0 {
                board.get(chosen).cloned()?
            } else {
                board.remove(chosen)?
            }
        };
        let request = self.number();
        let within_ms = Some(self.recorder.ms_of(self.traffic.within));
        self.write(What::Claim { request, name: name.clone(), owner: owner.clone(), within_ms });
        let wish = Wish { items: vec![Asked::exclusive(name)], wait: true, owner: Some(owner) };
        self.get(session, request, wish).await
    }
}

fn on_the_wire(group: &Group) -> ImportGroup {
    let Brought { name, waits, value } = &group.row;
    let has = if *waits {
        Has::Place(ImportPlace {})
    } else {
        Has::Hold(ImportHold { value: value.clone().map(|value| value.into_bytes().into()) })
    };
    let row = ImportRow { name: name.clone().into_bytes().into(), has: Some(has) };
    let owner = group.owner.clone();
    ImportGroup { owner, remaining_ms: group.remaining_ms, rows: vec![row] }
}
