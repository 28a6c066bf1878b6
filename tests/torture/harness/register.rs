//! The resource that the locks protect: a number for each name, on a server without faults.

use std::thread;
use std::time::{Duration, Instant};

use redis::{Commands, Connection, RedisResult, Script};

use crate::harness::Result;
use crate::harness::history::Outcome;

/// After the last fault, a lock is used again within this time, however busy the machine is.
const REUSE_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Register {
    redis: Connection,
    script: Script,
    fenced: bool,
}

impl Register {
    pub(crate) fn open(url: &str, fenced: bool) -> RedisResult<Self> {
        let redis = redis::Client::open(url)?.get_connection()?;
        Ok(Self { redis, script: Script::new(include_str!("register.lua")), fenced })
    }

    pub(crate) fn read(&mut self, name: u32, fence: u64) -> RedisResult<Outcome> {
        let value = self.request(name, fence, None)?;
        Ok(value.map_or(Outcome::Stale, |value| Outcome::Value { value }))
    }

    pub(crate) fn write(&mut self, name: u32, fence: u64, value: u64) -> RedisResult<Outcome> {
        let value = self.request(name, fence, Some(value))?;
        Ok(value.map_or(Outcome::Stale, |_| Outcome::Done))
    }

    pub(crate) fn value(&mut self, name: u32) -> RedisResult<u64> {
        let value: Option<u64> = self.redis.hget(key(name), "value")?;
        Ok(value.unwrap_or_default())
    }

    /// Counts a holder that writes nothing.
    pub(crate) fn count(&mut self, name: u32) -> RedisResult<()> {
        self.redis.hincr(key(name), "uses", 1)
    }

    /// Waits until a thread that did not have the lock before has written or was counted. Each
    /// thread that already had it does so once, so this takes one more use than there are
    /// `holders`.
    pub(crate) fn wait_for_use(&mut self, name: u32, holders: u32) -> Result<()> {
        let deadline = Instant::now() + REUSE_TIMEOUT;
        let (mut last, mut uses) = (self.uses(name)?, 0);
        while uses <= holders.into() {
            if Instant::now() > deadline {
                return Err(format!("lock {name} is not used any more").into());
            }
            thread::sleep(Duration::from_millis(5));
            let now = self.uses(name)?;
            uses += now.abs_diff(last);
            last = now;
        }
        Ok(())
    }

    fn uses(&mut self, name: u32) -> RedisResult<u64> {
        let counted: Option<u64> = self.redis.hget(key(name), "uses")?;
        Ok(self.value(name)? + counted.unwrap_or_default())
    }

    /// Reads, or writes a value. Without fences, the register accepts everything.
    fn request(&mut self, name: u32, fence: u64, value: Option<u64>) -> RedisResult<Option<u64>> {
        if self.fenced {
            let mut call = self.script.key(key(name));
            let answer: i64 = call.arg(fence).arg(value).invoke(&mut self.redis)?;
            return Ok(u64::try_from(answer).ok());
        }
        if let Some(value) = value {
            let _: u64 = self.redis.hset(key(name), "value", value)?;
        }
        self.value(name).map(Some)
    }
}

fn key(name: u32) -> String {
    format!("register:{name}")
}
