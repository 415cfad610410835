//! Network namespaces of this process: hosts of their own for the programs of a run.
//!
//! They have no names. A namespace lives as long as a descriptor of it or a process in it does, so
//! however a run ends, nothing of it is left on the machine.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

/// One network namespace.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// Makes an empty one.
    ///
    /// # Errors
    ///
    /// The system's: not every user has the right to make one.
    pub fn new() -> io::Result<Self> {
        // The thread that makes a namespace moves into it: so this is done by one that ends at
        // once.
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        });
        made.join()
            .map_err(|_| io::Error::other("the thread that makes a namespace panicked"))?
            .map(Self)
    }

    /// Moves the calling thread into it, for the rest of the thread's life.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn enter(&self) -> io::Result<()> {
        Ok(setns(&self.0, CloneFlags::CLONE_NEWNET)?)
    }

    /// Does `work` in it. Sockets and devices that are opened there belong to it, whichever thread uses
    /// them.
    ///
    /// # Errors
    ///
    /// The system's, or those of `work`.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                self.enter()?;
                work()
            });
            there.join().map_err(|_| io::Error::other("the work in a namespace panicked"))?
        })
    }

    /// Lets `command` start its process in it.
    ///
    /// # Errors
    ///
    /// The system's, out of descriptors.
    pub fn admit(&self, command: &mut Command) -> io::Result<()> {
        use std::os::unix::process::CommandExt as _;
        let namespace = self.0.try_clone()?;
        // SAFETY: between fork and exec only setns is called, which is safe there.
        #[expect(unsafe_code, reason = "no safe way to start a process in a namespace")]
        unsafe {
            command.pre_exec(move || Ok(setns(&namespace, CloneFlags::CLONE_NEWNET)?));
        }
        Ok(())
    }

    /// Its path, for other programs, while this process lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }
}

/// Moves the calling thread, with every process that it starts from here on, into a network and a
/// set of mounts of its own. No other process sees what is mounted and changed there, and it is
/// gone with the last of these processes.
///
/// # Errors
///
/// The system's: not every user has the right to do this.
pub fn leave_the_machines_own() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)?;
    Ok(())
}
