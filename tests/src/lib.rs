//! The test bed: a real control plane, simulated Talos nodes over real etcd, a kubelet
//! stand-in, a fault-injecting proxy and the agent, all on loopback (spec section 12).
//!
//! [`Bed`](bed::Bed) puts it all together; the program `playground` is the same bed for
//! people. Everything that is started dies with the process that started it.

pub mod agents;
pub mod assets;
pub mod bed;
pub mod controlplane;
pub mod egress;
pub mod error;
pub mod kubelet;
pub mod net;
pub mod playground;
pub mod process;
pub mod proxy;
pub mod scheduler;
pub mod shared;
pub mod sim;
pub mod wait;
pub mod workload;

pub use error::{BedError, Result};
