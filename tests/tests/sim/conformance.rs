//! Our messages and our simulated machines against Talos' own client library, a small Go program
//! (`tests/go/conformance`). It knows nothing of this code: what it reads right, Talos' tools would.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ichor_tests::assets::build_script;
use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::{SOON, Sim};

/// Runs the program and reads its one JSON document.
async fn conformance<T: DeserializeOwned>(arguments: &[&str]) -> T {
    let program: PathBuf = build_script("conformance", |line| eprintln!("{line}"))
        .await
        .unwrap();
    let output = tokio::process::Command::new(program)
        .args(arguments)
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[derive(Deserialize)]
struct Schema {
    messages: BTreeMap<String, Vec<Field>>,
    enums: BTreeMap<String, BTreeMap<String, i32>>,
    services: BTreeMap<String, Vec<Method>>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Field {
    number: i32,
    name: String,
    kind: String,
    repeated: bool,
    #[serde(default, rename = "type")]
    of: String,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Method {
    name: String,
    input: String,
    output: String,
    client_streaming: bool,
    server_streaming: bool,
}

/// What Talos calls the messages and enums that only travel inside a resource.
fn talos_name(ours: &str) -> String {
    let Some(name) = ours.strip_prefix("specs.") else {
        return ours.to_owned();
    };
    let definitions = |rest: &str| format!("talos.resource.definitions.{rest}");
    match name {
        "SystemInformation" => definitions("hardware.SystemInformationSpec"),
        "MachineStage" => definitions("enums.RuntimeMachineStage"),
        "MachineStatus" => definitions("runtime.MachineStatusSpec"),
        "MachineReadiness" => definitions("runtime.MachineStatusStatus"),
        "UnmetCondition" => definitions("runtime.UnmetCondition"),
        "EtcdMember" => definitions("etcd.MemberSpec"),
        "Identity" => definitions("cluster.IdentitySpec"),
        "Nodename" => definitions("k8s.NodenameSpec"),
        "MachineRole" => "resource.config.MachineType".to_owned(),
        "MachineType" => "resource.config.MachineTypeSpec".to_owned(),
        "VolumePhase" => definitions("enums.BlockVolumePhase"),
        "VolumeType" => definitions("enums.BlockVolumeType"),
        "VolumeStatus" => definitions("block.VolumeStatusSpec"),
        "SystemDisk" => definitions("block.SystemDiskSpec"),
        "Service" => definitions("v1alpha1.ServiceSpec"),
        "BootId" => definitions("runtime.BootIDSpec"),
        "Version" => definitions("runtime.VersionSpec"),
        "PlatformMetadata" => definitions("runtime.PlatformMetadataSpec"),
        "PlatformMetadata.TagsEntry" => definitions("runtime.PlatformMetadataSpec.TagsEntry"),
        "KernelCmdline" => definitions("runtime.KernelCmdlineSpec"),
        "HostnameStatus" => definitions("network.HostnameStatusSpec"),
        "NodeStatus" => definitions("k8s.NodeStatusSpec"),
        "NodeStatus.LabelsEntry" => definitions("k8s.NodeStatusSpec.LabelsEntry"),
        "NodeStatus.AnnotationsEntry" => definitions("k8s.NodeStatusSpec.AnnotationsEntry"),
        other => panic!("say what Talos calls specs.{other}"),
    }
}

/// Holds one of our messages, and those inside it, against Talos'. Returns how many fields it saw.
fn check_message(prefix: &str, message: &DescriptorProto, talos: &Schema) -> usize {
    let ours = format!("{prefix}.{}", message.name());
    let name = talos_name(&ours);
    let theirs = talos
        .messages
        .get(&name)
        .unwrap_or_else(|| panic!("Talos has no message {name}"));
    for field in &message.field {
        let kind = match field.r#type() {
            Type::Group => panic!("{ours} has a group"),
            other => other
                .as_str_name()
                .trim_start_matches("TYPE_")
                .to_lowercase(),
        };
        let of = field.type_name().trim_start_matches('.');
        let ours_field = Field {
            number: field.number(),
            name: field.name().to_owned(),
            kind,
            repeated: field.label() == Label::Repeated,
            of: if of.is_empty() {
                String::new()
            } else {
                talos_name(of)
            },
        };
        let their_field = theirs
            .iter()
            .find(|theirs| theirs.number == ours_field.number);
        assert_eq!(
            Some(&ours_field),
            their_field,
            "field {} of {name}",
            field.name()
        );
    }
    for kind in &message.enum_type {
        check_enum(&ours, kind, talos);
    }
    let nested: usize = message
        .nested_type
        .iter()
        .map(|nested| check_message(&ours, nested, talos))
        .sum();
    message.field.len() + nested
}

fn check_enum(prefix: &str, kind: &EnumDescriptorProto, talos: &Schema) {
    let name = talos_name(&format!("{prefix}.{}", kind.name()));
    let theirs = talos
        .enums
        .get(&name)
        .unwrap_or_else(|| panic!("Talos has no enum {name}"));
    for value in &kind.value {
        let (ours, number) = (value.name(), value.number());
        let same = theirs.iter().any(|(their_name, their_number)| {
            *their_number == number
                && (their_name.ends_with(ours) || ours.ends_with(their_name.as_str()))
        });
        assert!(same, "{name} has no {ours} = {number}, but {theirs:?}");
    }
    assert_eq!(
        kind.value.len(),
        theirs.len(),
        "{name} has other values: {theirs:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_and_method_that_we_speak_is_talos_own() {
    let talos: Schema = conformance(&["descriptors"]).await;
    let ours = FileDescriptorSet::decode(ichor_talos::proto::DESCRIPTORS).unwrap();
    let (mut fields, mut methods) = (0, 0);
    for file in ours
        .file
        .iter()
        .filter(|file| !file.package().starts_with("google.protobuf"))
    {
        for message in &file.message_type {
            fields += check_message(file.package(), message, &talos);
        }
        for kind in &file.enum_type {
            check_enum(file.package(), kind, &talos);
        }
        for service in &file.service {
            let name = format!("{}.{}", file.package(), service.name());
            for method in &service.method {
                let method = Method {
                    name: method.name().to_owned(),
                    input: method.input_type().trim_start_matches('.').to_owned(),
                    output: method.output_type().trim_start_matches('.').to_owned(),
                    client_streaming: method.client_streaming(),
                    server_streaming: method.server_streaming(),
                };
                assert!(
                    talos.services[&name].contains(&method),
                    "{name} has no {method:?}"
                );
                methods += 1;
            }
        }
    }
    assert!(
        fields > 250 && methods > 25,
        "{fields} fields and {methods} methods were seen"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn talos_own_client_reads_a_simulated_machine_and_resets_it() {
    let sim = Sim::start(|_| {}).await;
    sim.until_removals_pass().await;
    let before = sim.client("cp-3").snapshot().await.unwrap();
    let members = sim.members().await;
    let leader = sim
        .client("cp-3")
        .etcd_status()
        .await
        .unwrap()
        .leader
        .unwrap();
    let file = sim.dir.path().join("talosconfig");
    std::fs::write(&file, sim.cluster.talosconfig().unwrap()).unwrap();
    let address = sim.node("cp-3").address().to_string();
    let report: Value = conformance(&[
        "drive",
        "-talosconfig",
        file.to_str().unwrap(),
        "-node",
        &address,
    ])
    .await;

    // Reads.
    let member_id = before.member_id.unwrap().to_string();
    assert_eq!(report["tag"], "v1.14.1");
    assert_eq!(
        (&report["platform"], &report["mode"], &report["rbac"]),
        (&json!("metal"), &json!("metal"), &json!(true))
    );
    assert_eq!(report["hostname"], "cp-3");
    assert!(report["bootTime"].as_u64().unwrap() > 1_600_000_000);
    assert_eq!(report["bootIDFile"], before.boot_id);
    assert_eq!(report["disks"], json!(["/dev/sda"]));
    let etcd = report["services"]
        .as_array()
        .unwrap()
        .iter()
        .find(|service| service["id"] == "etcd")
        .unwrap();
    assert_eq!(
        *etcd,
        json!({"id": "etcd", "state": "Running", "healthy": true, "message": "Health check successful"})
    );
    let listed: Vec<Value> = members
        .iter()
        .map(|member| json!({"id": member.id, "hostname": member.name, "peerURLs": member.peer_urls, "clientURLs": member.client_urls, "learner": false}))
        .collect();
    assert_eq!(report["members"], json!(listed));
    assert_eq!(report["localMembers"], json!(listed));
    assert_eq!(
        (&report["memberID"], &report["leader"], &report["learner"]),
        (&json!(member_id), &json!(leader.to_string()), &json!(false))
    );
    assert_eq!(report["alarms"], 0);
    // A database with its hash: a whole number of sectors and 32 bytes.
    assert_eq!(report["snapshotBytes"].as_u64().unwrap() % 512, 32);

    // Resources, through Talos' own types for them.
    let resources = json!({
        "hardwareUUID": before.hardware_uuid,
        "stage": "running ready=true",
        "memberID": member_id,
        "nodeID": before.node_id,
        "nodename": "cp-3",
        "machineType": "controlplane",
        "bootID": before.boot_id,
        "version": "v1.14.1",
        "cmdline": "talos.platform=metal console=ttyS0 init_on_alloc=1",
        "platform": "metal",
        "systemDisk": "/dev/sda",
        "hostname": "cp-3",
        "etcdService": "running=true healthy=true",
    });
    assert_eq!(report["resources"], resources);
    assert_eq!(
        report["volumes"]["STATE"],
        json!({"phase": "ready", "type": "partition", "location": "/dev/sda4", "parentID": ""})
    );
    assert_eq!(
        report["volumes"]["ETCD"],
        json!({"phase": "ready", "type": "directory", "location": "", "parentID": "EPHEMERAL"})
    );

    // Refusals, by the codes that Talos' tools tell them by.
    assert_eq!(report["missingIs"], "resource not found");
    assert_eq!(report["unknownTypeIs"], "PermissionDenied");
    assert_eq!(report["goneMemberIs"], "NotFound");
    assert_eq!(report["emptyConfigIs"], "InvalidArgument");

    // Leave and reset.
    assert_eq!(
        report["forfeitedTo"].as_str().unwrap().is_empty(),
        leader != before.member_id.unwrap()
    );
    let after: Vec<&str> = report["membersAfter"]
        .as_array()
        .unwrap()
        .iter()
        .map(|member| member["hostname"].as_str().unwrap())
        .collect();
    assert!(after.len() == 2 && !after.contains(&"cp-3"), "{after:?}");
    assert_eq!(report["hello"], true);
    let actor = report["actor"].as_str().unwrap();
    let events: Vec<(&str, &str, &str)> = report["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| {
            (
                event["type"].as_str().unwrap(),
                event["what"].as_str().unwrap(),
                event["actor"].as_str().unwrap(),
            )
        })
        .collect();
    let at = |wanted: (&str, &str, &str)| {
        events
            .iter()
            .position(|event| *event == wanted)
            .unwrap_or_else(|| panic!("no {wanted:?} in {events:?}"))
    };
    let stage = at(("MachineStatusEvent", "RESETTING", ""));
    let start = at(("SequenceEvent", "reset START", actor));
    let last = at(("TaskEvent", "stopAllServices START", actor));
    assert!(
        stage < start && start < last && last == events.len() - 1,
        "{events:?}"
    );

    // What its requests looked like to us.
    let resets = sim.calls("Reset");
    let partition = |label: &str| json!({"label": label, "wipe": true});
    let request = json!({
        "graceful": false,
        "reboot": true,
        "system_partitions_to_wipe": [partition("STATE"), partition("EPHEMERAL")],
        "user_disks_to_wipe": [],
        "mode": "ALL",
    });
    assert_eq!(
        resets.iter().map(|call| &call.request).collect::<Vec<_>>(),
        [&request]
    );
    let removals = sim.calls("EtcdRemoveMemberByID");
    assert_eq!(
        removals[0].request,
        json!({"member_id": 0xfeed_beef_cafe_u64.to_string()})
    );

    // Afterwards, without credentials.
    assert_eq!(
        report["maintenance"],
        json!({"hardwareUUID": before.hardware_uuid, "stage": "maintenance", "version": "v1.14.1"})
    );
    assert_eq!(report["etcdStatusThen"], "Unimplemented");
    let ours = ichor_talos::maintenance::probe_within(&address, SOON)
        .await
        .unwrap();
    assert_eq!(ours.hardware_uuid, before.hardware_uuid);
}
