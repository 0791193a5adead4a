//! Where symbolic links lead, judged by their text.
//!
//! **Invariant:** pure.

use baton_protocol::files::RelativePath;
use std::{
    ffi::OsStr,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Component, Path, PathBuf},
};

/// The link's target as a relative path from the link's own folder; `None` if it is outside `root`.
pub(crate) fn inside(root: &Path, link: &RelativePath, target: &Path) -> Option<Vec<u8>> {
    let folder = link.as_path().parent().unwrap_or(Path::new(""));
    if target.is_absolute() {
        let below = target.strip_prefix(root).ok()?;
        let ups = folder.components().map(|_| Component::ParentDir);
        let relative: PathBuf = ups.chain(below.components()).collect();
        resolve(folder, &relative)?;
        let bytes = relative.into_os_string().into_vec();
        return Some(if bytes.is_empty() {
            b".".to_vec()
        } else {
            bytes
        });
    }
    resolve(folder, target)?;
    Some(target.as_os_str().as_bytes().to_vec())
}

/// Whether a link with this text, at this place, stays inside, whatever the names in it link to. It
/// may only go up before it goes down: `..` after a name starts from the target of that name if it
/// is a link. The caller checks that the link's folder is not a link itself. From there, such links
/// only lead down to files and to links of the same kind.
pub(crate) fn stays_inside(link: &RelativePath, target: &[u8]) -> bool {
    let depth = link.as_path().components().count() - 1;
    let target = Path::new(OsStr::from_bytes(target));
    let is_up = |component: &Component| *component == Component::ParentDir;
    let steps = target
        .components()
        .filter(|step| *step != Component::CurDir);
    let ups = steps.clone().take_while(is_up).count();
    !target.is_absolute() && ups <= depth && !steps.skip(ups).any(|step| is_up(&step))
}

fn resolve(folder: &Path, target: &Path) -> Option<PathBuf> {
    let mut place = folder.to_owned();
    for component in target.components() {
        match component {
            Component::Normal(name) => place.push(name),
            Component::CurDir => {}
            Component::ParentDir if place.pop() => {}
            _ => return None,
        }
    }
    Some(place)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn links_are_kept_inside() {
        let check = |link: &str, target: &str, expected: Option<&str>| {
            let link = RelativePath::new(link).unwrap();
            let found = inside(Path::new("/home/ada/course"), &link, Path::new(target));
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{target}");
            if let Some(found) = found {
                assert!(stays_inside(&link, &found));
            }
        };
        check("a", "b/c", Some("b/c"));
        check("a", "../b", None);
        check("x/y/a", "../../b", Some("../../b"));
        check("x/y/a", "../../../b", None);
        check("x/a", "/home/ada/course/data", Some("../data"));
        check("a", "/home/ada/course", Some("."));
        check("a", "/home/ada/course/../secret", None);
        check("a", "/etc/passwd", None);
    }

    #[test]
    fn what_a_cell_links_goes_up_before_it_goes_down() {
        let check = |link: &str, target: &str, expected: bool| {
            let link = RelativePath::new(link).unwrap();
            assert_eq!(stays_inside(&link, target.as_bytes()), expected, "{target}");
        };
        check("a", "b/c", true);
        check("a", ".", true);
        check("x/y/a", "../../b", true);
        check("x/y/a", "./../.././b", true);
        check("a", "/etc/passwd", false);
        check("a", "./../b", false);
        check("x/y/a", "../../../b", false);
        // If `d` is a link to `.`, this is beside the notebook's folder.
        check("a", "d/../outside", false);
        check("x/a", "../d/../../outside", false);
    }
}
