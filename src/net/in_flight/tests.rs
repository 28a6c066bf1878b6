//! Replies to requests in flight, matched without a server.

use std::sync::LazyLock;
use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use crate::config::durability::Durability;

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new("return 1"));

type Replies = Vec<(u64, Result<Value, FailureKind>)>;

/// Numbered requests, whose replies are recorded with the numbers.
#[derive(Default)]
struct Scene {
    in_flight: InFlight,
    replies: Arc<Mutex<Replies>>,
    out: Vec<u8>,
}

impl Scene {
    fn posted(&self, number: u64) -> Exchange {
        let replies = self.replies.clone();
        let on_reply = move |reply: Reply| {
            replies.lock().push((number, reply.map_err(|failure| failure.kind)));
        };
        let request = Request::call(&SCRIPT, &[], &[]);
        Exchange::posted(request, Instant::now(), Box::new(on_reply))
    }

    fn durable(&self, number: u64, send_wait: SendWait) -> Exchange {
        let durability = Durability::Replicas { acks: 1, timeout: Duration::from_secs(1) };
        let demand = Demand::new(durability).expect("a demand");
        self.posted(number).durable(Some((demand, send_wait)))
    }

    fn send(&mut self, exchanges: impl IntoIterator<Item = Exchange>) {
        self.in_flight.push(exchanges, &mut self.out);
    }

    fn take(&mut self, reply: Reply) {
        let taken = self.in_flight.take(reply, || "here".into(), &mut self.out);
        assert!(taken, "it fits");
        while let Some((exchange, reply)) = self.in_flight.ready.pop_front() {
            exchange.answer(reply);
        }
    }

    fn expire(&mut self, end: Instant) {
        for expired in self.in_flight.take_expired(end) {
            expired.pass_on(Err(failure("")));
        }
    }

    /// Returns the commands that were written since the last call.
    fn written(&mut self) -> Vec<&'static str> {
        let text = String::from_utf8(mem::take(&mut self.out)).expect("text");
        let known = ["EVAL", "EVALSHA", "WAIT"];
        text.lines().filter_map(|line| known.into_iter().find(|name| *name == line)).collect()
    }

    fn numbers(&self) -> Vec<(u64, bool)> {
        self.replies.lock().iter().map(|(number, reply)| (*number, reply.is_ok())).collect()
    }
}

fn failure(code: &str) -> Failure {
    let error = std::io::Error::other("test");
    let failure = Failure::io(FailureKind::Rejected, &Arc::from("here"), error);
    Failure { code: code.into(), ..failure }
}

#[test]
fn replies_go_to_the_requests_in_their_order() {
    let mut scene = Scene::default();
    let three = [1, 2, 3].map(|number| scene.posted(number));
    scene.send(three);
    assert_eq!(scene.written(), ["EVAL", "EVALSHA", "EVALSHA"], "known since the first one");
    scene.take(Ok(Value::Int(1)));
    scene.take(Err(failure("READONLY")));
    assert!(scene.in_flight.since().is_some());
    scene.in_flight.fail(&failure(""));
    assert_eq!(scene.numbers(), [(1, true), (2, false), (3, false)]);
    assert!(scene.in_flight.is_empty() && scene.in_flight.since().is_none());
}

#[test]
fn unknown_scripts_are_resent_in_full() {
    let mut scene = Scene::default();
    let two = [1, 2].map(|number| scene.posted(number));
    scene.send(two);
    scene.take(Ok(Value::Int(1)));
    scene.written();
    scene.take(Err(failure("NOSCRIPT")));
    assert_eq!((scene.written(), scene.numbers().len()), (vec!["EVAL"], 1));
    scene.take(Err(failure("NOSCRIPT")));
    assert_eq!(scene.numbers(), [(1, true), (2, false)], "not for ever");
}

