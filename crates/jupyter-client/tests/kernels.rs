//! The client with a real ipykernel.
#![allow(clippy::unwrap_used)]

use baton_jupyter_client::{ClientError, Kernel, Kernelspec, Output, ReplyStatus};
use serde_json::json;
use std::{fs, path::Path, time::Duration};

const PATIENCE: Duration = Duration::from_secs(60);

fn kernelspec(folder: &Path, code: &str) -> Kernelspec {
    let python = std::env::var("BATON_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let text = json!({
        "argv": [python, "-c", code, "-f", "{connection_file}"],
        "env": {"COURSE": "ml101"},
        "display_name": "A kernel",
        "language": "python",
    });
    let path = folder.join("kernel.json");
    fs::write(&path, text.to_string()).unwrap();
    Kernelspec::read(&path, "python3".as_ref()).unwrap()
}

async fn ipykernel(folder: &Path) -> Kernel {
    // ipykernel redirects the descriptors of its output.
    let code = "import os, sys; sys.log = os.dup(2)\n\
        from ipykernel import kernelapp; kernelapp.launch_new_instance()";
    Kernel::start(&kernelspec(folder, code), PATIENCE)
        .await
        .unwrap()
}

#[tokio::test]
async fn cells_run_and_show_what_they_print_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let mut kernel = ipykernel(folder.path()).await;
    // A kernel may send a line in parts.
    let mut shown = String::new();
    let mut note = |output| match output {
        Output::StreamContent(stream) => shown.push_str(&stream.text),
        Output::ExecuteResult(result) => shown.push_str(&format!("{:?}", result.data)),
        _ => {}
    };
    let first = kernel.run("import os; x = 6; print('one')", &mut note);
    assert_eq!(first.await.unwrap().status, ReplyStatus::Ok);
    let second = kernel.run("print(os.environ['COURSE'])\nx * 7", &mut note);
    let reply = second.await.unwrap();
    assert_eq!(reply.execution_count.value(), 2);
    kernel.shut_down().await;
    let result = shown.strip_prefix("one\nml101\n").unwrap();
    assert!(result.contains("42"), "{shown:?}");
}

#[tokio::test]
async fn an_exception_is_in_the_reply_and_the_end_of_the_kernel_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut kernel = ipykernel(folder.path()).await;
    let reply = kernel.run("1 / 0", drop).await.unwrap();
    assert_eq!(reply.status, ReplyStatus::Error);
    assert_eq!(reply.error.unwrap().ename, "ZeroDivisionError");
    let end = "import os, sys; os.write(sys.log, b'the last words'); os._exit(3)";
    let error = kernel.run(end, drop).await.unwrap_err();
    let ClientError::Ended { status, output } = error else {
        panic!("{error}");
    };
    assert_eq!(status.code(), Some(3));
    assert!(output.ends_with("the last words"), "{output}");
}

#[tokio::test]
async fn a_kernel_that_does_not_start_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let kernelspec = kernelspec(folder.path(), "raise SystemExit('no licence')");
    let error = Kernel::start(&kernelspec, PATIENCE).await.err().unwrap();
    assert!(error.to_string().contains("no licence"), "{error}");
    let nowhere = Kernelspec::new("/no/python".as_ref(), []).in_folder(folder.path());
    let error = Kernel::start(&nowhere, PATIENCE).await.err().unwrap();
    assert_eq!(error.to_string(), "Failed to start /no/python");
    let missing = Kernelspec::read(&folder.path().join("none.json"), "python3".as_ref());
    assert!(missing.is_err());
}

#[tokio::test]
async fn a_kernel_that_stays_silent_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let kernelspec = kernelspec(folder.path(), "import time; time.sleep(1000)");
    let error = Kernel::start(&kernelspec, Duration::from_millis(200)).await;
    assert!(matches!(error.err(), Some(ClientError::Silent(_))));
}
