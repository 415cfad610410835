//! The administrators that the settings name.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use holdfast_core::Identity;
use serde::{Deserialize, Serialize};

/// Identities with every right, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Admins(pub BTreeSet<Identity>);

impl TryFrom<Vec<String>> for Admins {
    type Error = String;

    fn try_from(texts: Vec<String>) -> Result<Self, String> {
        texts.iter().map(|text| read(text)).collect::<Result<_, _>>().map(Self)
    }
}

impl From<Admins> for Vec<String> {
    fn from(Admins(identities): Admins) -> Self {
        identities.iter().map(ToString::to_string).collect()
    }
}

impl FromStr for Admins {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
        texts.map(read).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Admins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<&str> = self.0.iter().map(Identity::as_str).collect();
        f.write_str(&texts.join(","))
    }
}

fn read(text: &str) -> Result<Identity, String> {
    match Identity::parse(text) {
        Ok(identity) if identity.is_anonymous() => {
            Err("anonymous cannot be an administrator: everybody would be one".to_owned())
        }
        Ok(identity) => Ok(identity),
        Err(error) => Err(format!("{text:?} is no identity: {error}; write cn:ops, for instance")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn administrators_are_identities_and_never_everybody() {
        let admins: Admins = "cn:ops, uri:spiffe://a/b".parse().unwrap();
        assert_eq!(admins.to_string(), "cn:ops,uri:spiffe://a/b");
        assert_eq!("".parse::<Admins>().unwrap(), Admins::default());
        for (text, says) in [("ops", "no identity"), ("cn:ops,anonymous", "everybody")] {
            let error = text.parse::<Admins>().unwrap_err();
            assert!(error.contains(says), "{error}");
            let texts = text.split(',').map(str::to_owned).collect::<Vec<_>>();
            assert!(Admins::try_from(texts).is_err());
        }
    }
}
