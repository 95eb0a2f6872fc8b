//! What is shipped in `deploy/`, held against the code and against what must never be
//! in it. No cluster is needed.
#![allow(clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ichor_api::names;
use ichor_webhook::Users;
use ichor_webhook::config::{CONFIGURATION, SECRET, SERVICE};
use ichor_webhook::paths::Concern;
use serde_json::{Value, json};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|e| e == "yaml") {
            found.push(path);
        }
    }
}

/// Every object under `deploy/`, kustomizations left out.
fn objects() -> Vec<Value> {
    let mut found = Vec::new();
    files(&deploy(), &mut found);
    found
        .iter()
        .filter(|path| path.file_name().is_some_and(|n| n != "kustomization.yaml"))
        .flat_map(|path| {
            let text = std::fs::read_to_string(path).expect("readable");
            serde_saphyr::from_multiple::<Value>(&text)
                .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        })
        .collect()
}

fn of_kind(kind: &str) -> Vec<Value> {
    objects()
        .into_iter()
        .filter(|o| o["kind"] == kind)
        .collect()
}

fn one(kind: &str, name: &str) -> Value {
    let mut found: Vec<Value> = of_kind(kind)
        .into_iter()
        .filter(|o| o["metadata"]["name"] == name)
        .collect();
    assert_eq!(found.len(), 1, "{kind} {name}");
    found.remove(0)
}

fn strings(value: &Value) -> BTreeSet<String> {
    let list = value.as_array().cloned().unwrap_or_default();
    list.iter()
        .map(|v| v.as_str().expect("a string").to_owned())
        .collect()
}

fn set(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|&w| w.to_owned()).collect()
}

fn webhooks() -> Vec<Value> {
    let configuration = one("ValidatingWebhookConfiguration", CONFIGURATION);
    configuration["webhooks"]
        .as_array()
        .expect("webhooks")
        .clone()
}

/// (name of the role, one of its rules) of every role of `kind`.
fn rules(kind: &str) -> Vec<(String, Value)> {
    of_kind(kind)
        .into_iter()
        .flat_map(|role| {
            let name = role["metadata"]["name"]
                .as_str()
                .expect("a name")
                .to_owned();
            let rules = role["rules"].as_array().cloned().unwrap_or_default();
            rules.into_iter().map(move |rule| (name.clone(), rule))
        })
        .collect()
}

#[test]
fn every_path_is_called_for_what_the_specification_says_and_for_nothing_else() {
    let ours = ["talosmachines", "talosclusters"];
    let expected: BTreeMap<&str, (Vec<&str>, Vec<&str>)> = [
        (Concern::Override, vec!["UPDATE", "DELETE"], ours.to_vec()),
        (
            Concern::Machine,
            vec!["CREATE", "UPDATE", "DELETE"],
            vec!["talosmachines"],
        ),
        (
            Concern::Cluster,
            vec!["CREATE", "UPDATE", "DELETE"],
            vec!["talosclusters"],
        ),
        (Concern::Namespace, vec!["DELETE"], vec!["namespaces"]),
    ]
    .into_iter()
    .map(|(concern, operations, resources)| (concern.path(), (operations, resources)))
    .collect();
    let webhooks = webhooks();
    assert_eq!(webhooks.len(), Concern::ALL.len());
    for webhook in &webhooks {
        let path = webhook["clientConfig"]["service"]["path"]
            .as_str()
            .expect("a path");
        let (operations, resources) = &expected[path];
        let rules = webhook["rules"].as_array().expect("rules");
        assert_eq!(rules.len(), 1, "{path}");
        assert_eq!(strings(&rules[0]["operations"]), set(operations), "{path}");
        assert_eq!(strings(&rules[0]["resources"]), set(resources), "{path}");
        let group = if resources == &["namespaces"] {
            ""
        } else {
            names::GROUP
        };
        assert_eq!(strings(&rules[0]["apiGroups"]), set(&[group]), "{path}");
    }
}

#[test]
fn the_webhook_matches_nothing_that_a_cluster_needs_to_come_back() {
    for webhook in webhooks() {
        let name = webhook["name"].as_str().expect("a name");
        assert!(name.ends_with(".ichor.maesh.dev"), "{name}");
        assert!(
            webhook["timeoutSeconds"]
                .as_u64()
                .is_some_and(|t| (1..=3).contains(&t)),
            "{name}"
        );
        assert_eq!(webhook["sideEffects"], "NoneOnDryRun", "{name}");
        assert_eq!(webhook["matchPolicy"], "Equivalent", "{name}");
        assert_eq!(webhook["admissionReviewVersions"], json!(["v1"]), "{name}");
        let guard = name.starts_with("namespace.");
        assert_eq!(
            webhook["failurePolicy"],
            if guard { "Ignore" } else { "Fail" },
            "{name}"
        );
        for rule in webhook["rules"].as_array().expect("rules") {
            for field in ["apiGroups", "apiVersions", "operations", "resources"] {
                for word in strings(&rule[field]) {
                    assert!(!word.contains('*'), "{name}: {field} {word}");
                    assert!(
                        field != "resources" || !word.contains('/'),
                        "{name}: subresource {word}"
                    );
                }
            }
            if !guard {
                assert_eq!(rule["scope"], "Namespaced", "{name}");
            }
        }
        if guard {
            assert_eq!(
                webhook["objectSelector"],
                json!({"matchLabels": {names::GUARD_LABEL: "true"}})
            );
        } else {
            assert_eq!(
                webhook["objectSelector"],
                Value::Null,
                "{name}: no label switches protection off"
            );
        }
        assert_eq!(
            webhook["namespaceSelector"],
            Value::Null,
            "{name}: no label switches protection off"
        );
    }
}

