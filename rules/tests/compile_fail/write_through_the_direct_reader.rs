use ichor_rules::DirectReader;

fn writer(reader: &DirectReader) -> kube::Client {
    reader.client.clone()
}

fn main() {}
