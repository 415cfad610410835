//! The addresses of servers.

use crate::{Error, Result};

/// Checks a list of `host:port`.
///
/// # Errors
///
/// [`Error::InvalidConfig`] if the list is empty, or an endpoint has no port.
pub fn check_endpoints(endpoints: &[String]) -> Result<()> {
    let invalid = |message| Err(Error::InvalidConfig { message });
    if endpoints.is_empty() {
        return invalid("no endpoint is given; e.g. 127.0.0.1:7420".into());
    }
    for endpoint in endpoints {
        let port = endpoint.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        if port.and_then(|(_, port)| port.parse::<u16>().ok()).is_none() {
            let shown = endpoint.escape_debug();
            return invalid(format!("endpoint {shown} is not host:port, as in 127.0.0.1:7420"));
        }
    }
    Ok(())
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
        for bad in [&[][..], &[""], &["localhost"], &[":7420"], &["a:99999"], &["a:1", "a:b"]] {
            assert!(matches!(check(bad), Err(Error::InvalidConfig { .. })), "{bad:?}");
        }
    }
}
