//! Ordinary cells behave as they do without a proxy.

use crate::proxy::{Proxy, Settings};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use serde_json::json;
use std::path::PathBuf;

fn check_cells(proxy: &Proxy) {
    let mut client = proxy.client();
    let told = client.run("print('x', end='')\n1");
    assert_eq!(
        told.iopub,
        ["busy", "execute_input", "x", "execute_result", "idle"]
    );
    assert_eq!(told.reply["execution_count"], 1);
    let told = client.run("1/0");
    assert_eq!(told.iopub, ["busy", "execute_input", "error", "idle"]);
    assert_eq!(told.reply["ename"], "ZeroDivisionError");
    let told = client.run("2");
    assert_eq!(told.reply["execution_count"], 3);
}

#[test]
fn cells_run_over_tcp() {
    check_cells(&Settings::tcp().start());
}

#[test]
fn cells_run_over_unix_sockets_also_where_an_earlier_kernel_left_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings::ipc(folder.path());
    let mut proxy = settings.start_in(folder);
    check_cells(&proxy);
    killpg(Pid::from_raw(proxy.pid().cast_signed()), Signal::SIGKILL).unwrap();
    proxy.wait();
    assert_eq!(proxy.leftovers().len(), 6, "{:?}", proxy.leftovers());

    let mut again = settings.command(proxy.folder.path()).spawn().unwrap();
    check_cells(&proxy);
    let mut client = proxy.client();
    client.ask_control("shutdown_request", &json!({"restart": false}));
    assert!(again.wait().unwrap().success());
    assert_eq!(proxy.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn the_kernel_gets_its_arguments_and_not_ours() {
    let mut settings = Settings::tcp();
    settings.arguments = vec!["--HistoryManager.hist_file=:memory:".to_owned()];
    let proxy = settings.start();
    let told = proxy.client().run(
        "import sys; print(f'{get_ipython().history_manager.hist_file} {len(sys.argv)}', end='')",
    );
    assert_eq!(told.iopub[2], ":memory: 4");
}

#[test]
fn an_interrupt_of_the_group_reaches_the_kernel_and_leaves_the_proxy() {
    let proxy = Settings::tcp().start();
    let mut client = proxy.client();
    let asked = client.execute("print('up', flush=True)\nwhile True: pass");
    client.await_iopub(&asked, "stream");
    killpg(Pid::from_raw(proxy.pid().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(client.reply_to(&asked)["ename"], "KeyboardInterrupt");
    assert_eq!(client.run("1").reply["status"], "ok");
}

#[test]
fn a_client_that_stands_still_stops_nobody_else() {
    let proxy = Settings::tcp().start();
    let mut stuck = proxy.client();
    let mut client = proxy.client();
    let display = "from IPython.display import publish_display_data as show\n\
                   for _ in range(100): show({'text/plain': 'x' * 100_000})";
    let asked = stuck.execute(display);
    let seen = client.collect_until_idle(&asked);
    assert_eq!(
        seen.iter().filter(|word| *word == "display_data").count(),
        100
    );
    assert_eq!(client.run("1").reply["status"], "ok");
    let late = stuck.collect_until_idle(&asked);
    assert_eq!(late, seen, "it gets everything when it reads at last");
}
