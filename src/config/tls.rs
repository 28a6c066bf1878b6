//! Settings for connections over TLS.

use std::borrow::Cow;
use std::fmt;

use crate::config::pem;

/// The certificate authorities that a client trusts, and the certificate it presents, over
/// `rediss://`. Passed to [`Builder::tls`](crate::Builder::tls). Requires the feature `tls`.
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
    pub(crate) cert: Option<Vec<u8>>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) server_name: Option<String>,
}

impl Tls {
    /// Creates settings that trust the system's certificate authorities and have no client
    /// certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the certificate authorities to trust, instead of those of the system, from one or more
    /// certificates in PEM format.
    ///
    /// Defaults to the system's authorities.
    pub fn ca_pem(mut self, certificates: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(certificates.into());
        self
    }

    /// Sets the certificate that the client presents to a server that asks for one, followed by any
    /// intermediate certificates, and its private key, both in PEM format.
    ///
    /// Defaults to none.
    pub fn client_cert_pem(
        mut self,
        certificates: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        (self.cert, self.key) = (Some(certificates.into()), Some(key.into()));
        self
    }

    /// Sets what is given by its name in a URL.
    pub(crate) fn set(&mut self, name: &str, text: &str) -> Result<(), Cow<'static, str>> {
        match name {
            "ca" => pem::certificates(self.ca.insert(pem::load(text)?)).map(drop)?,
            "cert" => pem::certificates(self.cert.insert(pem::load(text)?)).map(drop)?,
            "key" => pem::private_key(self.key.insert(pem::load(text)?)).map(drop)?,
            _ => self.server_name = Some(text.into()),
        }
        Ok(())
    }

    /// Sets the name that every server must have a certificate for, and is asked for (SNI), in
    /// place of the host that it is reached at: for servers behind a tunnel, a proxy or an
    /// [address map](crate::Builder::address_map).
    ///
    /// Defaults to each server's host.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }
}

/// Shows which settings are present, but no key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("ca", &self.ca.is_some())
            .field("client_cert", &self.cert.is_some())
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}
