//! The command line's arguments.

#[cfg(test)]
mod fuzz;

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use clap_complete::Shell;
use holdfast::{Acquire, Builder, LockItem, TryAcquire};
use holdfast_cli::CONNECT_LIMIT;
use holdfast_cli::colour::Colours;
pub(crate) use holdfast_cli::duration;
use holdfast_cli::tls::TlsArgs;
use nix::sys::signal::Signal;

use crate::failure::Failure;
#[cfg(feature = "cassandra")]
use crate::failure::OWN_ERROR;
use crate::history::{When, when};
use crate::lock::contended::signal;

/// The servers without an option or variable.
pub(crate) const ENDPOINTS_DEFAULT: &str = "127.0.0.1:7420";

/// Distributed locks: run a job while no other machine runs it.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every subcommand takes.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Global {
    /// Where the servers are: `host:port`, `dns:///host:port` for every address of a name, or `unix:PATH`; several separated by
    /// commas. One that is reached is enough [default: 127.0.0.1:7420].
    #[arg(long, global = true, env = "HOLDFAST_ENDPOINTS")]
    pub(crate) endpoints: Option<String>,
    /// Print JSON, for programs.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Colours in what people read.
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t)]
    pub(crate) color: Colours,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

impl Global {
    /// A client with the options' settings.
    pub(crate) fn builder(&self) -> Result<Builder, Failure> {
        self.tls.over(client_of(self.endpoints.as_deref().unwrap_or(ENDPOINTS_DEFAULT)))
    }

    /// The same beside locks on Cassandra: the TTL is that of those locks, and the servers must be
    /// given.
    #[cfg(feature = "cassandra")]
    pub(crate) fn second_builder(&self) -> Result<Builder, Failure> {
        let unsaid = || {
            Failure::new(
                OWN_ERROR,
                "this mode locks in the native store as well: say where, with --endpoints",
            )
        };
        self.tls.over(client_of(self.endpoints.as_deref().ok_or_else(unsaid)?))
    }

    /// The limit for reaching a server if the whole may take `wait`.
    pub(crate) fn connect_limit(wait: Option<Duration>) -> Duration {
        // A try does not wait for a lock, but it has to reach a server.
        wait.filter(|wait| !wait.is_zero()).map_or(CONNECT_LIMIT, |wait| wait.min(CONNECT_LIMIT))
    }
}

fn client_of(endpoints: &str) -> Builder {
    let endpoints = holdfast_cli::endpoints(endpoints);
    holdfast::Client::builder().endpoints(endpoints).connect_timeout(CONNECT_LIMIT)
}

/// Of commands that open a session for locks.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Lease {
    /// How long the store keeps our locks without hearing from us, e.g. 10s, 500ms, 2m [default:
    /// the server's, 10s].
    #[arg(long, value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// The name that others see, as whoever holds the lock or waits for it [default: host:pid]. It proves
    /// nothing.
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Our place in a trace, as the header of W3C Trace Context has it: servers that export traces add spans of the wait
    /// and the hold.
    #[arg(long, value_name = "HEADER", env = "TRACEPARENT")]
    pub(crate) traceparent: Option<String>,
}

impl Lease {
    /// Empty: none.
    pub(crate) fn traceparent(&self) -> &str {
        self.traceparent.as_deref().unwrap_or_default()
    }

