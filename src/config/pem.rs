//! Certificates and keys in PEM.
//!
//! The parser's own messages can quote the text, which may be a key, so they are not passed on.

use std::borrow::Cow;
use std::fs;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// How each part of a text in PEM begins.
const BEGIN: &str = "-----BEGIN";

/// Takes a setting that is a text in PEM, or else the path of a file with one.
pub(crate) fn load(text: &str) -> Result<Vec<u8>, Cow<'static, str>> {
    if text.contains(BEGIN) {
        return Ok(text.into());
    }
    fs::read(text).map_err(|error| format!("must be a file that can be read: {error}").into())
}

pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = parsed.unwrap_or_default();
    if certificates.is_empty() {
        return Err("must be a certificate in PEM, or several");
    }
    Ok(certificates)
}

pub(crate) fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, &'static str> {
    let has = |part: &str| pem.windows(part.len()).any(|window| window == part.as_bytes());
    // `BEGIN ENCRYPTED PRIVATE KEY`, or in an older format `Proc-Type: 4,ENCRYPTED`.
    if has(BEGIN) && has("ENCRYPTED") {
        return Err("needs a private key without a password");
    }
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| "needs one private key in PEM")
}
