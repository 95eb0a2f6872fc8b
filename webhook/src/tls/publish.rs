//! The CA bundle in the ValidatingWebhookConfiguration.
//!
//! The shipped manifests carry none, so that applying them again takes nothing away; a
//! tool that replaces the object does, and then it is written again at the next look.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::config::WebhookConfig;
use crate::tls::{TlsError, ask};

/// Annotations by which cert-manager writes the bundle itself.
const INJECTED: &str = "cert-manager.io/inject-";

/// Writes the CA bundle of every webhook that leads to our Service.
pub struct Publisher {
    api: Api<ValidatingWebhookConfiguration>,
    configuration: String,
    namespace: String,
    service: String,
}

impl Publisher {
    /// Publishes in `config.configuration`.
    pub fn new(config: &WebhookConfig, client: Client) -> Self {
        Self {
            api: Api::all(client),
            configuration: config.configuration.clone(),
            namespace: config.namespace.clone(),
            service: config.service.clone(),
        }
    }

    /// Makes `bundle` (PEM) the CA bundle, where it is not already.
    pub async fn publish(&self, bundle: &[u8]) -> Result<(), TlsError> {
        let configuration = self.read().await?;
        self.write(&configuration, bundle).await
    }

    /// As [`Publisher::publish`], but leaves alone what cert-manager injects.
    pub async fn publish_unless_injected(&self, bundle: &[u8]) -> Result<(), TlsError> {
        let configuration = self.read().await?;
        let injected = configuration
            .metadata
            .annotations
            .iter()
            .flatten()
            .any(|(key, _)| key.starts_with(INJECTED));
        if injected {
            return Ok(());
        }
        self.write(&configuration, bundle).await
    }

    async fn read(&self) -> Result<ValidatingWebhookConfiguration, TlsError> {
        let what = || format!("read ValidatingWebhookConfiguration {}", self.configuration);
        ask(what, self.api.get(&self.configuration)).await
    }

    async fn write(
        &self,
        configuration: &ValidatingWebhookConfiguration,
        bundle: &[u8],
    ) -> Result<(), TlsError> {
        let wanted = STANDARD.encode(bundle);
        let mut operations = Vec::new();
        for (index, webhook) in configuration.webhooks.iter().flatten().enumerate() {
            let ours = webhook
                .client_config
                .service
                .as_ref()
                .is_some_and(|s| s.name == self.service && s.namespace == self.namespace);
            let stands = webhook
                .client_config
                .ca_bundle
                .as_ref()
                .is_some_and(|b| b.0 == bundle);
            if ours && !stands {
                // The list may have been reordered since it was read.
                operations.push(json!({
                    "op": "test", "path": format!("/webhooks/{index}/name"), "value": webhook.name,
                }));
                operations.push(json!({
                    "op": "add", "path": format!("/webhooks/{index}/clientConfig/caBundle"), "value": wanted,
                }));
            }
        }
        if operations.is_empty() {
            return Ok(());
        }
        let patch = serde_json::from_value(serde_json::Value::Array(operations)).map_err(|e| {
            TlsError::Unusable {
                what: "the CA bundle".into(),
                why: e.to_string(),
            }
        })?;
        let what = || {
            format!(
                "write the CA bundle into ValidatingWebhookConfiguration {}",
                self.configuration
            )
        };
        ask(
            what,
            self.api.patch(
                &self.configuration,
                &PatchParams::default(),
                &Patch::Json::<()>(patch),
            ),
        )
        .await?;
        tracing::info!(configuration = %self.configuration, "published the CA bundle");
        Ok(())
    }
}