    /// The same client with these settings.
    pub(crate) fn over(&self, builder: Builder) -> Builder {
        let builder = self.ttl.into_iter().fold(builder, Builder::ttl);
        self.label.iter().fold(builder, Builder::label)
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Wait for a lock, or several, run a command while they are held, give them back.
    ///
    /// Without a command the locks are held until Ctrl-C or another signal asks to end, and a line says so once
    /// they are. Exit codes then: 0 asked to end; 121 to 125 as below.
    ///
    /// Exit codes: the command's; 128+n if signal n ended it; 121 the lock was lost and the
    /// command stopped; 122 the store refused; 123 no server could be reached; 124 not granted
    /// within --wait; 125 an error of holdfast itself; 126 the command cannot be run; 127 it was
    /// not found. The command finds in its environment `HOLDFAST_LOCK` (the lock, of several the
    /// first), `HOLDFAST_LOCKS` (all that are held, one a line), `HOLDFAST_TOKEN` (the fencing
    /// token, the same for all) and `HOLDFAST_HOLDS` (for a `holdfast lock` in it, which is refused what it would wait
    /// for as long as it runs itself).
    ///
    /// The command is the first of a process group of its own. Whatever ends it (its own end, a
    /// signal, a lost lock), holdfast gives the lock back when nothing of that group runs any more:
    /// it waits for processes that the command has left behind, and a line on standard error shows
    /// how many there are. SIGTERM, SIGINT, SIGHUP and SIGQUIT are passed on to the group; what
    /// still runs 10 s after such a signal has ended the command itself is killed (see
    /// --kill-after). When the lock is about to be lost, holdfast asks the whole group to end, and
    /// kills it before another client could hold the lock (see --grace). Before that, when the store has not
    /// answered for about half the TTL, a line on standard error says so.
    ///
    /// A process that has left the group (by setsid or setpgid, as daemons do, and each job of an
    /// interactive shell or of a shell with `set -m`) is not waited for, not asked to end and not
    /// killed: it runs on without the lock. So does a process of another user, as a command with sudo
    /// starts one: holdfast may not kill it (run holdfast itself by sudo). If holdfast itself is killed with SIGKILL, the command
    /// is killed with it, but nothing else of its group: that runs on, and another client can hold
    /// the lock as soon as the lease has run out, at most the TTL later.
    Lock(LockArgs),
    /// Stand for election, run a command while leading, resign.
    ///
    /// As lock, of which it has the exit codes: candidates wait in line, and the first one leads. What it proclaims is
    /// what `holdfast leader` and other observers are told.
    Elect(ElectArgs),
    /// Print what the leader of an election proclaims, or nothing.
    ///
    /// Exit codes: 0 somebody leads, or asked to end; 1 nobody does; 122 the store refused; 123 no server could be
    /// reached; 125 an error of holdfast itself.
    Leader {
        /// The election.
        name: String,
        /// Go on, one line for each leader, and for each time that nobody leads.
        #[arg(long)]
        watch: bool,
    },
    /// Run a command if a lock, or all of several, is free, exit with 124 if it is not.
    ///
    /// Without a command it holds them, and exit codes are, as of lock.
    Try(Job),
    /// The locks that are held, waited for, or have a value.
    List {
        /// Only locks whose names begin with this.
        #[arg(default_value = "")]
        prefix: String,
    },
    /// One lock: who holds it and how, who waits, which value was left there.
    Inspect {
        /// The lock.
        name: String,
        /// Why it is waited for: its holders, what they wait for themselves, and so on to the one that everybody waits
        /// for, or round in a circle. Needs the right to read all locks.
        #[arg(long)]
        why: bool,
    },
    /// One session: what it calls itself, its lease, what it holds and waits for; whether it was
    /// imported. `inspect` and `list --json` show the ids of sessions. `session end` ends one.
    ///
    /// Exit codes: 0 shown, or done; 122 there is no such session; 123 no server could be reached; 125
    /// an error of holdfast itself.
    Session(SessionArgs),
    /// Take a lock away from its holder, who is told at once.
    ///
    /// Nobody else gets the lock while the holder may still rely on it: it passes on when the holder's
    /// client has let go of it, or when its lease would have run out, as after a crash. A command under
    /// `holdfast lock` is killed, and then lets go. The hold ends with all locks of its grant. Needs the
    /// verb `force` on all of them. Exit codes: 0 done; 122 refused, for example because nobody holds
    /// it; 123 no leader was reached, or no outcome was seen in time; 125 an error of holdfast itself,
    /// or a wrong command line.
    Release(ReleaseArgs),
    /// Set up to how many permits of a lock are held at a time, for good and at once.
    ///
    /// Waiters that fit are granted at once. A limit that is lowered ends nothing: the next are granted once enough
    /// permits were given back, and a waiter that wants more than the limit is refused when its turn comes. Commands
    /// that give -n have to give this limit from then on; those with --permits alone take it as it is. Needs the verb
    /// `limit`. Exit codes as of cluster.
    Limit(LimitArgs),
    /// Grant nothing of the names that begin with a prefix, until they are thawed.
    ///
    /// Holds stay: they are given back and run out as before. Commands that ask wait in line and show the message; a try is
    /// refused with it. Names in a scope with fallback are left out: Cassandra would go on granting them. Repeating it is
    /// harmless. Needs the verb `freeze`. Exit codes as of cluster.
    Freeze {
        #[command(flatten)]
        names: FrozenNames,
        /// Why, for those who wait.
        #[arg(long, value_name = "TEXT", default_value = "")]
        message: String,
        #[command(flatten)]
        limit: ClusterLimit,
    },
    /// Lift a freeze, and grant to those who wait.
    ///
    /// Exit codes as of cluster; 122 also if nothing is frozen by exactly that prefix.
    Thaw {
        #[command(flatten)]
        names: FrozenNames,
        #[command(flatten)]
        limit: ClusterLimit,
    },
    /// The prefixes that are frozen: by whom, for how long, why.
    Freezes,
    /// Who held a lock, from when to when, and why that ended; and what operators did.
    ///
    /// Every node remembers as much as its settings `history_bytes` and `history_days` allow; the first of the
    /// endpoints that answers is asked, whether it leads or not, and without a quorum. Without a name, prefix or session:
    /// everything, elections and changes of the members too. Exit codes as of cluster. Needs the verb `history`.
    History(HistoryArgs),
    /// The locks that matter most, live: hottest, longest queues, longest held; with a lock's queue and past at a key.
    ///
    /// For a terminal of 80 columns and 24 lines or more. `?` shows the keys; forced release and freeze are asked about
    /// first. Exit codes: 0 after `q` or Ctrl-C; 125 an error of holdfast itself. Servers that do not answer are shown as
    /// such, and asked again.
    Top(TopArgs),
    /// Numbers that are given out once, in rising order, without a lock: `next`, `begin`, `list`.
    ///
    /// Exit codes as of cluster.
    #[command(subcommand)]
    Sequence(SequenceCommand),
    /// Whether the grant with a fencing token holds a lock now.
    ///
    /// Exit codes: 0 it does; 1 it does not; 122 the store refused; 123 no server could be
    /// reached; 125 an error of holdfast itself. The grant may end right after that: a resource
    /// that has to be sure compares tokens itself, with every write.
    CheckToken {
        /// The lock.
        name: String,
        /// The fencing token.
        token: u64,
    },
    /// The locks as they are, and then whatever happens to them, one line each.
    ///
    /// A line begins with the time of day here; with --json `at` has date and time in UTC: when this program
    /// read it. Ends with Ctrl-C, and 0. After a broken connection or a change of leader it goes on by
    /// itself where it ended, and prints a line about both. If the servers do not keep all changes
    /// since then any more, it says so, and prints the state again. Exit codes: 0 asked to end; 122
    /// the store refused; 123 no server could be reached; 125 an error of holdfast itself.
    Watch {
        /// Only locks whose names begin with this.
        #[arg(default_value = "")]
        prefix: String,
    },
    /// Whether the store serves, and each server that was named: one screen.
    ///
    /// Exit codes: 0 a leader with a quorum serves; 123 none does; 122 the store refused the
    /// question; 125 an error of holdfast itself.
    Status,
    /// The members of the cluster: show them; add or remove one, give it a vote, change the leader.
    ///
    /// Every change names its result, so it is no error if that is so already, and repeating it is
    /// harmless. The cluster makes one change at a time. Exit codes: 0 done, or so already; 122
    /// refused, nothing was changed, the message says what to do; 123 no leader was reached, or no
    /// outcome was seen in time; 125 an error of holdfast itself, or a wrong command line.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Backups that `cluster backup` wrote: check one, or show what is in it. No server is needed.
    ///
    /// Exit codes: 0 the backup is whole; 122 it is not, or is none; 125 it cannot be read.
    #[command(subcommand)]
    Backup(BackupCommand),
    /// Scopes with fallback: prefixes of names that Cassandra serves while no server can be reached.
    ///
    /// The leader answers, whichever server is called. Exit codes as of cluster.
    #[command(subcommand)]
    Scope(ScopeCommand),
    /// Who may do what: roles, the identities that have them, tokens. Needs the verb `rules`.
    ///
    /// The leader answers, whichever server is called. Repeating a change is harmless. Exit codes as of
    /// cluster; of test also 1.
    Auth {
        #[command(subcommand)]
        command: crate::auth::AuthCommand,
        #[command(flatten)]
        limit: ClusterLimit,
    },
    /// Certificates for TLS: make a CA, and with it those of nodes and clients.
    ///
    /// Overwrites nothing. Keys can be read by their owner only. Exit codes: 0 made; 125 not made.
    #[command(subcommand)]
    Cert(crate::cert::CertCommand),
    /// Locks by the recipes on Cassandra; its tables.
    ///
    /// Exit codes as of lock.
    #[cfg(feature = "cassandra")]
    Cassandra(Box<crate::cassandra::CassandraArgs>),
    /// Three servers, 64 workers, four files, and a leader that is killed twice.
    Demo {
        /// The same without locks: increments get lost, and the exit code shows it.
        #[arg(long)]
        no_locks: bool,
        /// Go on until Ctrl-C, and say where the page of the servers is: in a browser one sees the four locks fought over,
        /// their queues, and a leader that is killed every 20 s and replaced.
        #[arg(long, conflicts_with = "no_locks")]
        page: bool,
    },
    /// Measure locks: rates, latencies, fairness, what they cost, how fast a dead holder is replaced.
    ///
    /// Starts servers of its own (the holdfastd beside this program, data in a temporary folder,
    /// every answer synced) or, without --members, measures those of --endpoints.
    Bench(BenchArgs),
    /// Completions for a shell, on standard output.
    ///
    /// For bash: `holdfast completions bash > ~/.local/share/bash-completion/completions/holdfast`. The
    /// package for Debian has them.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// The manual pages, into a folder.
    #[command(hide = true)]
    Man {
        /// The folder; it is there.
        folder: PathBuf,
    },
    /// The process that `bench` kills while it holds a lock.
    #[command(hide = true)]
    BenchHolder {
        /// The lock.
        name: String,
        /// The lease of its session.
        #[arg(long, value_parser = duration)]
        ttl: Duration,
    },
    /// A process of the demo's workers.
    #[command(hide = true)]
    DemoWorker(DemoWorkerArgs),
}

/// Of `session`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct SessionArgs {
    /// Its id.
    #[arg(required = true)]
    pub(crate) id: Option<u64>,
    #[command(subcommand)]
    pub(crate) end: Option<SessionCommand>,
}

