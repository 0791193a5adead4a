//! `baton people add`: gives a person or a worker a token, and writes what it opens into the people file.

use std::{collections::BTreeMap, io::Write, process::ExitCode};

use anyhow::Context;
use baton_broker::{People, Person, Role};
use clap::ArgMatches;

use crate::{
    service::{new_token, private_file},
    settings::Settings,
};

pub(crate) fn main(settings: &Settings, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let path = settings.broker_people_file.as_ref().context(
        "Which file? Name it with --people-file, BATON_BROKER_PEOPLE_FILE or broker.people_file",
    )?;
    let name = matches.get_one::<String>("name").context("Who?")?.clone();
    let failed = || format!("Failed to add {name} to {}", path.display());
    if path.exists() {
        let people = People::read(path).with_context(failed)?;
        anyhow::ensure!(
            !people.has(&name),
            "{name} is in {} already",
            path.display()
        );
    }
    let token = new_token();
    let is_worker = matches.get_flag("worker");
    let person = if is_worker {
        Person::new_worker(name.clone(), &token)
    } else {
        Person::new(
            name.clone(),
            &token,
            matches.get_flag("admin"),
            roles(matches),
        )
    };
    let mut options = std::fs::OpenOptions::new();
    let mut file = private_file(path, options.append(true).create(true)).with_context(failed)?;
    // In one write, because a broker may read the file at any time.
    file.write_all(format!("\n{}", person.entry()).as_bytes())
        .with_context(failed)?;
    println!("{token}");
    let reader = if is_worker {
        "the worker's user"
    } else {
        &name
    };
    eprintln!(
        "This is the token of {name}, shown once: it belongs into a file that only {reader} can read, named with BATON_TOKEN_FILE"
    );
    Ok(ExitCode::SUCCESS)
}

fn roles(matches: &ArgMatches) -> BTreeMap<String, Role> {
    let named = |argument, role| {
        let courses = matches.get_many::<String>(argument).unwrap_or_default();
        courses.map(move |course| (course.clone(), role))
    };
    named("course", Role::Student)
        .chain(named("staff-of", Role::Staff))
        .collect()
}
