//! Settings of connections over TLS.

use std::fmt;

/// Whom a client trusts to be its server, and how it proves who it is itself, over `rediss://`. Set
/// by [`Builder::tls`](crate::Builder::tls), and only there with the feature `tls`.
///
/// ```no_run
/// use leasehold::{Client, Tls};
/// use std::fs;
///
/// let tls = Tls::new()
///     .ca_pem(fs::read("ca.pem")?)
///     .client_cert_pem(fs::read("client.pem")?, fs::read("client-key.pem")?);
/// let client = Client::builder().tls(tls).open("rediss://redis.example/")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
#[must_use = "settings do nothing until a builder has them"]
pub struct Tls {
    pub(crate) ca: Option<Vec<u8>>,
    /// The certificates and their private key.
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    /// Makes settings in which the system's certificate authorities are trusted, and the client
    /// has no certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the certificate authorities that are trusted, and no others, from one or more
    /// certificates in PEM.
    ///
    /// Defaults to those of the system.
    pub fn ca_pem(mut self, certificates: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(certificates.into());
        self
    }

    /// Sets the certificate that the client shows to a server that asks for one, with those
    /// between it and the authority behind it if there are any, and its private key, both in PEM.
    ///
    /// Defaults to none.
    pub fn client_cert_pem(
        mut self,
        certificates: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.client = Some((certificates.into(), key.into()));
        self
    }
}

/// Shows what is set, and no key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("ca", &self.ca.is_some())
            .field("client_cert", &self.client.is_some())
            .finish_non_exhaustive()
    }
}
