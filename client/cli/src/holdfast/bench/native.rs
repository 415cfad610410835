//! The closed loops on the native store.

use super::Plan;
use super::pairs::{self, Loops, Window};
use super::row::Row;
use super::scene::Scene;
use super::store::Store;
use crate::failure::Failure;

/// W1 to W3; `shared`: all clients use one lock.
pub(super) async fn measure(plan: &Plan, scene: &Scene, shared: bool) -> Result<Row, Failure> {
    let sessions = scene.sessions(plan, plan.sessions).await?;
    let start = scene.names();
    let locks = if shared { 1 } else { plan.clients };
    let loops = Loops {
        runtime: scene.runtime.clone(),
        probe: scene.probe(),
        stores: sessions.iter().cloned().map(Store::Native).collect(),
        clients: plan.clients,
        names: (0..locks).map(|lock| format!("{start}{lock}")).collect(),
    };
    let window = Window::after_warm_up(plan.window, &**scene.clock());
    let row = pairs::measure(&loops, window).await?;
    for session in &sessions {
        // The measurement is over, and a session that is not closed expires.
        let _ = session.close().await;
    }
    Ok(row)
}
