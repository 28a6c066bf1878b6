//! TLS over a stream: the handshake, and everything after it, by the caller's deadlines.
//!
//! `rustls` keeps the protocol and does no I/O of its own. What it has to say beyond our bytes goes
//! out as soon as it is known; what the server says beyond its replies, such as tickets for later
//! sessions, is taken in on the way to the next one.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::error::{Error, Result};
use crate::net::stream::{DeadlineReader, Sleep, Stream};
use crate::net::trust::{Trust, client_config};
use crate::tls::Tls;

/// How many bytes the protocol sends as one, less than `rustls` has room for.
const RECORD: usize = 16 * 1024;

/// What it takes to make sure of one server.
#[derive(Clone)]
pub(crate) struct Connector {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
}

impl Connector {
    /// Checks everything that can be checked without the server.
    pub(crate) fn new(host: &str, trust: Trust, settings: &Tls) -> Result<Self> {
        let server = ServerName::try_from(host.to_owned())
            .map_err(|_| Error::invalid("url", "must have a host that a certificate can name"))?;
        Ok(Self { config: Arc::new(client_config(trust, settings)?), server })
    }

    /// The same for another server. One that no certificate can name must be this one.
    pub(crate) fn to(&self, host: &str) -> Self {
        let server = ServerName::try_from(host.to_owned()).unwrap_or_else(|_| self.server.clone());
        Self { config: self.config.clone(), server }
    }

    /// Agrees with the server on keys, and makes sure of who it is.
    pub(crate) fn connect(&self, stream: &Stream, deadline: Instant) -> io::Result<Session> {
        let begun = ClientConnection::new(self.config.clone(), self.server.clone());
        let mut session = Session { protocol: begun.map_err(violation)? };
        session.handshake(stream, deadline).map_err(in_handshake)?;
        Ok(session)
    }
}

/// One server and we, after the handshake.
pub(crate) struct Session {
    protocol: ClientConnection,
}

impl Session {
    /// Writes all of `bytes`. After an error an unknown part of them is written.
    pub(crate) fn send(
        &mut self,
        stream: &Stream,
        bytes: &[u8],
        deadline: Instant,
    ) -> io::Result<()> {
        for record in bytes.chunks(RECORD) {
            self.protocol.writer().write_all(record)?;
            self.flush(stream, deadline)?;
        }
        Ok(())
    }

    /// Reads what the server means to say, as `patient` allows.
    pub(crate) fn reader<'a, 'b>(
        &'a mut self,
        patient: &'a mut DeadlineReader<'b>,
    ) -> Reader<'a, 'b> {
        Reader { session: self, patient }
    }

    fn handshake(&mut self, stream: &Stream, deadline: Instant) -> io::Result<()> {
        let mut patient = DeadlineReader { stream, spell: None, sleep: Sleep::Naps, deadline };
        self.flush(stream, deadline)?;
        while self.protocol.is_handshaking() {
            self.fill(&mut patient)?;
        }
        Ok(())
    }

    /// Takes in what has arrived, waiting for it if need be, and says what is to be said to it.
    fn fill(&mut self, patient: &mut DeadlineReader<'_>) -> io::Result<()> {
        if let Err(error) = self.take_in(patient) {
            // The server is told why, if it still listens.
            self.flush(patient.stream, Instant::now()).unwrap_or_default();
            return Err(error);
        }
        self.flush(patient.stream, patient.deadline)
    }

    fn take_in(&mut self, patient: &mut DeadlineReader<'_>) -> io::Result<()> {
        // Nothing is read any more once the server has said that it will say no more.
        if self.protocol.read_tls(patient)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.protocol.process_new_packets().map(drop).map_err(violation)
    }

    fn flush(&mut self, stream: &Stream, deadline: Instant) -> io::Result<()> {
        while self.protocol.wants_write() {
            if let Err(error) = self.protocol.write_tls(&mut Sender { stream, deadline }) {
                return Err(self.last_words(stream, deadline).unwrap_or(error));
            }
        }
        Ok(())
    }

    /// Why the server listens no more, if it has said so before it hung up.
    fn last_words(&mut self, stream: &Stream, deadline: Instant) -> Option<io::Error> {
        let mut patient = DeadlineReader { stream, spell: None, sleep: Sleep::Polls, deadline };
        loop {
            if let Err(error) = self.take_in(&mut patient) {
                return cause(&error).is_some().then_some(error);
            }
        }
    }
}

/// Reads through a session.
pub(crate) struct Reader<'a, 'b> {
    session: &'a mut Session,
    patient: &'a mut DeadlineReader<'b>,
}

impl Read for Reader<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.protocol.reader().read(into) {
                // The server has said that it will say no more.
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.session.fill(self.patient)?;
                }
                other => return other,
            }
        }
    }
}

/// Writes by a deadline.
struct Sender<'a> {
    stream: &'a Stream,
    deadline: Instant,
}

impl Write for Sender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.send(bytes, self.deadline)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn violation(error: rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// What is wrong with what the server has said, if that is the error.
fn cause(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// Says of an error what was going on, where it does not say so itself.
fn in_handshake(error: io::Error) -> io::Error {
    match cause(&error) {
        Some(rustls::Error::InvalidMessage(_)) => {
            io::Error::new(error.kind(), "the server does not answer in TLS")
        }
        Some(_) => error,
        None => io::Error::new(error.kind(), format!("in the TLS handshake: {error}")),
    }
}