/// The subcommands of `session`.
#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// End a session: its waits at once, its holds when its lease has run out; its client is told.
    ///
    /// Needs the verb `revoke`.
    End {
        /// Its id.
        id: u64,
        #[command(flatten)]
        how: EndArgs,
        #[command(flatten)]
        limit: ClusterLimit,
    },
}

/// Of `release`.
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// The lock.
    pub(crate) name: String,
    /// Has to be given: it is somebody else's lock. The holder itself gives a lock back by the end of its
    /// command.
    #[arg(long, required = true)]
    pub(crate) force: bool,
    /// Only the hold under this fencing token [default: every hold of the lock].
    #[arg(long)]
    pub(crate) token: Option<u64>,
    #[command(flatten)]
    pub(crate) how: EndArgs,
    #[command(flatten)]
    pub(crate) limit: ClusterLimit,
}

/// Of `limit`.
#[derive(Debug, Args)]
pub(crate) struct LimitArgs {
    /// The lock.
    pub(crate) name: String,
    /// The limit; or `none`: it goes once nobody holds permits or waits for some.
    #[arg(value_name = "N", value_parser = permit_limit)]
    pub(crate) permits: PermitsOrNone,
    #[command(flatten)]
    pub(crate) limit: ClusterLimit,
}

/// Of `top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Only locks whose names begin with this.
    #[arg(default_value = "")]
    pub(crate) prefix: String,
}

