//! Whether the caller holds the verb `override`, asked of the API server for the very
//! user of the admission request (spec section 7; ADR 0065, decision 6).

use ichor_api::names;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};

use crate::answer::{Refusal, said};
use crate::judge::Judge;
use crate::review::Request;

impl Judge {
    /// Whether the caller may `override` the request's object.
    ///
    /// Errors: the review could not be had; then nothing is known and nothing passes.
    pub async fn may_override(&self, request: &Request) -> Result<bool, Refusal> {
        let user = &request.user_info;
        let filled = |text: &str| Some(text.to_owned()).filter(|t| !t.is_empty());
        // Groups and extra too: many people are known to RBAC by nothing else.
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: filled(&user.username),
                uid: filled(&user.uid),
                groups: Some(user.groups.clone()).filter(|g| !g.is_empty()),
                extra: Some(user.extra.clone()).filter(|e| !e.is_empty()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(names::OVERRIDE_VERB.to_owned()),
                    group: Some(names::GROUP.to_owned()),
                    version: Some(names::VERSION.to_owned()),
                    resource: Some(request.resource.resource.clone()),
                    name: filled(request.name()),
                    namespace: filled(&request.namespace),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let params = PostParams::default();
        let asked = tokio::time::timeout(self.limits.lookup, api.create(&params, &review));
        let cannot_tell = |cause: String| Refusal::CannotTell {
            cause: format!(
                "failed to ask whether {} holds the verb {} on {} {}: {cause}",
                user.username,
                names::OVERRIDE_VERB,
                request.resource.resource,
                request.name()
            ),
        };
        match asked.await {
            Err(_) => Err(cannot_tell(format!(
                "no answer within {} ms",
                self.limits.lookup.as_millis()
            ))),
            Ok(Err(error)) => Err(cannot_tell(said(&error))),
            Ok(Ok(review)) => {
                let status = review.status.unwrap_or_default();
                // A dangling role binding anywhere yields an evaluation error beside a
                // valid answer, so the error alone decides nothing.
                if let Some(error) = status.evaluation_error.filter(|e| !e.is_empty()) {
                    tracing::debug!(user = %user.username, %error, "access review with an evaluation error");
                }
                Ok(status.allowed)
            }
        }
    }

    /// Passes where the caller may `override`; else ends with `refusal`.
    pub async fn require_override(
        &self,
        request: &Request,
        refusal: Refusal,
    ) -> Result<(), Refusal> {
        if self.may_override(request).await? {
            Ok(())
        } else {
            Err(refusal)
        }
    }
}
