//! The state of one call: out of the notebook kernel before the cell, and home after it.

use baton_chunks::Ledger;
use baton_protocol::shim::{Snapshot, ToNotebook};
use baton_protocol::{Outcome, SessionId, State, StateVersion};
use baton_transport::{Backoff, Held};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Journey;
use super::current::{Call, Stop};
use super::files::undo_files;
use super::follow::Finished;
use super::rest::{Late, Stage};
use crate::journey::failure::Failure;
use crate::journey::link::describe;
use crate::journey::moving::{self, Outgoing, Received};
use crate::journey::notice::{Notice, Waiting};

/// What the session holds.
#[derive(Clone)]
pub(super) struct Home {
    /// What it holds once it has applied all that it was sent.
    pub(super) version: StateVersion,
    pub(super) ledger: Ledger,
}

impl Home {
    fn fresh() -> Self {
        Self {
            version: StateVersion {
                session: SessionId::random(),
                messages: 0,
            },
            ledger: Ledger::default(),
        }
    }
}

impl Journey {
    /// Brings what the session lacks to where its worker can have it. The shim's memory was read then, which
    /// [`Call::release`] tells it.
    pub(super) async fn send_state(
        &mut self,
        call: &mut Call<'_>,
        snapshot: Snapshot,
    ) -> Result<State, Stop> {
        call.notice.waits(Waiting::Moving);
        let mut snapshot = snapshot;
        let home = loop {
            match self.home.take() {
                _ if snapshot.messages == 0 => {
                    self.files.session_is_new();
                    break Home::fresh();
                }
                Some(home) if home.version.messages == snapshot.messages => break home,
                _ => snapshot = call.whole_state().await?,
            }
        };
        let lanes = self.lanes(call, self.patience).await?;
        let cancel = CancellationToken::new();
        let outgoing = Outgoing {
            base: home.version,
            snapshot,
            ledger: home.ledger,
        };
        let sending = self.moving.send(outgoing, &lanes, &cancel);
        tokio::pin!(sending);
        let mut stop = None;
        let sent = loop {
            let look = call.notice.next_look(call.now());
            tokio::select! {
                sent = &mut sending => break sent,
                () = tokio::time::sleep(look) => {
                    self.put_out(call, Notice::look);
                }
                stopped = call.stopped(), if stop.is_none() => {
                    stop = Some(stopped);
                    cancel.cancel();
                }
            }
        };
        match (sent, stop) {
            (_, Some(stop)) => Err(stop),
            (Err(error), None) => Err(Failure::moving(&error, call.job).into()),
            (Ok(sent), None) => {
                self.home = Some(Home {
                    version: home.version.after_message(),
                    ledger: sent.ledger,
                });
                call.held = sent.held;
                Ok(sent.state)
            }
        }
    }

    pub(super) async fn bring_home(
        &mut self,
        call: &mut Call<'_>,
        finished: Finished,
    ) -> Result<(), Stop> {
        let Finished {
            outcome,
            error,
            state,
            usage,
            files,
            away_bytes,
        } = finished;
        let home = self.home.take();
        let (Some(state), Some(home)) = (state, home) else {
            return Err(match (outcome, error) {
                (Outcome::Cancelled, _) => Stop::Cancelled,
                (outcome, Some(error)) => Failure { outcome, error }.into(),
                (_, None) => Failure::job_lost(call.job).into(),
            });
        };
        let (file, delta, ledger) = self.fetch(call, state, home.ledger).await?;
        let files = self.bring_files(call, files).await?;
        let message = ToNotebook::Finished {
            call: call.number,
            outcome,
            error,
            delta: Some(delta),
            summary: self.summary(call, usage),
        };
        let file = std::os::fd::AsFd::as_fd(&file);
        call.writer.send_with_file(&message, file).await?;
        let applied = call.applied().await;
        let mut files = files;
        if !matches!(applied, Ok(true)) {
            undo_files(files.take()).await;
        }
        if !applied? {
            self.tell_of_files(call).await;
            self.close_comms(call);
            let nothing_came = Some(Outcome::WorkerLost);
            self.link.give_up(call.job, nothing_came).await;
            self.want_rest().await;
            return Ok(());
        }
        if let Some(files) = files {
            self.files.keep(files).await;
        }
        call.comms.clear();
        self.session_on = call.worker.take();
        let home = Home {
            version: home.version.after_message(),
            ledger,
        };
        let late = (away_bytes > 0).then(|| Late {
            job: call.job,
            call: call.number,
            home: home.clone(),
            held: call.held.take().inspect(Held::keep_for_results),
            stage: Stage::Waiting,
            backoff: Backoff::default(),
        });
        self.home = Some(home);
        if late.is_none() {
            self.link.applied(call.job).await;
        }
        self.set_late(late).await;
        Ok(())
    }

    /// What the cell changed is nowhere else any more, so trying again ends with the patience only.
    async fn fetch(
        &mut self,
        call: &mut Call<'_>,
        state: State,
        ledger: Ledger,
    ) -> Result<Received, Stop> {
        let (began, mut backoff) = (Instant::now(), Backoff::default());
        let held = call.held.take();
        let mut next = Some((state, ledger));
        while let Some((state, ledger)) = next.take() {
            let lanes = self.lanes(call, self.patience).await?;
            // What comes past the broker comes once.
            let again = matches!(state, State::Chunks(_)).then(|| (state.clone(), ledger.clone()));
            let fetched = tokio::select! {
                fetched = moving::receive(state, ledger, held.as_ref(), &lanes.chunks) => fetched,
                stop = call.stopped() => return Err(stop),
            };
            let error = match fetched {
                Ok(received) => {
                    call.held = held;
                    return Ok(received);
                }
                Err(error) => error,
            };
            if !error.is_transient() || began.elapsed() > self.patience {
                return Err(Failure::result_lost(&error, call.job).into());
            }
            tracing::info!(
                error = describe(&error),
                "A cell's result could not be fetched yet"
            );
            next = again;
            tokio::select! {
                () = tokio::time::sleep(backoff.next_delay()) => {}
                stop = call.stopped() => return Err(stop),
            }
        }
        Err(Failure::job_lost(call.job).into())
    }
}
