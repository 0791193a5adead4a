//! What `baton config show` prints.

use super::{
    ProcessEnvironment, Setting, Settings, SettingsError, TABLE,
    sources::{Origin, Sources},
};
use std::collections::BTreeMap;

/// One line of `baton config show`.
pub(crate) struct Shown {
    pub(crate) key: &'static str,
    pub(crate) value: String,
    pub(crate) origin: Origin,
}

/// All settings with their values in effect and where these came from. Invalid values are errors here, too.
pub(crate) fn show(process: &ProcessEnvironment) -> Result<Vec<Shown>, SettingsError> {
    let sources = Sources::gather(process, BTreeMap::new(), TABLE)?;
    Settings::from_sources(&sources)?;
    let shown = |setting: &&Setting| {
        let (text, origin) = sources.text(setting);
        let value = match text.as_str() {
            "" => format!("({})", setting.default.described()),
            _ if setting.secret => "hidden".to_owned(),
            _ => without_password(text),
        };
        let key = setting.key;
        Shown { key, value, origin }
    };
    Ok(TABLE.iter().map(shown).collect())
}

/// For an address such as `postgres://USER:PASSWORD@HOST/DATABASE`.
fn without_password(text: String) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text;
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    match authority
        .rsplit_once('@')
        .map(|(user, host)| (user.split_once(':'), host))
    {
        Some((Some((user, _)), host)) => format!("{scheme}://{user}:hidden@{host}{path}"),
        _ => text,
    }
}
