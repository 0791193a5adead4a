//! The changes of a page, as server-sent events: at most once a second, and only the parts that differ.

use super::{Facts, capacity, facts, job, layout::Fragment, now, workers};
use crate::web::{Caller, Shared, api::ApiError, limited};
use axum::{
    Extension,
    extract::{Query, State},
    response::{
        IntoResponse, Response,
        sse::{self, KeepAlive, Sse},
    },
};
use baton_protocol::JobId;
use futures_util::{Stream, StreamExt, stream};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::time::sleep;

const UPDATE_EVERY: Duration = Duration::from_secs(1);

#[derive(serde::Deserialize)]
pub(super) struct Asked {
    of: Option<Of>,
    id: Option<String>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Of {
    Now,
    Workers,
    Capacity,
    Job,
}

#[derive(Clone, Copy)]
enum Watched {
    Now,
    Workers,
    Capacity,
    Job(JobId),
}

impl Watched {
    fn update_every(self) -> Duration {
        match self {
            Self::Capacity => capacity::UPDATE_EVERY,
            Self::Now | Self::Workers | Self::Job(_) => UPDATE_EVERY,
        }
    }
}

pub(super) async fn live(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Query(asked): Query<Asked>,
) -> Result<Response, ApiError> {
    let watched = match asked.of {
        None | Some(Of::Now) => Watched::Now,
        Some(Of::Workers) => Watched::Workers,
        Some(Of::Capacity) => Watched::Capacity,
        Some(Of::Job) => {
            let job = asked.id.unwrap_or_default();
            let known = job.parse().map_err(|_| ApiError::UnknownJob { job })?;
            Watched::Job(known)
        }
    };
    let person = limited(&caller.identity);
    let counted = person
        .map(|person| shared.of_person.open(person))
        .transpose()?;
    let access = Arc::clone(&shared.access);
    let until = caller.clone();
    let until = async move { access.until_changed(&until).await };
    let updates = updates(shared, caller, watched).take_until(Box::pin(until));
    let updates = updates.inspect(move |_| _ = &counted);
    Ok(Sse::new(updates)
        .keep_alive(KeepAlive::default())
        .into_response())
}

/// Ends with the broker. The page then reconnects by itself.
fn updates(
    shared: Shared,
    caller: Caller,
    watched: Watched,
) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let known: Vec<Fragment> = Vec::new();
    let rounds = stream::unfold(
        (shared, caller, known),
        move |(shared, caller, known)| async move {
            let stop = shared.stop.clone();
            if !known.is_empty() {
                tokio::select! {
                    () = sleep(watched.update_every()) => {}
                    () = stop.cancelled() => return None,
                }
            }
            let newest = fragments(&shared, &caller, watched).await?;
            let changed = event(newest.iter().filter(|fragment| !known.contains(fragment)));
            Some((stream::iter(changed.map(Ok)), (shared, caller, newest)))
        },
    );
    rounds.flatten()
}

async fn fragments(shared: &Shared, caller: &Caller, watched: Watched) -> Option<Vec<Fragment>> {
    if let Watched::Job(job) = watched {
        return job::live(shared, caller, job).await;
    }
    if let Watched::Capacity = watched {
        return capacity::fragments(shared, caller).await.ok();
    }
    let facts: Facts = facts::some(facts::look(shared, caller).await.map(Some))?;
    Some(match watched {
        Watched::Workers => workers::fragments(&facts),
        _ => now::fragments(&facts, caller),
    })
}

/// htmx replaces the element with the id of each part.
fn event<'parts>(changed: impl Iterator<Item = &'parts Fragment>) -> Option<sse::Event> {
    let parts: Vec<String> = changed
        .map(|(id, html)| {
            format!("<hx-partial hx-target=\"#{id}\" hx-swap=\"innerMorph\">{html}</hx-partial>")
        })
        .collect();
    // A name may contain any character, but an event must not contain carriage returns.
    (!parts.is_empty()).then(|| sse::Event::default().data(parts.concat().replace('\r', " ")))
}
