//! What the peers of the model send, as far as it matters for a job.

use super::*;

#[derive(Clone, Hash)]
pub(super) enum Up {
    /// The hello is built from this when it is sent.
    WorkerHello(Option<Known>),
    ProxyHello,
    Events {
        fencing: FencingNumber,
        first: u64,
        events: Vec<Event>,
    },
    Submit,
    Resume(u64),
    Answer(u64),
    Cancel,
    Applied,
}

/// What a worker reports about its assignment in a hello.
#[derive(Clone, Copy, Hash)]
pub(super) struct Known {
    pub(super) fencing: FencingNumber,
    pub(super) number: u64,
    pub(super) started: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Event {
    StateWanted(u64),
    Started,
    Finished,
}

/// What a proxy needs to know about an event.
#[derive(Clone, Copy, Hash)]
pub(super) struct Numbered {
    pub(super) number: u64,
    pub(super) question: Option<u64>,
    pub(super) is_last: bool,
}

#[derive(Clone, Hash)]
pub(super) enum Down {
    Welcome,
    Assign(FencingNumber),
    Acknowledge(FencingNumber, u64),
    Revoke(FencingNumber),
    CancelJob,
    Answer(u64),
    Events(Vec<Numbered>),
    Closed,
    UnknownJob,
}
