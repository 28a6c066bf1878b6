//! TLS over a stream: the handshake and everything after it, by the caller's deadlines.
//!
//! `rustls` implements the protocol and does no I/O of its own. The messages of the protocol itself
//! are sent at once. The server's messages, such as tickets for later sessions, are processed on
//! the way to the next reply, or when an idle session is checked, because the end of a session is a
//! message too.

use std::error::Error as StdError;
use std::fmt;
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, ClientConnection};

use crate::base::event_thread::Events;
use crate::config::certificates::Tls;
use crate::error::{Error, LASTING, Phase, Result};
use crate::net::shared_call::SharedCalls;
use crate::net::socket::{PollFlags, Stream};
use crate::net::trust::{Trust, client_config, flaw};
use crate::net::wait::{Arrived, ReplyWait, WaitFor};

/// The bytes sent in one record, less than the buffer of `rustls`.
const RECORD: usize = 16 * 1024;

/// How long a connect waits for the certificate files to be reread. If a file system hangs, the
/// client connects with the certificates it has.
const REREAD_TIME: Duration = Duration::from_millis(200);

const NO_ANSWER: &str = "the server has not answered, as at a port without TLS";

/// Opens TLS sessions with one server, and verifies it.
#[derive(Clone)]
pub(crate) struct Connector {
    /// Used by the next connection. Locked only to read and replace it.
    current: Arc<Mutex<Current>>,
    /// Rereads the files, and replaces `current` if they have changed. `None` without files.
    rereads: Option<Arc<SharedCalls<(), ()>>>,
    /// The name that the server's certificate must prove.
    server: ServerName<'static>,
    /// Whether every server must prove this name, whatever its address.
    is_set: bool,
    /// Whether the client has a certificate.
    is_certified: bool,
}

/// Settings, and the configuration built from them.
struct Current {
    settings: Arc<Tls>,
    config: Arc<ClientConfig>,
}

impl Connector {
    /// Returns an error for a host or settings that can never work.
    pub(crate) fn new(host: &str, trust: Trust, settings: &Tls, events: &Events) -> Result<Self> {
        let (argument, why, name) = match &settings.server_name {
            None => ("url", "must have a host that a certificate can name", host),
            Some(name) => ("server_name", "must be one that a certificate can have", &**name),
        };
        let server = ServerName::try_from(name.to_owned());
        let server = server.map_err(|_| Error::invalid(argument, why))?;
        let config = Arc::new(client_config(trust, settings, events)?);
        let current = Current { settings: Arc::new(settings.clone()), config };
        let current = Arc::new(Mutex::new(current));
        let rereads = if settings.has_files() {
            let known = current.clone();
            let events = events.clone();
            let calls =
                SharedCalls::new("leasehold-certs", "reading the certificates", move |()| {
                    reread(&known, trust, &events);
                });
            Some(Arc::new(calls))
        } else {
            None
        };
        Ok(Self {
            current,
            rereads,
            server,
            is_set: settings.server_name.is_some(),
            is_certified: settings.cert.is_some(),
        })
    }

    /// Returns a connector for another server. If no certificate can name its host, that server
    /// must prove the same name as this one.
    pub(crate) fn to(&self, host: &str) -> Self {
        let own = if self.is_set { None } else { ServerName::try_from(host.to_owned()).ok() };
        Self { server: own.unwrap_or_else(|| self.server.clone()), ..self.clone() }
    }

    /// Performs the handshake, which verifies the server. An error comes with its phase.
    pub(crate) fn connect(
        &self,
        stream: &Stream,
        deadline: Instant,
    ) -> Result<Session, (Phase, io::Error)> {
        let begun = ClientConnection::new(self.config(deadline), self.server.clone());
        let begun = begun.map_err(|error| TlsError::new(error, self.is_certified));
        let protocol = begun.map_err(|error| (Phase::Tls, error))?;
        let mut session = Session { protocol, is_certified: self.is_certified };
        session.handshake(stream, deadline).map_err(in_handshake)?;
        Ok(session)
    }

    /// Returns the configuration for the current content of the files. If they are unusable, for
    /// example because a certificate has been replaced but its key has not, or cannot be read in
    /// time, returns the previous configuration.
    fn config(&self, deadline: Instant) -> Arc<ClientConfig> {
        if let Some(rereads) = &self.rereads {
            let now = Instant::now();
            let most = deadline.saturating_duration_since(now) / 2;
            // If the files are read too late, the next connection uses them.
            rereads.call(&(), now + REREAD_TIME.min(most)).unwrap_or_default();
        }
        self.current.lock().config.clone()
    }
}

