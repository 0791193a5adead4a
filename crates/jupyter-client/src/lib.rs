//! A client of Jupyter kernels, like JupyterLab and nbclient: it starts a kernel from its
//! kernelspec, runs cells and reads their output.
//!
//! In: a kernelspec and code. Out: [`Output`]s in order, and the [`Reply`] of each cell.
//!
//! The sockets are in a private folder (`ipc`), so no other user can reach them and no port can be
//! taken. Signing and sockets come from the crates `jupyter-zmq-client` and `zeromq`. Nothing is
//! shared with `jupyter-wire`, so that this client can test that crate.
//!
//! **Invariant:** the kernel's process ends when its [`Kernel`] is dropped.

mod kernelspec;

use jupyter_protocol::{
    ConnectionInfo, ExecuteReply, ExecuteRequest, ExecutionState, JupyterMessage,
    KernelInfoRequest, ShutdownRequest, connection_info::Transport,
};
use jupyter_zmq_client::{
    ClientControlConnection, ClientIoPubConnection, ClientShellConnection, RuntimeError,
    create_client_control_connection, create_client_iopub_connection,
    create_client_shell_connection_with_identity, peer_identity_for_session,
};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    process::Child,
    time::{Instant, sleep, timeout},
};

pub use jupyter_protocol::{
    JupyterMessageContent as Output, ReplyStatus, Stdio as StreamName, media::MediaType,
};
pub use kernelspec::{Kernelspec, KernelspecError};

/// The pause between two checks whether a starting kernel listens.
const PAUSE: Duration = Duration::from_millis(20);
/// The wait for each answer of a starting kernel.
const ANSWER: Duration = Duration::from_secs(1);
/// The wait for the end of a kernel that was asked to end, or whose connection failed.
const END: Duration = Duration::from_secs(5);

