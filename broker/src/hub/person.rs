//! What the Hub's description of a token means for the broker.
//!
//! In: the response of `/hub/api/user`. Out: an [`Identity`], or `None` if the token was made for
//! something else.

use super::HubConfig;
use baton_broker_queue::{Identity, Role};
use std::collections::BTreeMap;

#[derive(serde::Deserialize)]
pub(super) struct Model {
    kind: String,
    name: String,
    #[serde(default)]
    admin: bool,
    #[serde(default)]
    groups: Vec<String>,
    /// The permissions of the token, which may be fewer than those of its owner.
    #[serde(default)]
    scopes: Vec<String>,
}

/// The person of a token of the Hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HubPerson {
    pub(super) identity: Identity,
    /// Whether the token also opens the person's notebook server.
    pub(super) has_server: bool,
}

/// A token that was made for this service acts as its owner. The token of a notebook server can be
/// read by all code that runs there, so it acts only on its owner's own cells, whatever else the
/// owner may do. Any other token is refused, so that another service cannot misuse a token that
/// people gave to it.
pub(super) fn hub_person(model: Model, config: &HubConfig) -> Option<HubPerson> {
    if model.kind != "user" || model.name.is_empty() {
        return None;
    }
    let courses = courses(&model.groups, config);
    if is_for_service(&model.scopes, &config.service) {
        return Some(HubPerson {
            has_server: is_of_own_server(&model.scopes, &model.name),
            identity: Identity::of_person(model.name, model.admin, courses),
        });
    }
    if is_of_own_server(&model.scopes, &model.name) {
        return Some(HubPerson {
            identity: Identity::of_notebook(model.name, courses.into_keys()),
            has_server: true,
        });
    }
    None
}

fn is_for_service(scopes: &[String], service: &str) -> bool {
    let this = format!("access:services!service={service}");
    let wanted = |scope: &String| scope == "access:services" || *scope == this;
    scopes.iter().any(wanted)
}

fn is_of_own_server(scopes: &[String], name: &str) -> bool {
    let all = format!("access:servers!user={name}");
    let one = format!("access:servers!server={name}/");
    let own = |scope: &String| *scope == all || scope.starts_with(&one);
    scopes.iter().any(own)
}

/// A person in both groups of a course is staff.
fn courses(groups: &[String], config: &HubConfig) -> BTreeMap<String, Role> {
    let mut courses = BTreeMap::new();
    for group in groups {
        if let Some(course) = course_of(group, &config.staff_groups) {
            courses.insert(course.to_owned(), Role::Staff);
        } else if let Some(course) = course_of(group, &config.student_groups) {
            courses.entry(course.to_owned()).or_insert(Role::Student);
        }
    }
    courses
}

fn course_of<'a>(group: &'a str, pattern: &str) -> Option<&'a str> {
    let (before, after) = pattern.split_once("{course}")?;
    let course = group.strip_prefix(before)?.strip_suffix(after)?;
    (!course.is_empty()).then_some(course)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(student_groups: &str, staff_groups: &str) -> HubConfig {
        HubConfig {
            api_url: "http://127.0.0.1:8081/hub/api".to_owned(),
            token: "secret".to_owned(),
            service: "baton".to_owned(),
            public_api_url: None,
            callback_url: None,
            student_groups: student_groups.to_owned(),
            staff_groups: staff_groups.to_owned(),
            remembered: std::time::Duration::from_secs(60),
        }
    }

    fn texts(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn only_tokens_for_this_service_or_of_ones_own_server_count() {
        let who = |kind: &str, scopes: &[&str]| {
            let model = Model {
                kind: kind.to_owned(),
                name: "tia".to_owned(),
                admin: true,
                groups: texts(&["ml-staff", "vision"]),
                scopes: texts(scopes),
            };
            hub_person(model, &config("{course}", "{course}-staff"))
        };
        let both = [
            ("ml".to_owned(), Role::Staff),
            ("vision".to_owned(), Role::Student),
        ];
        let whole = |has_server| {
            let identity = Identity::of_person("tia".to_owned(), true, both.clone().into());
            Some(HubPerson {
                identity,
                has_server,
            })
        };
        let own = Some(HubPerson {
            identity: Identity::of_notebook("tia".to_owned(), texts(&["ml", "vision"])),
            has_server: true,
        });

        let service = "access:services!service=baton";
        assert_eq!(who("user", &[service]), whole(false));
        assert_eq!(
            who("user", &["access:services", "read:users"]),
            whole(false)
        );
        let both = [service, "access:servers!user=tia"];
        assert_eq!(who("user", &both), whole(true));
        assert_eq!(who("user", &["access:servers!server=tia/"]), own);
        assert_eq!(who("user", &["access:servers!server=tia/second"]), own);
        assert_eq!(who("user", &["access:servers!user=tia"]), own);
        for foreign in [
            "access:services!service=baton2",
            "access:services!service=other",
            "access:servers!server=tiana/",
            "access:servers!server=eve/",
            "access:servers!user=eve",
            "read:users!user=tia",
        ] {
            assert_eq!(who("user", &[foreign]), None, "{foreign}");
        }
        assert_eq!(who("user", &[]), None);
        assert_eq!(who("service", &["access:services!service=baton"]), None);
    }

    #[test]
    fn groups_are_courses() {
        let check = |config: &HubConfig, groups: &[&str], expected: &[(&str, Role)]| {
            let expected = expected
                .iter()
                .map(|(name, role)| ((*name).to_owned(), *role));
            assert_eq!(courses(&texts(groups), config), expected.collect());
        };
        let plain = config("{course}", "{course}-staff");
        check(&plain, &["ml"], &[("ml", Role::Student)]);
        check(&plain, &["ml-staff", "ml"], &[("ml", Role::Staff)]);
        check(&plain, &["ml", "ml-staff"], &[("ml", Role::Staff)]);
        check(&plain, &["-staff"], &[("-staff", Role::Student)]);
        let nbgrader = config("nbgrader-{course}", "formgrade-{course}");
        let groups = ["formgrade-ml", "nbgrader-art", "everybody", "nbgrader-"];
        let expected = [("ml", Role::Staff), ("art", Role::Student)];
        check(&nbgrader, &groups, &expected);
    }
}