/// Replaces the current settings by the content of their files, if it has changed and is usable.
fn reread(current: &Mutex<Current>, trust: Trust, events: &Events) {
    let known = current.lock().settings.clone();
    let Some(settings) = known.reread() else { return };
    let Ok(config) = client_config(trust, &settings, events) else { return };
    *current.lock() = Current { settings: Arc::new(settings), config: Arc::new(config) };
}

/// A session with one server, after the handshake.
pub(crate) struct Session {
    protocol: ClientConnection,
    /// Whether the client has a certificate.
    is_certified: bool,
}

impl Session {
    /// Accepts as many of `bytes` as there is room for, without waiting.
    pub(crate) fn send(&mut self, stream: &Stream, bytes: &[u8]) -> io::Result<usize> {
        let mut taken = 0;
        while self.flush(stream)? && taken < bytes.len() {
            let record = &bytes[taken..bytes.len().min(taken + RECORD)];
            self.protocol.writer().write_all(record)?;
            taken += record.len();
        }
        Ok(taken)
    }

    pub(crate) fn is_writing(&self) -> bool {
        self.protocol.wants_write()
    }

    /// Like [`Stream::look`], for the decrypted bytes. Processes the messages of the protocol
    /// first.
    pub(crate) fn look(&mut self, stream: &Stream) -> Arrived {
        let mut reader = Encrypted { stream, wait: WaitFor::Nothing, spin: None };
        loop {
            match self.protocol.reader().fill_buf() {
                Ok([_, ..]) => return Arrived::Data,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok([]) | Err(_) => return Arrived::End,
            }
            match self.receive(&mut reader) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => return Arrived::Nothing,
                Err(_) => return Arrived::End,
            }
        }
    }

    /// Reads decrypted bytes; none once the server has sent `close_notify`.
    pub(crate) fn read(
        &mut self,
        into: &mut [u8],
        mut encrypted: Encrypted<'_, '_>,
    ) -> io::Result<usize> {
        loop {
            match self.protocol.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.receive(&mut encrypted)?;
                }
                read => return read,
            }
        }
    }

    fn handshake(&mut self, stream: &Stream, deadline: Instant) -> io::Result<()> {
        let wait = WaitFor::SoonReply { deadline };
        let mut reader = Encrypted { stream, wait, spin: None };
        let mut answered = false;
        loop {
            while !self.flush(stream)? {
                stream.wait(PollFlags::OUT, deadline)?;
            }
            if !self.protocol.is_handshaking() {
                return Ok(());
            }
            match self.receive(&mut reader) {
                // A plain-text server reads this as the beginning of a request.
                Err(error) if !answered && error.kind() == ErrorKind::TimedOut => {
                    return Err(io::Error::new(ErrorKind::TimedOut, NO_ANSWER));
                }
                received => received?,
            }
            answered = true;
        }
    }

    /// Processes what has arrived, waiting for it if needed, and sends the protocol's answers.
    fn receive(&mut self, reader: &mut Encrypted<'_, '_>) -> io::Result<()> {
        let processed = self.process(reader);
        // After a failure, this is an alert with the reason, if the server still reads.
        let sent = self.flush(reader.stream).map(drop);
        processed.and(sent)
    }

    fn process(&mut self, reader: &mut Encrypted<'_, '_>) -> io::Result<()> {
        // After the server's `close_notify`, nothing more is read.
        if self.protocol.read_tls(reader)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let processed = self.protocol.process_new_packets();
        processed.map(drop).map_err(|error| TlsError::new(error, self.is_certified))
    }

    /// Sends the pending messages of the protocol. Returns `true` if there was room for all of
    /// them.
    fn flush(&mut self, stream: &Stream) -> io::Result<bool> {
        while self.protocol.wants_write() {
            match self.protocol.write_tls(&mut StreamWriter(stream)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(self.received_alert(stream).unwrap_or(error)),
            }
        }
        Ok(true)
    }

    /// Returns why the server no longer reads, if it sent an alert before it closed the connection.
    fn received_alert(&mut self, stream: &Stream) -> Option<io::Error> {
        let mut reader = Encrypted { stream, wait: WaitFor::Nothing, spin: None };
        loop {
            if let Err(error) = self.process(&mut reader) {
                return if cause(&error).is_some() { Some(error) } else { None };
            }
        }
    }
}

