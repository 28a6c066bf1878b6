//! The worker processes: this program, started again.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::Result;
use crate::harness::options::Role;

/// How long workers may take to end, beyond the longest wait for a lock.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// All worker processes of a run.
pub(crate) struct Workers {
    processes: Vec<Child>,
    seed: u64,
    /// The role of the next worker; its number counts the workers before it.
    next: Role,
}

impl Workers {
    /// Starts the processes; `first` is the role of the first one.
    pub(crate) fn start(processes: u32, seed: u64, first: Role) -> Result<Self> {
        let mut workers = Self { processes: Vec::new(), seed, next: first };
        for _ in 0..processes {
            let worker = workers.launch()?;
            workers.processes.push(worker);
        }
        Ok(workers)
    }

    pub(crate) fn size(&self) -> u32 {
        u32::try_from(self.processes.len()).expect("few workers")
    }

    /// Returns the number of workers so far. They are numbered from 1.
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

    /// SIGKILL, and a new process in its place.
    pub(crate) fn replace(&mut self, worker: u32) -> Result<()> {
        let old = self.living(worker)?;
        old.kill()?;
        old.wait()?;
        self.processes[worker as usize] = self.launch()?;
        Ok(())
    }

    /// Tells all workers to end, and waits for them.
    pub(crate) fn finish(&mut self, wait: Duration) -> Result<()> {
        for worker in &mut self.processes {
            worker.stdin = None;
        }
        let deadline = Instant::now() + wait + END_TIMEOUT;
        for worker in &mut self.processes {
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
        // The kernel hangs up a stopped worker that is alone in its group when this process ends.
        command.stdin(Stdio::piped()).process_group(0);
        self.next.number += 1;
        Ok(command.spawn()?)
    }

    fn signal(&mut self, worker: u32, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(self.living(worker)?), signal)?)
    }

    /// Returns a worker that has not ended by itself.
    fn living(&mut self, worker: u32) -> Result<&mut Child> {
        let worker = &mut self.processes[worker as usize];
        match worker.try_wait()? {
            None => Ok(worker),
            Some(status) => Err(format!("worker {} ended: {status}", worker.id()).into()),
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.processes {
            worker.kill().ok();
            worker.wait().ok();
        }
    }
}
