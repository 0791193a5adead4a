//! `baton people`: the file that says who may use the broker.

use crate::home::{Home, Said, mode, wait_until};
use nix::sys::signal::Signal;
use std::{
    fs,
    os::unix::fs::{MetadataExt, chown},
    thread,
};

/// In the home's folder, so that the file has a relative path.
fn people(home: &Home, arguments: &[&str]) -> Said {
    let all = [&["people"], arguments, &["--people-file", "people.toml"]].concat();
    home.run(&all)
}

fn done(home: &Home, arguments: &[&str]) -> Said {
    let said = people(home, arguments);
    assert!(said.status.success(), "{arguments:?}: {}", said.stderr);
    said
}

fn text(home: &Home) -> String {
    fs::read_to_string(home.path("people.toml")).unwrap()
}

#[test]
fn people_are_added_listed_given_new_tokens_and_removed() {
    let home = Home::new();
    done(&home, &["add", "ada", "--course", "ml101"]);
    done(
        &home,
        &[
            "add",
            "Eve \"E\" B.",
            "--staff-of",
            "ml101",
            "--expires",
            "30d",
        ],
    );
    done(&home, &["add", "gpu-1", "--worker"]);
    done(
        &home,
        &[
            "add",
            "root",
            "--admin",
            "--expires",
            "2999-01-31T12:00:00Z",
        ],
    );
    let by_hand = text(&home).replace(
        "name = \"ada\"",
        "# The first one.\nname = \"ada\"  # of 1815",
    );
    fs::write(home.path("people.toml"), by_hand).unwrap();
    let listed = done(&home, &["list"]).stdout;
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines[0].starts_with("NAME"), "{listed}");
    assert!(
        lines[1].contains("Eve \"E\" B.") && lines[1].contains("staff of ml101"),
        "{listed}"
    );
    assert!(lines[2].contains("student of ml101"), "{listed}");
    assert!(lines[3].contains("worker"), "{listed}");
    assert!(
        lines[4].contains("admin") && lines[4].contains("2999-01-31"),
        "{listed}"
    );

    let before = text(&home);
    let token = done(&home, &["rotate", "ada"]).stdout;
    let after = text(&home);
    assert!(!after.contains(token.trim()));
    let changed: Vec<(&str, &str)> = before
        .lines()
        .zip(after.lines())
        .filter(|(one, other)| one != other)
        .collect();
    assert_eq!(changed.len(), 1, "{changed:?}");
    assert!(changed[0].1.starts_with("token_hash"), "{changed:?}");
    let token = done(&home, &["rotate", "root", "--expires", "1d"]).stdout;
    assert!(!text(&home).contains("2999-") && !token.trim().is_empty());
    let expiry = |home: &Home| {
        let text = text(home);
        let entry = text.rsplit("[[person]]").next().unwrap();
        let line = entry.lines().find(|line| line.starts_with("expires"));
        line.map(str::to_owned)
    };
    let before = expiry(&home);
    assert!(before.is_some());
    done(&home, &["rotate", "root"]);
    assert_eq!(expiry(&home), before);
    done(&home, &["rotate", "root", "--expires", "never"]);
    assert_eq!(expiry(&home), None);

    done(&home, &["remove", "gpu-1", "Eve \"E\" B."]);
    let listed = done(&home, &["list"]).stdout;
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(text(&home).contains("# The first one.\nname = \"ada\"  # of 1815"));
    assert_eq!(mode(&home.path("people.toml")), 0o600);
    let files = fs::read_dir(home.path("")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let others: Vec<String> = names.filter(|name| name != "people.toml").collect();
    assert!(
        !others.iter().any(|name| name.contains("tmp")),
        "{others:?}"
    );
}

#[test]
fn changes_at_the_same_time_are_all_kept() {
    let home = Home::new();
    done(&home, &["add", "root"]);
    let names: Vec<String> = (0..12).map(|number| format!("person-{number}")).collect();
    thread::scope(|scope| {
        for name in &names {
            scope.spawn(|| done(&home, &["add", name]));
        }
    });
    thread::scope(|scope| {
        for name in &names[..6] {
            scope.spawn(|| done(&home, &["remove", name]));
        }
        for name in &names[6..] {
            scope.spawn(|| done(&home, &["rotate", name]));
        }
    });
    let listed = done(&home, &["list"]).stdout;
    assert_eq!(listed.lines().count(), 1 + 1 + 6, "{listed}");
    assert!(
        names[6..].iter().all(|name| listed.contains(name)),
        "{listed}"
    );
}

