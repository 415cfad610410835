//! The counters of fencing tokens: one for each name, which is never deleted.
//!
//! `fences(name, n)`. It has no TTL and knows no epoch: it goes on counting in a new one.

use super::super::database::{Conditional, Fault, Tables};
use super::super::statement::{Action, Ident, Statement, Value};

/// Draws the next number of `name`, which no other call gets. Call it while the lock is held.
///
/// # Errors
///
/// [`Fault`]: the call drew no number, or one that is spent. Before it draws the next one, the caller has to check that
/// it still holds the lock.
pub(super) async fn draw(tables: &Tables, name: &str) -> Result<i64, Fault> {
    let n = Ident::new("n");
    let look = Action::SelectSerial { columns: vec![n.clone()] };
    let before = tables.read(statement(name, look)).await?.and_then(|row| row.long(&n));
    let next = before.unwrap_or(0).checked_add(1).ok_or_else(|| used_up(name))?;
    let action = Action::UpdateIf {
        cells: vec![(n.clone(), Some(Value::from(next)))],
        ttl_s: None,
        only_if: vec![(n, before.map(Value::from))],
    };
    match tables.conditional(statement(name, action)).await.1? {
        Conditional::Applied => Ok(next),
        // An attempt that has ended drew a number late.
        Conditional::NotApplied(_) => {
            Err(Fault::NotDone(format!("the fence of {name:?} moved meanwhile")))
        }
    }
}

/// A token has no room for a larger number.
pub(super) fn used_up(name: &str) -> Fault {
    Fault::Refused(format!("table fences: the numbers of {name:?} are used up, or not ours"))
}

fn statement(name: &str, action: Action) -> Statement {
    let key = vec![(Ident::new("name"), Value::from(name))];
    Statement::new(Ident::new("fences"), key, action).decided_everywhere()
}
