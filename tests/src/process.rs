//! Child processes that die with the bed, however the bed ends.
//!
//! Each child has a process group of its own and a file in `<state>/pids`. Three things
//! end it: dropping its [`Process`], a reaper (a small shell that notices when this
//! process is gone, even by SIGKILL), and the next bed in the same folder.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::watch;

use crate::error::{BedError, Result};

/// Kills what the pid files in `$1` name, then removes what the other arguments name.
/// It reads its standard input until the bed's process, which holds the other end, is gone.
const REAPER: &str = r#"
trap '' INT TERM HUP
cat >/dev/null
for file in "$1"/*.pid; do
  [ -f "$file" ] || continue
  read -r pid start < "$file" || continue
  if [ -r "/proc/$pid/stat" ]; then
    now=$(sed 's/.*) //' "/proc/$pid/stat" | cut -d' ' -f20)
    [ "$now" = "$start" ] || continue
  fi
  kill -s KILL -- "-$pid" 2>/dev/null
  rm -f "$file"
done
shift
for dir in "$@"; do rm -rf -- "$dir"; done
"#;

/// Starts children and sees to it that none outlives the bed.
#[derive(Debug)]
pub struct Supervisor {
    pids: PathBuf,
    logs: PathBuf,
    // Held while the bed lives: two beds in one folder would kill each other's children.
    _lock: File,
    // Its standard input is the rope: the reaper acts when it is let go.
    reaper: std::sync::Mutex<std::process::Child>,
}

impl Supervisor {
    /// A supervisor that keeps pid files and logs in `state`. Children that an earlier
    /// bed left there are killed. The folders of `remove` go with the bed.
    pub fn new(state: &Path, remove: &[&Path]) -> Result<Arc<Self>> {
        let pids = state.join("pids");
        let logs = state.join("logs");
        for dir in [&pids, &logs] {
            fs::create_dir_all(dir).map_err(|e| BedError::file(dir, e))?;
        }
        let lock_path = state.join("lock");
        let lock = File::create(&lock_path).map_err(|e| BedError::file(&lock_path, e))?;
        if lock.try_lock().is_err() {
            return Err(BedError::Refused(format!(
                "a bed lives in {} already: stop it, or take another folder",
                state.display()
            )));
        }
        kill_stale(&pids)?;
        let reaper = Command::new("/bin/sh")
            .args(["-c", REAPER, "ichor-bed-reaper"])
            .arg(&pids)
            .args(remove)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|e| BedError::io("failed to start the reaper of the bed's children", e))?;
        Ok(Arc::new(Self {
            pids,
            logs,
            _lock: lock,
            reaper: std::sync::Mutex::new(reaper),
        }))
    }

    /// The file that the child `name` writes to.
    pub fn log_path(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }

    /// Starts `command` under `name` (unique among the running children of this bed), in
    /// its own process group, its output appended to its log. Needs a tokio runtime.
    pub fn spawn(self: &Arc<Self>, name: &str, mut command: Command) -> Result<Process> {
        let log = self.log_path(name);
        let out = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(|e| BedError::file(&log, e))?;
        let err = out.try_clone().map_err(|e| BedError::file(&log, e))?;
        command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0);
        let program = command.get_program().to_owned();
        let mut child = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| BedError::io(format!("failed to start {}", program.display()), e))?;
        let pid = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
            .ok_or_else(|| BedError::Refused(format!("{name} ended at once")))?;
        let pid_file = self.pids.join(format!("{name}.pid"));
        let started = start_time(pid).unwrap_or_default();
        fs::write(
            &pid_file,
            format!("{} {started}\n", pid.as_raw_nonzero().get()),
        )
        .map_err(|e| BedError::file(&pid_file, e))?;

        let (sender, exit) = watch::channel(None);
        let supervisor = Arc::clone(self);
        tokio::spawn(async move {
            let status = child.wait().await;
            // Grandchildren share the group; the file goes before anybody is told, so
            // that a restart under the same name writes its own.
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = fs::remove_file(&pid_file);
            let _ = sender.send(status.ok());
            drop(supervisor);
        });
        Ok(Process {
            name: name.to_owned(),
            pid,
            log,
            exit,
        })
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if let Ok(reaper) = self.reaper.get_mut() {
            drop(reaper.stdin.take());
            let _ = reaper.wait();
        }
    }
}

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: Pid,
    log: PathBuf,
    exit: watch::Receiver<Option<ExitStatus>>,
}

impl Process {
    /// Its name in the bed.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process ID.
    pub fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// The file that it writes to.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Whether it has not ended. A frozen process runs.
    pub fn is_running(&self) -> bool {
        self.exit.borrow().is_none() && self.exit.has_changed().is_ok()
    }

    /// Sends a signal to it and to what it started. A process that has ended is left alone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        if !self.is_running() {
            return Ok(());
        }
        match kill_process_group(self.pid, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(BedError::io(
                format!("failed to signal {}", self.name),
                error.into(),
            )),
        }
    }

    /// Waits until it has ended.
    pub async fn wait(&self) -> Option<ExitStatus> {
        self.exit().await
    }

    /// A future that waits until it has ended, and holds nothing of it.
    pub fn exit(&self) -> impl Future<Output = Option<ExitStatus>> + Send + use<> {
        let mut exit = self.exit.clone();
        async move { exit.wait_for(Option::is_some).await.ok().and_then(|s| *s) }
    }

    /// How it ended, in words.
    pub fn exit_text(&self) -> String {
        match *self.exit.borrow() {
            Some(status) => status.to_string(),
            None => "unknown".to_owned(),
        }
    }

    /// Kills it and waits until it is gone.
    pub async fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.wait().await;
        Ok(())
    }

    /// Asks it to end (SIGTERM) and waits for that, at most for `limit`; then kills it.
    /// Returns whether it ended by itself.
    pub async fn terminate(&self, limit: Duration) -> Result<bool> {
        self.signal(Signal::TERM)?;
        if tokio::time::timeout(limit, self.wait()).await.is_ok() {
            return Ok(true);
        }
        self.kill().await?;
        Ok(false)
    }

    /// The last lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        log_tail(&self.log, lines)
    }

    /// The error for a process that should be running and is not.
    pub fn ended(&self) -> BedError {
        BedError::Ended {
            name: self.name.clone(),
            status: self.exit_text(),
            log: self.log_tail(15),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.signal(Signal::KILL);
    }
}

/// The last `lines` lines of the file at `path`, empty where it cannot be read.
pub fn log_tail(path: &Path, lines: usize) -> String {
    let Ok(bytes) = fs::read(path) else {
        return String::new();
    };
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Kills the children that the pid files in `pids` name, where the process of that
/// number is still the one that was started. Returns how many there were.
fn kill_stale(pids: &Path) -> Result<usize> {
    let mut killed = 0;
    for entry in fs::read_dir(pids).map_err(|e| BedError::file(pids, e))? {
        let path = entry.map_err(|e| BedError::file(pids, e))?.path();
        let text = fs::read_to_string(&path).map_err(|e| BedError::file(&path, e))?;
        let mut words = text.split_whitespace();
        let pid = words
            .next()
            .and_then(|w| w.parse().ok())
            .and_then(Pid::from_raw);
        let started = words.next().unwrap_or_default();
        if let Some(pid) = pid
            && start_time(pid).is_some_and(|now| now == started)
        {
            tracing::info!(pid = pid.as_raw_nonzero().get(), file = %path.display(), "killing a child that an earlier bed left");
            let _ = kill_process_group(pid, Signal::KILL);
            killed += 1;
        }
        fs::remove_file(&path).map_err(|e| BedError::file(&path, e))?;
    }
    Ok(killed)
}

/// When a process was started, in the kernel's own ticks: with its number it names the
/// process, since numbers are used again. `None` where there is no such process, or no `/proc`.
fn start_time(pid: Pid) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The second field is the program's name in brackets and may hold anything.
    let after = &stat[stat.rfind(')')? + 2..];
    after.split(' ').nth(19).map(str::to_owned)
}
