//! Requests as they are written down: the messages' own field names, every default written, 64-bit
//! numbers as strings, as in protobuf's JSON.

use ichor_talos::proto::{cosi, machine};
use serde_json::{Value, json};

pub(super) fn reset(request: &machine::ResetRequest) -> Value {
    let partitions: Vec<Value> = request
        .system_partitions_to_wipe
        .iter()
        .map(|partition| json!({ "label": partition.label, "wipe": partition.wipe }))
        .collect();
    json!({
        "graceful": request.graceful,
        "reboot": request.reboot,
        "system_partitions_to_wipe": partitions,
        "user_disks_to_wipe": request.user_disks_to_wipe,
        "mode": request.mode().as_str_name(),
    })
}

pub(super) fn reboot(request: machine::RebootRequest) -> Value {
    json!({ "mode": request.mode().as_str_name() })
}

pub(super) fn shutdown(request: machine::ShutdownRequest) -> Value {
    json!({ "force": request.force })
}

pub(super) fn upgrade(request: &machine::UpgradeRequest) -> Value {
    json!({
        "image": request.image,
        "preserve": request.preserve,
        "stage": request.stage,
        "force": request.force,
        "reboot_mode": request.reboot_mode().as_str_name(),
    })
}

pub(super) fn bootstrap(request: machine::BootstrapRequest) -> Value {
    json!({
        "recover_etcd": request.recover_etcd,
        "recover_skip_hash_check": request.recover_skip_hash_check,
    })
}

pub(super) fn member_list(request: machine::EtcdMemberListRequest) -> Value {
    json!({ "query_local": request.query_local })
}

pub(super) fn remove_member(request: machine::EtcdRemoveMemberByIdRequest) -> Value {
    json!({ "member_id": request.member_id.to_string() })
}

pub(super) fn events(request: &machine::EventsRequest) -> Value {
    json!({
        "tail_events": request.tail_events,
        "tail_id": request.tail_id,
        "tail_seconds": request.tail_seconds,
        "with_actor_id": request.with_actor_id,
    })
}

pub(super) fn read(request: &machine::ReadRequest) -> Value {
    json!({ "path": request.path })
}

/// Without the configuration itself, which holds secrets: its size.
pub(super) fn apply(request: &machine::ApplyConfigurationRequest) -> Value {
    json!({
        "data": format!("({} bytes)", request.data.len()),
        "mode": request.mode().as_str_name(),
        "dry_run": request.dry_run,
        "try_mode_timeout": request.try_mode_timeout.map(|timeout| format!("{}s", timeout.seconds)),
    })
}

pub(super) fn lifecycle_upgrade(request: &machine::LifecycleServiceUpgradeRequest) -> Value {
    let image = request
        .source
        .as_ref()
        .map(|source| source.image_name.clone());
    json!({ "source": { "image_name": image.unwrap_or_default() } })
}

pub(super) fn pull(request: &machine::ImageServicePullRequest) -> Value {
    json!({ "image_ref": request.image_ref })
}

pub(super) fn get(request: &cosi::GetRequest) -> Value {
    json!({ "namespace": request.namespace, "type": request.r#type, "id": request.id })
}

pub(super) fn list(request: &cosi::ListRequest) -> Value {
    json!({ "namespace": request.namespace, "type": request.r#type })
}

pub(super) fn watch(request: &cosi::WatchRequest) -> Value {
    json!({ "namespace": request.namespace, "type": request.r#type, "id": request.id.clone().unwrap_or_default() })
}
