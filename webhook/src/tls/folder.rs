//! A folder with `tls.crt` and `tls.key`, as cert-manager's Secret is mounted.
//!
//! It is read again by its content at every look: a Secret volume is swapped by symbolic
//! links, and a watch on the file would see nothing of that.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::tls::TlsError;
use crate::tls::publish::Publisher;
use crate::tls::served::{Certificates, Served};

/// The folder, and what was last found in it.
pub struct Folder {
    path: PathBuf,
    server_name: String,
    publisher: Publisher,
    loaded: Option<(Vec<u8>, Vec<u8>)>,
}

impl Folder {
    /// Reads `path`, for a server that is asked for by `server_name`.
    pub fn new(path: PathBuf, server_name: String, publisher: Publisher) -> Self {
        Self {
            path,
            server_name,
            publisher,
            loaded: None,
        }
    }

    /// Swaps in what is new and usable, and publishes `ca.crt` where there is one.
    pub async fn pass(&mut self, certificates: &Certificates) -> Result<(), TlsError> {
        let (chain, key) = (self.file("tls.crt").await?, self.file("tls.key").await?);
        if self.loaded.as_ref() != Some(&(chain.clone(), key.clone())) {
            let what = format!("the certificate in {}", self.path.display());
            let served = Served::check(&what, &chain, &key, &self.server_name, Timestamp::now())?;
            certificates.swap(served);
            self.loaded = Some((chain, key));
        }
        match self.file("ca.crt").await {
            Ok(bundle) => self.publisher.publish_unless_injected(&bundle).await,
            Err(TlsError::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                Ok(())
            }
            Err(other) => Err(other),
        }
    }

    async fn file(&self, name: &str) -> Result<Vec<u8>, TlsError> {
        let path = self.path.join(name);
        let read = {
            let path = path.clone();
            tokio::task::spawn_blocking(move || read(&path)).await
        };
        read.unwrap_or_else(|e| Err(std::io::Error::other(e)))
            .map_err(|source| TlsError::File { path, source })
    }
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    std::fs::read(path)
}
