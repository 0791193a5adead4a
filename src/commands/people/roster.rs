//! A roster: a CSV file with a line for each person and course, as exported from a spreadsheet or a
//! university's system.

use crate::arguments::read_name;
use anyhow::Context;
use baton_broker::Role;
use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

#[derive(serde::Deserialize)]
struct Row {
    name: String,
    #[serde(default)]
    course: Option<String>,
    /// A student if the column is empty.
    #[serde(default)]
    role: Option<String>,
}

const COLUMNS: [&str; 3] = ["name", "course", "role"];
const HINT: &str = "the columns are name, course and role (student or staff); others are skipped";

/// Everyone in the roster, with their courses. `course` is for lines without one.
pub(super) fn read(
    path: &Path,
    course: Option<&str>,
) -> anyhow::Result<BTreeMap<String, BTreeMap<String, Role>>> {
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_path(path)?;
    let titles = reader.headers()?.clone();
    check_titles(&titles)?;
    let mut people: BTreeMap<String, BTreeMap<String, Role>> = BTreeMap::new();
    // Where each role was first read.
    let mut lines: HashMap<(String, String), u64> = HashMap::new();
    for record in reader.records() {
        let record = record?;
        let line = record.position().map_or(0, csv::Position::line);
        let at = || format!("Line {line} is not valid");
        let row: Row = record.deserialize(Some(&titles)).with_context(at)?;
        let checked = |name: &str| read_name(name).map_err(anyhow::Error::msg).with_context(at);
        let name = checked(&row.name)?;
        let courses = people.entry(name.clone()).or_default();
        let named = row.course.as_deref().filter(|course| !course.is_empty());
        let Some(course) = named.or(course) else {
            // A mere list of names is of people without courses.
            anyhow::ensure!(
                titles.len() == 1,
                "Line {line} has no course\nhint: {HINT}; --course names the course of lines without one"
            );
            continue;
        };
        let course = checked(course)?;
        let role = role(row.role.as_deref().unwrap_or_default()).with_context(at)?;
        let first = *lines.entry((name.clone(), course.clone())).or_insert(line);
        let before = courses.insert(course.clone(), role);
        anyhow::ensure!(
            before.is_none_or(|before| before == role),
            "Lines {first} and {line} give {name} different roles in {course}"
        );
    }
    Ok(people)
}

/// A column is skipped if its title is unknown, but not if it is almost a known one.
fn check_titles(titles: &csv::StringRecord) -> anyhow::Result<()> {
    for title in titles {
        let plain = title.to_lowercase();
        let alike = COLUMNS.iter().find(|known| {
            plain == **known || plain.strip_suffix('s').is_some_and(|one| one == **known)
        });
        if let Some(known) = alike.filter(|known| **known != title) {
            anyhow::bail!("Its column `{title}` must be called `{known}`\nhint: {HINT}");
        }
    }
    for known in COLUMNS {
        let found = titles.iter().filter(|title| *title == known).count();
        anyhow::ensure!(
            found < 2,
            "Its first line has the column `{known}` {found} times"
        );
    }
    anyhow::ensure!(
        titles.iter().any(|title| title == "name"),
        "Its first line has no column `name`\nhint: {HINT}"
    );
    Ok(())
}

fn role(text: &str) -> anyhow::Result<Role> {
    match text.to_lowercase().as_str() {
        "" | "student" => Ok(Role::Student),
        "staff" => Ok(Role::Staff),
        _ => anyhow::bail!("The role must be student or staff, not {text}"),
    }
}