#[test]
fn webhooks_lead_to_the_service_in_front_of_the_agent() {
    let service = one("Service", SERVICE);
    assert_eq!(service["metadata"]["namespace"], names::AGENT_NAMESPACE);
    let port = &service["spec"]["ports"][0];
    for webhook in webhooks() {
        let to = &webhook["clientConfig"]["service"];
        assert_eq!(to["name"], SERVICE);
        assert_eq!(to["namespace"], names::AGENT_NAMESPACE);
        assert_eq!(to["port"], port["port"]);
        assert_eq!(
            webhook["clientConfig"]["caBundle"],
            Value::Null,
            "applying again takes no bundle away"
        );
    }
    let pod = one("Deployment", "ichor-agent")["spec"]["template"].clone();
    let container = &pod["spec"]["containers"][0];
    for service in of_kind("Service") {
        let target = &service["spec"]["ports"][0]["targetPort"];
        let ports = container["ports"].as_array().expect("ports");
        assert!(ports.iter().any(|p| p["name"] == *target), "{target}");
        for (key, value) in service["spec"]["selector"].as_object().expect("a selector") {
            assert_eq!(pod["metadata"]["labels"][key], *value);
        }
    }
}

#[test]
fn the_only_account_that_webhooks_skip_is_the_agents() {
    let users = Users::new(names::AGENT_NAMESPACE, names::AGENT_SERVICE_ACCOUNT, "", "");
    for webhook in webhooks() {
        let conditions = webhook["matchConditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        for condition in conditions {
            let expression = condition["expression"].as_str().expect("an expression");
            let user = expression
                .strip_prefix("request.userInfo.username != '")
                .and_then(|rest| rest.strip_suffix('\''))
                .expect("one exact name");
            assert!(users.is_agent(user), "{user}");
        }
    }
}

#[test]
fn no_cluster_role_touches_secrets_and_no_role_has_a_wildcard() {
    for kind in ["ClusterRole", "Role"] {
        for (name, rule) in rules(kind) {
            for field in ["apiGroups", "resources", "verbs"] {
                assert!(
                    !strings(&rule[field]).contains("*"),
                    "{kind} {name}: {field}"
                );
            }
            assert!(
                !strings(&rule["resources"])
                    .iter()
                    .any(|r| r.starts_with("*/")),
                "{kind} {name}"
            );
            for verb in ["escalate", "bind", "impersonate"] {
                assert!(
                    !strings(&rule["verbs"]).contains(verb),
                    "{kind} {name}: {verb}"
                );
            }
            if kind == "ClusterRole" {
                assert!(!strings(&rule["resources"]).contains("secrets"), "{name}");
            }
        }
    }
}

#[test]
fn secrets_are_read_by_name_in_the_agents_namespace_and_only_got_in_listed_ones() {
    for (name, rule) in rules("Role") {
        if !strings(&rule["resources"]).contains("secrets") {
            continue;
        }
        let verbs = strings(&rule["verbs"]);
        if name == "ichor-agent-clusters" {
            assert_eq!(verbs, set(&["get"]));
        } else if rule["resourceNames"].is_null() {
            assert_eq!(
                verbs,
                set(&["create"]),
                "{name}: `create` cannot be narrowed by name"
            );
        } else {
            assert_eq!(strings(&rule["resourceNames"]), set(&[SECRET]), "{name}");
        }
    }
    let mut listed = of_kind("Role");
    listed.retain(|role| role["metadata"]["name"] == "ichor-agent-clusters");
    assert_eq!(listed.len(), 1);
    assert_eq!(
        listed[0]["metadata"]["namespace"],
        Value::Null,
        "the overlay says where"
    );
}

#[test]
fn only_the_agent_writes_status_and_only_two_roles_hold_override() {
    let reads = set(&["get", "list", "watch"]);
    let mut writers = BTreeSet::new();
    let mut holders = BTreeSet::new();
    for (name, rule) in rules("ClusterRole").into_iter().chain(rules("Role")) {
        let verbs = strings(&rule["verbs"]);
        let writes = verbs.difference(&reads).next().is_some();
        if writes
            && strings(&rule["resources"])
                .iter()
                .any(|r| r.ends_with("/status"))
        {
            writers.insert(name.clone());
        }
        if verbs.contains(names::OVERRIDE_VERB) {
            assert_eq!(
                strings(&rule["resources"]),
                set(&["talosclusters", "talosmachines"])
            );
            holders.insert(name);
        }
    }
    assert_eq!(writers, set(&["ichor-agent"]));
    assert_eq!(holders, set(&["ichor-admin", "ichor-override-role"]));
    assert_eq!(
        rules("ClusterRole")
            .iter()
            .filter(|(name, _)| name == "ichor-override-role")
            .count(),
        1,
        "the verb and nothing else"
    );
}

