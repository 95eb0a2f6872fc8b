//! The bed for people: `playground up` holds one, `playground ctl` changes its weather.

pub mod command;
mod perform;
mod server;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::assets::own_program;
use crate::bed::{Bed, BedOptions, NodeInfo};
use crate::error::{BedError, Result};

use command::{Command, LIMIT, Reply};
pub use server::Server;

/// What `playground up` prints when it is ready.
#[derive(Clone, Debug, Serialize)]
pub struct Ready {
    /// Path of the kubeconfig.
    pub kubeconfig: PathBuf,
    /// Path of kubectl; it finds the plugin by itself.
    pub kubectl: PathBuf,
    /// A folder for `PATH`, with kubectl and the plugin.
    pub path: PathBuf,
    /// The nodes of the cluster.
    pub nodes: Vec<NodeInfo>,
    /// The control plane in maintenance.
    pub spare: Option<NodeInfo>,
}

/// A running playground.
pub struct Playground {
    bed: Arc<Bed>,
    ready: Ready,
    server: Server,
}

impl Playground {
    /// Puts a bed up in `options.state`, with the plugin beside kubectl, and listens for
    /// commands.
    pub async fn up(options: BedOptions) -> Result<Self> {
        let progress = Arc::clone(&options.progress);
        let plugin =
            own_program("kubectl-ichor", &[], "KUBECTL_ICHOR", |line| progress(line)).await?;
        let bed = Arc::new(Bed::start(options).await?);
        let path = programs(&bed, &plugin).await?;
        let server = Server::start(Arc::clone(&bed))?;
        let ready = Ready {
            kubeconfig: bed.kubeconfig().to_owned(),
            kubectl: path.join("kubectl"),
            path,
            nodes: bed.nodes().to_vec(),
            spare: bed.spare().cloned(),
        };
        Ok(Self { bed, ready, server })
    }

    /// What there is.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// The bed.
    pub fn bed(&self) -> &Bed {
        &self.bed
    }

    /// Ends everything.
    pub async fn down(self) -> Result<()> {
        self.server.stop().await;
        match Arc::into_inner(self.bed) {
            Some(bed) => bed.stop().await,
            // A command is still at work; what the bed started goes with the process.
            None => Ok(()),
        }
    }
}

/// Puts kubectl and the plugin into `<state>/bin`.
async fn programs(bed: &Bed, plugin: &Path) -> Result<PathBuf> {
    let bin = bed.state().join("bin");
    fs::create_dir_all(&bin).map_err(|e| BedError::file(&bin, e))?;
    // kubectl looks for plugins on its PATH: through this one it finds ours wherever it
    // is called from.
    let kubectl = format!(
        "#!/bin/sh\nPATH=\"{}:$PATH\" exec \"{}\" \"$@\"\n",
        bin.display(),
        bed.control_plane().kubectl().display()
    );
    crate::bed::write_program(&bin.join("kubectl"), &kubectl)?;
    crate::bed::copy_program(plugin, &bin.join("kubectl-ichor"))?;
    // Writes kubectl_complete-ichor beside it.
    let status = tokio::process::Command::new(bin.join("kubectl-ichor"))
        .args(["completion", "--install"])
        .arg(&bin)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .await;
    if !status.is_ok_and(|s| s.success()) {
        tracing::warn!("the plugin could not install its completion");
    }
    Ok(bin)
}

/// Where the playground in `state` listens: the file holds the path of a socket, since a
/// socket's own path must be short.
pub(crate) fn socket_file(state: &Path) -> PathBuf {
    state.join("ctl.socket")
}

/// Sends a command to the playground that runs in `state`.
pub async fn send(state: &Path, command: &Command) -> Result<Reply> {
    let file = socket_file(state);
    let not_there = |source: std::io::Error| {
        BedError::Refused(format!(
            "no playground runs in {}: start one with `playground up --state {}` ({source})",
            state.display(),
            state.display()
        ))
    };
    let socket = fs::read_to_string(&file).map_err(not_there)?;
    let talk = async {
        let mut stream = UnixStream::connect(socket.trim()).await?;
        let mut line = serde_json::to_vec(command)?;
        line.push(b'\n');
        stream.write_all(&line).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(LIMIT, talk)
        .await
        .map_err(|_| BedError::Refused(format!("no answer after {} s", LIMIT.as_secs())))?
        .map_err(not_there)?;
    serde_json::from_slice(&answer)
        .map_err(|e| BedError::Refused(format!("the playground gave no answer; see its log ({e})")))
}
