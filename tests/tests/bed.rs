//! The test bed itself.
use std::time::Instant;
use ichor_tests::bed::{Bed, BedOptions};
#[tokio::test(flavor = "multi_thread")]
async fn the_control_plane_comes_up() {
    let t = Instant::now();
    let bed = Bed::start(BedOptions { agents: 0, progress: std::sync::Arc::new(move |l| eprintln!("{:?} {l}", t.elapsed())), ..BedOptions::default() }).await.unwrap();
    eprintln!("{:?}", t.elapsed());
    for args in [&["get","nodes,tm,tcl,pods","-A","-o","wide"][..], &["get","all,leases","-A"][..]] {
    let out = bed.kubectl().args(args).output().unwrap();
    eprintln!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    }
    eprintln!("{:?}", t.elapsed());
    bed.stop().await.unwrap();
}
