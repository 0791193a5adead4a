//! Questions to the proxy about files.

use super::MirrorError;
use crate::questions::{Answered, Questions, UnexpectedAnswer};
use baton_mirror::{open_payload, small_payload};
use baton_protocol::{
    Answer, JobEvent,
    files::{FilesAnswer, FilesWanted},
};
use baton_transport::ChunkClient;

pub(super) fn ask(questions: &Questions, wanted: &FilesWanted) -> Answered {
    let wanted = small_payload(wanted);
    questions.ask(|question| JobEvent::FilesWanted { question, wanted })
}

pub(super) async fn answer(
    answered: Answered,
    chunk_client: &ChunkClient,
) -> Result<FilesAnswer, MirrorError> {
    match answered.await {
        Ok(Answer::Files(answer)) => match open_payload(chunk_client, &answer).await? {
            FilesAnswer::Failed { reason } => Err(MirrorError::AtHome { reason }),
            answer => Ok(answer),
        },
        Ok(_) => Err(UnexpectedAnswer.into()),
        Err(_) => Err(MirrorError::AtHome {
            reason: "the notebook kernel has ended".to_owned(),
        }),
    }
}

/// Asks a question and waits for its answer.
pub(super) async fn ask_and_wait(
    questions: &Questions,
    wanted: &FilesWanted,
    chunk_client: &ChunkClient,
) -> Result<FilesAnswer, MirrorError> {
    answer(ask(questions, wanted), chunk_client).await
}
