//! The disks of a simulated machine.

use ichor_talos::proto::storage::disk::DiskType;
use ichor_talos::proto::storage::storage_service_server::StorageService;
use ichor_talos::proto::storage::{Disk, Disks, DisksResponse};
use serde_json::json;
use tonic::{Request, Response, Status, async_trait};

use super::{Access, Apid};
use crate::sim::lock;

#[async_trait]
impl StorageService for Apid {
    async fn disks(&self, request: Request<()>) -> Result<Response<DisksResponse>, Status> {
        self.call(
            "Disks",
            Access::Read,
            &request,
            json!({}),
            |caller| async move {
                let broken = lock(&caller.node.inner).disk.broken;
                let disk = Disk {
                    size: 64 << 30,
                    model: "SIMULATED".to_owned(),
                    device_name: "/dev/sda".to_owned(),
                    r#type: DiskType::Ssd.into(),
                    system_disk: true,
                    ..Disk::default()
                };
                Ok(DisksResponse {
                    messages: vec![Disks {
                        metadata: None,
                        disks: if broken { Vec::new() } else { vec![disk] },
                    }],
                })
            },
        )
        .await
    }
}
