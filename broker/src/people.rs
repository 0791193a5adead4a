//! Who is who: tokens, persons, and their roles in courses.
//!
//! In: a file that only its owner may read; where a JupyterHub knows people, [`crate::hub`]. It holds hashes of tokens, so a copy of it opens nothing.
//! Out: an [`Identity`] for a token, and what that identity may do.

pub(crate) use baton_scheduling::queue::Account;

use anyhow::Context;
use baton_protocol::{Refusal, WorkerId};
use jiff::Timestamp;
use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Student,
    Staff,
}

/// What the file says of one person, or of one worker.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Person {
    pub name: String,
    /// The BLAKE3 hash of the token, in hexadecimal digits.
    pub token_hash: String,
    /// A worker: its token makes a program this worker, and opens nothing else.
    #[serde(default)]
    pub worker: bool,
    #[serde(default)]
    pub admin: bool,
    #[serde(default)]
    pub courses: BTreeMap<String, Role>,
    /// From then on the token opens nothing.
    #[serde(default)]
    pub expires: Option<Timestamp>,
}

/// The people of a file, by the hash of their token.
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

    /// The lines of the file for this person.
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

impl Role {
    /// As in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Student => "student",
            Self::Staff => "staff",
        }
    }
}

impl People {
    /// Refuses a file that others may read, and one that gives a name or a token twice.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let mode = fs::metadata(path)?.mode();
        anyhow::ensure!(
            mode & 0o077 == 0,
            "Others may read it\nhint: chmod 600 {}",
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
                "{name} is a worker; a worker cannot be in a course or an admin"
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

    /// A look-up by hash takes as long for a nearly right token as for any other.
    pub(crate) fn of_hash(&self, token_hash: &str, now: Timestamp) -> Option<Identity> {
        let person = self.0.get(token_hash)?;
        if person.expires.is_some_and(|expires| expires <= now) {
            return None;
        }
        Some(Identity {
            person: Some(person.name.clone()),
            kind: match person.worker {
                true => Kind::Worker,
                false => Kind::Person,
            },
            admin: person.admin,
            courses: person.courses.clone(),
        })
    }
}

/// A worker with a token of its own is the same one after each start.
pub(crate) fn worker_id(name: &str) -> WorkerId {
    let hash = baton_chunks::hash(format!("baton worker {name}").as_bytes());
    let (id, _) = hash.0.split_first_chunk().unwrap_or((&[0; 16], &[]));
    WorkerId(uuid::Uuid::from_bytes(*id))
}

pub(crate) fn hash_of(token: &str) -> String {
    baton_chunks::hash(token.as_bytes()).to_string()
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// `None`: whoever runs the service, by its own token or its private socket.
    person: Option<String>,
    kind: Kind,
    admin: bool,
    courses: BTreeMap<String, Role>,
}

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Person,
    /// The person is its name.
    Worker,
    /// Lets workers join a pool, whose name is the person.
    Joining,
    /// Reads numbers.
    Monitor,
}

impl Identity {
    pub(crate) fn operator() -> Self {
        Self {
            person: None,
            kind: Kind::Person,
            admin: true,
            courses: BTreeMap::new(),
        }
    }

    pub(crate) fn of_worker(name: String) -> Self {
        Self::of_program(name, Kind::Worker)
    }

    /// Lets workers join this pool, and nothing else.
    pub(crate) fn of_joining(pool: String) -> Self {
        Self::of_program(pool, Kind::Joining)
    }

    /// Reads how much there is to do, and nothing else.
    pub(crate) fn of_monitor() -> Self {
        Self::of_program("monitor".to_owned(), Kind::Monitor)
    }

    fn of_program(name: String, kind: Kind) -> Self {
        Self {
            person: Some(name),
            kind,
            admin: false,
            courses: BTreeMap::new(),
        }
    }

    pub(crate) fn of_hub(name: String, admin: bool, courses: BTreeMap<String, Role>) -> Self {
        Self {
            person: Some(name),
            kind: Kind::Person,
            admin,
            courses,
        }
    }

    /// A notebook of a person whom the Hub knows: whatever the person may do, it is a student's.
    pub(crate) fn of_notebook(name: String, courses: impl IntoIterator<Item = String>) -> Self {
        let courses = courses.into_iter().map(|course| (course, Role::Student));
        Self::of_hub(name, false, courses.collect())
    }

    pub(crate) fn courses(&self) -> impl Iterator<Item = &str> {
        self.courses.keys().map(String::as_str)
    }

    /// A worker is given everybody's code and variables.
    pub(crate) fn may_be_worker(&self) -> bool {
        self.kind == Kind::Worker || self.is_operator()
    }

    /// The name of the only worker that this token stands for. `None`: not a worker's token; the broker's own lets in
    /// workers of any name.
    pub(crate) fn worker(&self) -> Option<&str> {
        self.person.as_deref().filter(|_| self.kind == Kind::Worker)
    }

    /// Whoever has the broker's own token.
    pub(crate) fn is_operator(&self) -> bool {
        self.kind == Kind::Person && self.person.is_none()
    }

    /// Everything but what programs do.
    pub(crate) fn may_be_person(&self) -> bool {
        self.kind == Kind::Person
    }

    /// The numbers of the whole service.
    pub(crate) fn may_monitor(&self) -> bool {
        self.admin || self.kind == Kind::Monitor
    }

