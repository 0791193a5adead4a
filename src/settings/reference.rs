//! The reference page for people, generated from the table.

use super::{Setting, TABLE};
use std::fmt::Write;

const HEAD: &str = "\
# Configuration

<!-- Made of the table in src/settings.rs by `baton config reference`; do not edit. -->

Baton works without configuration.
Settings are read in this order: flag, environment, configuration file, default.

A user's configuration file is `$XDG_CONFIG_HOME/baton/config.toml` (`~/.config/baton/config.toml`), a machine's is `/etc/baton/config.toml`.
A key in the user's file overrides the same key in the machine's.
If `BATON_CONFIG` names a file, only that file is read.
An unknown key is an error.
`baton config show` prints every value in effect and its origin, and `baton config check FILE` checks a file.

A key with a dot belongs to a section: `worker.slots` is `slots` below `[worker]`.
Durations are written as `500ms`, `30s`, `10m`, `2h`, sizes as `500MB`, `64GiB`.
";

const TAIL: &str = "\
## Other environment variables

| variable | meaning |
| --- | --- |
| `BATON_CONFIG` | The only configuration file that is read. |
| `BATON_LOG` | What is logged to stderr, for example `info` or `baton_broker=debug`. |
| `BATON_DISABLE` | With `1` the kernel \"Python (shared GPU)\" is the plain Python kernel. |
| `BATON_BINARY` | The program `baton` that the kernel starts, if it is not beside Python. |
";

pub(crate) fn reference() -> String {
    let mut page = HEAD.to_owned();
    let mut section = String::new();
    for setting in TABLE {
        let own = section_of(setting.key);
        if section != own {
            let _ = write!(page, "\n## {own}\n");
            section = own;
        }
        write_setting(&mut page, setting);
    }
    page.push('\n');
    page.push_str(TAIL);
    page
}

/// The section of the configuration file, as a heading. Two settings are sections themselves.
fn section_of(key: &str) -> String {
    match key.split_once('.') {
        Some((section, _)) => format!("`[{section}]`"),
        None if key == "pool" => "`[[pool]]`".to_owned(),
        None if key == "environment" => "`[environment.NAME]`".to_owned(),
        None => "General".to_owned(),
    }
}

fn write_setting(page: &mut String, setting: &Setting) {
    let default = match setting.default {
        super::Text(text) => format!("`{text}`"),
        _ => setting.default.described().to_owned(),
    };
    let _ = write!(
        page,
        "\n### `{key}`\n\n{help}\n\n* Value: {expected}.\n* Default: {default}.\n* Environment: `{variable}`.\n",
        key = setting.key,
        help = setting.help,
        expected = setting.expected,
        variable = setting.variable(),
    );
    if let Some(flag) = setting.flag {
        let commands: Vec<String> = setting
            .commands
            .iter()
            .map(|command| format!("`baton {command}`"))
            .collect();
        let _ = writeln!(page, "* Flag: `--{flag}` of {}.", commands.join(", "));
    }
}
