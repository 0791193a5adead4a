//! Changes to the people file that preserve everything else that a person wrote in it.
//!
//! **Invariant:** the file is replaced in one step, by one that the broker can read. No other process
//! changes it between reading and replacing it, because it is locked. Only users who may read the file
//! can lock it.

use crate::service::folder_of;
use anyhow::Context;
use baton_broker::{People, Person, Role};
use jiff::Timestamp;
use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, fchown},
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;
use toml_edit::{ArrayOfTables, DocumentMut, InlineTable, Item, Table, value};

pub(super) struct PeopleFile {
    path: PathBuf,
    document: DocumentMut,
    _locked: File,
}

/// The next version of the file, complete and checked.
pub(super) struct NextVersion<'file> {
    file: NamedTempFile,
    of: &'file PeopleFile,
}

pub(super) fn unreadable(path: &Path) -> String {
    format!("Failed to read {}", path.display())
}

impl PeopleFile {
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        Self::read(path, OpenOptions::new().read(true)).with_context(|| unreadable(path))
    }

    pub(super) fn open_or_create(path: &Path) -> anyhow::Result<Self> {
        let mut options = OpenOptions::new();
        let creating = options.read(true).append(true).create(true).mode(0o600);
        Self::read(path, creating).with_context(|| unreadable(path))
    }

    fn read(path: &Path, options: &OpenOptions) -> anyhow::Result<Self> {
        let locked = lock(path, options)?;
        People::read(path)?;
        Ok(Self {
            path: path.to_owned(),
            document: fs::read_to_string(path)?.parse()?,
            _locked: locked,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names().contains(name)
    }

    pub(super) fn names(&self) -> HashSet<&str> {
        let people = self.document.get("person");
        let people = people.and_then(Item::as_array_of_tables);
        people.into_iter().flatten().filter_map(name_of).collect()
    }

    /// Adds all of them at once, because each addition reads the whole file again.
    pub(super) fn add(&mut self, people: &[Person]) -> anyhow::Result<()> {
        let entries = people.iter().map(Person::entry);
        let parts = std::iter::once(self.document.to_string()).chain(entries);
        let text = parts.collect::<Vec<_>>().join("\n");
        self.document = text.parse().with_context(|| unreadable(&self.path))?;
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) -> anyhow::Result<()> {
        self.person(name)?;
        let people = self.document.get_mut("person");
        if let Some(people) = people.and_then(Item::as_array_of_tables_mut) {
            people.retain(|person| !is_called(person, name));
        }
        Ok(())
    }

    /// When the token of this person or worker expires.
    ///
    /// # Errors
    /// If it has expired: a new token would have, too.
    pub(super) fn expiry(&mut self, name: &str) -> anyhow::Result<Option<Timestamp>> {
        let expires = self.person(name)?.get("expires").and_then(Item::as_str);
        let expires: Option<Timestamp> = expires.map(str::parse).transpose()?;
        anyhow::ensure!(
            expires.is_none_or(|at| at > Timestamp::now()),
            "The token of {name} has expired\nhint: `--expires 30d` gives the new one a time, and `--expires never` none"
        );
        Ok(expires)
    }

    /// Returns whether this entry of the file is a worker's.
    pub(super) fn set_token(
        &mut self,
        name: &str,
        token: &str,
        expires: Option<Timestamp>,
    ) -> anyhow::Result<bool> {
        let new = Person::new_worker(name.to_owned(), token);
        let person = self.person(name)?;
        person["token_hash"] = value(new.token_hash);
        match expires {
            Some(at) => person["expires"] = value(at.to_string()),
            None => drop(person.remove("expires")),
        }
        Ok(person.get("worker").and_then(Item::as_bool) == Some(true))
    }

    /// Adds courses to people who are in the file. Returns for how many a course or role has changed.
    pub(super) fn add_courses(&mut self, to: &BTreeMap<String, BTreeMap<String, Role>>) -> usize {
        let people = self.document.get_mut("person");
        let people = people.and_then(Item::as_array_of_tables_mut);
        let people = people.into_iter().flat_map(ArrayOfTables::iter_mut);
        let mut changed = 0;
        for person in people {
            if let Some(courses) = name_of(person).and_then(|name| to.get(name)) {
                changed += usize::from(add_to_one(person, courses));
            }
        }
        changed
    }

    fn person(&mut self, name: &str) -> anyhow::Result<&mut Table> {
        let people = self.document.get_mut("person");
        let people = people.and_then(Item::as_array_of_tables_mut);
        let mut people = people.into_iter().flat_map(ArrayOfTables::iter_mut);
        let path = self.path.display();
        people
            .find(|person| is_called(person, name))
            .with_context(|| format!("{name} is not in {path}\nhint: `baton people list`"))
    }

    /// The file still belongs to the broker's user, even if root changes it.
    pub(super) fn write_next(&self) -> anyhow::Result<NextVersion<'_>> {
        let write = || {
            let mut file = NamedTempFile::new_in(folder_of(&self.path))?;
            file.write_all(self.document.to_string().as_bytes())?;
            if let Ok(before) = fs::metadata(&self.path) {
                fchown(&file, Some(before.uid()), Some(before.gid()))?;
            }
            file.as_file().sync_all()?;
            People::read(file.path())?;
            anyhow::Ok(file)
        };
        let file = write().with_context(|| unwritable(&self.path))?;
        Ok(NextVersion { file, of: self })
    }
}

impl NextVersion<'_> {
    pub(super) fn replace(self) -> anyhow::Result<()> {
        let path = &self.of.path;
        let replaced = self.file.persist(path);
        replaced.map(drop).with_context(|| unwritable(path))
    }
}

fn unwritable(path: &Path) -> String {
    format!("Failed to write {}", path.display())
}

/// The file, locked until it is closed. Another process may replace it while this one waits for the lock.
fn lock(path: &Path, options: &OpenOptions) -> io::Result<File> {
    loop {
        let file = options.open(path)?;
        file.lock()?;
        let (locked, present) = (file.metadata()?, fs::metadata(path)?);
        if (locked.dev(), locked.ino()) == (present.dev(), present.ino()) {
            return Ok(file);
        }
    }
}

/// Returns whether a course or role has changed.
fn add_to_one(person: &mut Table, courses: &BTreeMap<String, Role>) -> bool {
    let known = person
        .entry("courses")
        .or_insert_with(|| value(InlineTable::new()));
    let Some(known) = known.as_table_like_mut() else {
        return false;
    };
    let mut changed = false;
    for (course, role) in courses {
        let same = known.get(course).and_then(Item::as_str) == Some(role.name());
        if !same {
            known.insert(course, value(role.name()));
            changed = true;
        }
    }
    changed
}

fn is_called(person: &Table, name: &str) -> bool {
    name_of(person) == Some(name)
}

fn name_of(person: &Table) -> Option<&str> {
    person.get("name").and_then(Item::as_str)
}