/// Of `history`.
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// The lock.
    #[arg(conflicts_with_all = ["prefix", "session"])]
    pub(crate) name: Option<String>,
    /// Locks whose names begin with this.
    #[arg(long, conflicts_with = "session")]
    pub(crate) prefix: Option<String>,
    /// What the session with this id held.
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<u64>,
    /// Only from this time on: `2h` or `3d` ago, `03:10` today, `2026-11-29 03:10` here, or as RFC 3339 has it.
    #[arg(long, value_name = "WHEN", value_parser = when)]
    pub(crate) since: Option<When>,
    /// Only what happened before this time.
    #[arg(long, value_name = "WHEN", value_parser = when)]
    pub(crate) until: Option<When>,
    /// The last so many entries. A hold has two: its grant and its end.
    #[arg(long, value_name = "N", default_value = "1000")]
    pub(crate) limit: NonZeroU32,
    #[command(flatten)]
    pub(crate) timeout: ClusterLimit,
}

/// Of `sequence`.
#[derive(Debug, Subcommand)]
pub(crate) enum SequenceCommand {
    /// Print the next number of a sequence, which begins at 1 if there is none of that name.
    ///
    /// Nobody else is given it, ever. If no answer comes, it may be lost, and the next call prints a higher one. Needs
    /// the verb `sequence`.
    Next {
        /// The sequence. It has nothing to do with a lock of the same name.
        name: String,
        /// Take so many numbers, without a gap between them, and print each on a line of its own: 1 to 65536.
        #[arg(long, value_name = "N", default_value = "1")]
        by: NonZeroU32,
        #[command(flatten)]
        limit: ClusterLimit,
    },
    /// Have the next number be this one: for a sequence that goes on from another system's.
    ///
    /// It has to be above all that were given out; otherwise the exit code is 122. Needs the verb `sequence`.
    Begin {
        /// The sequence.
        name: String,
        /// The next number.
        #[arg(value_name = "N", value_parser = value_parser!(u64).range(1..))]
        at: u64,
        #[command(flatten)]
        limit: ClusterLimit,
    },
    /// List sequences and the last number of each that was given out.
    List {
        /// What their names begin with.
        #[arg(default_value = "")]
        prefix: String,
        #[command(flatten)]
        limit: ClusterLimit,
    },
}

/// Of `freeze` and `thaw`.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct FrozenNames {
    /// What the names begin with.
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    prefix: Option<String>,
    /// All names.
    #[arg(long)]
    all: bool,
}