pub type Reply = ExecuteReply;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("Failed to start {}", program.display())]
    Start { program: PathBuf, source: io::Error },
    #[error("Failed to prepare the connection to the kernel")]
    Prepare(#[from] io::Error),
    #[error("The kernel ended ({status}). Its last output was:\n{output}")]
    Ended { status: ExitStatus, output: String },
    #[error("The kernel did not answer within {} s", .0.as_secs())]
    Silent(Duration),
    #[error("The connection to the kernel failed: {0}")]
    Connection(#[from] RuntimeError),
}

/// A running kernel with one client.
pub struct Kernel {
    process: Process,
    shell: ClientShellConnection,
    iopub: ClientIoPubConnection,
    control: ClientControlConnection,
    _folder: TempDir,
}

struct Process {
    child: Child,
    /// The kernel's own output; only the end of it is used.
    log: File,
}

impl Kernel {
    /// Starts a kernel and waits until it answers and its output arrives.
    ///
    /// # Errors
    /// If the process cannot be started, ends, or does not answer within `patience`.
    pub async fn start(kernelspec: &Kernelspec, patience: Duration) -> Result<Self, ClientError> {
        let folder = tempfile::tempdir()?;
        let address = folder.path().join("kernel");
        let [shell_port, iopub_port, stdin_port, control_port, hb_port] = [1, 2, 3, 4, 5];
        let connection = ConnectionInfo {
            ip: address.to_string_lossy().into_owned(),
            transport: Transport::IPC,
            shell_port,
            iopub_port,
            stdin_port,
            control_port,
            hb_port,
            key: uuid::Uuid::new_v4().to_string(),
            signature_scheme: "hmac-sha256".to_owned(),
            kernel_name: None,
        };
        let file = folder.path().join("connection.json");
        let text = serde_json::to_vec(&connection).map_err(io::Error::from)?;
        std::fs::write(&file, text)?;
        let log = tempfile::tempfile()?;
        let mut command = kernelspec.command(&file);
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            .kill_on_drop(true)
            // Ctrl-C in the terminal must not reach the kernel.
            .process_group(0)
            .spawn()
            .map_err(|source| ClientError::Start {
                program: command.as_std().get_program().into(),
                source,
            })?;
        let mut process = Process { child, log };

        let deadline = Instant::now() + patience;
        let listens = || {
            let ports = [shell_port, iopub_port, control_port];
            let socket = |port| PathBuf::from(format!("{}-{port}", address.display()));
            ports.map(socket).iter().all(|socket| socket.exists())
        };
        while !listens() {
            process.check()?;
            if Instant::now() > deadline {
                return Err(ClientError::Silent(patience));
            }
            sleep(PAUSE).await;
        }
        let (shell, iopub, control) = connect(&connection).await?;
        let mut kernel = Self {
            process,
            shell,
            iopub,
            control,
            _folder: folder,
        };
        kernel.greet(deadline, patience).await?;
        Ok(kernel)
    }

    /// Asks for the kernel's info until both answer and output arrive: output sent before the
    /// subscription is lost.
    async fn greet(&mut self, deadline: Instant, patience: Duration) -> Result<(), ClientError> {
        while Instant::now() < deadline {
            let request = JupyterMessage::new(KernelInfoRequest {}, None);
            self.shell.send(request).await?;
            if let Ok(answer) = timeout(ANSWER, self.shell.read()).await {
                self.process.explained(answer).await?;
                if let Ok(output) = timeout(ANSWER, self.iopub.read()).await {
                    self.process.explained(output).await?;
                    return Ok(());
                }
            }
            self.process.check()?;
        }
        Err(ClientError::Silent(patience))
    }

    /// Runs a cell, and gives each of its outputs to `on_output` as it arrives.
    ///
    /// # Errors
    /// If the kernel ends meanwhile. An exception of the cell is in the reply.
    pub async fn run(
        &mut self,
        code: &str,
        on_output: impl FnMut(Output),
    ) -> Result<Reply, ClientError> {
        let request = JupyterMessage::new(ExecuteRequest::new(code.to_owned()), None);
        self.follow(request, on_output).await
    }

    /// Runs code that is not a cell of the notebook: it has no number and is not in the history.
    ///
    /// # Errors
    /// As [`Kernel::run`].
    pub async fn run_aside(
        &mut self,
        code: &str,
        on_output: impl FnMut(Output),
    ) -> Result<Reply, ClientError> {
        let mut request = ExecuteRequest::new(code.to_owned());
        request.store_history = false;
        self.follow(JupyterMessage::new(request, None), on_output)
            .await
    }

    /// Runs a cell as the message with this id, which no other message may have.
    ///
    /// # Errors
    /// As [`Kernel::run`].
    pub async fn run_as(
        &mut self,
        message_id: String,
        code: &str,
        on_output: impl FnMut(Output),
    ) -> Result<Reply, ClientError> {
        let mut request = JupyterMessage::new(ExecuteRequest::new(code.to_owned()), None);
        request.header.msg_id = message_id;
        self.follow(request, on_output).await
    }

    async fn follow(
        &mut self,
        request: JupyterMessage,
        mut on_output: impl FnMut(Output),
    ) -> Result<Reply, ClientError> {
        let id = request.header.msg_id.clone();
        let is_its = |message: &JupyterMessage| {
            (message.parent_header.as_ref()).is_some_and(|parent| parent.msg_id == id)
        };
        let sent = self.shell.send(request).await;
        self.process.explained(sent).await?;
        let mut reply = None;
        let mut is_idle = false;
        while reply.is_none() || !is_idle {
            tokio::select! {
                message = self.shell.read() => {
                    let message = self.process.explained(message).await?;
                    if is_its(&message) && let Output::ExecuteReply(content) = message.content {
                        reply = Some(content);
                    }
                }
                message = self.iopub.read() => {
                    let message = self.process.explained(message).await?;
                    if is_its(&message) {
                        match message.content {
                            Output::Status(status) => is_idle = status.execution_state == ExecutionState::Idle,
                            content => on_output(content),
                        }
                    }
                }
                status = self.process.child.wait() => return Err(self.process.ended(status?)),
            }
        }
        Ok(reply.expect("the loop ends with a reply"))
    }

    /// Interrupts the cell that runs, as Jupyter's button does.
    #[must_use]
    pub fn interrupter(&self) -> Interrupter {
        Interrupter(self.process.child.id())
    }

    /// Asks the kernel to end, and ends it if it does not.
    pub async fn shut_down(mut self) {
        let request = JupyterMessage::new(ShutdownRequest { restart: false }, None);
        if self.control.send(request).await.is_ok() {
            let _ = timeout(END, self.process.child.wait()).await;
        }
        let _ = self.process.child.kill().await;
    }
}

/// Interrupts a kernel that runs a cell.
pub struct Interrupter(Option<u32>);

impl Interrupter {
    /// Sends a signal to the kernel and its children. Does nothing if the kernel has ended.
    pub fn interrupt(&self) {
        let process = self.0.and_then(|process| i32::try_from(process).ok());
        if let Some(process) = process {
            let _ = killpg(Pid::from_raw(process), Signal::SIGINT);
        }
    }
}

impl Process {
    fn check(&mut self) -> Result<(), ClientError> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(self.ended(status)),
        }
    }

    /// Returns the result. If it failed because the kernel has ended, the error is that end.
    async fn explained<T>(&mut self, result: Result<T, RuntimeError>) -> Result<T, ClientError> {
        match result {
            Ok(value) => Ok(value),
            Err(error) => match timeout(END, self.child.wait()).await {
                Ok(status) => Err(self.ended(status?)),
                Err(_) => Err(error.into()),
            },
        }
    }

    fn ended(&mut self, status: ExitStatus) -> ClientError {
        let output = last_words(&mut self.log);
        ClientError::Ended { status, output }
    }
}

type Connections = (
    ClientShellConnection,
    ClientIoPubConnection,
    ClientControlConnection,
);

async fn connect(connection: &ConnectionInfo) -> Result<Connections, RuntimeError> {
    let session = uuid::Uuid::new_v4().to_string();
    let identity = peer_identity_for_session(&session)?;
    Ok((
        create_client_shell_connection_with_identity(connection, &session, identity).await?,
        create_client_iopub_connection(connection, "", &session).await?,
        create_client_control_connection(connection, &session).await?,
    ))
}

fn last_words(log: &mut File) -> String {
    const BYTES: u64 = 2000;
    let mut text = Vec::new();
    let from = log
        .metadata()
        .map_or(0, |file| file.len().saturating_sub(BYTES));
    if log.seek(io::SeekFrom::Start(from)).is_ok() {
        let _ = log.read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).trim().to_owned()
}
