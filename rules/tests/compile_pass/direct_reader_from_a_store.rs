use ichor_rules::DirectReader;
use kube::Client;

fn reader(client: Client) -> DirectReader {
    DirectReader::new(client)
}

fn main() {}
