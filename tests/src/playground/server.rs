//! The end of the socket that the playground holds.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use crate::bed::Bed;
use crate::error::{BedError, Result};

use super::command::Reply;
use super::{perform, socket_file};

/// Listens for commands.
#[derive(Debug)]
pub struct Server {
    file: PathBuf,
    task: JoinHandle<()>,
}

impl Server {
    /// Listens for commands to `bed`.
    pub fn start(bed: Arc<Bed>) -> Result<Self> {
        let socket = bed.sockets().join("ctl.sock");
        let listener = UnixListener::bind(&socket).map_err(|e| BedError::file(&socket, e))?;
        let file = socket_file(bed.state());
        fs::write(&file, format!("{}\n", socket.display()))
            .map_err(|e| BedError::file(&file, e))?;
        let task = tokio::spawn(async move {
            let mut commands = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => {
                            commands.spawn(answer(stream, Arc::clone(&bed)));
                        }
                        Err(error) => tracing::warn!(%error, "a command could not be taken"),
                    },
                    Some(_) = commands.join_next() => {}
                }
            }
        });
        Ok(Self { file, task })
    }

    /// Listens no more; a command that is being done is broken off.
    pub async fn stop(self) {
        let _ = fs::remove_file(&self.file);
        self.task.abort();
        let _ = self.task.await;
    }
}

async fn answer(stream: UnixStream, bed: Arc<Bed>) {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    if BufReader::new(read).read_line(&mut line).await.is_err() {
        return;
    }
    let reply = match serde_json::from_str(&line) {
        Ok(command) => match perform::perform(&bed, command).await {
            Ok(out) => Reply {
                out,
                ..Reply::default()
            },
            Err(error) => Reply {
                code: if matches!(error, BedError::Unknown { .. }) {
                    2
                } else {
                    1
                },
                err: error.to_string(),
                ..Reply::default()
            },
        },
        Err(error) => Reply {
            code: 1,
            err: format!(
                "the playground does not know this command; was it built from the same source? ({error})"
            ),
            ..Reply::default()
        },
    };
    if let Ok(bytes) = serde_json::to_vec(&reply) {
        let _ = write.write_all(&bytes).await;
    }
}
