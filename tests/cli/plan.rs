//! `baton plan` answers with numbers that the model gives, and with a sentence where it cannot.

use crate::home::{Home, Said};

fn plan(arguments: &[&str]) -> Said {
    Home::new().run(&[&["plan"], arguments].concat())
}

#[test]
fn people_are_told_how_many_a_gpu_serves() {
    let said = plan(&[
        "--users", "20", "--gpus", "2", "--stay", "90m", "--wait", "1m",
    ]);
    assert!(said.status.success(), "{}", said.stderr);
    for expected in [
        "A person edits for 2 min between cells of 30 s, on average; a hand-over takes 500 ms.",
        "A person stays for 90 min and is away for 60 min.",
        "With 1 GPU, 1 person never waits; 2 people wait 4.2 s on average, and 1 in 100 longer than 78 s; from the ",
        "With 2 GPUs, 6 people wait 2.9 s on average, and 1 in 100 longer than 50 s; 7 people wait",
    ] {
        assert!(
            said.stdout.contains(expected),
            "{expected}: {}",
            said.stdout
        );
    }
}

#[test]
fn programs_are_told_in_seconds() {
    let said = plan(&["--users", "3", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(told["mean_seconds"]["edit"], 120.0);
    let people: Vec<_> = told["answers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["people"])
        .collect();
    assert_eq!(people, [1, 2, 3]);
    assert_eq!(told["most"][0]["served"]["people"], 1);
}

#[test]
fn two_people_have_their_states_listed() {
    let said = plan(&["--users", "2", "--states"]);
    assert!(said.stdout.contains("\nerQ2G1 "), "{}", said.stdout);
    assert!(said.stdout.ends_with("\n16 states\n"), "{}", said.stdout);
    let said = plan(&["--users", "2", "--states", "--stay", "90m"]);
    assert!(said.stdout.ends_with("\n22 states\n"), "{}", said.stdout);
}

fn check_refused(arguments: &[&str], expected: &str) {
    let said = plan(arguments);
    assert!(!said.status.success());
    assert!(
        said.stderr.contains(expected),
        "{expected}: {}",
        said.stderr
    );
}

#[test]
fn what_has_no_answer_is_said() {
    check_refused(
        &["--exclusive"],
        "all other people wait forever\nhint: say how long people stay",
    );
    check_refused(&["--edit", "0s"], "A time cannot be zero");
    check_refused(&["--edit", "soon"], "expected a duration such as");
    check_refused(&["--users", "0"], "0 is not in 1..");
    check_refused(
        &["--latency", "/nowhere.json"],
        "Failed to read /nowhere.json",
    );
    check_refused(
        &["--from-broker", "--broker", "unix:/nowhere.sock"],
        "Error: ",
    );
    check_refused(
        &["--policies", "--run", "15s"],
        "'--policies' cannot be used with '--run <TIME>'",
    );
    check_refused(
        &["--states", "--gpus", "2"],
        "'--states' cannot be used with '--gpus <NUMBER>'",
    );
    check_refused(
        &["--from-broker", "--edit", "1m"],
        "'--from-broker' cannot be used with '--edit <TIME>'",
    );
    check_refused(&["--seed", "2"], "--policies");
    check_refused(
        &["--policies", "--cells", "80%:1s"],
        "with parts that add up to 100 %",
    );
    check_refused(
        &["--users", "20", "--states"],
        "hint: --states lists those of up to 5 people",
    );
}

#[test]
fn the_ways_to_share_gpus_are_compared() {
    let class = [
        "--policies",
        "--users",
        "12",
        "--edit",
        "90s",
        "--seed",
        "3",
    ];
    let said = plan(&class);
    assert!(
        said.stdout
            .contains("12 people share 1 GPU; cells compute 10 s on average.")
    );
    let told = plan(&[&class[..], &["--json"]].concat());
    let told: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
    let short = |row: usize| told[row]["short_mean_seconds"]["mean"].as_f64().unwrap();
    assert_eq!(told[2]["policy"], "Baton's own rules");
    assert!(short(2) < 2.0 && short(2) * 20.0 < short(0), "{told}");

    let said = plan(&[&class[..], &["--gpus", "2", "--slots", "3"]].concat());
    assert!(
        said.stdout.contains(
            "12 people share 2 GPUs; cells compute 10 s on average. 3 time-share each GPU."
        ),
        "{}",
        said.stdout
    );

    let said = plan(&["--policies", "--session-memory", "90GB"]);
    assert!(
        said.stderr
            .contains("hint: --session-memory is for one session")
    );
    let said = plan(&["--policies", "--cells", "5"]);
    assert!(said.stderr.contains("expected parts and medians such as"));
}

#[test]
fn what_is_too_large_for_the_chain_is_simulated() {
    let class = ["--users", "1000", "--edit", "10m", "--run", "20s"];
    let said = plan(&class);
    assert!(
        said.stdout
            .contains("rows are simulated, because their chain is too large"),
        "{}{}",
        said.stdout,
        said.stderr
    );
    let told = plan(&[&class[..], &["--json"]].concat());
    let told: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
    let rows = told["answers"].as_array().unwrap();
    assert_eq!(rows[0]["method"], "exact");
    assert_eq!(rows.last().unwrap()["method"], "simulated");
}

#[test]
fn a_report_is_one_file_that_asks_for_no_other() {
    let home = Home::new();
    let file = home.path("report.html");
    let said = home.run(&[
        "plan",
        "--users",
        "12",
        "--gpus",
        "2",
        "--report",
        file.to_str().unwrap(),
    ]);
    assert!(said.status.success(), "{}", said.stderr);
    let report = std::fs::read_to_string(&file).unwrap();
    assert_eq!(report.matches("<svg").count(), 4);
    for expected in [
        "How long a cell waits on average",
        "How long 1 cell in 100 waits at least",
        "How busy a GPU is",
        "How long cells of 12 people wait",
    ] {
        assert!(report.contains(expected), "{expected}");
    }
    for outside in ["http:", "https:", "src=", "href=", "url("] {
        assert!(!report.contains(outside), "{outside}");
    }
}

#[test]
fn a_measured_hand_over_is_taken() {
    let home = Home::new();
    let file = home.write(
        "latency.json",
        r#"{"rows": [], "hand_over_seconds": 0.035, "cold_seconds": 2.5}"#,
    );
    let said = home.run(&["plan", "--users", "2", "--latency", file.to_str().unwrap()]);
    assert!(
        said.stdout.contains("a hand-over takes 35 ms."),
        "{}",
        said.stderr
    );
    let file = home.write(
        "latency.json",
        r#"{"rows": [], "hand_over_seconds": 0.035, "cold_seconds": -2.5}"#,
    );
    let said = home.run(&["plan", "--policies", "--latency", file.to_str().unwrap()]);
    assert!(
        said.stderr.contains("which is impossible"),
        "{}",
        said.stderr
    );
}

#[test]
fn machines_that_differ_are_simulated() {
    let class = [
        "--users",
        "40",
        "--machines",
        "2 a100 80G, 3 t4 16G slots=2",
        "--groups",
        "10 a100, 5 20G run=2m",
    ];
    let said = plan(&class);
    assert!(said.status.success(), "{}", said.stderr);
    for expected in [
        "Simulated: 8 courses of 8.0 h; ± is half the 99 % confidence interval.",
        "\n40 people  ",
        "\n  10 people: a100  ",
        "\n  5 people: 20G run=2m  ",
        "\n  25 others  ",
        "\n2 a100 80G  ",
        "\n3 t4 16G slots=2  ",
        "\nCells wait ",
    ] {
        assert!(
            said.stdout.contains(expected),
            "{expected}: {}",
            said.stdout
        );
    }
    assert!(!said.stdout.contains("exact model"), "{}", said.stdout);
    let told = plan(
        &[
            &class[..],
            &["--pool", "0-2 a100 80G", "--lesson", "1h", "--json"],
        ]
        .concat(),
    );
    let told: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(told["people"], 40);
    assert!(told["machine_hours"].as_f64().unwrap() > 0.0, "{told}");
    assert!(told["wait_margin"].as_f64().unwrap() > 0.0, "{told}");
    let names = |list: &str| -> Vec<_> {
        let list = told[list].as_array().unwrap().iter();
        list.map(|part| part["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        names("kinds"),
        ["2 a100 80G", "3 t4 16G slots=2", "pool 0-2 a100 80G"]
    );
    assert_eq!(
        names("groups"),
        ["10 people: a100", "5 people: 20G run=2m", "25 others"]
    );

    let said = plan(&["--users", "30", "--machines", "2 a100"]);
    assert!(
        said.stdout
            .ends_with("the exact model applies: baton plan --users 30 --gpus 2\n"),
        "{}",
        said.stdout
    );
}

#[test]
fn pools_of_the_configuration_file_are_simulated() {
    let home = Home::new();
    home.write(
        ".config/baton/config.toml",
        r#"
        [[pool]]
        name = "slurm"
        provider = "command"
        min = 1
        max = 3
        offers = { gpu = "a100", gpu_memory = "80G" }
        "#,
    );
    let run = |arguments: &[&str]| home.run(&[&["plan"], arguments].concat());
    let said = run(&[
        "--users",
        "20",
        "--pool",
        "slurm start=2m",
        "--pool",
        "0-2",
        "--groups",
        "5 40G",
        "--json",
    ]);
    let told: serde_json::Value = serde_json::from_str(&said.stdout).expect(&said.stderr);
    assert_eq!(told["kinds"][0]["name"], "pool slurm");
    let machines = told["kinds"][0]["machines"].as_f64().unwrap();
    assert!((1.0..=3.0).contains(&machines), "{told}");
    let said = run(&["--pool", "grid"]);
    assert!(
        said.stderr
            .contains("has no pool grid\nhint: it has slurm;"),
        "{}",
        said.stderr
    );
}

#[test]
fn wrong_machines_are_refused() {
    let unlike = "4 a100 80G, 8 t4 16G";
    for (groups, expected) in [
        (
            "5 h100",
            "There is no machine with the GPU h100 for 5 people: h100\n\
             hint: the machines are 4 a100 80G, 8 t4 16G; a property that is not written there counts as missing",
        ),
        (
            "5 t4 20G",
            "There is no machine with the GPU t4 and with 20 GiB of GPU memory for 5 people: t4 20G",
        ),
        (
            "5 label=room-2",
            "There is no machine with the label room-2",
        ),
        (
            "50 a100",
            "--groups has more people than there are: --users is 40",
        ),
        ("0 a100", "expected a number from 1 to 65535"),
        ("5 run=0s", "A time cannot be zero"),
    ] {
        check_refused(&["--machines", unlike, "--groups", groups], expected);
    }
    check_refused(&["--machines", "a100"], "expected a number from 1 to 65535");
    check_refused(
        &["--machines", unlike, "--lesson", "0s"],
        "A lesson cannot take no time",
    );
    check_refused(
        &["--machines", unlike, "--gpus", "2"],
        "cannot be used with '--gpus <NUMBER>'",
    );
    check_refused(
        &["--pool", "0-4", "--hand-over", "1s"],
        "cannot be used with '--hand-over <TIME>'",
    );
    check_refused(&["--pool", "6-0"], "expected two numbers such as 0-4");
    check_refused(&["--groups", "5 a100"], "--machines <LIST>|--pool <POOL>");
}
