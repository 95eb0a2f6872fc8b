//! The programs that the bed runs: the control plane built from Go, and our own.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::error::{BedError, Result};

/// Where the control plane's programs lie.
#[derive(Clone, Debug)]
pub struct ControlPlanePrograms {
    dir: PathBuf,
}

impl ControlPlanePrograms {
    /// Finds them, building them from their Go modules where this machine has not done
    /// so yet (minutes; each line of progress goes to `progress`). `KUBEBUILDER_ASSETS`
    /// is honoured by the build script.
    pub async fn find(progress: impl Fn(&str)) -> Result<Self> {
        let dir = build_script("control-plane", progress).await?;
        Ok(Self { dir })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// etcd.
    pub fn etcd(&self) -> PathBuf {
        self.dir.join("etcd")
    }

    /// kube-apiserver.
    pub fn api_server(&self) -> PathBuf {
        self.dir.join("kube-apiserver")
    }

    /// kube-controller-manager.
    pub fn controller_manager(&self) -> PathBuf {
        self.dir.join("kube-controller-manager")
    }

    /// kubectl.
    pub fn kubectl(&self) -> PathBuf {
        self.dir.join("kubectl")
    }
}

/// The root of the checkout that this was compiled from.
pub fn workspace_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Runs `tests/go/build.sh WHAT` and returns the path that it prints. `ICHOR_GO_BUILD`
/// names another script.
pub async fn build_script(what: &str, progress: impl Fn(&str)) -> Result<PathBuf> {
    let script = std::env::var_os("ICHOR_GO_BUILD").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("go/build.sh"),
        PathBuf::from,
    );
    let mut command = tokio::process::Command::new("bash");
    command.arg(&script).arg(what);
    let output = stream(command, progress)
        .await
        .map_err(|e| BedError::io(format!("failed to run {}", script.display()), e))?;
    match output {
        Some(path) if !path.is_empty() => Ok(PathBuf::from(path)),
        _ => Err(BedError::Build(format!(
            "{what} (see the lines above, or run {} {what})",
            script.display()
        ))),
    }
}

/// One of our own programs, of the profile that this one was built with.
///
/// Always asks cargo, which does nothing where the program is fresh: a test must not run
/// against yesterday's agent. `override_by` names an environment variable with the path
/// of a finished program to use instead.
pub async fn own_program(
    package: &str,
    features: &[&str],
    override_by: &str,
    progress: impl Fn(&str),
) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(override_by) {
        return Ok(PathBuf::from(path));
    }
    let profile_dir = profile_dir()?;
    let mut command =
        tokio::process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(workspace_root())
        .args(["build", "--package", package, "--bins", "--target-dir"])
        .arg(profile_dir.parent().unwrap_or(&profile_dir));
    match profile_dir.file_name().and_then(|n| n.to_str()) {
        Some("debug") | None => {}
        Some("release") => {
            command.arg("--release");
        }
        Some(other) => {
            command.args(["--profile", other]);
        }
    }
    if !features.is_empty() {
        command.arg("--features").arg(features.join(","));
    }
    // Set by `cargo run` and `cargo test` for this very package; it would make the other look changed.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|n| n.starts_with("CARGO_PKG_") || n == "CARGO_MANIFEST_DIR")
        {
            command.env_remove(name);
        }
    }
    let built = stream(command, progress)
        .await
        .map_err(|e| BedError::io(format!("failed to run cargo build for {package}"), e))?;
    let path = profile_dir.join(package);
    if built.is_none() || !path.is_file() {
        return Err(BedError::Build(format!(
            "{package} (see the lines above, or run cargo build --package {package})"
        )));
    }
    Ok(path)
}

/// `target/<profile>` of the running program.
fn profile_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe()
        .map_err(|e| BedError::io("failed to find the running program's path", e))?;
    let dir = exe.parent().unwrap_or(Path::new("/"));
    Ok(match dir.file_name().and_then(|n| n.to_str()) {
        Some("deps" | "examples") => dir.parent().unwrap_or(dir).to_owned(),
        _ => dir.to_owned(),
    })
}

/// Runs a command, passing each line of its standard error on. Its standard output,
/// trimmed, where it succeeded.
async fn stream(
    mut command: tokio::process::Command,
    progress: impl Fn(&str),
) -> std::io::Result<Option<String>> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
        return Ok(None);
    };
    let lines = async {
        let mut lines = BufReader::new(err).lines();
        while let Some(line) = lines.next_line().await? {
            progress(&line);
        }
        Ok::<_, std::io::Error>(())
    };
    let output = async {
        let mut text = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut BufReader::new(out), &mut text).await?;
        Ok::<_, std::io::Error>(text)
    };
    let ((), text) = tokio::try_join!(lines, output)?;
    let status = child.wait().await?;
    Ok(status.success().then(|| text.trim().to_owned()))
}
