//! What a caller may write: addresses of servers, names of locks, and the name that a client gives itself.

use holdfast_types::{LockName, TextError};

use crate::{Error, Result};

/// How much of a name that is too long an error shows, in characters.
const SHOWN_MAX: usize = 32;
/// What the endpoint of a Unix socket begins with; its path follows.
const UNIX: &str = "unix:";

/// What an endpoint begins with that stands for every address of a name; `host:port` follows.
const DNS: &str = "dns:///";

/// The `host:port` of an endpoint `dns:///host:port`, each of whose addresses is a server's.
pub fn dns_name(endpoint: &str) -> Option<&str> {
    endpoint.strip_prefix(DNS)
}

/// Whether an endpoint is a Unix socket: `unix:PATH`.
pub fn is_unix_socket(endpoint: &str) -> bool {
    endpoint.starts_with(UNIX)
}

/// Checks a list of endpoints: `host:port`, `dns:///host:port` or `unix:PATH`.
///
/// # Errors
///
/// [`Error::InvalidConfig`] if the list is empty, or an endpoint has neither port nor path.
pub fn check_endpoints(endpoints: &[String]) -> Result<()> {
    let invalid = |message| Err(Error::InvalidConfig { message });
    if endpoints.is_empty() {
        return invalid("no endpoint is given; e.g. 127.0.0.1:7420".into());
    }
    for endpoint in endpoints {
        if let Some(path) = endpoint.strip_prefix(UNIX) {
            if path.is_empty() {
                return invalid(format!(
                    "endpoint {UNIX} names no path, as in {UNIX}/run/holdfast.sock"
                ));
            }
            continue;
        }
        let address = dns_name(endpoint).unwrap_or(endpoint);
        let parts = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        let Some((host, _)) = parts.filter(|(_, port)| port.parse::<u16>().is_ok()) else {
            let shown = endpoint.escape_debug();
            return invalid(format!(
                "endpoint {shown} is neither host:port, as in 127.0.0.1:7420, nor {DNS}host:port for every \
                 address of a name, nor a Unix socket, as in {UNIX}/run/holdfast.sock"
            ));
        };
        if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
            let shown = endpoint.escape_debug();
            return invalid(format!(
                "endpoint {shown}: an IPv6 address stands in brackets, as in [::1]:7420"
            ));
        }
    }
    Ok(())
}

/// Checks that a lock may have this name, in either store: 1 to 512 bytes, without control characters and without
/// characters that reorder the text around them.
///
/// # Errors
///
/// [`Error::Refused`], which shows the name and the rule that it breaks.
pub fn check_lock_name(name: &str) -> Result<()> {
    let shown = |name: &str| name.escape_debug().to_string();
    LockName::parse(name).map(drop).map_err(|why| match why {
        TextError::Empty => Error::invalid(why.to_string()),
        TextError::TooLong { .. } => {
            let start: String = name.chars().take(SHOWN_MAX).collect();
            unusable(&format!("{}…", shown(&start)), &why)
        }
        _ => unusable(&shown(name), &why),
    })
}

fn unusable(shown: &str, why: &TextError) -> Error {
    Error::invalid(format!("the lock name \"{shown}\" is not usable: {why}"))
}

/// `host:pid`.
pub fn default_label() -> String {
    let uname = rustix::system::uname();
    format!("{}:{}", uname.nodename().to_string_lossy(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(endpoints: &[&str]) -> Result<()> {
        check_endpoints(&endpoints.iter().map(|&one| one.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn there_is_at_least_one_endpoint_and_each_has_a_port() {
        assert_eq!(check(&["a:1", "b:2"]), Ok(()));
        assert_eq!(check(&["[::1]:7420"]), Ok(()));
        assert_eq!(check(&["unix:/run/holdfast.sock", "unix:here.sock", "a:1"]), Ok(()));
        for bad in
            [&[][..], &[""], &["unix:"], &["localhost"], &[":7420"], &["a:99999"], &["a:1", "a:b"]]
        {
            assert!(matches!(check(bad), Err(Error::InvalidConfig { .. })), "{bad:?}");
        }
    }
}
