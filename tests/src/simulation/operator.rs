//! What operators do in a run with rules: they end sessions and holds, and change who may do what (DESIGN §14, I34, I35).

use std::time::Duration;

use holdfast_core::{
    AccessName, Caller, Command, Deed, FencingToken, Identity, Label, LockName, NamePrefix,
    Outcome, Right, RuleChange, SessionId, Verb,
};
use holdfast_server::consensus::{Consensus as _, propose_when_known};

use super::fault::Fault;
use super::stage::{STAGE, Stage, in_history};
use crate::history::What;
use crate::sim::{IDENTITIES, World, client_of, identity_of};

/// The pause before a change is tried again.
pub(super) const AGAIN: Duration = Duration::from_millis(200);
/// Clients from this number on do something else than share locks: an operator leaves them alone.
const HELPERS: u64 = 1_000_000;

/// A hold that an operator may close.
struct Target {
    client: u64,
    session: SessionId,
    lock: LockName,
    token: FencingToken,
}

impl Stage<'_> {
    /// `None` if there was nothing to end, or no leader that did it.
    pub(super) async fn operate(&self, fault: Fault, lasts: Duration) -> Option<()> {
        if !self.plan.rules {
            return None;
        }
        match fault {
            Fault::EndSession(which) => {
                let Target { client, session, .. } = self.target(which)?;
                self.takes_from(client);
                let reason = Label::parse("an operator ends sessions").ok()?;
                self.propose(Deed::EndSession { session, reason, now: false }).await
            }
            Fault::TakeLock(which) => {
                let Target { client, lock, token, .. } = self.target(which)?;
                self.takes_from(client);
                let reason = Label::parse("an operator takes locks").ok()?;
                let token = Some(token);
                self.propose(Deed::CloseHolds { lock, token, reason, now: false }).await
            }
            Fault::Forbid(group) => self.forbid(group % IDENTITIES, lasts).await,
            _ => None,
        }
    }

    fn takes_from(&self, client: u64) {
        self.recorder.write(STAGE, What::TakesAway { of: in_history(client) });
    }

    /// Some hold of a client that shares locks.
    fn target(&self, which: u64) -> Option<Target> {
        let leader = self.world.replica(self.world.leader()?)?;
        let mut targets = Vec::new();
        leader.read(&mut |table, _| {
            for lock in table.locks_after("", None, usize::MAX) {
                targets.extend(lock.holders().filter_map(|held| {
                    let client = client_of(held.label.as_str())?;
                    (client < HELPERS && !held.imported).then(|| Target {
                        client,
                        session: held.grant.session,
                        lock: lock.name.clone(),
                        token: held.grant.token,
                    })
                }));
            }
        });
        let at = usize::try_from(which % (targets.len() as u64).max(1)).unwrap_or(0);
        (at < targets.len()).then(|| targets.swap_remove(at))
    }

    /// Takes the right to acquire from a group, and gives it back, for as long.
    async fn forbid(&self, group: u64, lasts: Duration) -> Option<()> {
        let until = self.runtime.clock.now() + lasts;
        while self.runtime.clock.now() < until {
            for may_acquire in [false, true] {
                self.propose(role(group, may_acquire)?).await;
                let pause = 10 + u64::from(self.below(300));
                self.runtime.sleep(Duration::from_millis(pause)).await;
            }
        }
        Some(())
    }

    /// Turns the rules on, under which everybody may do everything at first.
    pub(super) async fn turn_rules_on(&self) {
        if self.plan.rules {
            self.allow_all(&self.world).await;
            self.until_done(&self.world, Deed::Rule { change: RuleChange::Turn { on: true } })
                .await;
        }
    }

    /// Gives everybody every right, in this world or one that was restored after it.
    pub(super) async fn allow_all(&self, world: &World<'_>) {
        if !self.plan.rules {
            return;
        }
        for group in 0..=IDENTITIES {
            let identity = match group {
                IDENTITIES => Some(Identity::default()),
                group => Identity::parse(&identity_of(group)).ok(),
            };
            let (Some(all), Some(name), Some(identity)) =
                (role(group, true), role_of(group), identity)
            else {
                continue;
            };
            self.until_done(world, all).await;
            let roles = [name].into();
            let change = RuleChange::SetRoles { identity, roles };
            self.until_done(world, Deed::Rule { change }).await;
        }
    }

    async fn until_done(&self, world: &World<'_>, deed: Deed) {
        while self.propose_in(world, deed.clone()).await.is_none() {
            self.runtime.sleep(AGAIN).await;
        }
    }

    /// An administrator's command, at the present leader.
    async fn propose(&self, deed: Deed) -> Option<()> {
        self.propose_in(&self.world, deed).await
    }

    async fn propose_in(&self, world: &World<'_>, deed: Deed) -> Option<()> {
        self.answer_to(world, deed).await?.ok().map(drop)
    }

    /// What became of an administrator's command; `None` if that is not known, or there was no leader for it.
    pub(super) async fn answer_to(&self, world: &World<'_>, deed: Deed) -> Option<Outcome> {
        let leader = world.replica(world.leader()?)?;
        let identity = Identity::parse("cn:ops").ok()?;
        let command = Command::By { caller: Caller { identity, is_admin: true }, deed };
        let done = propose_when_known(&*leader, &self.runtime, command);
        Some(self.runtime.timeout(Duration::from_secs(10), done).await.ok()?.ok()?.outcome)
    }
}

fn role_of(group: u64) -> Option<AccessName> {
    AccessName::parse(&format!("group-{group}")).ok()
}

/// All rights, or all but to acquire.
fn role(group: u64, may_acquire: bool) -> Option<Deed> {
    let verbs = Verb::ALL.into_iter().filter(|verb| may_acquire || *verb != Verb::Acquire);
    let right = |verb| Some(Right { verb, prefix: NamePrefix::parse("").ok()? });
    let rights = verbs.map(right).collect::<Option<_>>()?;
    Some(Deed::Rule { change: RuleChange::SetRole { role: role_of(group)?, rights } })
}
