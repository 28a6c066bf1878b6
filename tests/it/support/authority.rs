//! A certificate authority for tests, and its certificates.
#![allow(dead_code, reason = "every test that includes this file uses a part of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::Tls;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};

use super::server::{Server, redis_binary};

/// A self-issued certificate of X.509 version 1 with its key, like those that `openssl x509 -req`
/// makes without extensions. The crate that makes the other certificates knows only version 3.
const VERSION_1: [&str; 2] = [
    "\
-----BEGIN CERTIFICATE-----
MIIBJDCBywIUYoXERKmz7RyeTdpfMuUQ6t4vmCMwCgYIKoZIzj0EAwIwFDESMBAG
A1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMzA3MDIyOFoYDzIxMjYxMDMwMDcwMjI4
WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AARvwbPd/wXzy2Vt5EhP8WlCnKGHG5AibK+skcnveBy8EF6moKCdvIZfYwMZ7m0i
MWONxSrLLR2YBUtuS3XYrzSXMAoGCCqGSM49BAMCA0gAMEUCIAaACmezuMEmfW43
buv7LfT6fIe6WN2SVrEH7zHPKVZXAiEAzh0aEx7QOEgLaomeWcCGZzTKjbzglshC
iQN7eOYaxWo=
-----END CERTIFICATE-----
",
    "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgdbPWW0ltyBqRfdQH
FwJm0Wvn6/ayr9qbIMJOsz9PXgWhRANCAARvwbPd/wXzy2Vt5EhP8WlCnKGHG5Ai
bK+skcnveBy8EF6moKCdvIZfYwMZ7m0iMWONxSrLLR2YBUtuS3XYrzSX
-----END PRIVATE KEY-----
",
];

/// Signs certificates. Clients and servers that have its certificate trust it.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Holds files for servers, which need them. Removed when the authority is dropped.
    dir: PathBuf,
}

/// A certificate and its private key, in PEM and in files.
pub(crate) struct Credentials {
    pub(crate) certificate: String,
    pub(crate) key: String,
    pub(crate) certificate_file: String,
    pub(crate) key_file: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = format!("authority-{}-{}", std::process::id(), next_number());
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(dir);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("ca.pem"), issuer.pem()).unwrap();
        Authority { issuer, dir }
    }

    pub(crate) fn pem(&self) -> String {
        // On Windows it has the line ends of Windows, but the tests edit it.
        self.issuer.pem().replace('\r', "")
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// Returns the settings of a client that trusts this authority.
    pub(crate) fn trusted(&self) -> Tls {
        Tls::new().ca_pem(self.pem())
    }

    /// Certifies a host or a client of that name.
    pub(crate) fn certify(&self, name: &str) -> Credentials {
        self.sign(CertificateParams::new([name.to_owned()]).unwrap())
    }

    /// Like `certify`, for a time in the past.
    pub(crate) fn certify_for_the_past(&self, name: &str) -> Credentials {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        self.sign(params)
    }

    /// Returns a self-issued certificate, as an authority's is.
    pub(crate) fn self_signed(&self, name: &str) -> Credentials {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem().replace('\r', "");
        self.keep(certificate, key.serialize_pem().replace('\r', ""))
    }

    /// Returns a self-issued certificate of X.509 version 1 for `localhost`.
    pub(crate) fn version_1(&self) -> Credentials {
        let [certificate, key] = VERSION_1.map(str::to_owned);
        self.keep(certificate, key)
    }

    /// Starts a server with these credentials. It trusts only clients that this authority has
    /// certified, unless `args` say otherwise.
    pub(crate) fn start(&self, credentials: &Credentials, args: &[&str]) -> Server {
        let all = [self.settings(credentials), args.iter().map(ToString::to_string).collect()];
        let all = all.concat();
        Server::redis_with(&all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Starts a sentinel that accepts any client, and monitors nothing.
    pub(crate) fn start_sentinel(&self, credentials: &Credentials) -> Server {
        let mut all = self.settings(credentials);
        all.extend(["--tls-auth-clients".to_owned(), "no".to_owned()]);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        Server::sentinel(redis_binary(), &all)
    }

    /// Returns the settings of a server with these credentials.
    fn settings(&self, credentials: &Credentials) -> Vec<String> {
        let ca = self.file().to_str().expect("a path in UTF-8").to_owned();
        let settings = [
            ("--tls-ca-cert-file", &ca),
            ("--tls-cert-file", &credentials.certificate_file),
            ("--tls-key-file", &credentials.key_file),
        ];
        settings.into_iter().flat_map(|(name, value)| [name.to_owned(), value.clone()]).collect()
    }

    fn sign(&self, mut params: CertificateParams) -> Credentials {
        params.distinguished_name.push(DnType::CommonName, "certified");
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem().replace('\r', "");
        self.keep(certificate, key.serialize_pem().replace('\r', ""))
    }

    fn keep(&self, certificate: String, key: String) -> Credentials {
        let certificate_file = self.write(&certificate);
        let key_file = self.write(&key);
        Credentials { certificate, key, certificate_file, key_file }
    }

    fn write(&self, pem: &str) -> String {
        let file = self.dir.join(format!("{}.pem", next_number()));
        fs::write(&file, pem).unwrap();
        file.to_str().expect("a path in UTF-8").to_owned()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        // If that fails, the files stay in the build directory.
        fs::remove_dir_all(&self.dir).ok();
    }
}

impl Server {
    /// Shows other credentials to clients that connect later.
    pub(crate) fn change_credentials(&self, credentials: &Credentials) {
        let Credentials { certificate_file, key_file, .. } = credentials;
        let change = ["tls-cert-file", certificate_file, "tls-key-file", key_file];
        self.command(&[&["CONFIG", "SET"], &change[..]].concat());
    }
}

fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
