//! `baton people`: who may use a broker without a JupyterHub. It gives people and workers tokens,
//! and writes their permissions into the people file, which a running broker reloads by itself.
//!
//! **Invariant:** no token is valid that could not be printed. So tokens are printed before the file
//! changes.

mod file;
mod roster;

use super::ask::text::table;
use crate::{
    arguments::read_name,
    service::new_token,
    settings::{Settings, Value},
};
use anyhow::Context;
use baton_broker::{People, Person, Role};
use clap::{Args, Subcommand};
use file::PeopleFile;
use jiff::{Timestamp, tz::TimeZone};
use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// Manage who may use the broker, without a Hub
#[derive(Subcommand)]
pub(crate) enum PeopleAction {
    /// Make a token for a person or a worker, and print it
    Add(Add),
    /// Add all people of a roster, and print their tokens as CSV
    Import(Import),
    /// List people and workers with their roles
    List,
    /// Remove people or workers: their tokens stop working
    Remove {
        /// The name of the person or worker
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
    },
    /// Replace the token of a person or a worker, and print the new one, which expires when the earlier one would have
    Rotate {
        /// The name of the person or worker
        name: String,
        #[command(flatten)]
        expiry: Expiry,
    },
}

#[derive(Args)]
pub(crate) struct Add {
    /// The name of the person or worker
    #[arg(value_parser = read_name)]
    name: String,
    /// A course that the person takes
    #[arg(long, value_parser = read_name)]
    course: Vec<String>,
    /// A course that the person is staff of
    #[arg(long, value_name = "COURSE", value_parser = read_name)]
    staff_of: Vec<String>,
    /// The person is an admin and can see everything
    #[arg(long)]
    admin: bool,
    /// The token is for a worker, not for a person
    #[arg(long, conflicts_with_all = ["course", "staff_of", "admin"])]
    worker: bool,
    #[command(flatten)]
    expiry: Expiry,
}

#[derive(Args)]
pub(crate) struct Import {
    /// Its columns are name, course and role (student or staff)
    #[arg(value_name = "ROSTER.csv")]
    roster: PathBuf,
    /// The course for lines without a course
    #[arg(long, value_parser = read_name)]
    course: Option<String>,
    #[command(flatten)]
    expiry: Expiry,
}

#[derive(Args)]
pub(crate) struct Expiry {
    /// When the token expires: 30d, a time such as 2027-02-28T18:00:00Z, or never
    #[arg(long, value_name = "WHEN")]
    expires: Option<String>,
}

pub(crate) fn main(settings: &Settings, action: &PeopleAction) -> anyhow::Result<ExitCode> {
    let path = settings.broker_people_file.as_ref().context(
        "No people file is set\nhint: name it with --people-file, BATON_BROKER_PEOPLE_FILE or broker.people_file",
    )?;
    match action {
        PeopleAction::Add(add) => add.run(path),
        PeopleAction::Import(import) => import.run(path),
        PeopleAction::List => list(&People::read(path).with_context(|| file::unreadable(path))?),
        PeopleAction::Remove { names } => remove(PeopleFile::open(path)?, names),
        PeopleAction::Rotate { name, expiry } => rotate(PeopleFile::open(path)?, name, expiry),
    }
}

impl Add {
    fn run(&self, path: &Path) -> anyhow::Result<ExitCode> {
        let name = &self.name;
        let expires = self.expiry.at()?;
        let mut file = PeopleFile::open_or_create(path)?;
        anyhow::ensure!(
            !file.has(name),
            "{name} is in {} already\nhint: `baton people rotate {name}` gives {name} another token",
            file.path().display()
        );
        let token = new_token();
        let mut person = match self.worker {
            true => Person::new_worker(name.clone(), &token),
            false => Person::new(name.clone(), &token, self.admin, self.roles()),
        };
        person.expires = expires;
        file.add(&[person])?;
        give_token(&file, name, &token, self.worker)
    }

    fn roles(&self) -> BTreeMap<String, Role> {
        let students = self.course.iter().map(|course| (course, Role::Student));
        let staff = self.staff_of.iter().map(|course| (course, Role::Staff));
        let roles = students.chain(staff);
        roles.map(|(course, role)| (course.clone(), role)).collect()
    }
}