#[test]
fn ordered_requests_are_not_resent_behind_others() {
    let mut scene = Scene::default();
    let three = [1, 2, 3].map(|number| scene.posted(number).in_order());
    scene.send(three);
    scene.take(Ok(Value::Int(1)));
    scene.written();
    scene.take(Err(failure("NOSCRIPT")));
    assert_eq!(scene.replies.lock()[1], (2, Err(FailureKind::Transient)));
    scene.take(Err(failure("NOSCRIPT")));
    assert_eq!((scene.written(), scene.numbers().len()), (vec!["EVAL"], 2), "the last one waits");
}

#[test]
fn the_reply_to_asking_does_not_count() {
    let mut scene = Scene::default();
    let one = scene.posted(1);
    scene.send([Exchange { request: one.request.clone().asking(), ..one }]);
    assert!(scene.out.starts_with(b"*1\r\n$6\r\nASKING\r\n*"));
    scene.take(Err(failure("ERR")));
    assert!(scene.numbers().is_empty());
    scene.take(Ok(Value::Int(1)));
    assert_eq!(scene.numbers(), [(1, true)]);
    assert!(scene.in_flight.is_empty() && scene.in_flight.posted == 0);
}

#[test]
fn no_more_is_posted_than_redis_reads_at_a_time() {
    let mut scene = Scene::default();
    assert!(scene.in_flight.has_room(POSTED_MAX + 1), "one request may be longer");
    while scene.in_flight.has_room(scene.posted(0).request.bytes.len()) {
        let next = scene.posted(1);
        scene.send([next]);
    }
    assert!(scene.out.len() <= POSTED_MAX && scene.out.len() > POSTED_MAX / 2);
    while !scene.in_flight.is_empty() {
        scene.take(Ok(Value::Int(1)));
    }
    assert!(scene.in_flight.has_room(POSTED_MAX + 1), "nothing is in flight");
}

#[test]
fn durable_changes_count_once_replicas_have_confirmed_them() {
    let mut scene = Scene::default();
    let two = [1, 2].map(|number| scene.durable(number, SendWait::Along));
    scene.send(two);
    assert_eq!(scene.written(), ["EVAL", "EVALSHA", "WAIT"]);
    assert!(scene.in_flight.is_blocked());
    scene.take(Ok(Value::Int(0)));
    assert_eq!(scene.numbers(), [(1, true)], "nothing was done");
    scene.take(Ok(Value::Int(1)));
    assert_eq!(scene.numbers().len(), 1);
    scene.take(Ok(Value::Int(0)));
    let short = FailureKind::NotReplicated { acked: 0, required: 1 };
    assert_eq!(scene.replies.lock()[1], (2, Err(short)));
    assert!(scene.in_flight.is_empty() && scene.written().is_empty());
}

#[test]
fn a_request_to_wait_follows_whatever_was_done_after_the_last_one() {
    let mut scene = Scene::default();
    let two = [SendWait::Along, SendWait::After].map(|when| scene.durable(1, when));
    scene.send(two);
    assert_eq!(scene.written(), ["EVAL", "EVALSHA", "WAIT"]);
    scene.take(Ok(Value::Int(0)));
    scene.take(Err(failure("NOSCRIPT")));
    assert_eq!(scene.written(), ["EVAL"]);
    scene.take(Ok(Value::Int(1)));
    assert!(scene.written().is_empty(), "it was about what came before it");
    scene.take(Ok(Value::Int(1)));
    assert_eq!((scene.written(), scene.numbers().len()), (vec!["WAIT"], 1));
    scene.take(Ok(Value::Int(1)));
    assert_eq!(scene.numbers(), [(1, true), (1, true)]);
}

#[test]
fn a_reply_that_comes_after_the_deadline_is_ignored() {
    let mut scene = Scene::default();
    let one = scene.posted(1);
    scene.send([one]);
    scene.expire(Instant::now());
    assert!(scene.in_flight.next_expiry().is_none());
    scene.take(Ok(Value::Int(1)));
    assert_eq!(scene.numbers(), [(1, false)]);
}