impl FrozenNames {
    /// The prefix; empty: all names.
    pub(crate) fn prefix(&self) -> &str {
        self.prefix.as_deref().unwrap_or_default()
    }
}

/// The limit of `limit`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PermitsOrNone(pub(crate) Option<u32>);

fn permit_limit(text: &str) -> Result<PermitsOrNone, String> {
    if text == "none" {
        return Ok(PermitsOrNone(None));
    }
    let limit = text.parse().ok().filter(|limit| *limit > 0);
    let wrong = || format!("write a whole number from 1 to {}, or `none` for no limit", u32::MAX);
    limit.map(|limit| PermitsOrNone(Some(limit))).ok_or_else(wrong)
}

/// How an operator ends what somebody has.
#[derive(Debug, Args)]
pub(crate) struct EndArgs {
    /// Why: the client is told, and the servers log it.
    #[arg(long)]
    pub(crate) reason: String,
    /// DANGEROUS: pass the locks on at once, while the client may still rely on them. Two may hold one
    /// lock then (guarantee 1 is broken), unless you know that the client has stopped. Needs the verb
    /// `now` as well.
    #[arg(long)]
    pub(crate) now: bool,
}

/// Of `lock`.
#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    /// Give up after this long, e.g. 30s; covers reaching a server too [default: wait for ever].
    #[arg(long, value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Take over the import of the lock for OWNER, by its name in the other store, instead of
    /// waiting in line.
    #[arg(long, value_name = "OWNER", conflicts_with_all = ["shared", "any", "limit", "permits", "head_start", "note", "max_hold", "hold_at_least"])]
    pub(crate) claim: Option<String>,
    #[command(flatten)]
    pub(crate) job: Job,
    /// It is an election's.
    #[arg(skip)]
    pub(crate) proclaims: Option<Proclaims>,
}

/// Of `elect`.
#[derive(Debug, Args)]
pub(crate) struct ElectArgs {
    /// The election.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// What to proclaim, for example where others reach the leader [default: the label].
    #[arg(long, value_name = "TEXT")]
    pub(crate) value: Option<String>,
    /// Give up after this long, e.g. 30s; covers reaching a server too [default: wait for ever].
    #[arg(long, value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    #[command(flatten)]
    pub(crate) heard: Heard,
    #[command(flatten)]
    pub(crate) lease: Lease,
    #[command(flatten)]
    pub(crate) work: Work,
}

impl From<ElectArgs> for LockArgs {
    fn from(args: ElectArgs) -> Self {
        let ElectArgs { name, value, wait, heard, lease, work } = args;
        let (mode, terms) = (ModeArgs::default(), Terms::default());
        let job =
            Job { names: vec![name], mode, any: false, at_least: None, terms, heard, lease, work };
        Self { wait, claim: None, job, proclaims: Some(Proclaims(value)) }
    }
}

/// What the holder of an election's lock proclaims; `None`: its label.
#[derive(Clone, Debug)]
pub(crate) struct Proclaims(pub(crate) Option<String>);

/// A command and its locks.
#[derive(Clone, Debug, Args)]
pub(crate) struct Job {
    /// The locks: all of them or none.
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) mode: ModeArgs,
    /// Not all of them, but whichever are free: at least one.
    #[arg(long)]
    pub(crate) any: bool,
    /// With --any, wait until so many of them are free at once: 1 to their number.
    #[arg(long, value_name = "N", requires = "any", value_parser = value_parser!(u32).range(1..))]
    pub(crate) at_least: Option<u32>,
    #[command(flatten)]
    pub(crate) terms: Terms,
    #[command(flatten)]
    pub(crate) heard: Heard,
    #[command(flatten)]
    pub(crate) lease: Lease,
    #[command(flatten)]
    pub(crate) work: Work,
}

/// What a command hears of others while it runs.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Heard {
    /// Send the command this signal, for example USR1, when somebody begins to wait for one of the locks, and when somebody
    /// comes with a larger head start than all who wait; not within its first second. A command that does not handle the
    /// signal is ended by most of them: TERM gives the locks back as soon as somebody wants them.
    #[arg(long, value_name = "SIGNAL", value_parser = signal, requires = "command")]
    pub(crate) on_contended: Option<Signal>,
}

/// What a request says besides its locks.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Terms {
    /// Count as having come so much earlier, at most 10m: go before those who came less than this before us. Nobody
    /// waits longer than the largest head start because of commands that came later.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    head_start: Option<Duration>,
    /// What others see beside the lock in `list`, `inspect` and where they wait for it, e.g. "ticket 4711".
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// End the command when the lock was held for so long, at most 24h, and pass the lock on once it has ended: for one that
    /// may hang.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    max_hold: Option<Duration>,
    /// Let nobody else have the lock before so long after it was granted, at most 24h, however short the command is: for a job that
    /// every machine starts at the same time, with `try`.
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with_all = ["shared", "limit", "permits"])]
    hold_at_least: Option<Duration>,
}

