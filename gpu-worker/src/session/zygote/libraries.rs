//! Which libraries zygotes load: those that the settings name, and those that sessions of their Python were seen to use.
//!
//! In: the memory maps of sessions. Out: names, also for the next worker on this machine.
//!
//! **Invariant:** nothing that a cell does adds a name which is not in [`KNOWN`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;

use crate::Config;

/// Libraries that take long to load and behave after a fork as after an import. By each, what to load, in this order.
///
/// Matplotlib is not here, because it reads its settings from the working directory when it is imported; JAX and
/// TensorFlow are not, because they start threads or choose devices.
const KNOWN: &[(&str, &[&str])] = &[
    ("numpy", &["numpy"]),
    // The first optimizer imports its second part.
    ("torch", &["torch", "torch._dynamo"]),
    ("scipy", &["scipy.stats", "scipy.optimize"]),
    ("pandas", &["pandas"]),
    (
        "sklearn",
        &["sklearn.linear_model", "sklearn.model_selection"],
    ),
];

const FILE: &str = "libraries.json";

pub(super) struct Libraries {
    named: Vec<String>,
    /// Of each Python, as the worker calls it: environments have libraries of their own.
    seen: BTreeMap<String, BTreeSet<String>>,
    left_out: BTreeMap<String, BTreeSet<String>>,
    file: PathBuf,
}

impl Libraries {
    pub(super) fn open(config: &Config) -> Self {
        let file = config.mirrors.join(FILE);
        // A file that was damaged costs a few slow starts.
        let mut seen: BTreeMap<String, BTreeSet<String>> = fs::read(&file)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        seen.retain(|python, _| Path::new(python).exists());
        for names in seen.values_mut() {
            names.retain(|name| is_known(name));
        }
        Self {
            named: config.preload.clone(),
            seen,
            left_out: BTreeMap::new(),
            file,
        }
    }

    /// What a zygote of this Python is to load.
    pub(super) fn wanted(&self, python: &Path) -> Vec<String> {
        let has = |of: &BTreeMap<String, BTreeSet<String>>, name: &str| {
            let names = of.get(&key(python));
            names.is_some_and(|names| names.contains(name))
        };
        let seen = KNOWN.iter().filter(|(name, _)| has(&self.seen, name));
        let seen = seen.flat_map(|(_, parts)| parts.iter().map(|part| (*part).to_owned()));
        let mut wanted: Vec<String> = Vec::new();
        for name in seen.chain(self.named.iter().cloned()) {
            if !has(&self.left_out, &name) && !wanted.contains(&name) {
                wanted.push(name);
            }
        }
        wanted
    }

    /// Whether the process has a known library that was not seen before.
    pub(super) fn learn(&mut self, python: &Path, process: Pid) -> bool {
        let Ok(maps) = fs::read(format!("/proc/{process}/maps")) else {
            return false;
        };
        let maps = String::from_utf8_lossy(&maps);
        let seen = self.seen.entry(key(python)).or_default();
        let before = seen.len();
        for (name, _) in KNOWN {
            if !seen.contains(*name) && maps.contains(&format!("-packages/{name}/")) {
                seen.insert((*name).to_owned());
            }
        }
        let has_news = seen.len() > before;
        if has_news && let Err(error) = self.save() {
            tracing::warn!(%error, "The libraries that sessions use could not be written down");
        }
        has_news
    }

    pub(super) fn leave_out(&mut self, python: &Path, library: &str) {
        let left_out = self.left_out.entry(key(python)).or_default();
        left_out.insert(library.to_owned());
    }

    fn save(&self) -> std::io::Result<()> {
        let new = self.file.with_extension("new");
        fs::write(&new, serde_json::to_vec(&self.seen)?)?;
        fs::rename(new, &self.file)
    }
}

fn key(python: &Path) -> String {
    python.to_string_lossy().into_owned()
}

fn is_known(name: &str) -> bool {
    KNOWN.iter().any(|(known, _)| *known == name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn libraries(folder: &std::path::Path, named: &[&str]) -> Libraries {
        Libraries {
            named: named.iter().map(|name| (*name).to_owned()).collect(),
            seen: BTreeMap::new(),
            left_out: BTreeMap::new(),
            file: folder.join(FILE),
        }
    }

    #[test]
    fn named_libraries_follow_those_that_were_seen_and_one_can_be_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut libraries = libraries(folder.path(), &["course", "torch"]);
        let (one, other) = (Path::new("/one/python"), Path::new("/other/python"));
        let torch = BTreeSet::from(["torch".to_owned()]);
        libraries.seen.insert(key(one), torch);
        assert_eq!(libraries.wanted(one), ["torch", "torch._dynamo", "course"]);
        libraries.leave_out(one, "course");
        assert_eq!(libraries.wanted(one), ["torch", "torch._dynamo"]);
        assert_eq!(libraries.wanted(other), ["course", "torch"]);
    }

    #[test]
    fn a_process_without_known_libraries_teaches_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut libraries = libraries(folder.path(), &[]);
        let python = Path::new("/python");
        assert!(!libraries.learn(python, Pid::this()));
        assert!(libraries.wanted(python).is_empty());
    }
}