#[test]
fn roles_for_people_are_bound_to_nobody_and_only_reading_is_aggregated() {
    for kind in ["ClusterRoleBinding", "RoleBinding"] {
        for binding in of_kind(kind) {
            let role = binding["roleRef"]["name"].as_str().expect("a name");
            assert!(role.starts_with("ichor-agent"), "{role} is bound");
            let subjects = binding["subjects"].as_array().expect("subjects");
            assert_eq!(subjects.len(), 1);
            assert_eq!(subjects[0]["kind"], "ServiceAccount");
            assert_eq!(subjects[0]["name"], names::AGENT_SERVICE_ACCOUNT);
            assert_eq!(subjects[0]["namespace"], names::AGENT_NAMESPACE);
        }
    }
    for role in of_kind("ClusterRole") {
        let labels = role["metadata"]["labels"]
            .as_object()
            .cloned()
            .unwrap_or_default();
        let aggregated = labels.keys().any(|key| key.contains("aggregate-to"));
        assert_eq!(
            aggregated,
            role["metadata"]["name"] == "ichor-viewer",
            "{}",
            role["metadata"]["name"]
        );
    }
    for name in [
        "ichor-viewer",
        "ichor-editor",
        "ichor-admin",
        "ichor-override-role",
    ] {
        one("ClusterRole", name);
    }
}

#[test]
fn the_agent_may_patch_no_webhook_configuration_but_ours() {
    let mut found = 0;
    for (name, rule) in rules("ClusterRole") {
        if strings(&rule["apiGroups"]).contains("admissionregistration.k8s.io") {
            assert_eq!(
                strings(&rule["resourceNames"]),
                set(&[CONFIGURATION]),
                "{name}"
            );
            assert_eq!(strings(&rule["verbs"]), set(&["get", "patch"]), "{name}");
            found += 1;
        }
    }
    assert_eq!(found, 1);
}

#[test]
fn the_pods_run_without_privilege_and_have_time_to_finish() {
    let deployment = one("Deployment", "ichor-agent");
    assert_eq!(deployment["spec"]["replicas"], 2);
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], names::AGENT_SERVICE_ACCOUNT);
    assert_eq!(
        pod["terminationGracePeriodSeconds"], 660,
        "10 minutes for a leave, and some"
    );
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["runAsUser"], 65532);
    assert_eq!(
        pod["securityContext"]["seccompProfile"]["type"],
        "RuntimeDefault"
    );
    for host in ["hostNetwork", "hostPID", "hostIPC", "volumes"] {
        assert_eq!(pod[host], Value::Null, "{host}");
    }
    let container = &pod["containers"][0];
    let security = &container["securityContext"];
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
    let env: BTreeMap<&str, &str> = container["env"]
        .as_array()
        .expect("env")
        .iter()
        .map(|e| {
            let field = e["valueFrom"]["fieldRef"]["fieldPath"].as_str();
            (
                e["name"].as_str().expect("a name"),
                field.expect("from a field"),
            )
        })
        .collect();
    let expected = [
        ("POD_NAME", "metadata.name"),
        ("POD_NAMESPACE", "metadata.namespace"),
        ("POD_UID", "metadata.uid"),
        ("POD_SERVICE_ACCOUNT", "spec.serviceAccountName"),
        ("NODE_NAME", "spec.nodeName"),
    ];
    assert_eq!(env, expected.into());
    assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/livez");
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz");
    let budget = one("PodDisruptionBudget", "ichor-agent");
    assert_eq!(budget["spec"]["selector"], deployment["spec"]["selector"]);
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["app.kubernetes.io/name"], names::AGENT_APP);
    assert_eq!(deployment["metadata"]["namespace"], names::AGENT_NAMESPACE);
    assert_eq!(
        one("Namespace", names::AGENT_NAMESPACE)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"],
        "restricted"
    );
}

#[test]
fn every_file_is_listed_and_every_listed_one_exists() {
    let mut found = Vec::new();
    files(&deploy(), &mut found);
    let mut reached = BTreeSet::new();
    for path in found.iter().filter(|p| p.ends_with("kustomization.yaml")) {
        let text = std::fs::read_to_string(path).expect("readable");
        let kustomization: Value = serde_saphyr::from_str(&text).expect("YAML");
        for resource in strings(&kustomization["resources"]) {
            let target = path.parent().expect("a folder").join(resource);
            let target = target
                .canonicalize()
                .unwrap_or_else(|e| panic!("{}: {e}", target.display()));
            reached.insert(target);
        }
    }
    for path in found.iter().filter(|p| !p.ends_with("kustomization.yaml")) {
        assert!(
            reached.contains(&path.canonicalize().expect("exists")),
            "{} is in no kustomization",
            path.display()
        );
    }
}
