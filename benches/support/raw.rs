//! "Raw", the baseline: a good hand-written lock. One bare blocking connection, two scripts in
//! sequence, and nothing else.

use redis::io::tcp::TcpSettings;
use redis::{Cmd, Connection, FromRedisValue, IntoConnectionInfo, Value};

pub(super) const OWNER: &str = "0123456789abcdef0123456789abcdef:1";
pub(super) const LEASE_MS: u32 = 30_000;
pub(super) const FENCE_TTL_MS: u32 = 86_400_000;

/// A connection with both scripts loaded, for the lock of one name.
pub(crate) struct Raw {
    connection: Connection,
    lock: String,
    fence: String,
    acquire: String,
    release: String,
}

impl Raw {
    pub(crate) fn connect(url: &str, name: &str) -> Self {
        let mut connection = connect(url);
        let acquire = load(&mut connection, include_str!("raw_acquire.lua"));
        let release = load(&mut connection, include_str!("raw_release.lua"));
        let (lock, fence) = (format!("raw:{{{name}}}"), format!("raw:fence:{{{name}}}"));
        Self { connection, lock, fence, acquire, release }
    }

    pub(crate) fn lock_and_unlock(&mut self) {
        let token: u64 = self.query(&self.acquire());
        assert!(token > 0, "no other program uses the raw lock");
        let freed: bool = self.query(&self.release());
        assert!(freed, "the raw lock does not expire in a cycle");
    }

    /// Acquires all locks at once and releases them without waiting for the replies, which the next
    /// call reads. `owed` says whether there are any.
    pub(crate) fn lock_and_post_unlock(all: &mut [Self], owed: bool) {
        for raw in &mut *all {
            raw.send(&raw.acquire());
        }
        for raw in &mut *all {
            if owed {
                raw.receive();
            }
            raw.receive();
        }
        for raw in all {
            raw.send(&raw.release());
        }
    }

    fn send(&mut self, command: &Cmd) {
        let packed = command.get_packed_command();
        self.connection.send_packed_command(&packed).expect("the server takes the request");
    }

    fn receive(&mut self) {
        let reply = self.connection.recv_response().expect("the server replies");
        assert!(matches!(reply, Value::Int(1..)), "no other program uses the raw locks: {reply:?}");
    }

    /// Returns both requests as they are sent.
    pub(crate) fn packed(&self) -> [Vec<u8>; 2] {
        [self.acquire(), self.release()].map(|command| command.get_packed_command())
    }

    fn acquire(&self) -> Cmd {
        redis::cmd("EVALSHA")
            .arg(&self.acquire)
            .arg(2)
            .arg(&self.lock)
            .arg(&self.fence)
            .arg(OWNER)
            .arg(LEASE_MS)
            .arg(FENCE_TTL_MS)
            .take()
    }

    fn release(&self) -> Cmd {
        redis::cmd("EVALSHA").arg(&self.release).arg(1).arg(&self.lock).arg(OWNER).take()
    }

    fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> T {
        command.query(&mut self.connection).expect("the server runs the script")
    }
}

/// A bare blocking connection. Nagle's algorithm, which the redis crate leaves on, would slow the
/// baseline down.
pub(crate) fn connect(url: &str) -> Connection {
    let info = url.into_connection_info().expect("a valid URL");
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let client = redis::Client::open(info).expect("a valid URL");
    client.get_connection().expect("the server answers")
}

fn load(connection: &mut Connection, script: &str) -> String {
    redis::cmd("SCRIPT").arg("LOAD").arg(script).query(connection).expect("the script compiles")
}
