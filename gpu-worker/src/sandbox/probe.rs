//! Runs a program in a sandbox that tries to reach things outside, before a worker uses the sandbox.
//!
//! In: things outside the sandbox. Out: which of them the program reached. If there are any, the sandbox is not used.

use super::{
    BUBBLEWRAP, Bubblewrap, Image, LANDLOCK, Landlock, NetworkChoice, Outermost, Sandbox,
    SandboxError, Variable, guarded,
};
use baton_mirror::Root;
use std::{
    ffi::OsString,
    io,
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    path::Path,
    process::Stdio,
};
use tokio::process::Command;

const NAMESPACES: &[&str] = &["user", "pid", "mnt", "ipc", "uts", "cgroup", "net"];

/// Prints one line for each thing that it reaches, and [`TRIED`] at the end.
///
/// Its arguments belong to the worker: a file, a TCP port, the name of an abstract socket, the worker's process id, the
/// path of a socket, and the namespaces that a sandbox does not share. The process id and the path are empty for
/// bubblewrap, where they mean something else inside.
pub(crate) const PROGRAM: &str = r#"
import ctypes, os, socket, sys
file, port, name, worker, path, *namespaces = sys.argv[1:]
LIBC = ctypes.CDLL(None)
CLONE_NEWUSER = 0x10000000

def tcp():
    socket.create_connection(("127.0.0.1", int(port)), 3)

def abstract():
    socket.socket(socket.AF_UNIX).connect("\0" + name)

def programs():
    if worker:  # the user may, and is refused
        os.close(os.open("/usr", os.O_TMPFILE | os.O_WRONLY))
    return os.access("/usr", os.W_OK)

def program():
    descriptor = os.open("/proc/self/exe", os.O_RDONLY)
    os.fchmod(descriptor, os.fstat(descriptor).st_mode & 0o7777)

def files():
    if worker:  # that it exists is no secret there
        open(file).close()
    return os.path.exists(file)

def mode():
    os.chmod(file, 0o644)

def signal():
    os.kill(int(worker), 0)

def trace():
    open(f"/proc/{worker}/environ", "rb").close()

def local():
    socket.socket(socket.AF_UNIX).connect(path)

def numbered():
    return LIBC.shmget(0x6261746F, 4096, 0o1600) >= 0

def capabilities():
    lines = open("/proc/self/status").read().splitlines()
    return any(line.startswith("CapEff:") and int(line.split()[1], 16) for line in lines)

attempts = {
    "files of the worker": files,
    "the system's programs, for writing": programs,
    "the worker's Python, for changing": program,
    "a TCP port of the machine": tcp,
    "an abstract socket of the machine": abstract,
    "capabilities": capabilities,
    "another user namespace": lambda: LIBC.unshare(CLONE_NEWUSER) == 0,
}
if worker:
    attempts |= {
        "the mode of a file of the worker": mode,
        "signals to the worker": signal,
        "the memory of the worker": trace,
        "a socket of the worker": local,
        "memory of all sessions": numbered,
    }
for namespace in namespaces:
    own = os.readlink("/proc/self/ns/" + namespace.partition(":")[0])
    attempts["the machine's " + namespace.partition(":")[0] + " namespace"] = lambda own=own, its=namespace: own == its
for what, attempt in attempts.items():
    try:
        if attempt() is not False:
            print(what)
    except OSError:
        pass
print("tried", flush=True)
"#;
const TRIED: &str = "tried";

/// Things outside the sandbox, for the probe to try. They exist until this is dropped.
pub(crate) struct Probe {
    sandbox: &'static str,
    _file: tempfile::NamedTempFile,
    _port: TcpListener,
    _sockets: [UnixListener; 2],
    _folder: tempfile::TempDir,
    /// Takes the place of a notebook's folder.
    notebook: tempfile::TempDir,
    /// Arguments of [`PROGRAM`].
    pub(crate) arguments: Vec<OsString>,
}

impl Probe {
    pub(crate) fn create(sandbox: &Sandbox, runtime_folder: &Path) -> io::Result<Self> {
        match sandbox {
            Sandbox::Bubblewrap(bubblewrap) => Self::of_bubblewrap(bubblewrap, runtime_folder),
            Sandbox::Landlock(landlock) => Self::of_landlock(landlock, runtime_folder),
        }
    }

    fn of_bubblewrap(bubblewrap: &Bubblewrap, runtime_folder: &Path) -> io::Result<Self> {
        let has_host_network = bubblewrap.network == NetworkChoice::Host;
        let mut probe = Self::outside(BUBBLEWRAP, runtime_folder)?;
        let [_, port, name, worker, path] = probe.own_arguments();
        if has_host_network {
            // The session has the machine's network, so it may reach both.
            *port = "0".into();
            *name = OsString::new();
        }
        *worker = OsString::new();
        *path = OsString::new();
        let namespaces = namespaces(has_host_network)?;
        let namespaces = namespaces.into_iter().map(OsString::from);
        probe.arguments.extend(namespaces);
        Ok(probe)
    }

    fn of_landlock(landlock: &Landlock, runtime_folder: &Path) -> io::Result<Self> {
        let mut probe = Self::outside(LANDLOCK, runtime_folder)?;
        if landlock.has_network() {
            let [_, port, ..] = probe.own_arguments();
            *port = "0".into();
        }
        Ok(probe)
    }

