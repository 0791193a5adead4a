//! Notices processes of sessions that use the GPU without time-sharing, because their calls do not reach the
//! interposer: with `RTLD_DEEPBIND`, or in libraries such as NVDEC and OptiX.
//!
//! In: the processes that the driver's monitoring reports, and those that have connected. Out: a request for each
//! process that has never connected.
//!
//! **Invariant:** a process is reported at most once.

use super::{Monitored, Token, arbitration::Request};
use crate::processes;
use baton_interposer::wire::TOKEN;
use nix::unistd::Pid;
use std::{collections::HashSet, time::Duration};
use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_blocking,
    time::sleep,
};

const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) async fn watch(gpu: Option<Monitored>, requests: mpsc::UnboundedSender<Request>) {
    let Some(gpu) = gpu else { return };
    // Processes that have connected or were reported, as long as they have a context or a connection.
    let mut known = HashSet::new();
    // Processes that were not known at the last look. One that has ended is still reported for a moment.
    let mut suspects = HashSet::new();
    loop {
        sleep(LOOK_EVERY).await;
        let (answer, answered) = oneshot::channel();
        let _ = requests.send(Request::TellProcesses(answer));
        let Ok(connected) = answered.await else {
            return;
        };
        let connected: HashSet<Pid> = connected.into_iter().collect();
        let with_context: HashSet<Pid> = gpu.processes().into_keys().collect();
        known.retain(|process| connected.contains(process) || with_context.contains(process));
        known.extend(&connected);
        let strangers: HashSet<Pid> = with_context.difference(&known).copied().collect();
        let confirmed: Vec<Pid> = strangers.intersection(&suspects).copied().collect();
        known.extend(&confirmed);
        suspects = strangers;
        let of_sessions = spawn_blocking(move || {
            let of = |process| Some((process, token_of(process)?));
            confirmed.into_iter().filter_map(of).collect::<Vec<_>>()
        });
        for (process, token) in of_sessions.await.unwrap_or_default() {
            let _ = requests.send(Request::Bypassed(token, process));
        }
    }
}

fn token_of(process: Pid) -> Option<Token> {
    Token::from_str_radix(&processes::variable_of(process, TOKEN)?, 16).ok()
}
