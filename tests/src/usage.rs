//! What processes, threads and the whole machine use, from `/proc`. CPU is user and system time together, in
//! seconds; the kernel counts in hundredths.

use std::fs;
use std::io;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::unistd::{SysconfVar, sysconf};

/// Of a process.
///
/// # Errors
///
/// The system's; the process may be gone.
pub fn cpu_of_process(process: u32) -> io::Result<f64> {
    seconds(used(&fs::read_to_string(format!("/proc/{process}/stat"))?)?)
}

/// Of a thread of this process.
///
/// # Errors
///
/// The system's; the thread may be gone.
pub fn cpu_of_thread(thread: i32) -> io::Result<f64> {
    seconds(used(&fs::read_to_string(format!("/proc/self/task/{thread}/stat"))?)?)
}

/// Of all processes that this one started and that have ended.
///
/// # Errors
///
/// The system's.
pub fn cpu_of_ended_children() -> io::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    Ok(length(usage.user_time()) + length(usage.system_time()))
}

/// Of the machine: all of its cores, but for idle time and waits for a disk.
///
/// # Errors
///
/// The system's.
pub fn cpu_of_machine() -> io::Result<f64> {
    seconds(busy(&fs::read_to_string("/proc/stat")?)?)
}

/// The memory of a process that is not paged out, bytes.
///
/// # Errors
///
/// The system's; the process may be gone.
pub fn memory_of_process(process: u32) -> io::Result<u64> {
    resident(&fs::read_to_string(format!("/proc/{process}/status"))?)
}

/// The line `VmRSS:   1234 kB`.
fn resident(status: &str) -> io::Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).ok_or_else(unexpected)?;
    number(Some(&kib)).map(|kib| kib << 10)
}

#[expect(clippy::cast_precision_loss, reason = "seconds of a run are far below 2^52")]
fn length(time: TimeVal) -> f64 {
    time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the system writes other figures than expected")
}

fn number(word: Option<&&str>) -> io::Result<u64> {
    word.and_then(|word| word.parse().ok()).ok_or_else(unexpected)
}

/// The ticks in a `stat` of a process or a thread. The name stands in brackets and may contain spaces;
/// user and system time are the 12th and the 13th word after it.
fn used(stat: &str) -> io::Result<u64> {
    let (_, rest) = stat.rsplit_once(") ").ok_or_else(unexpected)?;
    let words: Vec<&str> = rest.split(' ').collect();
    Ok(number(words.get(11))? + number(words.get(12))?)
}

/// The ticks in the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq.
fn busy(stat: &str) -> io::Result<u64> {
    let words: Vec<&str> = stat.lines().next().unwrap_or("").split_whitespace().collect();
    [1, 2, 3, 6, 7].into_iter().map(|at| number(words.get(at))).sum()
}

fn seconds(ticks: u64) -> io::Result<f64> {
    let per_second = sysconf(SysconfVar::CLK_TCK)?.ok_or_else(unexpected)?;
    #[expect(clippy::cast_precision_loss, reason = "ticks of a machine's life are below 2^52")]
    Ok(ticks as f64 / per_second as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_process_stands_behind_its_name() {
        let stat = "42 (a (b) c) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 7 8 20 0 1 0 100";

        assert_eq!(used(stat).unwrap(), 300);
        assert!(used("42").is_err() && used("42 (a) S 1").is_err());
    }

    #[test]
    fn waiting_and_idling_is_no_work_of_the_machine() {
        let stat = "cpu  10 20 30 4000 500 6 7 80 0 0\ncpu0 1 1 1 1 1 1 1\n";

        assert_eq!(busy(stat).unwrap(), 10 + 20 + 30 + 6 + 7);
    }

    #[test]
    fn the_memory_of_a_process_is_read_in_bytes() {
        assert_eq!(resident("Name:\tx\nVmRSS:\t    1234 kB\nVmData: 9 kB\n").unwrap(), 1_234 << 10);
        assert!(resident("Name:\tx\n").is_err());
        assert!(memory_of_process(std::process::id()).unwrap() > 1 << 20);
    }

    #[test]
    fn work_of_this_process_is_counted_for_it_and_for_the_machine() {
        let own = std::process::id();
        let before = (cpu_of_process(own).unwrap(), cpu_of_machine().unwrap());
        // Until the kernel has counted some, however slow or busy the machine is.
        while cpu_of_process(own).unwrap() - before.0 < 0.1 {
            std::hint::black_box((0..10_000_u64).sum::<u64>());
        }

        assert!(cpu_of_machine().unwrap() - before.1 > 0.05);
        assert!(cpu_of_process(u32::MAX).is_err(), "it is gone");
    }
}