/// Reads from a socket, waiting as `wait` says.
pub(crate) struct Encrypted<'a, 'b> {
    pub(crate) stream: &'a Stream,
    pub(crate) wait: WaitFor,
    pub(crate) spin: Option<&'a mut ReplyWait<'b>>,
}

impl Read for Encrypted<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.read(into, self.wait, self.spin.as_deref_mut())
    }
}

struct StreamWriter<'a>(&'a Stream);

impl Write for StreamWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.send(bytes)? {
            0 => Err(ErrorKind::WouldBlock.into()),
            sent => Ok(sent),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A failure of the protocol. If a certificate was rejected, the message says whose.
#[derive(Debug)]
struct TlsError {
    error: rustls::Error,
    /// Whether the client has a certificate.
    is_certified: bool,
}

impl TlsError {
    #[expect(clippy::new_ret_no_self, reason = "it is only ever the cause of another error")]
    fn new(error: rustls::Error, is_certified: bool) -> io::Error {
        let error = Self { error, is_certified };
        let kind = if error.lasts() { LASTING } else { ErrorKind::InvalidData };
        io::Error::new(kind, error)
    }

    /// Returns `true` if only another certificate or setting can help.
    fn lasts(&self) -> bool {
        use AlertDescription as Alert;
        use rustls::CertificateError::{NotValidYet, NotValidYetContext};
        match &self.error {
            rustls::Error::InvalidCertificate(NotValidYet | NotValidYetContext { .. }) => false,
            rustls::Error::InvalidCertificate(_)
            | rustls::Error::PeerIncompatible(_)
            | rustls::Error::AlertReceived(
                Alert::HandshakeFailure
                | Alert::InsufficientSecurity
                | Alert::NoApplicationProtocol
                | Alert::ProtocolVersion
                | Alert::UnrecognisedName,
            ) => true,
            rustls::Error::AlertReceived(alert) => self.rejects_client(*alert),
            _ => false,
        }
    }

    /// Returns `true` if an alert of the server is about the client's certificate.
    fn rejects_client(&self, alert: AlertDescription) -> bool {
        use AlertDescription as Alert;
        match alert {
            Alert::AccessDenied
            | Alert::BadCertificate
            | Alert::CertificateExpired
            | Alert::CertificateRequired
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::UnsupportedCertificate => true,
            // TLS 1.2 reports a missing certificate like this.
            Alert::HandshakeFailure => !self.is_certified,
            _ => false,
        }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            rustls::Error::InvalidCertificate(error) => {
                write!(f, "the server's certificate is not accepted: {}", flaw(error))
            }
            rustls::Error::AlertReceived(alert) if self.rejects_client(*alert) => {
                f.write_str(if self.is_certified {
                    "the server does not accept the client's certificate"
                } else {
                    "the client has no certificate, which the server may demand"
                })?;
                write!(f, ": it has sent the alert {alert:?}")
            }
            rustls::Error::AlertReceived(alert) => {
                write!(f, "the server has ended the TLS session with the alert {alert:?}")
            }
            rustls::Error::FailedToGetRandomBytes => f.write_str("the system has no random bytes"),
            rustls::Error::PeerIncompatible(_) => {
                f.write_str("the server and the client have no version or cipher of TLS in common")
            }
            _ => f.write_str("the server does not keep to the rules of TLS"),
        }
    }
}

impl StdError for TlsError {}

/// Returns the protocol error behind an I/O error, if there is one.
fn cause(error: &io::Error) -> Option<&rustls::Error> {
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    cause.map(|cause| &cause.error)
}

/// Returns why a handshake has failed: the server does not know TLS, or the protocol has failed.
fn in_handshake(error: io::Error) -> (Phase, io::Error) {
    let kind = error.kind();
    match cause(&error) {
        Some(rustls::Error::InvalidMessage(_)) => {
            (Phase::Greeting, io::Error::new(kind, "the server does not answer in TLS"))
        }
        Some(_) => (Phase::Tls, error),
        None => (Phase::Tls, io::Error::new(kind, format!("in the TLS handshake: {error}"))),
    }
}
