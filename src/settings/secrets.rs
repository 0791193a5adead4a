//! Tokens, which are in a setting or in a file of their own.

use super::{Settings, SettingsError};
use baton_transport::Token;
use std::{fmt::Display, os::unix::fs::PermissionsExt, path::Path};

/// The secret itself, from the environment or from its file.
pub(crate) fn token_text(settings: &Settings) -> Result<Option<String>, SettingsError> {
    let file = settings.token_file.as_deref();
    secret(settings.token.as_deref(), file, "BATON_TOKEN")
}

/// The broker's token for the API of JupyterHub.
pub(crate) fn hub_service_token(settings: &Settings) -> Result<Option<String>, SettingsError> {
    let file = settings.broker_hub_token_file.as_deref();
    let text = settings.broker_hub_token.as_deref();
    secret(text, file, "BATON_BROKER_HUB_TOKEN")
}

/// A token that gives access only to the broker's metrics.
pub(crate) fn monitor_token(settings: &Settings) -> Result<Option<String>, SettingsError> {
    let file = settings.broker_monitor_token_file.as_deref();
    let text = settings.broker_monitor_token.as_deref();
    secret(text, file, "BATON_BROKER_MONITOR_TOKEN")
}

/// The token with which a notebook connects to the broker.
pub(crate) fn notebook_token(settings: &Settings) -> Result<Option<Token>, SettingsError> {
    match own_token(settings)?.or_else(|| hub_token(settings)) {
        None => login_token(settings),
        token => Ok(token),
    }
}

/// The token with which a command connects to the broker. A person who has logged in in a terminal of JupyterLab wants
/// to use that token, which may permit more than the Hub's.
pub(crate) fn command_token(settings: &Settings) -> Result<Option<Token>, SettingsError> {
    let token = match own_token(settings)? {
        None => login_token(settings)?,
        token => token,
    };
    Ok(token.or_else(|| hub_token(settings)))
}

fn own_token(settings: &Settings) -> Result<Option<Token>, SettingsError> {
    Ok(token_text(settings)?.as_deref().map(Token::new))
}

fn hub_token(settings: &Settings) -> Option<Token> {
    settings.broker_address.as_ref()?;
    settings.hub_token.as_deref().map(Token::of_notebook_server)
}

/// The token of `baton login`.
fn login_token(settings: &Settings) -> Result<Option<Token>, SettingsError> {
    if settings.broker_address.is_none() {
        return Ok(None);
    }
    let token = private_token(&settings.login_token_file)?;
    Ok(token.as_deref().map(Token::new))
}

/// The token in a file that other users must not be able to read; `None` if there is no token.
pub(crate) fn private_token(path: &Path) -> Result<Option<String>, SettingsError> {
    let Ok(metadata) = std::fs::metadata(path) else {
        return Ok(None);
    };
    let token = read_token(path)?;
    if token.is_some() && metadata.permissions().mode() & 0o077 != 0 {
        let path = path.to_owned();
        return Err(SettingsError::OpenTokenFile { path });
    }
    Ok(token)
}

/// `variable`: where the text is from.
fn secret(
    text: Option<&str>,
    file: Option<&Path>,
    variable: &str,
) -> Result<Option<String>, SettingsError> {
    if let Some(text) = text {
        return Ok(Some(check_token(text, variable)?.to_owned()));
    }
    let Some(path) = file else {
        return Ok(None);
    };
    let empty = || SettingsError::EmptyTokenFile {
        path: path.to_owned(),
    };
    read_token(path)?.ok_or_else(empty).map(Some)
}

fn read_token(path: &Path) -> Result<Option<String>, SettingsError> {
    let text = std::fs::read_to_string(path).map_err(|source| SettingsError::TokenFile {
        path: path.to_owned(),
        source,
    })?;
    let token = check_token(&text, path.display())?;
    Ok((!token.is_empty()).then(|| token.to_owned()))
}

/// The token without surrounding white space. The header of a request allows no other characters.
pub(crate) fn check_token(text: &str, place: impl Display) -> Result<&str, SettingsError> {
    let token = text.trim();
    let fits = |one: char| one == ' ' || one.is_ascii_graphic();
    match token.chars().all(fits) {
        true => Ok(token),
        false => Err(SettingsError::Token {
            place: place.to_string(),
        }),
    }
}
