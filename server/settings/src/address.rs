//! Addresses: where a node listens, what it tells others to connect to, and the members.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An IP address and port to listen on. The port is never 0: other processes could not learn which one
/// the system chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ListenAddress(SocketAddr);

impl ListenAddress {
    /// 127.0.0.1, which other machines cannot reach.
    pub const fn loopback(port: u16) -> Self {
        Self(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    }

    /// The address in the system's form.
    pub const fn get(self) -> SocketAddr {
        self.0
    }

    /// Whether only this machine can reach it.
    pub const fn is_loopback(self) -> bool {
        self.0.ip().to_canonical().is_loopback()
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address: SocketAddr = text.parse().map_err(|_| {
            format!("`{text}` is not an IP address and port such as 127.0.0.1:7420")
        })?;
        if address.port() == 0 {
            return Err(format!("`{text}` has port 0; give a port from 1 to 65535"));
        }
        Ok(Self(address))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Host and port as others see them: a DNS name or an IP address that can be connected to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Advertised(String);

impl Advertised {
    /// Not set by any source; [`super::Config`] never holds it.
    pub(super) const fn unset() -> Self {
        Self(String::new())
    }

    pub(super) const fn is_unset(&self) -> bool {
        self.0.is_empty()
    }

    /// `host:port`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Advertised {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let problem = |what: &str| format!("`{text}` {what}; give host:port as others see it");
        let (host, port) =
            text.rsplit_once(':').ok_or_else(|| problem("is not a host and a port"))?;
        if !port.parse::<u16>().is_ok_and(|port| port != 0) {
            return Err(problem("has no port from 1 to 65535"));
        }
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        match bare.parse::<IpAddr>() {
            Ok(ip) if ip.is_unspecified() => Err(problem("is no address anybody can connect to")),
            Ok(IpAddr::V6(_)) if bare == host => Err(problem("needs [ ] around the IPv6 address")),
            Ok(_) => Ok(Self(text.to_owned())),
            Err(_) if is_host_name(host) => Ok(Self(text.to_owned())),
            Err(_) => Err(problem("has no usable host")),
        }
    }
}

/// Letters, digits, `-`, `_` and single dots: what resolvers accept. The check stops there; a name may
/// become known only after the node has started.
fn is_host_name(host: &str) -> bool {
    host.len() <= 253
        && host.split('.').all(|label| {
            !label.is_empty()
                && label.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
        })
}

impl fmt::Display for Advertised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A member of the cluster, as the others reach it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its number; 0 where the cluster gives it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub node_id: u64,
    /// Where clients reach it.
    pub advertise: Advertised,
    /// Where members reach it.
    pub peer_advertise: Advertised,
}

impl FromStr for Member {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (node_id, addresses) = text.split_once('=').unwrap_or(("0", text));
        let (advertise, peer_advertise) = addresses.split_once('/').ok_or_else(|| {
            format!(
                "`{text}` is not a member; write 1=host:7420/host:7421 (id, clients, peers), \
                 and commas or spaces between members"
            )
        })?;
        Ok(Self {
            node_id: node_id.parse().map_err(|_| format!("`{node_id}` is not a node id"))?,
            advertise: advertise.parse()?,
            peer_advertise: peer_advertise.parse()?,
        })
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.node_id != 0 {
            write!(f, "{}=", self.node_id)?;
        }
        write!(f, "{}/{}", self.advertise, self.peer_advertise)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The members of a cluster; once checked, by rising id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Members(pub Vec<Member>);

impl FromStr for Members {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_between = |c: char| c == ',' || c.is_whitespace();
        let each = text.split(is_between).filter(|member| !member.is_empty());
        each.map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, member) in self.0.iter().enumerate() {
            let gap = if nth == 0 { "" } else { " " };
            write!(f, "{gap}{member}")?;
        }
        Ok(())
    }
}

/// Goes through text, so that a file is checked by the same code as a flag.
macro_rules! through_text {
    ($type:ident) => {
        impl TryFrom<String> for $type {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(address: $type) -> Self {
                address.to_string()
            }
        }
    };
}

through_text!(ListenAddress);
through_text!(Advertised);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_can_connect_to_may_be_advertised() {
        for good in ["10.0.0.1:7420", "[::1]:7420", "node-1.locks.svc:65535", "localhost:1"] {
            assert_eq!(good.parse::<Advertised>().unwrap().as_str(), good);
        }
    }

    #[test]
    fn what_no_client_can_connect_to_is_refused_as_an_advertised_address() {
        let bad = [
            "",
            ":",
            ":7420",
            "host",
            "host:",
            "host:0",
            "host:65536",
            "0.0.0.0:7420",
            "[::]:7420",
            "::1:7420",
            "a..b:1",
            "a b:1",
            "http://a:1",
        ];
        for bad in bad {
            let problem = bad.parse::<Advertised>().unwrap_err();
            assert!(problem.contains(&format!("`{bad}`")), "{problem}");
        }
    }

    #[test]
    fn members_read_what_they_write() {
        let text = "1=a:7420/a:7421 2=[::1]:7420/b:7421";

        assert_eq!(text.parse::<Members>().unwrap().to_string(), text);
        for written in
            ["1=a:7420/a:7421,2=[::1]:7420/b:7421", "1=a:7420/a:7421, 2=[::1]:7420/b:7421 "]
        {
            assert_eq!(written.parse::<Members>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_mapped_ipv4_loopback_is_loopback() {
        assert!("[::ffff:127.0.0.1]:1".parse::<ListenAddress>().unwrap().is_loopback());
        assert!(!"0.0.0.0:1".parse::<ListenAddress>().unwrap().is_loopback());
        assert!(!"[::]:1".parse::<ListenAddress>().unwrap().is_loopback());
    }
}
