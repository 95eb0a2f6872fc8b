//! etcd's API as JSON over HTTP, which every member serves on its client port.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;

/// What etcd, or the way to it, answered instead of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdError {
    /// etcd's own refusal.
    Refused(String),
    /// No answer.
    Silent(String),
}

impl std::fmt::Display for EtcdError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(text) | Self::Silent(text) => f.write_str(text),
        }
    }
}

impl EtcdError {
    pub(super) fn is_member_not_found(&self) -> bool {
        matches!(self, Self::Refused(text) if text.contains("member not found"))
    }

    /// Talos tries a leave again on these.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Refused(text) => text.contains("unhealthy cluster") || text.contains("stopped"),
            Self::Silent(_) => true,
        }
    }
}

/// A member, as etcd lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Member {
    /// 16 lower-case hex digits.
    pub id: String,
    /// Host name; empty until it has started once.
    pub name: String,
    /// Where other members reach it.
    #[serde(rename = "peerURLs")]
    pub peer_urls: Vec<String>,
    /// Where clients reach it; empty until it has started once.
    #[serde(skip)]
    pub client_urls: Vec<String>,
    /// It does not vote yet.
    pub learner: bool,
    /// It has started at least once.
    pub started: bool,
    /// The ID as a number.
    #[serde(skip)]
    pub number: u64,
}

/// etcd writes 64-bit numbers as strings and leaves zeros out.
fn number<'de, D: Deserializer<'de>>(value: D) -> Result<u64, D::Error> {
    match Value::deserialize(value)? {
        Value::String(text) => text.parse().map_err(serde::de::Error::custom),
        Value::Number(number) => number
            .as_u64()
            .ok_or_else(|| serde::de::Error::custom("no unsigned number")),
        other => Err(serde::de::Error::custom(format!("{other} is no number"))),
    }
}

#[derive(Deserialize)]
struct RawMember {
    #[serde(rename = "ID", deserialize_with = "number")]
    id: u64,
    #[serde(default)]
    name: String,
    #[serde(rename = "peerURLs", default)]
    peer_urls: Vec<String>,
    #[serde(rename = "clientURLs", default)]
    client_urls: Vec<String>,
    #[serde(rename = "isLearner", default)]
    learner: bool,
}

impl From<RawMember> for Member {
    fn from(raw: RawMember) -> Self {
        Self {
            id: format!("{:016x}", raw.id),
            started: !raw.name.is_empty(),
            name: raw.name,
            peer_urls: raw.peer_urls,
            client_urls: raw.client_urls,
            learner: raw.learner,
            number: raw.id,
        }
    }
}

#[derive(Deserialize)]
struct MemberList {
    #[serde(default)]
    members: Vec<RawMember>,
}

#[derive(Deserialize)]
struct MemberAdded {
    member: RawMember,
    #[serde(default)]
    members: Vec<RawMember>,
}

#[derive(Deserialize)]
struct Header {
    #[serde(default, deserialize_with = "number")]
    cluster_id: u64,
    #[serde(default, deserialize_with = "number")]
    member_id: u64,
}

/// What one member says of itself.
#[derive(Deserialize)]
struct RawStatus {
    header: Header,
    #[serde(default)]
    version: String,
    #[serde(rename = "storageVersion", default)]
    storage_version: String,
    #[serde(rename = "dbSize", default, deserialize_with = "number")]
    db_size: u64,
    #[serde(rename = "dbSizeInUse", default, deserialize_with = "number")]
    db_size_in_use: u64,
    #[serde(default, deserialize_with = "number")]
    leader: u64,
    #[serde(rename = "raftIndex", default, deserialize_with = "number")]
    raft_index: u64,
    #[serde(rename = "raftTerm", default, deserialize_with = "number")]
    raft_term: u64,
    #[serde(rename = "raftAppliedIndex", default, deserialize_with = "number")]
    raft_applied_index: u64,
    #[serde(default)]
    errors: Vec<String>,
    #[serde(rename = "isLearner", default)]
    learner: bool,
}

/// What one member says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Of the cluster.
    pub cluster_id: u64,
    /// Its own.
    pub member_id: u64,
    /// The member that it takes for the leader; 0 for none.
    pub leader: u64,
    /// etcd's version.
    pub version: String,
    pub(super) storage_version: String,
    pub(super) db_size: u64,
    pub(super) db_size_in_use: u64,
    pub(super) raft_index: u64,
    pub(super) raft_term: u64,
    pub(super) raft_applied_index: u64,
    pub(super) errors: Vec<String>,
    /// It does not vote yet.
    pub learner: bool,
}

impl From<RawStatus> for MemberStatus {
    fn from(raw: RawStatus) -> Self {
        Self {
            cluster_id: raw.header.cluster_id,
            member_id: raw.header.member_id,
            leader: raw.leader,
            version: raw.version,
            storage_version: raw.storage_version,
            db_size: raw.db_size,
            db_size_in_use: raw.db_size_in_use,
            raft_index: raw.raft_index,
            raft_term: raw.raft_term,
            raft_applied_index: raw.raft_applied_index,
            errors: raw.errors,
            learner: raw.learner,
        }
    }
}

#[derive(Deserialize)]
struct Alarms {
    #[serde(default)]
    alarms: Vec<Alarm>,
}

/// An alarm that a member has raised.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Alarm {
    /// Whose.
    #[serde(rename = "memberID", default, deserialize_with = "number")]
    pub member_id: u64,
    /// `NOSPACE` or `CORRUPT`.
    #[serde(default)]
    pub alarm: String,
}

#[derive(Deserialize)]
struct SnapshotChunk {
    result: SnapshotBlob,
}

#[derive(Deserialize)]
struct SnapshotBlob {
    #[serde(default)]
    blob: String,
}