    fn outside(sandbox: &'static str, runtime_folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(runtime_folder)?;
        let file = tempfile::NamedTempFile::new_in(runtime_folder)?;
        let folder = tempfile::TempDir::new_in(runtime_folder)?;
        let notebook = tempfile::TempDir::new_in(runtime_folder)?;
        let port = TcpListener::bind("127.0.0.1:0")?;
        let name = format!("baton-{}", uuid::Uuid::new_v4().simple());
        let abstract_socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let path = folder.path().join("s");
        let socket = UnixListener::bind(&path)?;
        let arguments = vec![
            file.path().into(),
            port.local_addr()?.port().to_string().into(),
            name.into(),
            std::process::id().to_string().into(),
            path.into(),
        ];
        Ok(Self {
            sandbox,
            _file: file,
            _port: port,
            _sockets: [abstract_socket, socket],
            _folder: folder,
            notebook,
            arguments,
        })
    }

    fn own_arguments(&mut self) -> &mut [OsString; 5] {
        let own = self.arguments.first_chunk_mut();
        own.expect("`outside` makes so many")
    }

    /// A command for a sandbox like that of a session. The caller adds the program to run inside.
    pub(crate) async fn command(
        &self,
        bubblewrap: &Bubblewrap,
        python: &Path,
    ) -> Result<Command, SandboxError> {
        let mut command = Command::new(&bubblewrap.program);
        let mut view = bubblewrap.view(python).await?;
        let variables: Vec<_> = std::env::vars_os().collect();
        let variables: Vec<Variable<'_>> = variables
            .iter()
            .map(|(name, value)| (name.as_os_str(), Some(value.as_os_str())))
            .collect();
        view.of_environment(&variables, bubblewrap.limits.scratch_bytes);
        let notebook = Root::open(self.notebook.path()).map_err(io::Error::other)?;
        view.notebook_folder(&notebook);
        if bubblewrap.is_of_image(python) {
            Image::set_variables(&mut command, &bubblewrap.inside(python));
        }
        bubblewrap.enter(&mut command, &view)?;
        Ok(command)
    }

    /// Starts the command, which ends with [`PROGRAM`]. It must end here, because it holds descriptors.
    fn start(&self, mut command: Command) -> io::Result<Outermost> {
        command
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Outermost::spawn(&mut command)
    }

    /// Checks the output of the program. `said`: its error output.
    ///
    /// # Errors
    /// If it reached something, or did not run to its end.
    pub(crate) fn judge(&self, printed: &[u8], said: &[u8]) -> Result<(), SandboxError> {
        let printed = std::str::from_utf8(printed).map_err(io::Error::other)?;
        let mut reached: Vec<_> = printed.lines().collect();
        if reached.pop() != Some(TRIED) {
            let said = String::from_utf8_lossy(said).trim().to_owned();
            return Err(match self.sandbox {
                LANDLOCK => SandboxError::NotConfined { said },
                _ => SandboxError::Fails { said },
            });
        }
        match reached.is_empty() {
            true => Ok(()),
            false => Err(SandboxError::Leaks {
                sandbox: self.sandbox,
                reached: reached.join(", "),
            }),
        }
    }
}

/// Runs the probe with this Python in a sandbox like that of a session.
///
/// # Errors
/// If no sandbox starts, or the probe reaches something outside.
pub(super) async fn run(
    sandbox: &Sandbox,
    python: &Path,
    runtime_folder: &Path,
) -> Result<(), SandboxError> {
    match sandbox {
        Sandbox::Bubblewrap(bubblewrap) => run_inside(bubblewrap, python, runtime_folder).await,
        Sandbox::Landlock(landlock) => run_confined(landlock, python, runtime_folder).await,
    }
}

async fn run_inside(
    bubblewrap: &Bubblewrap,
    python: &Path,
    runtime_folder: &Path,
) -> Result<(), SandboxError> {
    let probe = Probe::of_bubblewrap(bubblewrap, runtime_folder)?;
    let mut command = probe.command(bubblewrap, python).await?;
    command
        .args(["--chdir", "/", "--"])
        .arg(bubblewrap.inside(python))
        .args(["-I", "-c", PROGRAM]);
    let mut outermost = probe.start(command)?;
    let (printed, said) = outermost.output().await?;
    probe.judge(&printed, &said)
}

/// Confines the Python process that runs it. [`PROGRAM`] follows.
const CONFINED: &str = "from baton_shim.session import confinement\nconfinement.confine()\n";

async fn run_confined(
    landlock: &Landlock,
    python: &Path,
    runtime_folder: &Path,
) -> Result<(), SandboxError> {
    let probe = Probe::of_landlock(landlock, runtime_folder)?;
    let mut command = Command::new(python);
    let confined = landlock.bare(&mut command, python).await?;
    let imposed = landlock.impose(&mut command, &confined, Path::new("/"))?;
    let guard = imposed.given_to(&mut command);
    let answered = guarded(guard)?.before(&mut command);
    command
        .current_dir("/")
        .args(["-c", &format!("{CONFINED}{PROGRAM}")]);
    let mut outermost = probe.start(command)?;
    answered.required().await?;
    let (printed, said) = outermost.output().await?;
    probe.judge(&printed, &said)
}

/// The namespaces of this process that a sandbox does not share, as `/proc/self/ns` names them.
fn namespaces(has_host_network: bool) -> io::Result<Vec<String>> {
    let separate = NAMESPACES
        .iter()
        .filter(|name| **name != "net" || !has_host_network);
    separate
        .map(|name| {
            let link = std::fs::read_link(format!("/proc/self/ns/{name}"))?;
            Ok(link.display().to_string())
        })
        .collect()
}
