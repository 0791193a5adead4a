//! Everything that the broker decides: which job runs where, who may do what, and what is then
//! stored and sent.
//!
//! Start at [`Dispatch`], the state machine. `baton-broker-store` stores its [`record`]s; the
//! broker's loop calls it.
//!
//! **Invariant:** no I/O, no clock, no async, no logging.

pub mod courses;
pub mod pools;
pub mod record;
#[cfg(any(test, feature = "samples"))]
pub mod samples;

mod bounds;
mod dispatch;
mod identity;
mod questions;
mod requirements;
mod spent;
mod stop_reason;
mod unwelcome;

pub use baton_scheduling::queue::Account;
pub use bounds::{WorkerHello, check_hello};
pub use dispatch::{
    Action, Activity, Assignment, Batch, Command, ConnectionId, Dispatch, Ending, Graces, Job,
    JobView, NotDone, Now, Observation, Overview, Severity, Waiting, WorkerView,
};
pub use identity::{Identity, Role};
pub use questions::MOST_OPEN_QUESTIONS;
pub use record::{AuditEntry, Loaded, MemoryCurve, OpenJob, Phase, Remainder, Write};
pub use requirements::of_cell;
pub use spent::Spent;
pub use stop_reason::StopReason;
pub use unwelcome::{Unwelcome, fits, measured};
