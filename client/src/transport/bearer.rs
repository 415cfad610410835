//! The token that goes with every request.

use std::fmt;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::{Error, Result};

/// A connection whose requests carry the token, if there is one.
pub type Line = InterceptedService<Channel, Bearer>;

/// The metadata in which a client says that it goes to the leader itself, and where it has just failed to.
const REDIRECT_METADATA: &str = "holdfast-redirect";

/// What goes with every request: a token, if there is one.
#[derive(Clone, Default)]
pub struct Bearer {
    token: Option<MetadataValue<Ascii>>,
    /// For a server of the store: the addresses to which it need not send this client. `None`: it is to pass the
    /// request on.
    redirect: Option<MetadataValue<Ascii>>,
}

impl Bearer {
    /// Shows this token, without the white space around it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`], which does not repeat the text: it cannot be sent.
    pub fn new(token: &str) -> Result<Self> {
        let token = token.trim();
        let header = MetadataValue::try_from(format!("Bearer {token}"));
        match header {
            Ok(mut header) if !token.is_empty() && token.is_ascii() => {
                header.set_sensitive(true);
                Ok(Self { token: Some(header), redirect: None })
            }
            _ => Err(Error::InvalidConfig {
                message: "the token is empty, or has characters that no token has, as a line break"
                    .to_owned(),
            }),
        }
    }

    /// The same for a client that goes to the leader itself, but not to these addresses.
    pub(super) fn redirected(mut self, unreached: &str) -> Self {
        self.redirect = MetadataValue::try_from(unreached).ok();
        self
    }

    /// The connection with the token.
    pub fn over(self, channel: Channel) -> Line {
        InterceptedService::new(channel, self)
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(header) = &self.token {
            request.metadata_mut().insert("authorization", header.clone());
        }
        if let Some(header) = &self.redirect {
            request.metadata_mut().insert(REDIRECT_METADATA, header.clone());
        }
        Ok(request)
    }
}

/// Never the token.
impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.token.is_some() { "Bearer(hidden)" } else { "Bearer(none)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_sent_and_never_shown() {
        let mut bearer = Bearer::new("hft_00\n").unwrap();
        assert!(!format!("{bearer:?}").contains("hft"));
        let request = bearer.call(Request::new(())).unwrap();
        let header = request.metadata().get("authorization").unwrap();
        assert_eq!(header, "Bearer hft_00");
        assert!(!format!("{header:?}").contains("hft"));
        for token in ["", " \n", "a\nb", "ключ"] {
            let error = Bearer::new(token).unwrap_err().to_string();
            assert!(token.trim().is_empty() || !error.contains(token), "{error}");
        }
    }
}
