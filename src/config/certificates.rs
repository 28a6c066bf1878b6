//! The certificates and the key for connections over TLS, in PEM.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs, io};

use crossbeam_channel::bounded;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::base::sync;

/// How long reading a file may take when a setting names it.
const READ_TIME: Duration = Duration::from_secs(5);

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
    /// The settings that were read from files, and the paths of these files.
    files: Vec<(String, PathBuf)>,
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
        self.cert = Some(certificates.into());
        self.key = Some(key.into());
        self
    }

    /// Applies the setting with this name from a URL.
    pub(crate) fn set(&mut self, name: &str, text: &str) -> Result<(), Cow<'static, str>> {
        if name == "server_name" {
            self.server_name = Some(text.into());
            return Ok(());
        }
        self.files.retain(|(other, _)| other != name);
        let pem = if text.contains(BEGIN) {
            text.into()
        } else {
            self.files.push((name.into(), text.into()));
            let read = read_within(READ_TIME, Path::new(text));
            read.map_err(|error| format!("must be a file that can be read: {error}"))?
        };
        Ok(self.set_pem(name, pem)?)
    }

    fn set_pem(&mut self, name: &str, pem: Vec<u8>) -> Result<(), &'static str> {
        match name {
            "ca" => certificates(self.ca.insert(pem)).map(drop),
            "cert" => certificates(self.cert.insert(pem)).map(drop),
            _ => private_key(self.key.insert(pem)).map(drop),
        }
    }

    pub(crate) fn has_files(&self) -> bool {
        !self.files.is_empty()
    }

    /// Rereads the settings from their files. Returns `None` if they are unchanged or unusable.
    /// Blocks for as long as the file system does.
    pub(crate) fn reread(&self) -> Option<Self> {
        let mut new = self.clone();
        for (name, path) in &self.files {
            new.set_pem(name, fs::read(path).ok()?).ok()?;
        }
        let is_same = new.ca == self.ca && new.cert == self.cert && new.key == self.key;
        if is_same { None } else { Some(new) }
    }

    /// Sets the name that is sent to every server (SNI), and for which its certificate must be
    /// valid, in place of the host: for servers behind a tunnel, a proxy or an [address
    /// map](crate::Builder::address_map).
    ///
    /// Defaults to each server's host.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }
}

/// Reads a file. If its file system hangs, or it is a pipe without a writer, the thread that reads
/// it is left behind.
fn read_within(time: Duration, path: &Path) -> io::Result<Vec<u8>> {
    let (sender, content) = bounded(1);
    let path = path.to_owned();
    // A file on a network may block forever. By the time it is read, the receiver may be gone.
    sync::spawn("leasehold-certs", move || sender.send(fs::read(path)).unwrap_or_default())?;
    content.recv_timeout(time).unwrap_or_else(|_| {
        let why = format!("nothing was read within {time:?}");
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    })
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

/// The start of each part of a PEM text.
const BEGIN: &str = "-----BEGIN";

/// Parses certificates. Hides the parser's own messages, which can quote the text, because the text
/// may be a key.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = parsed.unwrap_or_default();
    if certificates.is_empty() {
        return Err("must be a certificate in PEM, or several");
    }
    Ok(certificates)
}

/// Parses a private key. Hides the parser's messages as well.
pub(crate) fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, &'static str> {
    // `BEGIN ENCRYPTED PRIVATE KEY`, or in an older format `Proc-Type: 4,ENCRYPTED`.
    if contains(pem, BEGIN) && contains(pem, "ENCRYPTED") {
        return Err("needs a private key without a password");
    }
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| "needs one private key in PEM")
}

fn contains(pem: &[u8], part: &str) -> bool {
    pem.windows(part.len()).any(|window| window == part.as_bytes())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::env;
    use std::process::{self, Command};

    #[test]
    fn a_file_that_hangs_is_given_up() {
        let path = env::temp_dir().join(format!("leasehold-fifo-{}.pem", process::id()));
        let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success());
        let error = read_within(Duration::from_millis(50), &path).expect_err("no writer");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        // The thread that reads the file is left behind.
        fs::write(&path, "PEM").expect("it is being read");
        fs::remove_file(&path).expect("a file");
    }
}
