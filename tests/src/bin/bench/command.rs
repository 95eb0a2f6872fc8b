//! What a command costs: wall time and memory, by GNU time where it is installed. (A child's
//! own figure would not do: Linux counts the memory of the process it was forked from.)

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use ichor_tests::error::{BedError, Result};

/// Figures of one command.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Seconds, the fastest of the runs.
    pub wall: f64,
    /// Megabytes at most; `None` where GNU time is not installed.
    pub memory: Option<f64>,
}

/// Runs `program` with `args` some times.
pub fn measure(program: &Path, args: &[&str], env: &[(&str, &str)], runs: usize) -> Result<Cost> {
    let failed = |why: String| BedError::Refused(format!("{} failed: {why}", program.display()));
    let run = |through: Option<&str>| {
        let mut command = match through {
            Some(time) => {
                let mut command = Command::new(time);
                command.args(["-f", "%M"]).arg(program);
                command
            }
            None => Command::new(program),
        };
        command
            .args(args)
            .envs(env.iter().copied())
            .stdout(Stdio::null());
        command.output().map_err(|e| failed(e.to_string()))
    };
    let mut wall = f64::INFINITY;
    for _ in 0..runs {
        let began = Instant::now();
        let output = run(None)?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        wall = wall.min(began.elapsed().as_secs_f64());
    }
    let time = "/usr/bin/time";
    let memory = if Path::new(time).exists() {
        let output = run(Some(time))?;
        String::from_utf8_lossy(&output.stderr)
            .lines()
            .last()
            .and_then(|line| line.trim().parse::<f64>().ok())
            .map(|kilobytes| kilobytes / 1024.0)
    } else {
        None
    };
    Ok(Cost { wall, memory })
}
