//! The addresses of servers, as a person writes them.

use crate::{Error, Result};

/// Splits a comma-separated list of `host:port`.
///
/// # Errors
///
/// [`Error::Setting`] if the list is empty, or an endpoint has no port.
pub fn endpoints(list: &str) -> Result<Vec<String>> {
    let endpoints: Vec<_> = list.split(',').map(str::trim).filter(|one| !one.is_empty()).collect();
    if endpoints.is_empty() {
        return Err(Error::Setting { message: "no endpoint is given; e.g. 127.0.0.1:7420".into() });
    }
    for endpoint in &endpoints {
        let port = endpoint.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        if port.and_then(|(_, port)| port.parse::<u16>().ok()).is_none() {
            let message = format!(
                "endpoint {} is not host:port, as in 127.0.0.1:7420",
                endpoint.escape_debug()
            );
            return Err(Error::Setting { message });
        }
    }
    Ok(endpoints.into_iter().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_split_at_commas_and_need_a_port() {
        assert_eq!(endpoints("a:1, b:2,").expect("both are good"), ["a:1", "b:2"]);
        assert_eq!(endpoints("[::1]:7420").expect("it is good"), ["[::1]:7420"]);
        for bad in ["", " , ", "localhost", ":7420", "a:99999", "a:b"] {
            assert!(matches!(endpoints(bad), Err(Error::Setting { .. })), "{bad:?}");
        }
    }
}
