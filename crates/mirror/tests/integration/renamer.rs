//! Another process that renames folders and puts links to a folder outside in their place.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

pub(crate) struct Renamer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Renamer {
    pub(crate) fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/renamer.py");
        let mut child = Command::new("python3")
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    /// Lets it rename in this folder while `work` runs.
    pub(crate) fn during<T>(
        &mut self,
        folder: &Path,
        outside: &Path,
        work: impl FnOnce() -> T,
    ) -> T {
        self.asked(
            &format!("{}\t{}", folder.display(), outside.display()),
            "begins",
        );
        let done = work();
        self.asked("end", "ends");
        done
    }

    fn asked(&mut self, line: &str, answer: &str) {
        writeln!(self.input, "{line}").unwrap();
        let mut said = String::new();
        self.output.read_line(&mut said).unwrap();
        assert_eq!(said.trim_end(), answer);
    }
}

impl Drop for Renamer {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