#[test]
fn an_expired_token_is_not_replaced_by_another() {
    let home = Home::new();
    done(&home, &["add", "ada", "--expires", "30d"]);
    let before = text(&home);
    let expired = before.lines().map(|line| match line {
        line if line.starts_with("expires") => "expires = \"2001-01-01T00:00:00Z\"\n".to_owned(),
        line => format!("{line}\n"),
    });
    let expired: String = expired.collect();
    fs::write(home.path("people.toml"), &expired).unwrap();
    let said = people(&home, &["rotate", "ada"]);
    assert!(
        said.stderr.contains("The token of ada has expired\nhint: "),
        "{}",
        said.stderr
    );
    assert_eq!(text(&home), expired);
    done(&home, &["rotate", "ada", "--expires", "30d"]);
}

/// Other users can open the folder, and so lock it.
#[test]
fn a_locked_folder_delays_no_change() {
    let home = Home::new();
    let folder = fs::File::open(home.path("")).unwrap();
    folder.lock().unwrap();
    let all = ["people", "add", "ada", "--people-file", "people.toml"];
    let mut baton = home.command(&all).spawn().unwrap();
    let ended = wait_until("the person is added", || baton.try_wait().unwrap());
    assert!(ended.success());
}

#[test]
fn without_output_nothing_changes() {
    let home = Home::new();
    home.write("roster.csv", "name\nada\nbob\n");
    done(&home, &["add", "eve"]);
    let before = text(&home);
    for arguments in [
        &["add", "ada"][..],
        &["rotate", "eve"],
        &["import", "roster.csv"],
    ] {
        let all = [&["people"], arguments, &["--people-file", "people.toml"]].concat();
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let mut baton = home.command(&all).stdout(full).spawn().unwrap();
        assert!(!baton.wait().unwrap().success(), "{arguments:?}");
        assert_eq!(text(&home), before, "{arguments:?}");
    }
    assert_eq!(
        done(&home, &["import", "roster.csv"])
            .stdout
            .lines()
            .count(),
        3
    );
}

#[test]
fn what_makes_no_sense_changes_nothing() {
    let home = Home::new();
    for (arguments, why) in [
        (&["remove", "ada"][..], "Failed to read"),
        (&["list"], "Failed to read"),
        (&["add", "ada", "--expires", "yesterday"], "hint: write 30d"),
        (&["add", "ada\nbob"], "one line of 1 to 100 characters"),
        (&["add", "\u{1b}[31mada"], "without control characters"),
        (
            &["add", &"a".repeat(101)],
            "one line of 1 to 100 characters",
        ),
        (&["add", " "], "one line of 1 to 100 characters"),
        (
            &["add", "ada", "--course", "m\tl"],
            "without control characters",
        ),
        (
            &["add", "ada", "--expires", "2001-01-01T00:00:00Z"],
            "in the past",
        ),
    ] {
        let said = people(&home, arguments);
        assert!(said.stderr.contains(why), "{arguments:?}: {}", said.stderr);
        assert!(!home.path("people.toml").exists());
    }
    done(&home, &["add", "ada"]);
    let before = text(&home);
    for (arguments, why) in [
        (&["add", "ada"][..], "baton people rotate ada"),
        (&["remove", "ada", "bob"], "bob is not in"),
        (&["rotate", "bob"], "bob is not in"),
        (&["import", "none.csv"], "none.csv"),
    ] {
        let said = people(&home, arguments);
        assert_eq!(said.status.code(), Some(1), "{arguments:?}");
        assert!(said.stderr.contains(why), "{arguments:?}: {}", said.stderr);
        assert_eq!(text(&home), before);
    }
}

