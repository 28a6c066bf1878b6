//! Locks shared with a live Redisson: the Java program in tests/redisson, which Maven builds.
//! Without Java or Maven, the tests say so and end.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use leasehold::Client;

use crate::support::cluster::unique_prefix;
use crate::support::redisson::{Redisson, listeners};
use crate::support::server::Server as Node;
use crate::support::{
    Cluster, SOON, eventually, lock_key, ms, patient, sleepy, soon, timed, unlock,
};

/// Long enough to load all libraries, and to start a JVM on a busy machine.
const BUILD: Duration = Duration::from_secs(300);
const ANSWER: Duration = Duration::from_secs(60);

/// Returns Java's argument for the location of the program, once it is built. `None` without Java
/// or Maven.
fn class_path() -> Option<&'static str> {
    static BUILT: OnceLock<Option<String>> = OnceLock::new();
    BUILT.get_or_init(build).as_deref()
}

fn build() -> Option<String> {
    for tool in ["java", "mvn"] {
        let version = Command::new(tool).arg("-version").output();
        if !version.is_ok_and(|version| version.status.success()) {
            // Not by a macro, whose output is shown only if a test fails.
            let line = format!("no {tool} here: not tested against a live Redisson\n");
            io::stderr().write_all(line.as_bytes()).unwrap();
            return None;
        }
    }
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target: PathBuf = project.join("target/redisson");
    let mut maven = Command::new("mvn")
        .args(["-q", "-B", "process-classes", "-f"])
        .arg(project.join("tests/redisson/pom.xml"))
        .arg(format!("-Dleasehold.directory={}", target.display()))
        .stdin(Stdio::null())
        .spawn()
        .expect("it was there a moment ago");
    let deadline = Instant::now() + BUILD;
    let status = loop {
        if let Some(status) = maven.try_wait().unwrap() {
            break status;
        }
        if Instant::now() >= deadline {
            maven.kill().unwrap();
        }
        thread::sleep(ms(50));
    };
    assert!(status.success(), "Maven cannot build tests/redisson: {status}");
    Some(format!("{0}/classes:{0}/libraries/*", target.display()))
}

/// A Java process that uses `RLock` of one name.
struct Contender {
    process: Child,
    answers: Receiver<String>,
}

impl Contender {
    /// Starts it; `None` without Java or Maven. It renews its holds after a third of `watchdog`.
    fn start(kind: &str, server: &Node, name: &str, watchdog: Duration) -> Option<Contender> {
        let mut process = Command::new("java")
            .args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"])
            .args([class_path()?, "Contender", &format!("redis://127.0.0.1:{}", server.port())])
            .args([kind, &lock_key(name), &watchdog.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Java is here");
        let (lines, answers) = unbounded();
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
        });
        let contender = Contender { process, answers };
        assert_eq!(contender.answer(), "ready");
        Some(contender)
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.process.stdin.as_mut().expect("a pipe"), "{line}").unwrap();
    }

    fn answer(&self) -> String {
        self.answers.recv_timeout(ANSWER).expect("Redisson answers")
    }

    fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// A thread of each side waits for the other, and is woken by its release.
fn wake_each_other(contender: &mut Contender, node: &Node, client: &Client, redisson: &Redisson) {
    let name = redisson.key.strip_prefix("lock:").expect("the usual prefix");
    for _ in 0..3 {
        let guard = client.lock(name).unwrap();
        contender.tell("lock");
        eventually(SOON, || listeners(node, redisson) == 1);
        drop(guard);
        let (answer, took) = timed(|| contender.answer());
        assert_eq!(answer, "locked");
        assert!(took < SOON / 2, "{took:?}, and the lease is 30 s");
        thread::scope(|scope| {
            let waits = scope.spawn(|| client.lock(name).map(unlock));
            eventually(SOON, || client.stats().waiting == 1);
            assert_eq!(contender.ask("unlock"), "unlocked");
            soon(|| waits.join().unwrap().unwrap());
        });
    }
}

#[test]
fn leasehold_and_redisson_wake_each_other() {
    let server = Node::redis();
    let watchdog = Duration::from_secs(30);
    let Some(mut contender) = Contender::start("single", &server, "a", watchdog) else { return };
    let client = sleepy().redisson(true).open(&server.url()).unwrap();
    wake_each_other(&mut contender, &server, &client, &Redisson::new(&server, "a"));
}

#[test]
fn leasehold_and_redisson_wake_each_other_in_a_cluster() {
    let cluster = Cluster::shared();
    let name = unique_prefix();
    let node = cluster.home(&name);
    let watchdog = Duration::from_secs(30);
    let Some(mut contender) = Contender::start("cluster", node, &name, watchdog) else { return };
    let client = cluster.open(sleepy().redisson(true));
    wake_each_other(&mut contender, node, &client, &Redisson::sharded(node, &name));
}

#[test]
fn a_lock_that_redisson_renews_is_not_taken() {
    let server = Node::redis();
    let Some(mut contender) = Contender::start("single", &server, "a", ms(3000)) else { return };
    let client = patient().redisson(true).open(&server.url()).unwrap();
    assert_eq!(contender.ask("lock"), "locked");
    assert!(client.try_lock_for("a", ms(7000)).unwrap().is_none());
    assert_eq!(contender.ask("unlock"), "unlocked");
    client.lock("a").unwrap().unlock().unwrap();
}

#[test]
fn redisson_gets_a_fifth_of_the_turns() {
    const TURNS: u32 = 200;
    let server = Node::redis();
    let watchdog = Duration::from_secs(30);
    let Some(mut contender) = Contender::start("single", &server, "a", watchdog) else { return };
    let client = patient().redisson(true).open(&server.url()).unwrap();
    assert_eq!(contender.ask("contend"), "contending");
    let mut turns = || contender.ask("turns").parse::<u32>().unwrap();
    // Warms up.
    eventually(6 * SOON, || turns() > 1000);
    let mut share_beside = |threads: u32| {
        let (before, ours) = (turns(), AtomicU32::new(0));
        thread::scope(|scope| {
            let contend = || {
                while ours.fetch_add(1, Ordering::SeqCst) < TURNS {
                    client.lock("a").unwrap().unlock().unwrap();
                }
            };
            (0..threads).for_each(|_| drop(scope.spawn(contend)));
        });
        let turns = turns() - before;
        let share = f64::from(turns) / f64::from(turns + TURNS);
        println!("{turns} turns of Redisson, while {threads} threads had {TURNS}: {share:.2}");
        share
    };
    for threads in [1, 4] {
        // A turn lasts for milliseconds, so Redisson misses those in which the machine stalls.
        assert!((0..5).any(|_| share_beside(threads) >= 0.2), "beside {threads} threads");
    }
    contender.ask("stop");
}
