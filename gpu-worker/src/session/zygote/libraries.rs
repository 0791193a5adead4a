//! Decides which libraries zygotes load: those that the settings name, and those that sessions of the same Python have
//! used. If no session of a Python was observed, the installed ones among [`KNOWN`] can be loaded instead.
//!
//! In: the memory maps of sessions, and the installed libraries of a Python. Out: names of libraries. The observed ones
//! are saved for later workers on this machine.
//!
//! **Invariant:** a cell cannot add a name that is not in [`KNOWN`].

use crate::Config;
use nix::unistd::Pid;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};
use tokio::process::Command;

/// Libraries that take long to load and behave after a fork as after an import. For each: what to load, in this
/// order.
///
/// Other libraries that sessions load are not learned. A cell decides what is in the memory maps of its session, and
/// a zygote imports outside the sandbox and for everyone: a student could have any installed package imported there,
/// and no test would show that it behaves after a fork as after an import. Administrators name more libraries in
/// `worker.preload`.
///
/// Matplotlib is left out because it reads its settings from the working directory when it is imported, JAX and
/// TensorFlow because they start threads or choose devices.
const KNOWN: &[(&str, &[&str])] = &[
    ("numpy", &["numpy"]),
    // The first optimizer imports `torch._dynamo`.
    ("torch", &["torch", "torch._dynamo"]),
    ("scipy", &["scipy.stats", "scipy.optimize"]),
    ("pandas", &["pandas"]),
    (
        "sklearn",
        &["sklearn.linear_model", "sklearn.model_selection"],
    ),
];

/// Prints which of its arguments can be imported, without importing any.
const QUESTION: &str = "
import sys
from importlib.machinery import PathFinder
print(*(name for name in sys.argv[1:] if PathFinder.find_spec(name)))
";

const FILE: &str = "libraries.json";

pub(super) struct Libraries {
    /// Named in the settings.
    named: Vec<String>,
    /// Used by sessions. The key is the path of the Python, because environments have different libraries.
    seen: BTreeMap<String, BTreeSet<String>>,
    /// Expected to be used, for Pythons without observed sessions.
    expected: BTreeMap<String, BTreeSet<String>>,
    /// Not loaded, because a zygote could not load them.
    left_out: BTreeMap<String, BTreeSet<String>>,
    file: PathBuf,
}

/// The known libraries that are installed in this Python.
pub(super) async fn installed(python: &Path) -> std::io::Result<BTreeSet<String>> {
    let asked = Command::new(python)
        .args(["-c", QUESTION])
        .args(KNOWN.iter().map(|(name, _)| name))
        .current_dir("/")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let printed = String::from_utf8_lossy(&asked.stdout);
    Ok(printed.split_whitespace().map(str::to_owned).collect())
}

impl Libraries {
    pub(super) fn open(config: &Config) -> Self {
        let file = config.mirrors.join(FILE);
        // A damaged file costs only a few slow starts.
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
            expected: BTreeMap::new(),
            left_out: BTreeMap::new(),
            file,
        }
    }

    /// What a zygote of this Python should load.
    pub(super) fn wanted(&self, python: &Path) -> Vec<String> {
        let has = |of: &BTreeMap<String, BTreeSet<String>>, name: &str| {
            let names = of.get(&key(python));
            names.is_some_and(|names| names.contains(name))
        };
        let used = |name: &str| has(&self.seen, name) || has(&self.expected, name);
        let seen = KNOWN.iter().filter(|(name, _)| used(name));
        let seen = seen.flat_map(|(_, parts)| parts.iter().map(|part| (*part).to_owned()));
        let mut wanted: Vec<String> = Vec::new();
        for name in seen.chain(self.named.iter().cloned()) {
            if !has(&self.left_out, &name) && !wanted.contains(&name) {
                wanted.push(name);
            }
        }
        wanted
    }

    /// Whether sessions of this Python have used known libraries, so that no guess is needed.
    pub(super) fn has_past(&self, python: &Path) -> bool {
        let seen = self.seen.get(&key(python));
        seen.is_some_and(|seen| !seen.is_empty())
    }

    /// Notes libraries that sessions will probably use. Returns whether this changes [`Self::wanted`].
    pub(super) fn expect(&mut self, python: &Path, libraries: BTreeSet<String>) -> bool {
        let before = self.wanted(python);
        self.expected.insert(key(python), libraries);
        self.wanted(python) != before
    }

    /// Notes which known libraries the process has loaded. Returns whether this changes [`Self::wanted`].
    pub(super) fn learn(&mut self, python: &Path, process: Pid) -> bool {
        let Ok(maps) = fs::read(format!("/proc/{process}/maps")) else {
            return false;
        };
        let maps = String::from_utf8_lossy(&maps);
        let wanted = self.wanted(python);
        let seen = self.seen.entry(key(python)).or_default();
        let before = seen.len();
        for (name, _) in KNOWN {
            if !seen.contains(*name) && maps.contains(&format!("-packages/{name}/")) {
                seen.insert((*name).to_owned());
            }
        }
        let has_news = seen.len() > before;
        if has_news && let Err(error) = self.save() {
            tracing::warn!(%error, "The list of libraries that sessions use could not be saved");
        }
        self.wanted(python) != wanted
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
            expected: BTreeMap::new(),
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
    fn what_is_expected_is_loaded_besides_what_was_seen() {
        let folder = tempfile::tempdir().unwrap();
        let mut libraries = libraries(folder.path(), &["course"]);
        let python = Path::new("/python");
        assert!(!libraries.has_past(python));
        let expected = ["pandas", "numpy"].map(str::to_owned);
        assert!(libraries.expect(python, BTreeSet::from(expected.clone())));
        assert!(!libraries.expect(python, BTreeSet::from(expected)));
        assert_eq!(libraries.wanted(python), ["numpy", "pandas", "course"]);
        let seen = BTreeSet::from(["torch".to_owned()]);
        libraries.seen.insert(key(python), seen);
        let all = ["numpy", "torch", "torch._dynamo", "pandas", "course"];
        assert_eq!(libraries.wanted(python), all);
        assert!(libraries.has_past(python));
    }

    #[tokio::test]
    async fn a_python_says_what_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let python = folder.path().join("python");
        let packages = folder.path().join("packages");
        fs::create_dir_all(packages.join("torch")).unwrap();
        fs::write(packages.join("torch/__init__.py"), "raise SystemExit").unwrap();
        fs::write(packages.join("pandas.py"), "").unwrap();
        let script = format!(
            "#!/bin/sh\nPYTHONPATH={} exec python3 -S \"$@\"\n",
            packages.display()
        );
        fs::write(&python, script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&python, mode).unwrap();
        let found = installed(&python).await.unwrap();
        let expected = ["pandas", "torch"].map(str::to_owned);
        assert_eq!(found, BTreeSet::from(expected));
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
