//! Locks of a scope that is moving to the native store.

use std::sync::Arc;

use clap::Args;
use holdfast::{Builder, Client};
use holdfast_recipes::{
    Cassandra, FallbackOptions, Layout, Locker, LockerMode, LockerOptions, RemoteLocker,
};

use super::failure;
use crate::args::Global;
use crate::failure::Failure;

/// The mode of this process, and its scope.
#[derive(Clone, Debug, Args)]
pub(super) struct ModeArgs {
    /// Lock as a process of a scope that moves to the native store: in `cassandra`, in `both` (first in Cassandra, then in the
    /// store of --endpoints), in `native`, or in `fallback` (in the native store while it serves the scope, and in Cassandra
    /// while it cannot) [default: by the recipe alone, invisible to the operator who moves the scope].
    ///
    /// The scope's stage has to admit the mode. `both` is admitted at every stage but `fallback`, and excludes old clients as
    /// well as those that are further on; the command finds the token in `HOLDFAST_TOKEN`.
    #[arg(long, value_parser = mode)]
    mode: Option<LockerMode>,
    /// The prefix of the scope's lock names; all processes have to use the same [default: all names].
    #[arg(long, requires = "mode", default_value = "", hide_default_value = true)]
    scope: String,
}

fn mode(text: &str) -> Result<LockerMode, String> {
    LockerMode::parse(text)
        .ok_or_else(|| format!("{text:?} is none of cassandra, both, native, fallback"))
}

/// The mode, the scope, and the client of the native store.
pub(super) struct Moving {
    mode: LockerMode,
    scope: String,
    native: Option<Builder>,
}

impl ModeArgs {
    /// `None` without a mode.
    pub(super) fn parsed(self, global: &Global) -> Result<Option<Moving>, Failure> {
        let Self { mode, scope } = self;
        let Some(mode) = mode else { return Ok(None) };
        let native =
            if mode == LockerMode::Cassandra { None } else { Some(global.second_builder()?) };
        Ok(Some(Moving { mode, scope, native }))
    }
}

impl Moving {
    /// Enters the scope. Returns also the client, which the caller closes at the end.
    pub(super) async fn enter(
        self,
        cassandra: &Cassandra,
        recipe: Arc<dyn RemoteLocker>,
        row: LockerOptions,
        leases: LockerOptions,
        layout: Layout,
    ) -> Result<(Locker, Option<Client>), Failure> {
        let mut builder = Locker::builder(cassandra, &self.scope, recipe)
            .table(layout.modes)
            .sequences(layout.lease)
            .row(row);
        builder = builder.fallback(FallbackOptions::default().lease(leases));
        let mut native = None;
        if let Some(store) = self.native {
            // Mode `fallback` does not need a server to start.
            let client = match self.mode {
                LockerMode::Fallback => store.connect_lazy()?,
                _ => store.connect().await?,
            };
            builder = builder.native(client.clone());
            native = Some(client);
        }
        let locker = builder.start(self.mode).await.map_err(failure)?;
        Ok((locker, native))
    }
}