    /// Whether workers may join this pool with its token.
    pub(crate) fn may_join(&self, pool: &str) -> bool {
        self.is_operator() || self.joins() == Some(pool)
    }

    /// The pool that this token is for.
    pub(crate) fn joins(&self) -> Option<&str> {
        self.person
            .as_deref()
            .filter(|_| self.kind == Kind::Joining)
    }

    pub(crate) fn may_see(&self, account: &Account) -> bool {
        self.admin
            || self.person.as_ref() == Some(&account.owner)
            || self.courses.get(&account.course) == Some(&Role::Staff)
    }

    /// Everybody stops their own jobs, staff those of their courses.
    pub(crate) fn may_stop(&self, account: &Account) -> bool {
        self.may_see(account)
    }

    /// Order, pause and settings of a course.
    pub(crate) fn may_steer(&self, course: &str) -> bool {
        self.admin || self.courses.get(course) == Some(&Role::Staff)
    }

    /// Of any course.
    pub(crate) fn is_staff(&self) -> bool {
        self.admin || self.courses.values().any(|role| *role == Role::Staff)
    }

    /// Workers serve all courses.
    pub(crate) fn may_steer_workers(&self) -> bool {
        self.admin
    }

    pub(crate) fn person(&self) -> Option<&str> {
        self.person.as_deref()
    }

    /// `None`: all courses.
    pub(crate) fn only_courses(&self) -> Option<impl Iterator<Item = &str>> {
        (!self.admin).then(|| self.courses())
    }

    /// `None`: all courses and persons.
    pub(crate) fn sees_only(&self) -> Option<(&str, Vec<&str>)> {
        let person = self.person.as_deref().filter(|_| !self.admin)?;
        let staffed = self
            .courses
            .iter()
            .filter(|(_, role)| **role == Role::Staff);
        Some((person, staffed.map(|(course, _)| course.as_str()).collect()))
    }

    /// Whose estimates somebody may ask for, of all courses or of one: `None` are all persons and courses, an empty list is
    /// nobody.
    pub(crate) fn estimates(&self, course: Option<String>) -> Option<Vec<String>> {
        let staffed = self.sees_only().map(|(_, courses)| courses);
        match (staffed, course) {
            (None, course) => course.map(|course| vec![course]),
            (Some(staffed), course) => {
                let is_asked = |name: &&str| course.as_deref().is_none_or(|course| course == *name);
                Some(
                    staffed
                        .into_iter()
                        .filter(is_asked)
                        .map(str::to_owned)
                        .collect(),
                )
            }
        }
    }

    /// A proxy's own words for its owner count only where no token tells.
    pub(crate) fn account(&self, said: String, course: Option<String>) -> Result<Account, Refusal> {
        let owner = self.person.clone().unwrap_or(said);
        let courses = || self.courses.keys().cloned().collect();
        let course = match (course, self.courses.len()) {
            (Some(course), _) if self.admin || self.courses.contains_key(&course) => course,
            (Some(course), _) => {
                let courses = courses();
                return Err(Refusal::NotInCourse { course, courses });
            }
            (None, 0) => String::new(),
            (None, 1) => self.courses.keys().cloned().collect(),
            (None, _) => return Err(Refusal::WhichCourse { courses: courses() }),
        };
        Ok(Account { owner, course })
    }
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

    fn account(owner: &str, course: &str) -> Account {
        let (owner, course) = (owner.to_owned(), course.to_owned());
        Account { owner, course }
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

    #[test]
    fn who_sees_whom() {
        let people = People::parse(&ada().entry()).unwrap();
        let ada = people
            .of_hash(&hash_of("sesame"), Timestamp::UNIX_EPOCH)
            .unwrap();
        for (owner, course, seen) in [
            ("Ada L.", "elsewhere", true),
            ("Eve", "vision", true),
            ("Eve", "ml \"101\"", false),
            ("Eve", "", false),
        ] {
            assert_eq!(
                ada.may_see(&account(owner, course)),
                seen,
                "{owner} {course}"
            );
            assert!(Identity::operator().may_see(&account(owner, course)));
        }
        assert!(!ada.may_be_worker());
    }

    #[test]
    fn a_course_is_the_said_one_or_the_only_one() {
        let mut person = ada();
        let enter = |person: &Person, course: Option<&str>| {
            let people = People::parse(&person.entry()).unwrap();
            let identity = people
                .of_hash(&hash_of("sesame"), Timestamp::UNIX_EPOCH)
                .unwrap();
            identity.account("Eve".to_owned(), course.map(str::to_owned))
        };
        assert_eq!(
            enter(&person, Some("vision")),
            Ok(account("Ada L.", "vision"))
        );
        assert!(matches!(
            enter(&person, Some("x")),
            Err(Refusal::NotInCourse { .. })
        ));
        assert!(matches!(
            enter(&person, None),
            Err(Refusal::WhichCourse { .. })
        ));
        person.courses.remove("vision");
        assert_eq!(enter(&person, None), Ok(account("Ada L.", "ml \"101\"")));
        person.courses.clear();
        assert_eq!(enter(&person, None), Ok(account("Ada L.", "")));
        person.admin = true;
        assert_eq!(enter(&person, Some("x")), Ok(account("Ada L.", "x")));
    }
}
