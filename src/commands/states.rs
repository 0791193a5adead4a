//! `baton states`: a person's saved notebook variables at the broker, without a notebook.

use super::ask::{client, run, shown, text};
use crate::{service, settings::Settings};
use baton_transport::ChunkClient;
use clap::ArgMatches;
use nix::unistd::{Uid, User};
use std::process::ExitCode;

pub(crate) fn main(settings: &Settings, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    // If there is no broker yet, its error says what to do.
    client(settings)?;
    let course = matches.get_one::<String>("course").cloned();
    // The owner's name that this user's notebooks send to a broker without known people.
    let user = User::from_uid(Uid::current())?;
    let owner = user.map_or_else(|| Uid::current().to_string(), |user| user.name);
    let states = ChunkClient::new(&service::dial(settings)?)?
        .of_owner(owner, course.or_else(|| settings.course.clone()));
    run(async {
        if let Some(name) = matches.get_one::<String>("delete") {
            states.delete_state(name).await?;
        }
        let left = states.states().await?;
        shown(
            left.as_slice(),
            matches.get_flag("json"),
            text::saved_states,
        )
    })
}