impl Terms {
    /// The same acquire with these terms.
    pub(crate) fn over(&self, acquire: Acquire) -> Acquire {
        let acquire = self.head_start.into_iter().fold(acquire, Acquire::head_start);
        let acquire = self.max_hold.into_iter().fold(acquire, Acquire::max_hold);
        let acquire = self.hold_at_least.into_iter().fold(acquire, Acquire::hold_at_least);
        self.note.iter().fold(acquire, Acquire::note)
    }

    /// The same for one that does not wait.
    pub(crate) fn over_try(&self, acquire: TryAcquire) -> TryAcquire {
        let acquire = self.head_start.into_iter().fold(acquire, TryAcquire::head_start);
        let acquire = self.max_hold.into_iter().fold(acquire, TryAcquire::max_hold);
        let acquire = self.hold_at_least.into_iter().fold(acquire, TryAcquire::hold_at_least);
        self.note.iter().fold(acquire, TryAcquire::note)
    }
}

/// How locks are held.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ModeArgs {
    /// Hold them shared, beside others that share them.
    #[arg(long)]
    shared: bool,
    /// Hold them as semaphores: up to N holders at a time, or as many as fit with --permits. All who ask have to give
    /// the same N. Without it, --permits takes the limit that `holdfast limit` has set.
    #[arg(short = 'n', long = "limit", value_name = "N", conflicts_with = "shared", value_parser = value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// How many permits of each semaphore, 1 to its limit [default with -n: 1].
    #[arg(long, value_name = "K", conflicts_with = "shared", value_parser = value_parser!(u32).range(1..))]
    permits: Option<u32>,
}

impl ModeArgs {
    /// A lock in that mode.
    pub(crate) fn of(&self, name: &str) -> LockItem {
        if self.limit.is_some() || self.permits.is_some() {
            LockItem::permits(name, self.permits.unwrap_or(1), self.limit)
        } else if self.shared {
            LockItem::shared(name)
        } else {
            LockItem::exclusive(name)
        }
    }
}

/// A command that runs under a lock.
#[derive(Clone, Debug, Args)]
pub(crate) struct Work {
    /// Ask the command to end (SIGTERM) this long before the locks stop being safe [default: a
    /// quarter of the TTL, less where authority over a scope with fallback is short]. 200 ms before that moment
    /// it is killed.
    #[arg(long, value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// Kill what still runs of the command's process group this long after it was asked to end (by a
    /// signal, or because the lock is about to be lost) or the command itself has ended,
    /// whichever comes first [default: 10s after the end of a command that was asked to end;
    /// otherwise never, and what is left is waited for].
    #[arg(long, value_parser = duration)]
    pub(crate) kill_after: Option<Duration>,
    /// Give the lock back as soon as the command itself has ended, without waiting for processes
    /// that it has started. Those run on without the lock: another client can hold it meanwhile,
    /// and both can write at the same time.
    #[arg(long)]
    pub(crate) release_at_exit: bool,
    /// The command and its arguments.
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Of `cluster`.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// The members as the leader reports them: votes, leadership, progress.
    Status(ClusterLimit),
    /// Add a node that was started with `--join`. It is a learner, and does not vote yet.
    Add {
        /// The node's id: above every id ever used, which `cluster status` shows.
        #[arg(value_name = "NODE_ID", value_parser = node_id())]
        node: u64,
        /// Where clients reach it: host:port, as in its settings.
        #[arg(long, value_name = "HOST:PORT")]
        advertise: String,
        /// Where the other members reach it: host:port, as in its settings.
        #[arg(long, value_name = "HOST:PORT")]
        peer_advertise: String,
        #[command(flatten)]
        limit: ClusterLimit,
    },
    /// Give a learner that has caught up a vote.
    Promote {
        /// The member's node id.
        #[arg(value_name = "NODE_ID", value_parser = node_id())]
        node: u64,
        #[command(flatten)]
        limit: ClusterLimit,
    },
    /// Remove a member, for ever: its node id is never used again. The leader hands over first.
    ///
    /// On a terminal it asks before. The cluster refuses a removal that would leave it without a
    /// majority, and a machine that was removed by mistake comes back under a new node id.
    Remove {
        /// The member's node id.
        #[arg(value_name = "NODE_ID", value_parser = node_id())]
        node: u64,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        limit: ClusterLimit,
    },
    /// Write a backup of the locks' table to a file. Needs the verb `backup`.
    ///
    /// It contains what was acknowledged before: values, rules, hashes of tokens, scopes, limits, freezes,
    /// sequences, and the numbers from which tokens go on. The file appears when it is whole, checked and synced, readable by
    /// its owner only. `holdfastd restore` begins a new cluster with it.
    Backup {
        /// The file.
        file: PathBuf,
        /// Replace the file if it is there.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        limit: ClusterLimit,
    },
    /// Let another voter lead.
    TransferLeader {
        /// The voter that is to lead [default: any that has caught up].
        #[arg(value_name = "NODE_ID", value_parser = node_id())]
        to: Option<u64>,
        #[command(flatten)]
        limit: ClusterLimit,
    },
}

