//! `kubectl ichor version [-o json] [--client]`.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::version::Info;
use serde::Serialize;

use crate::cli::Output;
use crate::error::{Error, Request, exit};
use crate::io::Io;
use crate::output;
use crate::session::Session;

/// The plugin's own version.
pub const CLIENT: &str = env!("CARGO_PKG_VERSION");

/// `-o json` and `-o yaml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Versions {
    client_version: Client,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<Agent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_version: Option<Server>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Client {
    version: String,
    platform: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Agent {
    /// The image of the agent's Deployment, where it may be seen.
    image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Server {
    git_version: String,
}

fn client() -> Client {
    Client {
        version: format!("v{CLIENT}"),
        platform: format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    }
}

/// Prints the plugin's version alone.
pub fn client_only(output: Option<Output>, io: &mut Io<'_>) -> Result<u8, Error> {
    show(
        &Versions {
            client_version: client(),
            agent: None,
            server_version: None,
        },
        output,
        io,
    )
}

/// Prints the versions of the plugin, the agent and the API server.
pub async fn run(session: &Session, output: Option<Output>, io: &mut Io<'_>) -> Result<u8, Error> {
    let namespace = ichor_api::names::AGENT_NAMESPACE;
    let name = ichor_api::names::AGENT_APP;
    let deployment = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}");
    let (server, agent) = tokio::join!(
        session.get::<Info>(Request::many("get", "/version", None), "/version"),
        session.get::<Deployment>(
            Request::one("get", "deployments.apps", namespace, name),
            &deployment
        ),
    );
    session.tell(io);
    let agent = match agent {
        Ok(deployment) => Agent {
            image: deployment
                .spec
                .and_then(|s| s.template.spec)
                .and_then(|s| s.containers.into_iter().next())
                .and_then(|c| c.image),
            message: None,
        },
        Err(error) if error.is_forbidden() => Agent {
            image: None,
            message: Some(format!("you may not see the Deployment in {namespace}")),
        },
        Err(error) if error.is_not_found() => Agent {
            image: None,
            message: Some(format!("there is no Deployment {name} in {namespace}")),
        },
        Err(error) => return Err(error),
    };
    show(
        &Versions {
            client_version: client(),
            agent: Some(agent),
            server_version: Some(Server {
                git_version: server?.git_version,
            }),
        },
        output,
        io,
    )
}

fn show(versions: &Versions, output: Option<Output>, io: &mut Io<'_>) -> Result<u8, Error> {
    output::only(output, &[Output::Json, Output::Yaml], "version")?;
    if let Some(form) = output {
        output::document(io, form, versions)?;
        return Ok(exit::DONE);
    }
    io.out_lines([format!(
        "Client Version: {}",
        versions.client_version.version
    )]);
    if let Some(agent) = &versions.agent {
        let told = agent
            .image
            .clone()
            .or_else(|| agent.message.clone())
            .unwrap_or_else(|| "unknown".to_owned());
        io.out_lines([format!("Agent: {told}")]);
    }
    if let Some(server) = &versions.server_version {
        io.out_lines([format!("Server Version: {}", server.git_version)]);
    }
    Ok(exit::DONE)
}
