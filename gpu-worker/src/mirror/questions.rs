//! Questions to the proxy about files.

use baton_mirror::{open_payload, small_payload};
use baton_protocol::files::{FilesAnswer, FilesWanted};
use baton_protocol::{Answer, JobEvent};
use baton_transport::ChunkClient;

use crate::questions::{Answered, Questions};
use crate::transfer::TransferError;

pub(super) fn ask(questions: &Questions, wanted: &FilesWanted) -> Answered {
    let wanted = small_payload(wanted);
    questions.ask(|question| JobEvent::FilesWanted { question, wanted })
}

pub(super) async fn answer(
    answered: Answered,
    chunk_client: &ChunkClient,
) -> Result<FilesAnswer, TransferError> {
    match answered.await {
        Ok(Answer::Files(answer)) => match open_payload(chunk_client, &answer).await? {
            FilesAnswer::Failed { reason } => Err(TransferError::AtHome { reason }),
            answer => Ok(answer),
        },
        Ok(_) => Err(TransferError::Answer),
        Err(_) => Err(TransferError::AtHome {
            reason: "the notebook kernel has ended".to_owned(),
        }),
    }
}

/// Asks a question and waits for its answer.
pub(super) async fn ask_and_wait(
    questions: &Questions,
    wanted: &FilesWanted,
    chunk_client: &ChunkClient,
) -> Result<FilesAnswer, TransferError> {
    answer(ask(questions, wanted), chunk_client).await
}
