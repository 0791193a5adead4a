//! `baton states`: a person's saved notebook variables at the broker, without a notebook.

use super::ask::{client, run, shown, text};
use crate::{service, settings::Settings};
use baton_transport::{ChunkClient, states};
use clap::Args;
use nix::unistd::{Uid, User};
use std::process::ExitCode;

/// List your saved states of notebooks (%gpu_save)
#[derive(Args)]
pub(crate) struct States {
    /// The course; not needed if you are in only one
    #[arg(long)]
    course: Option<String>,
    /// Delete this state
    #[arg(long, value_name = "NAME")]
    delete: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(settings: &Settings, of: &States) -> anyhow::Result<ExitCode> {
    // If there is no broker yet, its error says what to do.
    client(settings)?;
    // The owner's name that this user's notebooks send to a broker without known people.
    let user = User::from_uid(Uid::current())?;
    let owner = user.map_or_else(|| Uid::current().to_string(), |user| user.name);
    let chunks = ChunkClient::new(&service::dial(settings)?)?
        .of_owner(owner, of.course.clone().or_else(|| settings.course.clone()));
    run(async {
        if let Some(name) = &of.delete {
            states::delete(&chunks, name).await?;
        }
        let left = states::all(&chunks).await?;
        shown(left.as_slice(), of.json, text::saved_states)
    })
}
