//! Asks the sentinels of one master where it is, and decides which of their answers counts.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use crate::base::clock::Moment;
use crate::base::failure::{Failure, FailureKind};
use crate::config::Config;
use crate::config::callbacks::AddressMap;
use crate::net::connection::Connection;
use crate::net::endpoint::Endpoint;
use crate::net::request::Request;
use crate::net::route::Address;
use crate::net::server::ServerFactory;
use crate::net::spin::Spin;

/// After this many rejections in a row, an address that most sentinels name is given up for one
/// that any of them names. Before that, a failure to connect does not outweigh the majority.
const REJECTIONS_MAX: u32 = 3;

/// The sentinels.
pub(super) struct Panel {
    master: Arc<str>,
    address_map: AddressMap,
    /// The one whose answer counted last comes first.
    sentinels: VecDeque<Connection>,
    /// How often in a row an address was rejected.
    rejections: u32,
}

/// The answer of a sentinel.
pub(super) struct SentinelAnswer {
    pub(super) address: Address,
    /// When the sentinel was asked. It may have answered at once, and the answer may have been read
    /// much later.
    pub(super) asked: Moment,
    /// The place of the sentinel among the others.
    place: usize,
}

impl Panel {
    pub(super) fn new(
        sentinels: &[Endpoint],
        master: &str,
        servers: &ServerFactory,
        config: &Config,
    ) -> Self {
        let connection = |endpoint: &Endpoint| {
            let mut factory = servers.connections(endpoint.without_database());
            // Sentinels are asked too rarely to spin for.
            factory.spin = Spin::new(Duration::ZERO);
            // They are the master's.
            factory.credentials = None;
            Connection::new(Arc::new(factory))
        };
        let sentinels = sentinels.iter().map(connection).collect();
        let address_map = config.address_map.clone();
        Self { master: master.into(), address_map, sentinels, rejections: 0 }
    }

    /// Asks one sentinel after the other, each for its share of the time: until one answers, or all
    /// of them if an address was rejected. The one whose answer counts is asked first from then on.
    pub(super) fn ask(
        &mut self,
        rejected: Option<&Address>,
        deadline: Instant,
    ) -> Result<SentinelAnswer, Failure> {
        self.rejections = rejected.map_or(0, |_| self.rejections.saturating_add(1));
        let (mut answers, mut failure) = (Vec::new(), None::<Failure>);
        for place in 0..self.sentinels.len() {
            let (asked, now) = (Moment::now(), Instant::now());
            let left = u32::try_from(self.sentinels.len() - place).unwrap_or(u32::MAX);
            let share = deadline.saturating_duration_since(now) / left;
            match self.ask_one(place, now + share) {
                Ok(address) => answers.push(SentinelAnswer { address, asked, place }),
                // A rejection says more than the failure to reach another sentinel.
                Err(next)
                    if failure.as_ref().is_none_or(|one| one.kind != FailureKind::Rejected) =>
                {
                    failure = Some(next);
                }
                Err(_) => {}
            }
            if rejected.is_none() && !answers.is_empty() {
                break;
            }
        }
        let Some(best) = choose(&answers, rejected, self.rejections) else {
            return Err(unanswered(&self.master, failure));
        };
        let answer = answers.swap_remove(best);
        self.sentinels.rotate_left(answer.place);
        Ok(answer)
    }

    fn ask_one(&mut self, place: usize, deadline: Instant) -> Result<Address, Failure> {
        let sentinel = &mut self.sentinels[place];
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.master);
        let reply = sentinel.exchange(&Request::command(&question), deadline)?;
        if reply == Value::Nil {
            let why = io::Error::new(io::ErrorKind::NotFound, "a sentinel knows no such master");
            let failure = Failure::io(FailureKind::Rejected, &sentinels_label(&self.master), why);
            return Err(Failure { code: "NOMASTER".into(), ..failure });
        }
        let Address { host, port } = address(&reply).ok_or_else(|| sentinel.invalid_reply())?;
        let (host, port) = self.address_map.reachable(&host, port);
        Ok(Address { host, port })
    }
}

/// Returns which answer counts.
fn choose(
    answers: &[SentinelAnswer],
    rejected: Option<&Address>,
    rejections: u32,
) -> Option<usize> {
    let rank = |answer: &SentinelAnswer| {
        let is_other = rejected != Some(&answer.address);
        let votes = answers.iter().filter(|one| one.address == answer.address).count();
        (is_other && rejections >= REJECTIONS_MAX, votes, is_other)
    };
    (0..answers.len()).max_by_key(|number| rank(&answers[*number]))
}

/// The failure of all sentinels, given that of one.
pub(super) fn unanswered(master: &str, last: Option<Failure>) -> Failure {
    let server = sentinels_label(master);
    match last {
        None => Failure::too_late(&server, "there was no time to ask"),
        Some(last) => Failure { server, ..last.of_question() },
    }
}

fn sentinels_label(master: &str) -> Arc<str> {
    format!("the sentinels of {master:?}").into()
}

/// Reads a host and a port; `None` if the reply is something else.
fn address(reply: &Value) -> Option<Address> {
    let Value::Array(parts) = reply else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = &parts[..] else { return None };
    let host = str::from_utf8(host).ok()?.to_owned();
    Some(Address { host, port: str::from_utf8(port).ok()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(port: u16) -> SentinelAnswer {
        let address = Address { host: "h".into(), port };
        SentinelAnswer { address, asked: Moment::now(), place: 0 }
    }

    /// The port that counts after `rejected` was rejected this many times.
    fn chosen(ports: &[u16], rejected: u16, rejections: u32) -> Option<u16> {
        let answers: Vec<_> = ports.iter().map(|port| answer(*port)).collect();
        let best = choose(&answers, Some(&answer(rejected).address), rejections)?;
        Some(answers[best].address.port)
    }

    #[test]
    fn the_word_of_most_sentinels_counts_and_then_that_of_any() {
        assert_eq!(chosen(&[1, 2, 2], 1, 1), Some(2));
        assert_eq!(chosen(&[1, 2], 1, 1), Some(2), "the other one");
        assert_eq!(chosen(&[1, 1, 2], 1, 1), Some(1));
        assert_eq!(chosen(&[1, 1, 2], 1, REJECTIONS_MAX), Some(2));
        assert_eq!(chosen(&[1, 1], 1, REJECTIONS_MAX), Some(1), "there is no other");
        assert_eq!(chosen(&[2, 3, 3], 1, 1), Some(3));
        assert_eq!(chosen(&[], 1, 1), None);
    }
}
