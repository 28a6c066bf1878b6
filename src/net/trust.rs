//! The servers that TLS connections trust, and the client's authentication.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore,
    SignatureScheme,
};

use crate::base::event_thread::Events;
use crate::base::printable;
use crate::config::certificates::{self, Tls};
use crate::config::url::URL_HINT;
use crate::error::{Error, Result};

/// The proof that a server must give.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Nothing: any server is accepted.
    #[cfg(feature = "tls-insecure")]
    Blind,
    /// Its name, by a certificate of a trusted authority.
    Certified,
}

impl Trust {
    /// Parses the part behind the `#` of a URL.
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
                let why = format!("must have nothing behind a # but `insecure`, {URL_HINT}");
                Err(Error::invalid("url", why))
            }
        }
    }
}

/// Creates the TLS configuration that all connections to a server share.
pub(crate) fn client_config(trust: Trust, tls: &Tls, events: &Events) -> Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|_| Error::invalid("tls", "must have a version of TLS"))?;
    let builder = match trust {
        #[cfg(feature = "tls-insecure")]
        Trust::Blind => builder.dangerous().with_custom_certificate_verifier(blind::verifier()),
        Trust::Certified => match &tls.ca {
            None => builder.with_root_certificates(system_roots(events)?),
            Some(pem) => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(named(pem)?))
            }
        },
    };
    let (certificates, key) = match (&tls.cert, &tls.key) {
        (None, None) => return Ok(builder.with_no_client_auth()),
        (Some(certificates), Some(key)) => (certificates, key),
        (Some(_), None) => return Err(Error::invalid("cert", "must come with its `key`")),
        (None, Some(_)) => return Err(Error::invalid("key", "must come with a `cert`")),
    };
    let chain = certificates::certificates(certificates)
        .map_err(|why| Error::invalid("client_cert_pem", why))?;
    let key =
        certificates::private_key(key).map_err(|why| Error::invalid("client_cert_pem", why))?;
    builder.with_client_auth_cert(chain, key).map_err(|error| unusable("client_cert_pem", &error))
}

/// Trusts these certificates, and those that they have issued.
fn named(pem: &[u8]) -> Result<Named> {
    let certificates =
        certificates::certificates(pem).map_err(|why| Error::invalid("ca_pem", why))?;
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots.add(certificate.clone()).map_err(|error| unusable("ca_pem", &error))?;
    }
    let provider = Arc::new(default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let verifier = verifier
        .map_err(|_| Error::invalid("ca_pem", "must be a certificate in PEM, or several"))?;
    Ok(Named { certificates, verifier })
}

/// Verifies servers by the certificates that the user has named. A server may present one of them
/// itself: a self-signed certificate often claims to be an authority's, and other verifiers refuse
/// it.
#[derive(Debug)]
struct Named {
    certificates: Vec<CertificateDer<'static>>,
    verifier: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Named {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verifier = &self.verifier;
        match verifier.verify_server_cert(certificate, intermediates, name, ocsp_response, now) {
            // The certificate's validity period was checked before this, but its name was not.
            Err(rustls::Error::InvalidCertificate(error))
                if is_of_authority(&error) && self.certificates.contains(certificate) =>
            {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
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

/// Returns the error for configured certificates that cannot be used.
fn unusable(argument: &str, error: &rustls::Error) -> Error {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            Error::invalid(argument, "must come with the private key of the certificate")
        }
        rustls::Error::InvalidCertificate(error) => {
            let flaw = flaw(error);
            Error::invalid(argument, format_args!("has a certificate that cannot be used: {flaw}"))
        }
        _ => Error::invalid(argument, "must have a key of RSA, ECDSA or Ed25519"),
    }
}

fn is_of_authority(error: &CertificateError) -> bool {
    matches!(error, CertificateError::Other(OtherError(error))
        if error.to_string() == "CaUsedAsEndEntity")
}

pub(super) fn flaw(error: &CertificateError) -> String {
    let flaw = match error {
        CertificateError::BadEncoding => "it is malformed",
        CertificateError::BadSignature => "its signature is wrong",
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired",
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it is for another purpose"
        }
        CertificateError::NotValidForName => "it is not valid for name of the server",
        CertificateError::NotValidForNameContext { expected, presented } => {
            // They look like `DnsName("redis.example")`.
            let presented: Vec<_> =
                presented.iter().map(|name| name.split('"').nth(1).unwrap_or(name)).collect();
            let presented = presented.join(", ");
            let expected = expected.to_str();
            return printable(&format!("it is not valid for name {expected}, but for {presented}"));
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet, by this system's clock"
        }
        CertificateError::Revoked => "it is revoked",
        CertificateError::UnhandledCriticalExtension => "it has an unknown critical extension",
        CertificateError::UnknownIssuer => {
            "no authority that the client trusts has issued it (UnknownIssuer)"
        }
        error if is_of_authority(error) => "it is that of an authority, and not one of the `ca`",
        CertificateError::Other(OtherError(error)) => match error.to_string().as_str() {
            "UnsupportedCertVersion" => "it is of an old version of X.509, not of version 3",
            name => return printable(&format!("it breaks a rule of X.509 ({name})")),
        },
        _ => "it is signed in a way that the client does not support",
    };
    flaw.into()
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

    /// Skips only the check of the certificate. The handshake must still be sound.
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
