//! Why a cell ends early, and whether it can reach the broker.

use super::{
    failure::{Absence, Failure},
    link::BrokerAccess,
};
use baton_protocol::{CallId, shim::Run};
use baton_transport::frames::FrameError;

/// Whether a cell can reach the broker now.
pub(super) enum Connection {
    Up(BrokerAccess),
    /// It is worth waiting for.
    Down(Absence),
}

/// Why a cell ends without a result.
pub(super) enum Stop {
    Cancelled,
    /// The shim accepts no more messages about the cell.
    GivenUp,
    Replaced(Box<Run>),
    /// The kernel is about to end, and asks with this call how to save its variables.
    Ending(CallId),
    KernelGone,
    Failed(Box<Failure>),
    /// The cell's changes do not fit here, or cannot arrive here. Another call or kernel can attach the cell.
    Detached(Box<Failure>),
    Shim(FrameError),
}

impl From<FrameError> for Stop {
    fn from(error: FrameError) -> Self {
        Self::Shim(error)
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(Box::new(failure))
    }
}
