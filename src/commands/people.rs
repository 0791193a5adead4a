//! `baton people`: who may use a broker without a JupyterHub. It gives people and workers tokens,
//! and writes their permissions into the people file, which a running broker reloads by itself.

mod file;
mod roster;

use super::ask::text::table;
use crate::{
    service::new_token,
    settings::{Settings, Value},
};
use anyhow::Context;
use baton_broker::{People, Person, Role};
use clap::ArgMatches;
use file::PeopleFile;
use jiff::{Timestamp, tz::TimeZone};
use std::{collections::BTreeMap, path::PathBuf, process::ExitCode, time::Duration};

pub(crate) fn main(
    settings: &Settings,
    command: &str,
    matches: &ArgMatches,
) -> anyhow::Result<ExitCode> {
    let path = settings.broker_people_file.as_ref().context(
        "No people file is set\nhint: name it with --people-file, BATON_BROKER_PEOPLE_FILE or broker.people_file",
    )?;
    match command {
        "add" => add(PeopleFile::open_or_create(path)?, matches),
        "import" => import(PeopleFile::open_or_create(path)?, matches),
        "list" => list(&People::read(path).with_context(|| file::unreadable(path))?),
        "remove" => remove(PeopleFile::open(path)?, matches),
        "rotate" => rotate(PeopleFile::open(path)?, matches),
        other => anyhow::bail!("There is no command people {other}"),
    }
}

fn add(mut file: PeopleFile, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let name = name(matches)?;
    anyhow::ensure!(
        !file.has(&name),
        "{name} is in {} already\nhint: `baton people rotate {name}` gives {name} another token",
        file.path().display()
    );
    let token = new_token();
    let is_worker = matches.get_flag("worker");
    let mut person = if is_worker {
        Person::new_worker(name, &token)
    } else {
        Person::new(name, &token, matches.get_flag("admin"), roles(matches))
    };
    person.expires = expires(matches)?;
    file.add(&person)?;
    file.write()?;
    show_token(&person.name, &token, is_worker);
    Ok(ExitCode::SUCCESS)
}

/// Adds people who are not in the file, and courses for those who are. Prints the new tokens as CSV.
fn import(mut file: PeopleFile, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let roster: &PathBuf = matches.get_one("roster").context("Which roster?")?;
    let course = matches.get_one::<String>("course").map(String::as_str);
    let expires = expires(matches)?;
    let people = roster::read(roster, course)
        .with_context(|| format!("Failed to read {}", roster.display()))?;
    let mut printed = csv::Writer::from_writer(std::io::stdout());
    let mut tokens = Vec::new();
    let mut changed = 0;
    for (name, courses) in people {
        if file.has(&name) {
            changed += usize::from(file.add_courses(&name, &courses));
            continue;
        }
        let token = new_token();
        let mut person = Person::new(name.clone(), &token, false, courses);
        person.expires = expires;
        file.add(&person)?;
        tokens.push([name, token]);
    }
    file.write()?;
    let added = tokens.len();
    if added > 0 {
        printed.write_record(["name", "token"])?;
    }
    for token in tokens {
        printed.write_record(token)?;
    }
    printed.flush()?;
    eprintln!("Added {added} people, and changed the course or role of {changed}");
    if added > 0 {
        eprintln!(
            "Their tokens are above, shown once: give each person only their own line, and keep no copy"
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn list(people: &People) -> anyhow::Result<ExitCode> {
    let mut people: Vec<&Person> = people.iter().collect();
    people.sort_by(|one, other| one.name.cmp(&other.name));
    let rows = people.into_iter().map(|person| {
        let expires = person.expires.map_or_else(String::new, |at| {
            at.to_zoned(TimeZone::system())
                .strftime("%Y-%m-%d %H:%M")
                .to_string()
        });
        [person.name.clone(), what(person), expires]
    });
    print!(
        "{}",
        table(["NAME", "IS", "EXPIRES"], rows, "No people yet")
    );
    Ok(ExitCode::SUCCESS)
}

fn remove(mut file: PeopleFile, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let names: Vec<&String> = matches.get_many("name").unwrap_or_default().collect();
    for name in &names {
        file.remove(name)?;
    }
    file.write()?;
    for name in names {
        eprintln!("{name} was removed: the token no longer works");
    }
    Ok(ExitCode::SUCCESS)
}

fn rotate(mut file: PeopleFile, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let name = name(matches)?;
    let token = new_token();
    let is_worker = file.set_token(&name, &token, expires(matches)?)?;
    file.write()?;
    show_token(&name, &token, is_worker);
    Ok(ExitCode::SUCCESS)
}

fn show_token(name: &str, token: &str, is_worker: bool) {
    println!("{token}");
    let reader = if is_worker { "the worker's user" } else { name };
    eprintln!(
        "This is the token of {name}, shown once: put it into a file that only {reader} can read, and name the file with BATON_TOKEN_FILE"
    );
}

fn name(matches: &ArgMatches) -> anyhow::Result<String> {
    matches.get_one("name").cloned().context("Who?")
}

/// A duration from now, such as `30d`, or a point in time.
fn expires(matches: &ArgMatches) -> anyhow::Result<Option<Timestamp>> {
    let Some(text) = matches.get_one::<String>("expires") else {
        return Ok(None);
    };
    let after = Duration::parse(text).map(|after| Timestamp::now().checked_add(after));
    let at = after.unwrap_or_else(|| text.parse());
    let at = at.ok().with_context(|| {
        format!("{text} is not a time\nhint: write 30d, or a time such as 2027-02-28T18:00:00Z")
    })?;
    anyhow::ensure!(at > Timestamp::now(), "{text} is in the past");
    Ok(Some(at))
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

fn what(person: &Person) -> String {
    let of_courses = person.courses.iter().map(|(course, role)| match role {
        Role::Student => format!("student of {course}"),
        Role::Staff => format!("staff of {course}"),
    });
    let named = [(person.worker, "worker"), (person.admin, "admin")];
    let named = named.iter().filter(|(is, _)| *is);
    let all: Vec<String> = named
        .map(|(_, what)| (*what).to_owned())
        .chain(of_courses)
        .collect();
    match all.is_empty() {
        true => "of no course".to_owned(),
        false => all.join(", "),
    }
}
