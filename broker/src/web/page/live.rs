//! The changes of a page, as server-sent events: at most once a second, and only the parts that differ.

use super::{
    Facts, capacity,
    facts::{self, Past},
    job,
    layout::Fragment,
    now, workers,
};
use crate::web::{ApiError, Caller, Shared, limited};
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

/// What an open page shows.
#[derive(Default)]
struct Shown {
    fragments: Vec<Fragment>,
    past: Option<Arc<Past>>,
}

impl Shown {
    fn without_past(fragments: Option<Vec<Fragment>>) -> Option<Self> {
        let past = None;
        fragments.map(|fragments| Self { fragments, past })
    }
}

/// Ends with the broker. The page then reconnects by itself.
fn updates(
    shared: Shared,
    caller: Caller,
    watched: Watched,
) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let rounds = stream::unfold(
        (shared, caller, Shown::default()),
        move |(shared, caller, shown)| async move {
            let stop = shared.stop.clone();
            if !shown.fragments.is_empty() {
                tokio::select! {
                    () = sleep(watched.update_every()) => {}
                    () = stop.cancelled() => return None,
                }
            }
            let newest = look(&shared, &caller, watched, shown.past).await?;
            let known = shown.fragments;
            let fragments = newest.fragments.iter();
            let changed = event(fragments.filter(|fragment| !known.contains(fragment)));
            Some((stream::iter(changed.map(Ok)), (shared, caller, newest)))
        },
    );
    rounds.flatten()
}

async fn look(
    shared: &Shared,
    caller: &Caller,
    watched: Watched,
    past: Option<Arc<Past>>,
) -> Option<Shown> {
    let of_facts: fn(&Facts, &Caller) -> Vec<Fragment> = match watched {
        Watched::Job(job) => return Shown::without_past(job::live(shared, caller, job).await),
        Watched::Capacity => {
            return Shown::without_past(capacity::fragments(shared, caller).await.ok());
        }
        Watched::Now => now::fragments,
        Watched::Workers => |facts, _| workers::fragments(facts),
    };
    let facts = facts::look_again(shared, caller, past).await;
    let facts: Facts = facts::some(facts.map(Some))?;
    Some(Shown {
        fragments: of_facts(&facts, caller),
        past: Some(facts.past),
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
