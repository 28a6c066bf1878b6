//! The worker processes: this program, started again.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Result;
use super::options::Role;

/// How long workers may take to end, beyond the longest wait for a lock.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Crew {
    workers: Vec<Child>,
    seed: u64,
    /// What the next worker is told; its number is the count of those before it.
    next: Role,
}

impl Crew {
    /// `first` is the role of the first worker.
    pub(crate) fn start(processes: u32, seed: u64, first: Role) -> Result<Self> {
        let mut crew = Self { workers: Vec::new(), seed, next: first };
        for _ in 0..processes {
            let worker = crew.launch()?;
            crew.workers.push(worker);
        }
        Ok(crew)
    }

    pub(crate) fn size(&self) -> u32 {
        u32::try_from(self.workers.len()).expect("few workers")
    }

    /// How many workers there were so far; their numbers begin with 1.
    pub(crate) fn started(&self) -> u64 {
        self.next.number - 1
    }

    /// SIGSTOP.
    pub(crate) fn stop(&mut self, worker: u32) -> Result<()> {
        self.signal(worker, Signal::STOP)
    }

    /// SIGCONT.
    pub(crate) fn cont(&mut self, worker: u32) -> Result<()> {
        self.signal(worker, Signal::CONT)
    }

    /// SIGKILL, and a new process.
    pub(crate) fn replace(&mut self, worker: u32) -> Result<()> {
        let old = self.living(worker)?;
        old.kill()?;
        old.wait()?;
        self.workers[worker as usize] = self.launch()?;
        Ok(())
    }

    /// Tells all workers to end, and waits for them.
    pub(crate) fn finish(&mut self, wait: Duration) -> Result<()> {
        for worker in &mut self.workers {
            worker.stdin = None;
        }
        let deadline = Instant::now() + wait + PATIENCE;
        for worker in &mut self.workers {
            let status = loop {
                if let Some(status) = worker.try_wait()? {
                    break status;
                }
                if Instant::now() > deadline {
                    return Err(format!("worker {} does not end", worker.id()).into());
                }
                thread::sleep(Duration::from_millis(10));
            };
            if !status.success() {
                return Err(format!("worker {} failed: {status}", worker.id()).into());
            }
        }
        Ok(())
    }

    fn launch(&mut self) -> Result<Child> {
        let Role { dir, number, locks, register } = &self.next;
        let mut command = Command::new(env::current_exe()?);
        command.args(env::args_os().skip(1)).args(["--seed", &self.seed.to_string()]);
        command.arg("--worker").arg(dir).arg(number.to_string()).args([locks, register]);
        // Alone in its group, a stopped worker is hung up by the kernel when this process is gone.
        command.stdin(Stdio::piped()).process_group(0);
        self.next.number += 1;
        Ok(command.spawn()?)
    }

    fn signal(&mut self, worker: u32, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(self.living(worker)?), signal)?)
    }

    /// A worker that has not ended by itself.
    fn living(&mut self, worker: u32) -> Result<&mut Child> {
        let worker = &mut self.workers[worker as usize];
        match worker.try_wait()? {
            None => Ok(worker),
            Some(status) => Err(format!("worker {} ended: {status}", worker.id()).into()),
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            // Both fail if it is gone already, which is what is wanted.
            worker.kill().ok();
            worker.wait().ok();
        }
    }
}