/// A client of single members; it never goes to another one by itself.
#[derive(Clone, Debug)]
pub struct EtcdClient {
    http: Client<HttpConnector, Full<Bytes>>,
}

/// How long a question may take. Changes need a quorum's answer: etcd gives up after some 7 s itself.
const READ: Duration = Duration::from_secs(2);
const CHANGE: Duration = Duration::from_secs(12);

impl EtcdClient {
    pub(super) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(Duration::from_secs(1)));
        connector.set_nodelay(true);
        // No idle connections: a member that was frozen or killed must not be asked over an old one.
        let http = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build(connector);
        Self { http }
    }

    async fn post(
        &self,
        url: &str,
        path: &str,
        body: &Value,
        limit: Duration,
    ) -> Result<Bytes, EtcdError> {
        let silent = |why: String| EtcdError::Silent(format!("{url}{path}: {why}"));
        let request = http::Request::post(format!("{url}{path}"))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(|e| silent(e.to_string()))?;
        let answer = timeout(limit, async {
            let answer = self
                .http
                .request(request)
                .await
                .map_err(|e| silent(e.to_string()))?;
            let status = answer.status();
            let body = answer
                .into_body()
                .collect()
                .await
                .map_err(|e| silent(e.to_string()))?;
            Ok((status, body.to_bytes()))
        })
        .await
        .unwrap_or_else(|_| Err(silent("context deadline exceeded".to_owned())))?;
        match answer {
            (status, body) if status.is_success() => Ok(body),
            (_, body) => {
                let error: Value = serde_json::from_slice(&body).unwrap_or_default();
                let text = error["message"]
                    .as_str()
                    .or(error["error"].as_str())
                    .map_or_else(
                        || String::from_utf8_lossy(&body).into_owned(),
                        str::to_owned,
                    );
                Err(EtcdError::Refused(text))
            }
        }
    }

    async fn ask<T: for<'de> Deserialize<'de>>(
        &self,
        url: &str,
        path: &str,
        body: &Value,
        limit: Duration,
    ) -> Result<T, EtcdError> {
        let answer = self.post(url, path, body, limit).await?;
        serde_json::from_slice(&answer)
            .map_err(|e| EtcdError::Refused(format!("{path}: odd answer: {e}")))
    }

    /// The members. With `leader`, by consent of a quorum; else what this member knows.
    pub async fn members(&self, url: &str, leader: bool) -> Result<Vec<Member>, EtcdError> {
        let body = json!({ "linearizable": leader });
        let list: MemberList = self
            .ask(url, "/v3/cluster/member/list", &body, READ)
            .await?;
        Ok(list.members.into_iter().map(Member::from).collect())
    }

    /// What this member says of itself.
    pub async fn status(&self, url: &str) -> Result<MemberStatus, EtcdError> {
        let status: RawStatus = self
            .ask(url, "/v3/maintenance/status", &json!({}), READ)
            .await?;
        Ok(status.into())
    }

    pub(super) async fn alarms(&self, url: &str) -> Result<Vec<Alarm>, EtcdError> {
        let body = json!({ "action": "GET" });
        let alarms: Alarms = self.ask(url, "/v3/maintenance/alarm", &body, READ).await?;
        Ok(alarms.alarms)
    }

    /// A read that needs a leader and a quorum.
    pub(super) async fn quorum_read(&self, url: &str) -> Result<(), EtcdError> {
        // The key that Talos' own health check asks for.
        let body = json!({ "key": "aGVhbHRo" });
        self.post(url, "/v3/kv/range", &body, READ).await.map(drop)
    }

    pub(super) async fn move_leader(&self, url: &str, to: u64) -> Result<(), EtcdError> {
        let body = json!({ "targetID": to.to_string() });
        self.post(url, "/v3/maintenance/transfer-leadership", &body, CHANGE)
            .await
            .map(drop)
    }

    pub(super) async fn remove(&self, url: &str, id: u64) -> Result<(), EtcdError> {
        let body = json!({ "ID": id.to_string() });
        self.post(url, "/v3/cluster/member/remove", &body, CHANGE)
            .await
            .map(drop)
    }

    /// Adds a learner. Its ID, and the members as they are then.
    pub(super) async fn add_learner(
        &self,
        url: &str,
        peer_url: &str,
    ) -> Result<(u64, Vec<Member>), EtcdError> {
        let body = json!({ "peerURLs": [peer_url], "isLearner": true });
        let added: MemberAdded = self
            .ask(url, "/v3/cluster/member/add", &body, CHANGE)
            .await?;
        Ok((
            added.member.id,
            added.members.into_iter().map(Member::from).collect(),
        ))
    }

    pub(super) async fn promote(&self, url: &str, id: u64) -> Result<(), EtcdError> {
        let body = json!({ "ID": id.to_string() });
        self.post(url, "/v3/cluster/member/promote", &body, CHANGE)
            .await
            .map(drop)
    }

    /// The database with its trailing hash.
    pub(super) async fn snapshot(&self, url: &str) -> Result<Vec<u8>, EtcdError> {
        use base64::Engine as _;
        let odd = |e: String| EtcdError::Refused(format!("snapshot: odd answer: {e}"));
        let body = self
            .post(
                url,
                "/v3/maintenance/snapshot",
                &json!({}),
                Duration::from_secs(30),
            )
            .await?;
        let mut database = Vec::new();
        for chunk in serde_json::Deserializer::from_slice(&body).into_iter::<SnapshotChunk>() {
            let chunk = chunk.map_err(|e| odd(e.to_string()))?;
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(chunk.result.blob)
                .map_err(|e| odd(e.to_string()))?;
            database.extend_from_slice(&bytes);
        }
        Ok(database)
    }
}
