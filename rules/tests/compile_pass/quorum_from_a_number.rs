use ichor_rules::deletion::quorum;
use ichor_rules::{ApprovedControlPlanes, Check};

fn ask(counted: &ApprovedControlPlanes) -> Check {
    quorum(counted, "cp-1")
}

fn main() {}
