//! The limit of open files, and its parts: each connection takes a descriptor, and so does each file of
//! the store.
//!
//! # Invariants
//!
//! - All connections that the ports accept together leave [`Shares::reserve`] descriptors. So the store
//!   opens its files, and this node reaches its members, however many clients connect.
//! - Clients never take descriptors that members or health checks need.

use holdfast_mutants::mutant;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Fewest descriptors for everything but connections to a port: the files of the store (log, guard,
/// lock, two snapshots kept open, one being written, one being received), the runtimes, the connections
/// that this node makes itself (three connections to each of eight members, and as many new ones while
/// old ones end; Cassandra), and standard input and output.
const RESERVE_LEAST: u64 = 96;
/// Where there are many descriptors, one of so many belongs to the reserve.
const RESERVE_PART: u64 = 16;
/// Connections to the port for members: three of each of eight members, as many again that end while new
/// ones begin, and some spare.
const MEMBERS: u64 = 64;
/// Connections to the admin port: scrapers and health checks.
const ADMIN: u64 = 32;
/// A node that serves fewer clients is of no use.
const CLIENTS_LEAST: u64 = 64;
/// Of the connections for clients, one of so many is for the Unix socket, if there is one: a flood over the
/// network does not keep out an operator on the machine.
const LOCAL_PART: u64 = 8;
/// With fewer open files a node does not start.
const LEAST: u64 = RESERVE_LEAST + MEMBERS + ADMIN + CLIENTS_LEAST;

/// The process may open too few files for a node. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process may open {limit} files, and a node needs at least {LEAST}, one for each connection \
     and file; raise the limit (ulimit -n, LimitNOFILE= in a unit of systemd)"
)]
pub struct TooFewFiles {
    /// The limit of open files.
    limit: u64,
}

/// How many connections each port takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// The port for clients.
    pub clients: u64,
    /// The Unix socket for clients.
    pub local: u64,
    /// The port for the other members.
    pub members: u64,
    /// The admin port.
    pub admin: u64,
    /// Descriptors that no connection to a port takes.
    pub reserve: u64,
}

impl Shares {
    /// Shares `limit` open files out; clients get at most `wanted` of them, and those on a Unix socket a part
    /// of that, if it `has_socket`.
    ///
    /// # Errors
    ///
    /// [`TooFewFiles`].
    pub fn of(limit: u64, wanted: u64, has_socket: bool) -> Result<Self, TooFewFiles> {
        if limit < LEAST {
            return Err(TooFewFiles { limit });
        }
        let reserve = RESERVE_LEAST.max(limit / RESERVE_PART);
        let left = limit.saturating_sub(reserve + MEMBERS + ADMIN);
        let both = if mutant!(ConnectionsNotCapped) { wanted } else { left.min(wanted) };
        let local = if has_socket { both / LOCAL_PART } else { 0 };
        Ok(Self { clients: both - local, local, members: MEMBERS, admin: ADMIN, reserve })
    }
}

/// Raises the limit of open files as far as the system allows this process, divides it, and logs a line
/// if it leaves fewer than `wanted` for clients.
///
/// # Errors
///
/// [`TooFewFiles`].
pub fn share_out(wanted: u64, has_socket: bool) -> Result<Shares, TooFewFiles> {
    let limit = raise_limit();
    let shares = Shares::of(limit, wanted, has_socket)?;
    let both = shares.clients + shares.local;
    if both < wanted {
        tracing::warn!(
            "this process may open {limit} files: at most {both} clients can be connected, not {wanted} \
             (max_connections); raise the limit (ulimit -n, LimitNOFILE= in a unit of systemd)"
        );
    }
    Ok(shares)
}

/// The usual soft limit is 1,024; the hard limit is the one that the operator intends.
fn raise_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let now = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files cannot be raised to its maximum");
            limit.current
        }
    };
    now.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use holdfast_mutants::{Mutant, while_armed};

    use super::*;

    #[test]
    fn what_is_shared_out_is_never_more_than_there_is() {
        for limit in [256, 257, 1_023, 1_024, 1_536, 1_600, 20_000, 262_144, u64::MAX] {
            for wanted in [64, 1_000, 131_072, 10_000_000] {
                for has_socket in [false, true] {
                    let shares = Shares::of(limit, wanted, has_socket).unwrap();
                    let Shares { clients, local, members, admin, reserve } = shares;
                    let both = clients + local;
                    let all = both.checked_add(members + admin + reserve);
                    assert!(all.is_some_and(|all| all <= limit), "{limit}, {wanted}: {shares:?}");
                    assert!(reserve >= RESERVE_LEAST, "{shares:?}");
                    assert!((64..=wanted).contains(&both), "{shares:?}");
                    assert_eq!(has_socket, local >= 8, "{shares:?}");
                }
            }
        }
    }

    #[test]
    fn without_the_cap_more_is_shared_out_than_there_is() {
        let all = || {
            let shares = Shares::of(1_024, 131_072, false).unwrap();
            shares.clients + shares.members + shares.admin + shares.reserve
        };
        assert!(all() <= 1_024);
        assert!(while_armed(Mutant::ConnectionsNotCapped, all) > 1_024);
    }

    #[test]
    fn a_shell_leaves_832_clients_and_a_unit_of_ours_as_many_as_are_wanted() {
        let clients = |limit| Shares::of(limit, 131_072, false).map(|shares| shares.clients);
        assert_eq!((clients(1_024), clients(262_144)), (Ok(832), Ok(131_072)));
    }

    #[test]
    fn below_256_files_nothing_is_shared_out() {
        assert_eq!(Shares::of(255, 1_000, false), Err(TooFewFiles { limit: 255 }));
        assert_eq!(Shares::of(256, 1_000, false).map(|shares| shares.clients), Ok(64));
    }
}