/// Of `backup`.
#[derive(Debug, Subcommand)]
pub(crate) enum BackupCommand {
    /// Whether a backup is whole: every byte, and everything that has to hold in a lock table.
    Verify {
        /// The file.
        file: PathBuf,
    },
    /// What is in a backup: whose it is, of when, what a restore brings back and what it leaves out.
    Show {
        /// The file.
        file: PathBuf,
    },
}

/// Of `scope`.
#[derive(Debug, Subcommand)]
pub(crate) enum ScopeCommand {
    /// Make the names that begin with a prefix a scope with fallback.
    ///
    /// Every client of these names has to support scopes: update them all before.
    Set {
        /// The prefix of the names; no two scopes overlap.
        prefix: String,
        /// Cassandra serves them while no server can be reached. So far there is no other kind of scope.
        #[arg(long, required = true)]
        fallback: bool,
        #[command(flatten)]
        limit: ClusterLimit,
    },
    /// Turn them back into ordinary names. The store has to serve the scope at the moment.
    Remove {
        /// The prefix of the names.
        prefix: String,
        #[command(flatten)]
        limit: ClusterLimit,
    },
    /// Every scope: its epoch, whether it grants locks, its row in Cassandra.
    List(ClusterLimit),
}

/// How long a command for operators may take.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterLimit {
    /// Give up after this long, e.g. 30s; covers finding the leader and retries.
    #[arg(long, value_parser = duration, default_value = "15s")]
    pub(crate) timeout: Duration,
}

/// The bounds of the server's setting `node_id`.
fn node_id() -> clap::builder::RangedU64ValueParser {
    value_parser!(u64).range(1..=i64::MAX.unsigned_abs())
}

/// Of `bench`.
#[derive(Clone, Debug, Args)]
pub(crate) struct BenchArgs {
    /// The workload.
    #[arg(long, value_enum, ignore_case = true)]
    pub(crate) workload: Workload,
    /// Start this many servers: 1 or 3 [default: 3, if no --endpoints are given].
    #[arg(long, value_parser = members)]
    pub(crate) members: Option<usize>,
    /// The process ids of the servers at --endpoints, if they run on this machine: their CPU and memory are
    /// measured too.
    #[arg(long, value_delimiter = ',', conflicts_with = "members", value_name = "PID,...")]
    pub(crate) server_pids: Vec<u32>,
    /// Clients that work at the same time; W4: locks, each with a waiter [default: W1 and W5: 1,
    /// W2: 64, W3: 10, W4: 1000].
    #[arg(long, value_parser = value_parser!(u32).range(1..=100_000))]
    pub(crate) clients: Option<u32>,
    /// Sessions, each with a connection of its own, that the clients share; never more than
    /// clients.
    #[arg(long, default_value_t = 8, value_parser = value_parser!(u32).range(1..=100_000))]
    pub(crate) sessions: u32,
    /// The sessions share connections, and send their keepalives together.
    #[arg(long)]
    pub(crate) share_connections: bool,
    /// How many seconds are measured, after 2 s of warm-up.
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(1..=3_600))]
    pub(crate) secs: u32,
    /// W5: how many holders are killed, one after the other.
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..=1_000))]
    pub(crate) trials: u32,
    /// The leases of the sessions, e.g. 10s [default: 10s; W5: 5s].
    #[arg(long, value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// A number for this run; it is copied into the result.
    #[arg(long, default_value_t = 1)]
    pub(crate) run: u32,
}

/// The workloads, all closed loop with no time between grant and release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// One client at a lock of its own: latency.
    #[value(name = "W1")]
    OneClient,
    /// Many clients, each at a lock of its own: throughput.
    #[value(name = "W2")]
    ManyLocks,
    /// Many clients at one lock: hand-overs and fairness.
    #[value(name = "W3")]
    OneLock,
    /// Locks that are held, without and with a waiter each: what waiting costs.
    #[value(name = "W4")]
    IdleWaiters,
    /// A holder that is killed: how long until the waiter has the lock.
    #[value(name = "W5")]
    KilledHolder,
}

