//! Where the members of a measured cluster and its clients are.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// What a delay may be at most.
const LONGEST: Duration = Duration::from_secs(1);

/// The networks of a cluster of three and of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// All of them on loopback.
    Loopback,
    /// Each member, and the process of the clients, on a network of its own: every packet between two of
    /// them is late by this much, so that there and back takes twice as long.
    Apart(Duration),
}

impl Topology {
    /// Whether it only shows what the relay between the networks costs.
    pub fn is_for_the_relay(self) -> bool {
        self == Self::Apart(Duration::ZERO)
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => f.write_str("loopback"),
            Self::Apart(delay) => {
                let micros = u32::try_from(delay.as_micros()).unwrap_or(u32::MAX);
                write!(f, "{}ms", f64::from(micros) / 1e3)
            }
        }
    }
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "loopback" {
            return Ok(Self::Loopback);
        }
        let ms = text.strip_suffix("ms").and_then(|number| number.parse::<f64>().ok());
        let delay = ms.and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok());
        let delay = delay.filter(|delay| *delay <= LONGEST);
        delay.map(Self::Apart).ok_or_else(|| {
            format!("'{text}' is neither loopback nor a delay such as 0.25ms, at most {LONGEST:?}")
        })
    }
}

impl Serialize for Topology {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topology_is_read_as_it_is_written() {
        for text in ["loopback", "0ms", "0.25ms", "5ms", "1000ms"] {
            let topology: Topology = text.parse().unwrap();
            assert_eq!(topology.to_string(), text);
        }
        assert_eq!("0.25ms".parse(), Ok(Topology::Apart(Duration::from_micros(250))));
        for wrong in ["", "5", "-1ms", "1001ms", "NaNms", "infms", "ms", "lo"] {
            let told = wrong.parse::<Topology>().unwrap_err();
            assert!(told.contains(&format!("'{wrong}'")), "{told}");
        }
    }
}
