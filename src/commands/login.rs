//! `baton login`: checks a person's token and stores it, with the address of the broker.

use super::ask::run;
use crate::{
    service::replace_private,
    settings::{
        CONFIGURATION_VARIABLE, ProcessEnvironment, Settings, Value, secrets::check_token, show,
    },
};
use anyhow::Context;
use baton_protocol::{
    address::BrokerAddress,
    api::{Course, Page},
};
use baton_transport::{Api, Dial, LinkError, Token};
use clap::Args;
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    process::ExitCode,
};
use toml_edit::{DocumentMut, value};

/// Store your token for the broker of a course, after asking for it and checking it
#[derive(Args)]
pub(crate) struct Login {
    /// The address of the broker, such as https://gpu.example.org:8470
    #[arg(value_parser = BrokerAddress::from_text)]
    address: BrokerAddress,
}

pub(crate) fn main(
    process: &ProcessEnvironment,
    settings: &Settings,
    Login { address }: &Login,
) -> anyhow::Result<ExitCode> {
    let text = read_token()?;
    let text = check_token(&text, "your input")?;
    anyhow::ensure!(!text.is_empty(), "No token was given");
    run(async {
        let dial = Dial {
            address: address.clone(),
            token: Some(Token::new(text)),
            ca_file: settings.ca_file.clone(),
        };
        let courses = Api::new(&dial)?.ask("/v1/courses", &[]).await;
        let courses: Page<Course> = courses.map_err(about_input)?;
        let token_file = &settings.login_token_file;
        store(token_file, text)?;
        let configuration = match process.variable(CONFIGURATION_VARIABLE) {
            Some(file) => PathBuf::from(file),
            None => process.user_configuration(),
        };
        store(&configuration, &with_address(&configuration, address)?)?;
        let names: Vec<&str> = courses
            .items
            .iter()
            .map(|course| course.course.as_str())
            .collect();
        let courses = match names.as_slice() {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        Ok(format!(
            "The broker accepts the token. Your courses: {courses}\n\
             Stored the token in {} and the address in {}\n\
             {}\
             Restart the kernels of open notebooks\n",
            token_file.display(),
            configuration.display(),
            precedence(process, address)?
        ))
    })
}

/// The hints for tokens are about stored ones, and this one was typed.
fn about_input(error: LinkError) -> anyhow::Error {
    match error {
        LinkError::Unauthorized { address, problem } => anyhow::anyhow!(
            "The broker at {address} {problem}\n\
             hint: enter the whole token that your course staff gave you; `baton people rotate NAME` makes a new one"
        ),
        error => error.into(),
    }
}

/// Names the settings that take precedence over what was stored.
fn precedence(process: &ProcessEnvironment, address: &BrokerAddress) -> anyhow::Result<String> {
    let settings = Settings::read(process, BTreeMap::new())?;
    let shown = show(process)?;
    let mut lines = String::new();
    let mut warn = |key: &str, used: &str| {
        let origin = shown.iter().find(|shown| shown.key == key);
        if let Some(origin) = origin.map(|shown| &shown.origin) {
            lines += &format!("Warning: {used}, because {key} is set in {origin}\n");
        }
    };
    if settings.broker_address.as_ref() != Some(address) {
        warn("broker_address", "another broker is still used");
    }
    if settings.token.is_some() {
        warn("token", "another token is still used");
    } else if settings.token_file.is_some() {
        warn("token_file", "another token is still used");
    } else if settings.hub_token.is_some() {
        lines += "Notebooks still use the token of JupyterHub; commands use this one\n";
    }
    Ok(lines)
}

/// The configuration file with this address; everything else stays as it is.
fn with_address(file: &Path, address: &BrokerAddress) -> anyhow::Result<String> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text.with_context(|| format!("Failed to read {}", file.display()))?,
    };
    let document = text.parse::<DocumentMut>();
    let mut document = document.with_context(|| format!("{} is not TOML", file.display()))?;
    document["broker_address"] = value(address.to_string());
    Ok(document.to_string())
}

/// Writes a file that only this user can read.
fn store(file: &Path, text: &str) -> anyhow::Result<()> {
    let write = || {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        // A link stays one, for example into a folder of such files.
        let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
        replace_private(&file, text.trim_end())
    };
    write().with_context(|| format!("Failed to write {}", file.display()))
}

/// Reads the token without showing it.
fn read_token() -> anyhow::Result<String> {
    let mut text = String::new();
    if !io::stdin().is_terminal() {
        io::stdin().read_line(&mut text)?;
        return Ok(text);
    }
    err!("Token: ");
    let shown = tcgetattr(io::stdin()).context("Failed to hide the token")?;
    let mut hidden: Termios = shown.clone();
    hidden.local_flags.remove(LocalFlags::ECHO);
    tcsetattr(io::stdin(), SetArg::TCSAFLUSH, &hidden).context("Failed to hide the token")?;
    let read = io::stdin().read_line(&mut text);
    tcsetattr(io::stdin(), SetArg::TCSAFLUSH, &shown)?;
    errln!();
    read.context("Failed to read the token")?;
    Ok(text)
}
