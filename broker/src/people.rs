//! People and their tokens, and their roles in courses.
//!
//! In: a file that only its owner may read. It contains hashes of tokens, so a copy of it gives no
//! access. For people of a JupyterHub, see [`crate::hub`].
//! Out: an [`Identity`] for a token, which says what the token permits.

use anyhow::Context;
use baton_broker_queue::{Identity, Role};
use baton_protocol::WorkerId;
use jiff::Timestamp;
use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
};

/// The entry of one person, or of one worker.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Person {
    pub name: String,
    /// The BLAKE3 hash of the token, in hexadecimal digits.
    pub token_hash: String,
    /// A worker: its token connects as this worker and permits nothing else.
    #[serde(default)]
    pub worker: bool,
    #[serde(default)]
    pub admin: bool,
    #[serde(default)]
    pub courses: BTreeMap<String, Role>,
    /// The token is invalid from this time on.
    #[serde(default)]
    pub expires: Option<Timestamp>,
}

/// The people of the file, by the hash of their token.
#[derive(Debug, Default)]
pub struct People(HashMap<String, Person>);

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PeopleFile {
    #[serde(default)]
    person: Vec<Person>,
}

impl Person {
    #[must_use]
    pub fn new(name: String, token: &str, admin: bool, courses: BTreeMap<String, Role>) -> Self {
        Self {
            name,
            token_hash: hash_of(token),
            worker: false,
            admin,
            courses,
            expires: None,
        }
    }

    #[must_use]
    pub fn new_worker(name: String, token: &str) -> Self {
        Self {
            worker: true,
            ..Self::new(name, token, false, BTreeMap::new())
        }
    }

    /// The lines for this person in the file.
    #[must_use]
    pub fn entry(&self) -> String {
        let quoted = |text: &str| toml::Value::from(text).to_string();
        let mut entry = format!("[[person]]\nname = {}\n", quoted(&self.name));
        // Writing to a string cannot fail.
        let _ = writeln!(entry, "token_hash = {}", quoted(&self.token_hash));
        if self.worker {
            entry.push_str("worker = true\n");
        }
        if self.admin {
            entry.push_str("admin = true\n");
        }
        if !self.courses.is_empty() {
            let courses: Vec<String> = self
                .courses
                .iter()
                .map(|(course, role)| format!("{} = \"{}\"", quoted(course), role.name()))
                .collect();
            let _ = writeln!(entry, "courses = {{ {} }}", courses.join(", "));
        }
        if let Some(expires) = self.expires {
            let _ = writeln!(entry, "expires = \"{expires}\"");
        }
        entry
    }
}

impl People {
    /// Refuses a file that others may read, or in which two entries have the same name or token.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let mode = fs::metadata(path)?.mode();
        anyhow::ensure!(
            mode & 0o077 == 0,
            "Other users can read it\nhint: chmod 600 {}",
            path.display()
        );
        Self::parse(&fs::read_to_string(path)?)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let file: PeopleFile = toml::from_str(text).context("It is not a list of [[person]]")?;
        let mut people = HashMap::new();
        for person in file.person {
            let name = person.name.clone();
            anyhow::ensure!(!name.is_empty(), "A person has no name");
            anyhow::ensure!(
                person.token_hash.len() == 64
                    && person
                        .token_hash
                        .bytes()
                        .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')),
                "The token_hash of {name} is not 64 hexadecimal digits"
            );
            anyhow::ensure!(
                people.values().all(|other: &Person| other.name != name),
                "{name} is listed twice"
            );
            anyhow::ensure!(
                !person.worker || !person.admin && person.courses.is_empty(),
                "{name} is a worker; a worker cannot be in a course and cannot be an admin"
            );
            let before = people.insert(person.token_hash.clone(), person);
            anyhow::ensure!(
                before.is_none(),
                "{name} has the same token as another person"
            );
        }
        Ok(Self(people))
    }

    /// In no order.
    pub fn iter(&self) -> impl Iterator<Item = &Person> {
        self.0.values()
    }

    pub(crate) fn has_person(&self, name: &str) -> bool {
        self.person(name).is_some()
    }

    /// Whether this person's cells may be in the course.
    pub(crate) fn is_in_course(&self, name: &str, course: &str) -> bool {
        self.person(name)
            .is_some_and(|one| one.admin || one.courses.contains_key(course))
    }

    fn person(&self, name: &str) -> Option<&Person> {
        self.iter().find(|one| !one.worker && one.name == name)
    }

    /// Compares hashes, so an almost right token takes as long as any other.
    pub(crate) fn of_hash(&self, token_hash: &str, now: Timestamp) -> Option<Identity> {
        let person = self.0.get(token_hash)?;
        if person.expires.is_some_and(|expires| expires <= now) {
            return None;
        }
        let name = person.name.clone();
        Some(match person.worker {
            true => Identity::of_worker(name),
            false => Identity::of_person(name, person.admin, person.courses.clone()),
        })
    }
}

/// A worker with its own token keeps its id when it is restarted.
pub(crate) fn worker_id(name: &str) -> WorkerId {
    let hash = baton_chunks::hash(format!("baton worker {name}").as_bytes());
    let (id, _) = hash.0.split_first_chunk().unwrap_or((&[0; 16], &[]));
    WorkerId(uuid::Uuid::from_bytes(*id))
}

pub(crate) fn hash_of(token: &str) -> String {
    baton_chunks::hash(token.as_bytes()).to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ada() -> Person {
        let courses = [("ml \"101\"", Role::Student), ("vision", Role::Staff)];
        let courses = courses
            .map(|(course, role)| (course.to_owned(), role))
            .into();
        Person::new("Ada L.".to_owned(), "sesame", false, courses)
    }

    #[test]
    fn what_is_written_is_read() {
        let root = Person::new("root".to_owned(), "open", true, BTreeMap::new());
        let gpu = Person::new_worker("gpu-1".to_owned(), "compute");
        let entries = [&ada(), &root, &gpu].map(Person::entry).concat();
        let people = People::parse(&entries).unwrap();
        assert_eq!(people.0[&hash_of("sesame")], ada());
        assert_eq!(people.0[&hash_of("open")], root);
        assert_eq!(people.0[&hash_of("compute")], gpu);
        assert!(
            people
                .of_hash(&hash_of("sesamf"), Timestamp::UNIX_EPOCH)
                .is_none()
        );
        assert!(
            people
                .of_hash(&hash_of(""), Timestamp::UNIX_EPOCH)
                .is_none()
        );
    }

    #[test]
    fn a_token_may_expire() {
        let expires = Timestamp::from_second(100).unwrap();
        let ada = Person {
            expires: Some(expires),
            ..ada()
        };
        let people = People::parse(&ada.entry()).unwrap();
        for (second, opens) in [(99, true), (100, false), (101, false)] {
            let now = Timestamp::from_second(second).unwrap();
            assert_eq!(people.of_hash(&ada.token_hash, now).is_some(), opens);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let twice = ada().entry() + &ada().entry();
        let same_token = ada().entry() + &ada().entry().replace("Ada L.", "Eve");
        let plain = ada().entry().replace(&hash_of("sesame"), "sesame");
        let unknown = ada().entry() + "colour = 1\n";
        let both = ada().entry() + "worker = true\n";
        for (text, why) in [
            (twice, "listed twice"),
            (same_token, "the same token as another person"),
            (plain, "hexadecimal"),
            (unknown, "list of [[person]]"),
            (both, "cannot be in a course"),
        ] {
            let error = People::parse(&text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
