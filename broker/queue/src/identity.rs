//! Who makes a request, and what they may do.
//!
//! **Invariant:** pure.

use baton_protocol::Refusal;
use baton_scheduling::queue::Account;
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Student,
    Staff,
}

impl Role {
    /// As written in the file of people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Student => "student",
            Self::Staff => "staff",
        }
    }
}

/// Who makes a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `None` for the operator, who has the broker's own token or uses its private socket.
    person: Option<String>,
    kind: Kind,
    admin: bool,
    courses: BTreeMap<String, Role>,
}

/// What a token permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Person,
    /// Connects as one worker; `person` is its name.
    Worker,
    /// Lets workers join a pool; `person` is the name of the pool.
    Joining,
    /// Reads metrics.
    Monitor,
}

impl Identity {
    pub fn operator() -> Self {
        Self {
            person: None,
            kind: Kind::Person,
            admin: true,
            courses: BTreeMap::new(),
        }
    }

    pub fn of_worker(name: String) -> Self {
        Self::of_program(name, Kind::Worker)
    }

    /// May let workers join this pool, and do nothing else.
    pub fn of_joining(pool: String) -> Self {
        Self::of_program(pool, Kind::Joining)
    }

    /// May read how much there is to do, and do nothing else.
    pub fn of_monitor() -> Self {
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

    pub fn of_person(name: String, admin: bool, courses: BTreeMap<String, Role>) -> Self {
        Self {
            person: Some(name),
            kind: Kind::Person,
            admin,
            courses,
        }
    }

    /// A notebook whose person the Hub knows. It has a student's rights, whatever its person may do.
    pub fn of_notebook(name: String, courses: impl IntoIterator<Item = String>) -> Self {
        let courses = courses.into_iter().map(|course| (course, Role::Student));
        Self::of_person(name, false, courses.collect())
    }

    pub fn courses(&self) -> impl Iterator<Item = &str> {
        self.courses.keys().map(String::as_str)
    }

    /// Workers receive the code and variables of every person.
    pub fn may_be_worker(&self) -> bool {
        self.kind == Kind::Worker || self.is_operator()
    }

    /// The only worker as which this token may connect. `None` if it is not a worker's token. The
    /// broker's own token permits workers of any name.
    pub fn worker(&self) -> Option<&str> {
        self.person.as_deref().filter(|_| self.kind == Kind::Worker)
    }

    /// Whether it has the broker's own token.
    pub fn is_operator(&self) -> bool {
        self.kind == Kind::Person && self.person.is_none()
    }

    /// Whether it may do what people do, unlike the tokens of programs.
    pub fn may_be_person(&self) -> bool {
        self.kind == Kind::Person
    }

    /// Whether it may read the metrics of the whole service.
    pub fn may_monitor(&self) -> bool {
        self.admin || self.kind == Kind::Monitor
    }

    /// Whether workers may join this pool with its token.
    pub fn may_join(&self, pool: &str) -> bool {
        self.is_operator() || self.joins() == Some(pool)
    }

    /// The pool whose workers this token lets join.
    pub fn joins(&self) -> Option<&str> {
        self.person
            .as_deref()
            .filter(|_| self.kind == Kind::Joining)
    }

    pub fn may_see(&self, account: &Account) -> bool {
        self.admin
            || self.person.as_ref() == Some(&account.owner)
            || self.courses.get(&account.course) == Some(&Role::Staff)
    }

    /// People may stop their own jobs; staff may also stop those of their courses.
    pub fn may_stop(&self, account: &Account) -> bool {
        self.may_see(account)
    }

    /// Whether it may change the order, pauses and settings of this course.
    pub fn may_steer(&self, course: &str) -> bool {
        self.admin || self.courses.get(course) == Some(&Role::Staff)
    }

    /// Whether it is staff of any course.
    pub fn is_staff(&self) -> bool {
        self.admin || self.courses.values().any(|role| *role == Role::Staff)
    }

    /// Only admins, because workers serve all courses.
    pub fn may_steer_workers(&self) -> bool {
        self.is_admin()
    }

    pub fn is_admin(&self) -> bool {
        self.admin
    }

    pub fn person(&self) -> Option<&str> {
        self.person.as_deref()
    }

    /// The person's courses, or `None` for all courses.
    pub fn only_courses(&self) -> Option<impl Iterator<Item = &str>> {
        (!self.admin).then(|| self.courses())
    }

    /// The person and the courses with a staff role, or `None` for all people and courses.
    pub fn sees_only(&self) -> Option<(&str, Vec<&str>)> {
        let person = self.person.as_deref().filter(|_| !self.admin)?;
        let staffed = self
            .courses
            .iter()
            .filter(|(_, role)| **role == Role::Staff);
        Some((person, staffed.map(|(course, _)| course.as_str()).collect()))
    }

    /// The courses whose estimates the identity may request, limited to `course` if it is given.
    /// `None` means all people and courses; an empty list means none.
    pub fn estimates(&self, course: Option<String>) -> Option<Vec<String>> {
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

    /// The owner that a proxy names counts only if the token belongs to no person.
    pub fn account(&self, said: String, course: Option<String>) -> Result<Account, Refusal> {
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
    use super::*;

    const COURSES: [(&str, Role); 2] = [("ml", Role::Student), ("vision", Role::Staff)];

    fn ada(admin: bool, courses: &[(&str, Role)]) -> Identity {
        let courses = courses
            .iter()
            .map(|(course, role)| ((*course).to_owned(), *role));
        Identity::of_person("Ada L.".to_owned(), admin, courses.collect())
    }

    fn account(owner: &str, course: &str) -> Account {
        let (owner, course) = (owner.to_owned(), course.to_owned());
        Account { owner, course }
    }

    #[test]
    fn who_sees_whom() {
        let ada = ada(false, &COURSES);
        for (owner, course, seen) in [
            ("Ada L.", "elsewhere", true),
            ("Eve", "vision", true),
            ("Eve", "ml", false),
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
        let enter = |identity: Identity, course: Option<&str>| {
            identity.account("Eve".to_owned(), course.map(str::to_owned))
        };
        let of_ada = |course| Ok(account("Ada L.", course));
        assert_eq!(
            enter(ada(false, &COURSES), Some("vision")),
            of_ada("vision")
        );
        assert!(matches!(
            enter(ada(false, &COURSES), Some("x")),
            Err(Refusal::NotInCourse { .. })
        ));
        assert!(matches!(
            enter(ada(false, &COURSES), None),
            Err(Refusal::WhichCourse { .. })
        ));
        assert_eq!(enter(ada(false, &COURSES[..1]), None), of_ada("ml"));
        assert_eq!(enter(ada(false, &[]), None), of_ada(""));
        assert_eq!(enter(ada(true, &[]), Some("x")), of_ada("x"));
    }
}
