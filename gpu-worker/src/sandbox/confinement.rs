//! Confines sessions with Landlock, on systems without user namespaces. A session stays in the machine's namespaces,
//! and the system refuses access to everything that the session was not given.
//!
//! In: what a session needs of the machine. Out: Landlock rules and a filter of system calls, which the session's first
//! process imposes on itself before it reads any file or code of a student (`session/confinement.py`), and a [`Guard`] for
//! the calls that neither of them can check.
//!
//! **Invariant:** no session starts on a system that does not support all of the [`RULES`].

use super::{
    CONFINEMENT, Group, Guard, Limits, Needs, NetworkChoice, SandboxError, Scratch, Variable,
    devices::Devices,
    filter::{self, Isolation},
    groups::Groups,
    inherit,
    python::Pythons,
    view::{May, View},
};
use crate::Config;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd,
    Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, Scope,
};
use std::{
    fmt::Write as _,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};
use tokio::process::Command;

pub(super) const WARNING: &str = "Landlock confines sessions instead of bubblewrap (worker.sandbox = \"landlock\"). They \
     cannot open each other's files or reach each other's variables, but they see the machine's processes and which \
     files there are, and share its limits.\n\
     hint: docs/security.md lists what cells reach; bubblewrap hides it where user namespaces are allowed";

/// What Landlock must be able to restrict, and the version of Linux that introduced it.
const RULES: &[(&str, &str, Rule)] = &[
    ("files", "5.13", Rule::Files(ABI::V1)),
    ("names in other folders", "5.19", Rule::Files(ABI::V2)),
    ("the length of files", "6.2", Rule::Files(ABI::V3)),
    ("connections", "6.7", Rule::Network),
    ("devices", "6.10", Rule::Files(ABI::V5)),
    ("signals and abstract sockets", "6.12", Rule::Scopes),
];
const FILES: ABI = ABI::V5;

#[derive(Clone, Copy)]
enum Rule {
    Files(ABI),
    Network,
    Scopes,
}

#[derive(Debug)]
pub(crate) struct Landlock {
    network: NetworkChoice,
    readable: Vec<PathBuf>,
    limits: Limits,
    groups: Groups,
    devices: Devices,
    pythons: Pythons,
}

/// What one session may access. [`Landlock::impose`] makes rules of it.
pub(crate) struct Confined {
    view: View,
    pub(crate) scratch: Scratch,
}

/// The restrictions of one session, in the form that its process and the worker need.
pub(crate) struct Imposed {
    /// For the process: the Landlock rules, and the filter of system calls.
    pub(crate) descriptors: [OwnedFd; 2],
    pub(crate) guard: Guard,
}

impl Landlock {
    /// # Errors
    /// If the system does not support all of the [`RULES`].
    pub(super) fn open(config: &Config) -> Result<Self, SandboxError> {
        if config.network == NetworkChoice::Egress {
            return Err(SandboxError::EgressNeedsBubblewrap);
        }
        let missing: Vec<_> = RULES.iter().filter(|(.., rule)| !rule.is_known()).collect();
        if !missing.is_empty() {
            return Err(too_old(&missing));
        }
        let limits = Limits::of(config);
        Ok(Self {
            network: config.network,
            readable: config.readable.clone(),
            limits,
            groups: Groups::open(limits),
            devices: Devices::of_this_machine(),
            pythons: Pythons::default(),
        })
    }

    pub(super) fn groups(&self) -> &Groups {
        &self.groups
    }

    pub(crate) fn group(&self) -> io::Result<Option<Group>> {
        self.groups.create()
    }

    pub(super) fn has_network(&self) -> bool {
        self.network == NetworkChoice::Host
    }

    /// Decides what the session that `command` starts may access, also from the variables that the command has so far.
    /// Changes those that would lead to other folders.
    pub(crate) async fn furnish(
        &self,
        command: &mut Command,
        needs: &Needs<'_>,
    ) -> Result<Confined, SandboxError> {
        let mut view = self.view(needs.python).await?;
        let environment: Vec<Variable<'_>> = command.as_std().get_envs().collect();
        view.of_environment(&environment, 0);
        view.devices(self.devices.folder(), &self.devices.of(needs.hardware));
        for folder in [needs.private_folder, needs.packages] {
            view.writable(folder, folder);
        }
        if let Some((root, _)) = &needs.mirror {
            view.writable(root, root);
        }
        if let Some(folder) = needs.notebook_folder {
            let is_inside = |hidden: &&&Path| hidden.starts_with(folder.path());
            if let Some(hidden) = needs.hidden.iter().find(is_inside) {
                return Err(SandboxError::CannotHide {
                    hidden: hidden.to_path_buf(),
                    folder: folder.path().to_owned(),
                });
            }
            view.notebook_folder(folder);
        }
        self.with_variables(command, view)
    }

    /// Like [`Self::furnish`], for a process that belongs to no notebook.
    pub(crate) async fn bare(
        &self,
        command: &mut Command,
        python: &Path,
    ) -> Result<Confined, SandboxError> {
        let view = self.view(python).await?;
        self.with_variables(command, view)
    }

