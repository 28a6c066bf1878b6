//! How this program opens its client.

use std::process;

use leasehold::{Builder, Client};
use rustix::system::uname;

use crate::args::ServerArgs;
use crate::exit::{ExitError, USAGE};

/// As many bytes of the host name are enough to know the host.
const HOST_MAX: usize = 64;

/// Opens a client that looks at locks.
pub(crate) fn open(server: &ServerArgs) -> Result<Client, ExitError> {
    open_with(server, |builder| builder)
}

/// Opens a client that asks servers about themselves. They need not answer for that.
pub(crate) fn open_lazily(server: &ServerArgs) -> Result<Client, ExitError> {
    open_with(server, |builder| builder.lazy(true))
}

/// Opens a client with further settings, which replace those of the URL.
pub(crate) fn open_with(
    server: &ServerArgs,
    set: impl FnOnce(Builder) -> Builder,
) -> Result<Client, ExitError> {
    let Some(url) = server.url() else {
        return Err(ExitError::new(USAGE, "no server: set REDIS_URL or give --url"));
    };
    let builder = set(Builder::default().label(&default_label()).url(&url)?);
    let builder = if let Some(label) = &server.label { builder.label(label) } else { builder };
    let builder = if let Some(prefix) = &server.prefix { builder.prefix(prefix) } else { builder };
    Ok(builder.build()?)
}

fn default_label() -> String {
    let host = uname().nodename().to_string_lossy().into_owned();
    // What no label may have.
    let is_good = |c: &char| !matches!(c, '{' | '}') && !c.is_control();
    let host: String = host.chars().filter(is_good).take(HOST_MAX).collect();
    format!("{host}:{}", process::id())
}