/// Of the demo's worker processes.
#[derive(Clone, Debug, Args)]
pub(crate) struct DemoWorkerArgs {
    /// The folder of the four files.
    #[arg(long)]
    pub(crate) folder: PathBuf,
    /// The number of this process.
    #[arg(long)]
    pub(crate) process: u32,
    /// Workers in this process.
    #[arg(long)]
    pub(crate) workers: u32,
    /// The servers; none: without locks.
    #[arg(long)]
    pub(crate) servers: Option<String>,
}

/// Parses the size of a cluster that `bench` starts.
fn members(text: &str) -> Result<usize, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        _ => Err("bench starts 1 member or 3; measure any other cluster with --endpoints".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn what_stands_behind_two_dashes_is_the_command_untouched() {
        let cli = Cli::try_parse_from(["holdfast", "lock", "nightly", "--", "job", "--json", "--"])
            .expect("it is well formed");
        let Command::Lock(args) = cli.command else { panic!("{:?}", cli.command) };

        assert!(!cli.global.json);
        assert_eq!(args.job.work.command, ["job", "--json", "--"]);
    }

    #[test]
    fn several_names_stand_before_the_command() {
        let line = ["holdfast", "try", "--any", "a", "b", "--shared", "c", "--", "job", "d"];
        let cli = Cli::try_parse_from(line).expect("it is well formed");
        let Command::Try(job) = cli.command else { panic!("{:?}", cli.command) };

        assert_eq!(job.names, ["a", "b", "c"]);
        assert!(job.any);
        assert_eq!(job.mode.of("a"), LockItem::shared("a"));
        assert_eq!(job.work.command, ["job", "d"]);
    }

    #[test]
    fn permits_are_one_of_the_limit_or_of_the_limit_that_was_set() {
        let mode = |options: &[&str]| {
            let line = [&["holdfast", "lock"][..], options, &["gpu", "--", "job"]].concat();
            let cli = Cli::try_parse_from(line)?;
            let Command::Lock(args) = cli.command else { panic!("{:?}", cli.command) };
            Ok::<_, clap::Error>(args.job.mode.of("gpu"))
        };

        assert_eq!(mode(&["-n", "4"]).unwrap(), LockItem::permits("gpu", 1, 4));
        assert_eq!(mode(&["--permits", "2"]).unwrap(), LockItem::permits("gpu", 2, None));
        assert_eq!(mode(&["-n4", "--permits=2"]).unwrap(), LockItem::permits("gpu", 2, 4));
        for wrong in [&["-n", "0"][..], &["--permits", "0"], &["-n", "4", "--shared"]] {
            assert!(mode(wrong).is_err(), "{wrong:?}");
        }
    }

    /// Exactly three columns.
    #[cfg(feature = "cassandra")]
    #[test]
    fn columns_stand_before_a_subcommand() {
        let whole = "holdfast cassandra --contact-points x --keyspace k --queue-columns a b c queue try n -- t";
        assert!(Cli::try_parse_from(whole.split(' ')).is_ok());
    }

    /// The form is given before the subcommand; `schema` has its own option.
    #[cfg(feature = "cassandra")]
    #[test]
    fn the_bakery_has_two_forms() {
        let parsed = |rest: &str| {
            let whole = format!("holdfast cassandra --contact-points x --keyspace k {rest}");
            Cli::try_parse_from(whole.split(' ')).is_ok()
        };
        assert!(parsed("bakery lock n -- t"));
        assert!(parsed("--numbers-table N --choosing-table C bakery --form php try n -- t"));
        assert!(parsed("bakery --form wiki bench"));
        assert!(parsed("schema --bakery-form php"));
        assert!(!parsed("bakery --form ruby try n -- t"));
        assert!(!parsed("queue --form php try n -- t"));
    }

    /// The same tasks as the others; the names of tables come first.
    #[cfg(feature = "cassandra")]
    #[test]
    fn the_older_recipes_lock_try_and_measure() {
        let parsed = |rest: &str| {
            let line = format!("holdfast cassandra --contact-points x --keyspace k {rest}");
            Cli::try_parse_from(line.split_whitespace()).is_ok()
        };
        for recipe in ["shadow", "tokens-optimistic"] {
            for task in ["lock --wait 1s n -- t", "try --mode both n -- t", "bench --clients 2"] {
                assert!(parsed(&format!("{recipe} {task}")), "{recipe} {task}");
            }
        }
        assert!(parsed("--shadow-table S --main-table M shadow try n -- t"));
        assert!(parsed("--optimistic-table tokens --optimistic-columns t s schema"));
        assert!(!parsed("--optimistic-columns t schema"), "two columns, not one");
    }
}
