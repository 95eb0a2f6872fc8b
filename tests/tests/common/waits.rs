//! Waiting for what the agent says.

use std::fmt::Write as _;

use ichor_api::common::{Condition, find_condition};
use ichor_api::conditions::REMOVAL;
use ichor_api::{ConditionStatus, TalosMachine};
use ichor_tests::wait::until;
use kube::ResourceExt as _;

use super::{SOON, Stage};

impl Stage {
    /// Calls `look` until it gives a value.
    ///
    /// # Panics
    ///
    /// Where it does not within [`SOON`]; says how everything stands then.
    pub async fn wait<T, F>(&self, what: &str, look: impl FnMut() -> F) -> T
    where
        F: Future<Output = Result<T, String>>,
    {
        match until(SOON, what, look).await {
            Ok(value) => value,
            Err(error) => panic!("{error}\n{}", self.picture().await),
        }
    }

    /// Waits until a machine is as `holds` wants it: `Err` says what is wrong with it.
    pub async fn until_machine<T>(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(&TalosMachine) -> Result<T, String>,
    ) -> T {
        let api = self.machines();
        self.wait(&format!("{name} to {what}"), async || {
            match api.get_opt(name).await {
                Ok(Some(machine)) => holds(&machine),
                Ok(None) => Err("its TalosMachine is gone".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
    }

    /// Waits until the removal of `name` stands still for `reason`; its message.
    pub async fn stands(&self, name: &str, reason: &str) -> String {
        self.until_condition(name, REMOVAL, ConditionStatus::False, reason)
            .await
    }

    /// Waits until the removal of `name` moves at `step`.
    pub async fn moves(&self, name: &str, step: &str) -> String {
        self.until_condition(name, REMOVAL, ConditionStatus::True, step)
            .await
    }

    /// Waits until a condition of a machine has this status and reason; its message.
    pub async fn until_condition(
        &self,
        name: &str,
        type_: &str,
        status: ConditionStatus,
        reason: &str,
    ) -> String {
        let what = format!("be {type_}={}/{reason}", status.as_str());
        self.until_machine(name, &what, |machine| {
            match_condition(machine.condition(type_), status, reason)
        })
        .await
    }

    /// Waits until a condition of the cluster has this status and reason; its message.
    pub async fn until_cluster(
        &self,
        type_: &str,
        status: ConditionStatus,
        reason: &str,
    ) -> String {
        let api = self.clusters();
        let name = ichor_tests::bed::objects::CLUSTER;
        let what = format!("the cluster to be {type_}={}/{reason}", status.as_str());
        self.wait(&what, async || {
            let cluster = api.get(name).await.map_err(|e| e.to_string())?;
            let conditions = cluster.status.unwrap_or_default().conditions;
            match_condition(find_condition(&conditions, type_), status, reason)
        })
        .await
    }

    /// Waits until the TalosMachine is gone.
    pub async fn gone(&self, name: &str) {
        let api = self.machines();
        self.wait(
            &format!("TalosMachine {name} to be gone"),
            async || match api.get_opt(name).await {
                Ok(None) => Ok(()),
                Ok(Some(machine)) => Err(said(&machine)),
                Err(error) => Err(error.to_string()),
            },
        )
        .await;
    }

    /// Waits until the box is at a stage.
    pub async fn until_stage(&self, name: &str, stage: ichor_talos::Stage) {
        let node = self.box_of(name);
        self.wait(&format!("{name} to be at stage {stage}"), async || {
            let now = node.now().stage;
            if now == stage {
                Ok(())
            } else {
                Err(format!("it is at {now}"))
            }
        })
        .await;
    }

    /// Waits until etcd's started voters are exactly these.
    pub async fn until_voters(&self, names: &[&str]) {
        let mut wanted: Vec<&str> = names.to_vec();
        wanted.sort_unstable();
        self.wait(&format!("the voters to be {wanted:?}"), async || {
            let members = self.bed.etcd_members().await.map_err(|e| e.to_string())?;
            let mut found: Vec<&str> = members
                .iter()
                .filter(|m| m.started && !m.learner)
                .map(|m| m.name.as_str())
                .collect();
            found.sort_unstable();
            if found == wanted && members.len() == found.len() {
                Ok(())
            } else {
                Err(format!("{members:?}"))
            }
        })
        .await;
    }

    /// Waits until nobody holds the cluster lock.
    pub async fn until_unlocked(&self) {
        self.wait("the lock to be released", async || {
            match self.lock_holder().await {
                None => Ok(()),
                Some(holder) => Err(format!("held by {holder}")),
            }
        })
        .await;
    }

    /// Waits until the Node is cordoned, or is not.
    pub async fn until_cordoned(&self, name: &str, wanted: bool) {
        let api = self.nodes();
        let what = format!(
            "Node {name} to be {}",
            if wanted { "cordoned" } else { "uncordoned" }
        );
        self.wait(&what, async || {
            let node = api.get(name).await.map_err(|e| e.to_string())?;
            let is = node.spec.and_then(|s| s.unschedulable).unwrap_or_default();
            if is == wanted {
                Ok(())
            } else {
                Err(format!("unschedulable: {is}"))
            }
        })
        .await;
    }

    /// Holds that `holds` stays so over several of the agent's looks.
    ///
    /// The only waits of a fixed length: that nothing happens cannot be seen any sooner.
    pub async fn stays(&self, what: &str, holds: impl AsyncFn() -> Result<(), String>) {
        for _ in 0..8 {
            if let Err(error) = holds().await {
                panic!("{what}: {error}\n{}", self.picture().await);
            }
            tokio::time::sleep(std::time::Duration::from_millis(250)).await;
        }
    }

    /// How everything stands, for a failed test.
    pub async fn picture(&self) -> String {
        let mut text = String::new();
        for machine in self
            .machines()
            .list(&kube::api::ListParams::default())
            .await
            .unwrap()
        {
            let _ = writeln!(text, "{}: {}", machine.name_any(), said(&machine));
        }
        let cluster = self
            .clusters()
            .list(&kube::api::ListParams::default())
            .await
            .unwrap();
        for cluster in cluster {
            let _ = writeln!(text, "cluster: {:?}", cluster.status);
        }
        let _ = writeln!(text, "lock: {:?}", self.lock_holder().await);
        let _ = writeln!(text, "changing calls: {:#?}", self.changing_calls());
        for agent in self.bed.agents().unwrap().status().await {
            let log = self
                .bed
                .state()
                .join("logs")
                .join(format!("{}.log", agent.pod));
            let _ = writeln!(
                text,
                "{} {}\n{}",
                agent.pod,
                agent.state,
                ichor_tests::process::log_tail(&log, 40)
            );
        }
        text
    }
}

fn match_condition(
    found: Option<&Condition>,
    status: ConditionStatus,
    reason: &str,
) -> Result<String, String> {
    match found {
        Some(c) if c.status == status && c.reason == reason => Ok(c.message.clone()),
        Some(c) => Err(format!("{}/{}: {}", c.status.as_str(), c.reason, c.message)),
        None => Err("no such condition yet".to_owned()),
    }
}

/// What a machine's status says, in a line.
pub(super) fn said(machine: &TalosMachine) -> String {
    let status = machine.status.clone().unwrap_or_default();
    let conditions: Vec<String> = status
        .conditions
        .iter()
        .map(|c| {
            format!(
                "{}={}/{} ({})",
                c.type_,
                c.status.as_str(),
                c.reason,
                c.message
            )
        })
        .collect();
    format!(
        "{}{}; removal {:?}; intent {:?}",
        if machine.is_being_deleted() {
            "being deleted; "
        } else {
            ""
        },
        conditions.join("; "),
        status.removal,
        status.intent
    )
}
