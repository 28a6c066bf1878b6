//! One connection as its user sees it: requests out, replies in, over plain bytes or TLS.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use redis::{Parser, RedisResult, Value};

use crate::net::spin::{Manner, Spin};
use crate::net::stream::{DeadlineReader, Sleep, SocketCloser, Stream};
#[cfg(feature = "tls")]
use crate::net::tls::{Connector, Session};

/// A connected socket and what was read of an unfinished reply.
pub(crate) struct RespStream {
    /// Shared with nothing but plugs.
    stream: Arc<Stream>,
    layer: Layer,
    parser: Parser,
}

/// What is between the bytes on their way and those that are meant.
enum Layer {
    Plain,
    #[cfg(feature = "tls")]
    Tls(Box<Session>),
}

impl std::fmt::Debug for RespStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RespStream").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl AsFd for RespStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl RespStream {
    /// Connects to the first of `addresses` that answers, giving each its share of the time.
    pub(crate) fn tcp(addresses: &[SocketAddr], deadline: Instant) -> io::Result<Self> {
        Ok(Self::over(Stream::tcp(addresses, deadline)?, Layer::Plain))
    }

    /// As `tcp`, and makes sure of the server.
    #[cfg(feature = "tls")]
    pub(crate) fn tls(
        addresses: &[SocketAddr],
        connector: &Connector,
        deadline: Instant,
    ) -> io::Result<Self> {
        let stream = Stream::tcp(addresses, deadline)?;
        let session = connector.connect(&stream, deadline)?;
        Ok(Self::over(stream, Layer::Tls(Box::new(session))))
    }

    pub(crate) fn unix(path: &Path, deadline: Instant) -> io::Result<Self> {
        Ok(Self::over(Stream::unix(path, deadline)?, Layer::Plain))
    }

    fn over(stream: Stream, layer: Layer) -> Self {
        Self { stream: Arc::new(stream), layer, parser: Parser::new() }
    }

    pub(crate) fn plug(&self) -> SocketCloser {
        SocketCloser(Arc::downgrade(&self.stream))
    }

    /// Writes all of `bytes`. After an error an unknown part of them is written.
    pub(crate) fn send(&mut self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        match &mut self.layer {
            Layer::Plain => self.stream.send_all(bytes, deadline),
            #[cfg(feature = "tls")]
            Layer::Tls(session) => session.send(&self.stream, bytes, deadline),
        }
    }

    /// Returns a reply that was read whole along with an earlier one. If there is none, that is a
    /// timeout.
    pub(crate) fn receive_buffered(&mut self) -> RedisResult<Value> {
        // The time is over before anything is read.
        self.receive(None, Instant::now())
    }

    /// Reads a reply that has come already. If not all of it has, that is a timeout.
    pub(crate) fn receive_now(&mut self) -> RedisResult<Value> {
        let Self { stream, layer, parser } = self;
        let deadline = Instant::now();
        layer.parse(
            parser,
            &mut DeadlineReader { stream, spell: None, sleep: Sleep::Never, deadline },
        )
    }

    /// Reads one whole reply, an error reply included. With `spin` it is expected soon, and spun
    /// for if there is a spell for it; without, it may take long.
    /// After a timeout, and only after that, reading may go on where it stopped.
    pub(crate) fn receive(&mut self, spin: Option<&Spin>, deadline: Instant) -> RedisResult<Value> {
        let Self { stream, layer, parser } = self;
        let Some(spin) = spin else {
            let mut patient = DeadlineReader { stream, spell: None, sleep: Sleep::Polls, deadline };
            return layer.parse(parser, &mut patient);
        };
        let (started, spell) = (Instant::now(), spin.start());
        let busy = spell.is_some();
        let mut patient = DeadlineReader { stream, spell, sleep: Sleep::Naps, deadline };
        let reply = layer.parse(parser, &mut patient);
        let manner = match (busy, patient.spell.is_some()) {
            (false, _) => Manner::Asleep,
            (true, true) => Manner::Busy,
            (true, false) => Manner::BusyInVain,
        };
        spin.learn(manner, started.elapsed());
        reply
    }
}

impl Layer {
    fn parse(
        &mut self,
        parser: &mut Parser,
        patient: &mut DeadlineReader<'_>,
    ) -> RedisResult<Value> {
        match self {
            Self::Plain => parser.parse_value(patient),
            #[cfg(feature = "tls")]
            Self::Tls(session) => parser.parse_value(session.reader(patient)),
        }
    }
}
