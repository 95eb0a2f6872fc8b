use ichor_rules::deletion::{TargetHealth, declared_count};
use ichor_rules::{ApprovedControlPlanes, Check};

fn ask(counted: &ApprovedControlPlanes) -> Check {
    declared_count(counted, "cp-1", 3, TargetHealth::Healthy)
}

fn main() {}
