//! Is a machine without configuration at an address, and which one is it?
//!
//! Such a machine serves its API under a certificate that it made up at boot, to anybody. So the
//! probe verifies nothing, presents nothing and sends nothing but the names of three resources; and
//! its answer only says what *some* machine at that address claims. Addresses move after a wipe:
//! compare the hardware UUID (facts: talos.md 3.6).

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::Channel;

use crate::address::NodeAddress;
use crate::config::tls_builder;
use crate::error::{CallError, Kind, classify};
use crate::model::Stage;
use crate::proto::cosi::GetRequest;
use crate::proto::cosi::state_client::StateClient;
use crate::proto::specs;
use crate::transport;

/// How long a probe may take by default, connecting included.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// A machine that says it waits for its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maintenance {
    /// The board's own number, lower case; none where its firmware gives none.
    pub hardware_uuid: Option<String>,
    /// Such as `v1.14.1`; empty where not said.
    pub talos_version: String,
    /// [`Stage::Maintenance`].
    pub stage: Stage,
}

/// Why a probe found no machine in maintenance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// Something answers there, and it is no machine in maintenance: a configured one wants a certificate.
    #[error("no machine in maintenance mode there: {0}")]
    NotMaintenance(String),
    /// Nothing answers there.
    #[error("nothing answers there: {0}")]
    Unreachable(String),
}

/// Asks whoever is at `address` (`host[:port]`), within [`DEADLINE`].
pub async fn probe(address: &str) -> Result<Maintenance, ProbeError> {
    probe_within(address, DEADLINE).await
}

/// The same with another deadline.
pub async fn probe_within(address: &str, deadline: Duration) -> Result<Maintenance, ProbeError> {
    let address =
        NodeAddress::parse(address).map_err(|error| ProbeError::Unreachable(error.to_string()))?;
    let mut tls = tls_builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone))
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    match timeout(deadline, ask(&address, tls, deadline)).await {
        Ok(answer) => answer,
        Err(_) => Err(ProbeError::Unreachable(format!(
            "{address}: no answer within {deadline:?}"
        ))),
    }
}

async fn ask(
    address: &NodeAddress,
    tls: ClientConfig,
    deadline: Duration,
) -> Result<Maintenance, ProbeError> {
    let channel = transport::channel(address, tls, deadline)
        .map_err(|error| ProbeError::Unreachable(error.to_string()))?;
    let mut state = StateClient::new(channel);
    let status: specs::MachineStatus = get(
        &mut state,
        address,
        "runtime",
        "MachineStatuses.runtime.talos.dev",
        "machine",
    )
    .await?;
    let stage = Stage::from(status.stage);
    if stage != Stage::Maintenance {
        return Err(ProbeError::NotMaintenance(format!(
            "{address} answers and is at stage {stage}"
        )));
    }
    let hardware: specs::SystemInformation = get(
        &mut state,
        address,
        "hardware",
        "SystemInformations.hardware.talos.dev",
        "systeminformation",
    )
    .await?;
    let version: specs::Version = get(
        &mut state,
        address,
        "runtime",
        "Versions.runtime.talos.dev",
        "version",
    )
    .await?;
    Ok(Maintenance {
        hardware_uuid: Some(hardware.uuid.to_lowercase()).filter(|uuid| !uuid.is_empty()),
        talos_version: version.version,
        stage,
    })
}

/// A resource's spec; the empty one where the machine has none such.
async fn get<M: Message + Default>(
    state: &mut StateClient<Channel>,
    address: &NodeAddress,
    namespace: &str,
    kind: &str,
    id: &str,
) -> Result<M, ProbeError> {
    let request = GetRequest {
        namespace: namespace.to_owned(),
        r#type: kind.to_owned(),
        id: id.to_owned(),
        options: None,
    };
    let resource = match state.get(request).await {
        Ok(answer) => answer.into_inner().resource,
        Err(status) if status.code() == tonic::Code::NotFound => return Ok(M::default()),
        Err(status) => return Err(refusal(address, &status)),
    };
    let spec = resource
        .and_then(|resource| resource.spec)
        .unwrap_or_default();
    M::decode(spec.proto_spec.as_slice()).map_err(|error| {
        ProbeError::NotMaintenance(format!(
            "{address} answers something else than Talos: {error}"
        ))
    })
}

fn refusal(address: &NodeAddress, status: &Status) -> ProbeError {
    match classify(Kind::Read, &address.to_string(), status) {
        CallError::Credentials(why) => ProbeError::NotMaintenance(format!(
            "{why} (it is configured, and wants a client certificate)"
        )),
        CallError::Unreachable(why) => ProbeError::Unreachable(why),
        other => ProbeError::NotMaintenance(format!("{address}: {other}")),
    }
}

/// Takes whatever certificate is shown, if only its owner signed the handshake.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        algorithms().supported_schemes()
    }
}

fn algorithms() -> rustls::crypto::WebPkiSupportedAlgorithms {
    rustls::crypto::ring::default_provider().signature_verification_algorithms
}
