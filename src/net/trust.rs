//! Which servers TLS connections trust, and how they authenticate the client.

use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::{CertificateError, ClientConfig, OtherError, RootCertStore};

use crate::base::event_thread::Events;
use crate::base::printable;
use crate::config::certificates::{self, Tls};
use crate::error::{Error, Result};
use crate::net::endpoint::URL_HINT;

/// What a server must prove.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Nothing: it may be any server.
    #[cfg(feature = "tls-insecure")]
    Blind,
    /// Its name, by a certificate of a trusted authority.
    Certified,
}

impl Trust {
    /// Parses what is behind the `#` of a URL.
    pub(crate) fn from_fragment(fragment: Option<&str>) -> Result<Self> {
        match fragment {
            None => Ok(Self::Certified),
            #[cfg(feature = "tls-insecure")]
            Some("insecure") => Ok(Self::Blind),
            #[cfg(not(feature = "tls-insecure"))]
            Some("insecure") => Err(Error::invalid(
                "url",
                "must not end with #insecure unless leasehold's feature `tls-insecure` is enabled",
            )),
            Some(_) => {
                let why = format_args!("must have nothing behind a # but `insecure`, {URL_HINT}");
                Err(Error::invalid("url", why))
            }
        }
    }
}

/// Makes the TLS configuration that all connections to a server share.
pub(crate) fn client_config(trust: Trust, tls: &Tls, events: &Events) -> Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid("tls", error))?;
    let builder = match trust {
        #[cfg(feature = "tls-insecure")]
        Trust::Blind => builder.dangerous().with_custom_certificate_verifier(blind::verifier()),
        Trust::Certified => builder.with_root_certificates(roots(tls, events)?),
    };
    let (certificates, key) = match (&tls.cert, &tls.key) {
        (None, None) => return Ok(builder.with_no_client_auth()),
        (Some(certificates), Some(key)) => (certificates, key),
        (Some(_), None) => return Err(Error::invalid("cert", "must come with its `key`")),
        (None, Some(_)) => return Err(Error::invalid("key", "must come with a `cert`")),
    };
    let invalid = |why| Error::invalid("client_cert_pem", why);
    let chain = certificates::certificates(certificates).map_err(invalid)?;
    let key = certificates::private_key(key).map_err(invalid)?;
    builder.with_client_auth_cert(chain, key).map_err(|error| unusable("client_cert_pem", &error))
}

fn roots(tls: &Tls, events: &Events) -> Result<RootCertStore> {
    let Some(pem) = &tls.ca else { return system_roots(events) };
    let mut roots = RootCertStore::empty();
    for certificate in
        certificates::certificates(pem).map_err(|why| Error::invalid("ca_pem", why))?
    {
        roots.add(certificate).map_err(|error| unusable("ca_pem", &error))?;
    }
    Ok(roots)
}

fn system_roots(events: &Events) -> Result<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        events.warn(|| format!("while reading the system's certificates: {error}"));
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = "must be set with a `ca_pem`, because the system trusts no authority";
        return Err(Error::invalid("tls", why));
    }
    Ok(roots)
}

/// Certificates of our own that cannot be used.
fn unusable(argument: &str, error: &rustls::Error) -> Error {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            Error::invalid(argument, "must come with the private key of the certificate")
        }
        rustls::Error::InvalidCertificate(error) => {
            let flaw = flaw(error);
            Error::invalid(argument, format_args!("has a certificate that cannot be used: {flaw}"))
        }
        error => Error::invalid(argument, error),
    }
}

pub(super) fn flaw(error: &CertificateError) -> String {
    match error {
        CertificateError::BadEncoding => "it is malformed".into(),
        CertificateError::Other(OtherError(error))
            if error.to_string() == "UnsupportedCertVersion" =>
        {
            "it is of an old version of X.509, not of version 3".into()
        }
        CertificateError::UnknownIssuer => {
            "no authority that the client trusts has issued it (UnknownIssuer)".into()
        }
        error => printable(&error.to_string()),
    }
}

#[cfg(feature = "tls-insecure")]
mod blind {
    use std::sync::Arc;

    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::ring::default_provider;
    use rustls::crypto::{
        WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    };
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};

    /// Skips the certificate only: the handshake must still be sound.
    #[derive(Debug)]
    struct Blind(WebPkiSupportedAlgorithms);

    pub(super) fn verifier() -> Arc<dyn ServerCertVerifier> {
        Arc::new(Blind(default_provider().signature_verification_algorithms))
    }

    impl ServerCertVerifier for Blind {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, certificate, signed, &self.0)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, certificate, signed, &self.0)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.supported_schemes()
        }
    }
}
