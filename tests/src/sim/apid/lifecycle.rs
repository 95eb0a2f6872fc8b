//! Installers on a simulated machine. Only what a caller must cope with: these calls are not
//! carried out.

use ichor_talos::proto::machine::image_service_server::ImageService;
use ichor_talos::proto::machine::lifecycle_service_server::LifecycleService;
use ichor_talos::proto::machine::{
    ImageServicePullRequest, ImageServicePullResponse, LifecycleServiceUpgradeRequest,
    LifecycleServiceUpgradeResponse,
};
use tonic::{Request, Response, Status, async_trait};

use super::{Access, Answers, Apid, requests};

#[async_trait]
impl LifecycleService for Apid {
    type UpgradeStream = Answers<LifecycleServiceUpgradeResponse>;

    async fn upgrade(
        &self,
        request: Request<LifecycleServiceUpgradeRequest>,
    ) -> Result<Response<Self::UpgradeStream>, Status> {
        let written = requests::lifecycle_upgrade(request.get_ref());
        self.call("Upgrade", Access::Admin, &request, written, |_| async {
            Err(Status::failed_precondition(
                "the simulated machine is not installed from an image",
            ))
        })
        .await
    }
}

#[async_trait]
impl ImageService for Apid {
    type PullStream = Answers<ImageServicePullResponse>;

    async fn pull(
        &self,
        request: Request<ImageServicePullRequest>,
    ) -> Result<Response<Self::PullStream>, Status> {
        let written = requests::pull(request.get_ref());
        self.call("Pull", Access::Operate, &request, written, |_| async {
            Err(Status::failed_precondition(
                "the simulated machine has no image store",
            ))
        })
        .await
    }
}
