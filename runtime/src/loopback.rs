//! Ports for servers that are started, killed and started again on one machine: only for the demo and
//! the tests.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A port on which no process listens; no two calls of one process get the same one.
///
/// It lies below those that the system gives to outgoing connections (32,768 and up, unless
/// configured otherwise): a server that comes back must find its own port free.
///
/// # Errors
///
/// That of the last try, if none of the ports is free.
pub fn free_port() -> std::io::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Programs that run at the same time begin in different places.
    let places = std::process::id().wrapping_mul(97) % u32::from(COUNT);
    let start = u16::try_from(places).unwrap_or(0);
    let mut last = std::io::ErrorKind::AddrInUse.into();
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (start + step) % COUNT;
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_out_once_and_lies_below_the_systems_own() {
        let first = free_port().unwrap();
        let second = free_port().unwrap();

        assert_ne!(first, second);
        assert!(first < 32_768 && second < 32_768);
    }
}