#[test]
fn a_roster_is_imported_as_often_as_it_grows() {
    let home = Home::new();
    done(&home, &["add", "tia", "--staff-of", "ml101"]);
    home.write(
        "roster.csv",
        "email,name,course,role\n\
         a@x,\"Lovelace, Ada\",ml101,\n\
         a@x,\"Lovelace, Ada\",vision, Staff\n\
         b@x,bob,,student\n\
         t@x,tia,vision,\n",
    );
    let import = [
        "import",
        "roster.csv",
        "--course",
        "thesis",
        "--expires",
        "200d",
    ];
    let said = done(&home, &import);
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{}", said.stdout);
    assert_eq!(lines[0], "name,token");
    assert!(
        lines[1].starts_with("\"Lovelace, Ada\","),
        "{}",
        said.stdout
    );
    assert!(
        said.stderr
            .contains("Added 2 people, and changed the course or role of 1"),
        "{}",
        said.stderr
    );
    let listed = done(&home, &["list"]).stdout;
    assert!(
        listed.contains("student of ml101, staff of vision"),
        "{listed}"
    );
    assert!(listed.contains("student of thesis"), "{listed}");
    assert!(
        listed.contains("staff of ml101, student of vision"),
        "{listed}"
    );
    let before = text(&home);
    assert_eq!(before.matches("expires").count(), 2);
    home.write("one.csv", "name\nivy\n");
    let said = done(&home, &["import", "one.csv"]);
    assert!(
        said.stderr.contains("Added 1 person, and"),
        "{}",
        said.stderr
    );
    done(&home, &["remove", "ivy"]);
    assert_eq!(text(&home).trim(), before.trim());
    let before = text(&home);
    let again = done(&home, &import);
    assert_eq!(again.stdout, "");
    assert_eq!(text(&home), before);
    for (roster, why) in [
        ("person\nada\n", "no column `name`"),
        (
            "name,course,role\nada,ml,boss\n",
            "Line 2 is not valid\n  because: The role must be student or staff, not boss",
        ),
        ("name,course\nada,ml\n,ml\n", "Line 3"),
        ("name,course\n\"a\nda\",ml\n", "Line 2"),
        ("Name,course\nada,ml\n", "`Name` must be called `name`"),
        (
            "name,courses\nada,ml\n",
            "`courses` must be called `course`",
        ),
        ("name,Role\nada,staff\n", "`Role` must be called `role`"),
        (
            "name,course,course\nada,ml,ml\n",
            "the column `course` 2 times",
        ),
        ("name,email\nada,a@x\n", "Line 2 has no course"),
        ("name,course\nada,ml\nbob,\n", "Line 3 has no course"),
        (
            "name,course,role\nada,ml,staff\nbob,ml,\nada,vision,\nada,ml,student\n",
            "Lines 2 and 5 give ada different roles in ml",
        ),
        (
            "name\n\"ada\nbob\"\n",
            "Line 2 is not valid\n  because: a name is one line",
        ),
    ] {
        home.write("roster.csv", roster);
        let said = people(&home, &["import", "roster.csv"]);
        assert!(said.stderr.contains(why), "{roster:?}: {}", said.stderr);
        assert_eq!(text(&home), before);
    }
}

#[test]
fn a_running_broker_follows_and_still_owns_the_file() {
    let home = Home::new();
    let old = done(&home, &["add", "ada"]).stdout;
    if nix::unistd::Uid::effective().is_root() {
        chown(home.path("people.toml"), Some(65534), None).unwrap();
    }
    let owner = fs::metadata(home.path("people.toml")).unwrap().uid();
    let listen = [
        "broker",
        "--listen",
        "127.0.0.1:0",
        "--people-file",
        "people.toml",
    ];
    let mut broker = home.start(&listen);
    let address = broker.line("The broker listens on ");
    let accepted = |token: &str| {
        home.write("token", token);
        let said = home.run(&["jobs", "--broker", &address, "--token-file", "token"]);
        said.status.success()
    };
    assert!(accepted(&old));
    let new = done(&home, &["rotate", "ada"]).stdout;
    // The broker reads a changed file a moment later.
    wait_until("the old token is refused", || {
        (!accepted(&old)).then_some(())
    });
    assert!(accepted(&new));
    done(&home, &["remove", "ada"]);
    wait_until("the removed token is refused", || {
        (!accepted(&new)).then_some(())
    });
    assert_eq!(fs::metadata(home.path("people.toml")).unwrap().uid(), owner);
    broker.signal(Signal::SIGTERM);
    assert!(broker.ended().success());
}
