//! `admission.k8s.io/v1` as it goes over the wire: read leniently, so that what a newer
//! API server adds or an older one leaves out does not turn into a refusal.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::answer::{Admitted, Refusal};

fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// What is being done to the object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// It is created.
    Create,
    /// It is changed.
    Update,
    /// It is deleted.
    Delete,
    /// Something that no rule of ours speaks of.
    #[default]
    #[serde(other)]
    Other,
}

/// Who asks, as the API server authenticated them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct User {
    /// User name.
    #[serde(deserialize_with = "null_is_default")]
    pub username: String,
    /// UID.
    #[serde(deserialize_with = "null_is_default")]
    pub uid: String,
    /// Groups.
    #[serde(deserialize_with = "null_is_default")]
    pub groups: Vec<String>,
    /// Whatever else the authenticator said.
    #[serde(deserialize_with = "null_is_default")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The resource that is asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ResourceName {
    /// API group.
    #[serde(deserialize_with = "null_is_default")]
    pub group: String,
    /// Plural name.
    #[serde(deserialize_with = "null_is_default")]
    pub resource: String,
}

/// One request for admission.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Request {
    /// Identifies the request; the answer repeats it.
    #[serde(deserialize_with = "null_is_default")]
    pub uid: String,
    /// What is being done.
    #[serde(deserialize_with = "null_is_default")]
    pub operation: Operation,
    /// To which resource.
    #[serde(deserialize_with = "null_is_default")]
    pub resource: ResourceName,
    /// `status`, `scale`; empty for the object itself.
    #[serde(deserialize_with = "null_is_default")]
    pub sub_resource: String,
    /// Name as the request says it: empty for a collection and a generated name.
    #[serde(deserialize_with = "null_is_default")]
    name: String,
    /// Namespace, empty for cluster-scoped objects.
    #[serde(deserialize_with = "null_is_default")]
    pub namespace: String,
    /// Who asks.
    #[serde(deserialize_with = "null_is_default")]
    pub user_info: User,
    /// The object as it would be; none on DELETE.
    pub object: Option<Value>,
    /// The object as it is stored; none on CREATE.
    pub old_object: Option<Value>,
    /// Nothing will be stored, whatever is answered.
    #[serde(deserialize_with = "null_is_default")]
    pub dry_run: bool,
}

/// A body that is no review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// UID of the request, where it could still be read.
    pub uid: Option<String>,
    /// What is wrong.
    pub message: String,
}

impl Request {
    /// Reads the body of a review.
    ///
    /// Errors: no JSON, no `request`, or fields of another type than the API has.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let broken = |uid, cause: &dyn std::fmt::Display| Malformed {
            uid,
            message: format!("the body is no admission.k8s.io/v1 AdmissionReview: {cause}"),
        };
        let review: Value = serde_json::from_slice(body).map_err(|e| broken(None, &e))?;
        let Some(request) = review.get("request").filter(|r| r.is_object()) else {
            return Err(broken(None, &"it has no request"));
        };
        let uid = request
            .get("uid")
            .and_then(Value::as_str)
            .map(str::to_owned);
        if uid.as_deref().unwrap_or_default().is_empty() {
            return Err(broken(None, &"its request has no uid"));
        }
        Self::deserialize(request).map_err(|e| broken(uid, &e))
    }

    /// Name of the object: from the object itself where there is one, since a request
    /// that deletes a collection names none.
    pub fn name(&self) -> &str {
        [&self.old_object, &self.object]
            .into_iter()
            .filter_map(|o| o.as_ref()?.pointer("/metadata/name")?.as_str())
            .find(|name| !name.is_empty())
            .unwrap_or(&self.name)
    }

    /// The stored object as `T`.
    ///
    /// Errors: there is none, or it is not what the types say it is.
    pub fn stored<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        self.typed(self.old_object.as_ref(), "oldObject")
    }

    /// The object as it would be, as `T`.
    ///
    /// Errors: there is none, or it is not what the types say it is.
    pub fn wanted<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        self.typed(self.object.as_ref(), "object")
    }

    fn typed<T: DeserializeOwned>(&self, value: Option<&Value>, which: &str) -> Result<T, Refusal> {
        let unreadable = |cause: &dyn std::fmt::Display| Refusal::Unreadable {
            message: format!(
                "{} {} cannot be judged: the request's {which} {cause}",
                self.resource.resource,
                self.name()
            ),
        };
        match value.filter(|v| !v.is_null()) {
            None => Err(unreadable(&"is missing")),
            Some(value) => T::deserialize(value)
                .map_err(|e| unreadable(&format!("is not what this version of Ichor knows: {e}"))),
        }
    }
}

/// The review that answers request `uid`.
pub fn response(uid: &str, user: &str, judged: &Result<Admitted, Refusal>) -> Value {
    let mut audit = serde_json::Map::new();
    audit.insert("user".into(), json!(user));
    let mut response = match judged {
        Ok(admitted) => {
            if let Some(rule) = admitted.rule() {
                audit.insert("rule".into(), json!(rule));
            }
            let mut response = json!({ "uid": uid, "allowed": true });
            if !admitted.warnings.is_empty() {
                response["warnings"] = json!(admitted.warnings);
            }
            response
        }
        Err(refusal) => {
            audit.insert("rule".into(), json!(refusal.rule_name()));
            json!({
                "uid": uid,
                "allowed": false,
                "status": {
                    "status": "Failure",
                    "code": refusal.code(),
                    "reason": refusal.reason(),
                    "message": refusal.to_string(),
                },
            })
        }
    };
    response["auditAnnotations"] = Value::Object(audit);
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response })
}
