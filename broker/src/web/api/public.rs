//! Public files of a course. Everyone in the course may name their chunks, so they are uploaded only once.

use super::{ApiError, Refusal, actions::Body, paging};
use crate::{
    clock::unix_ms,
    web::{Caller, Shared, hold_public},
};
use axum::{
    Extension, Json,
    extract::{Path, State},
};
use baton_broker_queue::{
    Account, AuditEntry, Identity, NotDone,
    courses::{Wrong, check_text},
};
use baton_broker_store::PublicFile;
use baton_protocol::{
    ChunkHash,
    api::{self, Page, Publication, Withdrawal},
};
use std::collections::BTreeSet;

/// About 120,000 names of chunks.
pub(super) const LARGEST_BODY: usize = 8 << 20;

/// The public files of a course, by name
///
/// For everyone in the course.
#[utoipa::path(get, path = "/v1/courses/{course}/files", operation_id = "public_files", params(("course" = String, Path)),
    responses((status = 200, body = Page<api::PublicFile>, description = "The answer"), Refusal))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(course): Path<String>,
) -> Result<Json<Page<api::PublicFile>>, ApiError> {
    check_member(&caller.identity, &course)?;
    let files = shared.store.public_files().of_course(&course).await?;
    Ok(Json(paging::whole(files.into_iter().map(shown).collect())))
}

/// Make a file public in a course
///
/// For its staff, who must have uploaded its chunks. It replaces a file of the same name.
#[utoipa::path(post, path = "/v1/courses/{course}/files", operation_id = "publish", params(("course" = String, Path)),
    request_body = Publication, responses((status = 200, body = api::PublicFile, description = "The published file"), Refusal))]
pub(super) async fn publish(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(course): Path<String>,
    Body(publication): Body<Publication>,
) -> Result<Json<api::PublicFile>, ApiError> {
    check_staff(&caller.identity, &course)?;
    let name = publication.name;
    check_text("name", &name).map_err(NotDone::from)?;
    let parsed: Result<BTreeSet<ChunkHash>, _> =
        publication.chunks.iter().map(|hash| hash.parse()).collect();
    let chunks = parsed.map_err(|error| ApiError::Body(error.to_string()))?;
    let chunks: Vec<ChunkHash> = chunks.into_iter().collect();
    if chunks.is_empty() {
        return Err(NotDone::from(Wrong::new("chunks", "is empty")).into());
    }
    let of = caller
        .identity
        .account(publication.owner.unwrap_or_default(), Some(course.clone()))
        .map_err(|_| NotDone::UnknownCourse(course.clone()))?;

    // Naming a chunk is not owning it, not even for staff.
    let held = shared.chunks.held(&shared.store, &of, &chunks).await?;
    let bytes = held.values().sum();
    check_room(&shared, &course, &name, bytes).await?;
    let file = PublicFile {
        course: course.clone(),
        name,
        person: caller.identity.person().map(str::to_owned),
        at_ms: unix_ms(),
        bytes,
        chunks,
    };
    let held: Vec<(ChunkHash, u64)> = held.into_iter().collect();
    hold(&shared, &of, &file, &held).await?;
    let entry = entry(
        &file,
        api::Action::Publish,
        Some(baton_humanize::bytes(bytes)),
    );
    shared
        .store
        .public_files()
        .publish(&file, &held, &entry)
        .await?;
    // Another file with some of these chunks may have been withdrawn before this one was listed.
    hold(&shared, &of, &file, &held).await?;
    Ok(Json(shown(file)))
}

/// Withdraw a public file of a course
///
/// For its staff. Cells that have already named it continue.
#[utoipa::path(post, path = "/v1/courses/{course}/files/withdraw", operation_id = "withdraw", params(("course" = String, Path)),
    request_body = Withdrawal, responses((status = 200, body = Page<api::PublicFile>, description = "The remaining files"), Refusal))]
pub(super) async fn withdraw(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(course): Path<String>,
    Body(withdrawal): Body<Withdrawal>,
) -> Result<Json<Page<api::PublicFile>>, ApiError> {
    check_staff(&caller.identity, &course)?;
    let name = withdrawal.name;
    let entry = AuditEntry {
        at_ms: unix_ms(),
        person: caller.identity.person().map(str::to_owned),
        action: api::Action::Withdraw,
        course: course.clone(),
        subject: name.clone(),
        detail: None,
    };
    if !shared.store.public_files().withdraw(&entry).await? {
        return Err(ApiError::UnknownFile { name });
    }
    let files = shared.store.public_files().of_course(&course).await?;
    Ok(Json(paging::whole(files.into_iter().map(shown).collect())))
}

fn check_member(identity: &Identity, course: &str) -> Result<(), NotDone> {
    let is_in = match identity.only_courses() {
        Some(mut courses) => courses.any(|own| own == course),
        None => true,
    };
    match is_in {
        true => Ok(()),
        false => Err(NotDone::UnknownCourse(course.to_owned())),
    }
}

fn check_staff(identity: &Identity, course: &str) -> Result<(), NotDone> {
    check_member(identity, course)?;
    match identity.may_steer(course) {
        true => Ok(()),
        false => Err(NotDone::StaffOnly),
    }
}

/// A course may have as many public bytes as a person may hold.
async fn check_room(shared: &Shared, course: &str, name: &str, bytes: u64) -> Result<(), ApiError> {
    let Some(limit_bytes) = shared.quotas.limit_bytes else {
        return Ok(());
    };
    let files = shared.store.public_files().of_course(course).await?;
    let others = files.iter().filter(|file| file.name != name);
    let public_bytes: u64 = others.map(|file| file.bytes).sum();
    match public_bytes + bytes <= limit_bytes {
        true => Ok(()),
        false => Err(ApiError::PublicLimit {
            public_bytes,
            limit_bytes,
        }),
    }
}

/// Makes the course a holder of the chunks, so that no sweep deletes one before the file is listed.
async fn hold(
    shared: &Shared,
    from: &Account,
    file: &PublicFile,
    held: &[(ChunkHash, u64)],
) -> Result<(), ApiError> {
    let all = file.chunks.len();
    let mut here = held.len();
    if here == all {
        here = hold_public(shared, from, &file.course, held, file.at_ms).await?;
    }
    match all - here {
        0 => Ok(()),
        missing => Err(ApiError::ChunksMissing { missing }),
    }
}

fn entry(file: &PublicFile, action: api::Action, detail: Option<String>) -> AuditEntry {
    AuditEntry {
        at_ms: file.at_ms,
        person: file.person.clone(),
        action,
        course: file.course.clone(),
        subject: file.name.clone(),
        detail,
    }
}

fn shown(file: PublicFile) -> api::PublicFile {
    api::PublicFile {
        name: file.name,
        bytes: file.bytes,
        chunks: file.chunks.len() as u64,
        person: file.person,
        published_ms: file.at_ms,
    }
}