impl Import {
    /// Adds people who are not in the file, and courses for those who are. Prints the new tokens as CSV.
    fn run(&self, path: &Path) -> anyhow::Result<ExitCode> {
        let expires = self.expiry.at()?;
        let people = roster::read(&self.roster, self.course.as_deref())
            .with_context(|| format!("Failed to read {}", self.roster.display()))?;
        let mut file = PeopleFile::open_or_create(path)?;
        let mut tokens = csv::Writer::from_writer(Vec::new());
        let present = file.names();
        let (known, new): (Vec<_>, Vec<_>) = people
            .into_iter()
            .partition(|(name, _)| present.contains(name.as_str()));
        let changed = file.add_courses(&known.into_iter().collect());
        let mut added = Vec::new();
        for (name, courses) in new {
            let token = new_token();
            let mut person = Person::new(name.clone(), &token, false, courses);
            person.expires = expires;
            if added.is_empty() {
                tokens.write_record(["name", "token"])?;
            }
            tokens.write_record([name, token])?;
            added.push(person);
        }
        file.add(&added)?;
        replace_after_printing(&file, &tokens.into_inner()?)?;
        let people = baton_humanize::people(added.len());
        errln!("Added {people}, and changed the course or role of {changed}");
        if !added.is_empty() {
            errln!(
                "The tokens were printed once and are not stored: give each person only their own line, and keep no copy"
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Expiry {
    /// A duration from now, such as `30d`, or a point in time; `None` for `never` and by default.
    fn at(&self) -> anyhow::Result<Option<Timestamp>> {
        let text = self.expires.as_ref().filter(|text| *text != "never");
        let Some(text) = text else {
            return Ok(None);
        };
        let after = Duration::parse(text).map(|after| Timestamp::now().checked_add(after));
        let at = after.unwrap_or_else(|| text.parse());
        let at = at.ok().with_context(|| {
            format!(
                "{text} is not a time\nhint: write 30d, a time such as 2027-02-28T18:00:00Z, or never"
            )
        })?;
        anyhow::ensure!(at > Timestamp::now(), "{text} is in the past");
        Ok(Some(at))
    }
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
    out!(
        "{}",
        table(["NAME", "ROLES", "EXPIRES"], rows, "No people yet")
    );
    Ok(ExitCode::SUCCESS)
}

fn remove(mut file: PeopleFile, names: &[String]) -> anyhow::Result<ExitCode> {
    for name in names {
        file.remove(name)?;
    }
    file.write_next()?.replace()?;
    for name in names {
        errln!("{name} was removed: the token no longer works");
    }
    Ok(ExitCode::SUCCESS)
}

fn rotate(mut file: PeopleFile, name: &str, expiry: &Expiry) -> anyhow::Result<ExitCode> {
    let token = new_token();
    let expires = match expiry.expires {
        Some(_) => expiry.at()?,
        None => file.expiry(name)?,
    };
    let is_worker = file.set_token(name, &token, expires)?;
    give_token(&file, name, &token, is_worker)
}

fn give_token(
    file: &PeopleFile,
    name: &str,
    token: &str,
    is_worker: bool,
) -> anyhow::Result<ExitCode> {
    replace_after_printing(file, format!("{token}\n").as_bytes())?;
    let next = match is_worker {
        true => "Put it into /etc/baton/token on the worker's machine".to_owned(),
        false => format!("Give it to {name}: `baton login ADDRESS` asks for it"),
    };
    errln!("This is the token of {name}, printed once and not stored\n{next}");
    Ok(ExitCode::SUCCESS)
}

fn replace_after_printing(file: &PeopleFile, tokens: &[u8]) -> anyhow::Result<()> {
    let next = file.write_next()?;
    let mut stdout = io::stdout().lock();
    let printed = stdout.write_all(tokens).and_then(|()| stdout.flush());
    printed.with_context(|| {
        let path = file.path().display();
        format!("The output could not be written, so {path} was not changed")
    })?;
    next.replace()
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
