use ichor_api::TalosMachine;
use ichor_rules::DirectReader;
use kube::runtime::reflector::Store;

fn reader(cache: Store<TalosMachine>) -> DirectReader {
    DirectReader::new(cache)
}

fn main() {}
