//! What reached the simulated nodes.

use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use tonic::Code;

/// One call that reached a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Call {
    /// When it arrived.
    pub time: Timestamp,
    /// The node that it reached.
    pub node: String,
    /// The method without its service, such as `Reset`.
    pub method: String,
    /// The request in the message's own field names, defaults written.
    pub request: Value,
    /// The gRPC code of the node's answer, whether or not that reached the caller; empty
    /// while there is none.
    pub code: String,
}

/// All of them, in the order of their arrival.
#[derive(Clone, Debug, Default)]
pub(super) struct CallLog(Arc<Mutex<Vec<Call>>>);

/// One call under way.
pub(super) struct Open {
    log: CallLog,
    index: usize,
}

impl CallLog {
    pub(super) fn begin(&self, node: &str, method: &str, request: Value) -> Open {
        let mut calls = self.lock();
        calls.push(Call {
            time: Timestamp::now(),
            node: node.to_owned(),
            method: method.to_owned(),
            request,
            code: String::new(),
        });
        Open {
            log: self.clone(),
            index: calls.len() - 1,
        }
    }

    pub(super) fn all(&self) -> Vec<Call> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Call>> {
        super::lock(&self.0)
    }
}

impl Open {
    pub(super) fn answered(&self, code: Code) {
        if let Some(call) = self.log.lock().get_mut(self.index) {
            name(code).clone_into(&mut call.code);
        }
    }
}

/// gRPC's own name of a code.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