    /// Like [`Self::furnish`], for one step of building an environment, which writes to `writable` and runs `program`.
    pub(super) async fn build(
        &self,
        command: &mut Command,
        python: &Path,
        writable: &Path,
        program: &Path,
    ) -> Result<Confined, SandboxError> {
        let mut view = self.view(python).await?;
        view.read_only(program);
        view.devices(self.devices.folder(), &self.devices.all());
        view.writable(writable, writable);
        self.with_variables(command, view)
    }

    fn with_variables(
        &self,
        command: &mut Command,
        mut view: View,
    ) -> Result<Confined, SandboxError> {
        let scratch = Scratch::create().map_err(io::Error::other)?;
        let rules = view.rules();
        let may_read = |path: &Path| {
            let mut rules = rules.iter();
            rules.any(|(folder, _)| path.starts_with(folder))
        };
        scratch.set_variables(command, may_read);
        for folder in scratch.writable() {
            view.writable(&folder, &folder);
        }
        self.limits.set_process_limit(command, &self.groups);
        Ok(Confined { view, scratch })
    }

    /// Makes the rules, the filter and the guard for the process that `command` starts. The variable [`CONFINEMENT`] says
    /// where they are.
    pub(crate) fn impose(
        &self,
        command: &mut Command,
        confined: &Confined,
        folder: &Path,
    ) -> Result<Imposed, SandboxError> {
        let rules = confined.view.rules();
        let descriptors = [
            ruleset(&rules, self.has_network()).map_err(io::Error::other)?,
            filter::file(Isolation::Landlock {
                has_network: self.has_network(),
            })?,
        ];
        let [rules_of, filter_of] = descriptors.each_ref().map(|file| file.as_raw_fd());
        // The path comes last because it may contain a colon.
        let mut value = std::ffi::OsString::from(format!("{rules_of}:{filter_of}:"));
        value.push(folder);
        command.env(CONFINEMENT, value).env("PWD", folder);
        let paths = |wanted: May| {
            let rules = rules.iter().filter(move |(_, may)| *may == wanted);
            rules.map(|(path, _)| path.as_path())
        };
        let guard = Guard::open(
            paths(May::Write),
            paths(May::Connect),
            &confined.scratch.shared_memory(),
            self.has_network(),
        )?;
        Ok(Imposed { descriptors, guard })
    }

    /// What every session with this Python may access, apart from GPUs.
    async fn view(&self, python: &Path) -> Result<View, SandboxError> {
        let mut view = View::of_the_system();
        for path in &self.readable {
            view.read_only(path);
        }
        for path in self.pythons.paths(python).await? {
            view.read_only(&path);
        }
        Ok(view)
    }
}

impl Imposed {
    /// Passes the descriptors to the process that `command` starts. Returns the guard for its system calls.
    pub(crate) fn given_to(self, command: &mut Command) -> Guard {
        inherit(command, self.descriptors.into());
        self.guard
    }
}

impl Rule {
    fn is_known(self) -> bool {
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        let handled = match self {
            Self::Files(abi) => ruleset.handle_access(AccessFs::from_all(abi)),
            Self::Network => ruleset.handle_access(AccessNet::from_all(ABI::V4)),
            Self::Scopes => ruleset.scope(Scope::from_all(ABI::V6)),
        };
        handled.and_then(Ruleset::create).is_ok()
    }
}

fn too_old(missing: &[&(&str, &str, Rule)]) -> SandboxError {
    let release = nix::sys::utsname::uname();
    let release = release.map(|names| names.release().to_string_lossy().into_owned());
    let mut said = String::new();
    for (number, (what, since, _)) in missing.iter().enumerate() {
        let comma = if number > 0 { "; " } else { "" };
        let _ = write!(
            said,
            "{comma}it does not restrict {what} (Linux {since} does)"
        );
    }
    SandboxError::NoLandlock {
        kernel: format!("Linux {}", release.unwrap_or_default()),
        missing: said,
    }
}

fn ruleset(rules: &[(PathBuf, May)], has_network: bool) -> Result<OwnedFd, RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(FILES))?
        .scope(Scope::from_all(ABI::V6))?;
    if !has_network {
        // A second layer: the filter already refuses to create such sockets.
        ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V4))?;
    }
    let mut created = ruleset.create()?;
    for (path, may) in rules {
        // A path that no longer exists needs no rule.
        let Ok(file) = PathFd::new(path) else {
            continue;
        };
        let mut access = access_of(*may);
        if !path.is_dir() {
            access &= AccessFs::from_file(FILES);
        }
        created = created.add_rule(PathBeneath::new(file, access))?;
    }
    let file: Option<OwnedFd> = created.into();
    Ok(file.expect("a ruleset with a hard requirement has a descriptor"))
}

fn access_of(may: May) -> BitFlags<AccessFs> {
    let read = AccessFs::Execute | AccessFs::ReadFile | AccessFs::ReadDir;
    match may {
        May::Read => read,
        May::Write => {
            let devices = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev;
            AccessFs::from_all(FILES) & !devices
        }
        May::Connect => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::ReadDir,
        May::UseDevice => {
            AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::ReadDir | AccessFs::IoctlDev
        }
    }
}
