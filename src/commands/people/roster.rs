//! A roster: a CSV file with a line for each person and course, as exported from a spreadsheet or a
//! university's system.

use crate::arguments::read_name;
use anyhow::Context;
use baton_broker::Role;
use std::{collections::BTreeMap, path::Path};

#[derive(serde::Deserialize)]
struct Row {
    name: String,
    #[serde(default)]
    course: Option<String>,
    /// A student if the column is empty.
    #[serde(default)]
    role: Option<String>,
}

/// Everyone in the roster, with their courses. `course` is for lines without one.
pub(super) fn read(
    path: &Path,
    course: Option<&str>,
) -> anyhow::Result<BTreeMap<String, BTreeMap<String, Role>>> {
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_path(path)?;
    let has_names = reader.headers()?.iter().any(|title| title == "name");
    anyhow::ensure!(
        has_names,
        "Its first line has no column `name`\nhint: the columns are name, course and role (student or staff); others are skipped"
    );
    let mut people: BTreeMap<String, BTreeMap<String, Role>> = BTreeMap::new();
    for (number, row) in reader.deserialize().enumerate() {
        let at = || format!("Line {} is not valid", number + 2);
        let row: Row = row.with_context(at)?;
        let checked = |name: &str| read_name(name).map_err(anyhow::Error::msg).with_context(at);
        let named = row.course.as_deref().filter(|course| !course.is_empty());
        let courses = people.entry(checked(&row.name)?).or_default();
        if let Some(course) = named.or(course) {
            let role = role(row.role.as_deref().unwrap_or_default()).with_context(at)?;
            courses.insert(checked(course)?, role);
        }
    }
    Ok(people)
}

fn role(text: &str) -> anyhow::Result<Role> {
    match text.to_lowercase().as_str() {
        "" | "student" => Ok(Role::Student),
        "staff" => Ok(Role::Staff),
        _ => anyhow::bail!("The role must be student or staff, not {text}"),
    }
}
