//! A view that answers as it is told and remembers what it was asked.

use std::collections::VecDeque;
use std::sync::Mutex;

use async_trait::async_trait;

use super::{MemoryStore, lock};
use crate::{Operation, UnsettledIntent, View, ViewError};

/// A question that was asked, and who held the Lease at that moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// `transitioning`, `unsettled_intents`, `unsettled_intents (settling)` or `intents_of`.
    pub question: &'static str,
    /// The Lease's holder then.
    pub holder: Option<String>,
}

/// By default the cluster is stable and nothing is unsettled.
#[derive(Debug, Default)]
pub struct ScriptedView {
    store: Option<MemoryStore>,
    transitioning: Mutex<VecDeque<Result<Option<String>, ViewError>>>,
    unsettled: Mutex<Vec<UnsettledIntent>>,
    settles: bool,
    asked: Mutex<Vec<Asked>>,
}

impl ScriptedView {
    /// Notes with each question who holds the Lease in `store`.
    #[must_use]
    pub fn watching(store: &MemoryStore) -> Self {
        Self {
            store: Some(store.clone()),
            ..Self::default()
        }
    }

    /// The next answers to `transitioning`; after them, stable.
    #[must_use]
    pub fn transitioning(
        self,
        answers: impl IntoIterator<Item = Result<Option<String>, ViewError>>,
    ) -> Self {
        lock(&self.transitioning).extend(answers);
        self
    }

    /// What is unsettled; with `settles`, until it is first asked to settle.
    #[must_use]
    pub fn unsettled(
        mut self,
        intents: impl IntoIterator<Item = UnsettledIntent>,
        settles: bool,
    ) -> Self {
        lock(&self.unsettled).extend(intents);
        self.settles = settles;
        self
    }

    /// What was asked so far, in order.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.asked).clone()
    }

    fn ask(&self, question: &'static str) {
        let holder = self.store.as_ref().and_then(MemoryStore::holder);
        lock(&self.asked).push(Asked { question, holder });
    }
}

#[async_trait]
impl View for ScriptedView {
    async fn transitioning(&self) -> Result<Option<String>, ViewError> {
        self.ask("transitioning");
        lock(&self.transitioning).pop_front().unwrap_or(Ok(None))
    }

    async fn unsettled_intents(
        &self,
        _operation: &Operation,
        settle: bool,
    ) -> Result<Vec<UnsettledIntent>, ViewError> {
        self.ask(if settle {
            "unsettled_intents (settling)"
        } else {
            "unsettled_intents"
        });
        let mut unsettled = lock(&self.unsettled);
        if settle && self.settles {
            unsettled.clear();
        }
        Ok(unsettled.clone())
    }

    async fn intents_of(&self, operation: &Operation) -> Result<Vec<UnsettledIntent>, ViewError> {
        self.ask("intents_of");
        let own = operation.to_string();
        Ok(lock(&self.unsettled)
            .iter()
            .filter(|intent| intent.operation == own)
            .cloned()
            .collect())
    }
}
