//! The limits of a job, in the same syntax as for a cell (`baton_shim.notebook.options`).
//!
//! The text goes to the cell as it is. It is checked here so that a wrong one is refused before
//! anything is submitted.

const LONGEST_MS: f64 = 365.0 * 24.0 * 3_600_000.0;

/// A duration such as `90s`, `1.5h` or `1h30m`.
///
/// # Errors
/// If it is none; the message says what is expected.
pub(super) fn time(text: &str) -> Result<String, &'static str> {
    let total = milliseconds(text).filter(|total| (1.0..=LONGEST_MS).contains(&total.round()));
    let checked = total.map(|_| text.to_owned());
    checked.ok_or("that is not a duration\nhint: write it as 90s, 5m or 1h30m")
}

/// A size such as `8G` or `500M`.
///
/// # Errors
/// If it is none; the message says what is expected.
pub(super) fn memory(text: &str) -> Result<String, &'static str> {
    let total = bytes(text).filter(|total| (1.0..2_f64.powi(63)).contains(&total.round()));
    let checked = total.map(|_| text.to_owned());
    checked.ok_or("that is not a size\nhint: write it as 8G or 500M")
}

fn milliseconds(text: &str) -> Option<f64> {
    let (mut total, mut rest) = (0.0, text);
    while !rest.is_empty() {
        let (number, unit, after) = split_first(rest)?;
        let unit = match unit {
            "ms" => 1.0,
            "s" => 1000.0,
            "m" | "min" => 60_000.0,
            "h" => 3_600_000.0,
            _ => return None,
        };
        total += number * unit;
        rest = after;
    }
    Some(total)
}

fn bytes(text: &str) -> Option<f64> {
    let (number, unit, after) = split_first(text)?;
    let power = match unit.to_ascii_uppercase().as_str() {
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return None,
    };
    after.is_empty().then(|| number * 2_f64.powi(power))
}

/// Splits `1.5h30m` into 1.5, `h` and `30m`.
fn split_first(text: &str) -> Option<(f64, &str, &str)> {
    let (number, rest) = text.split_at(text.find(|letter: char| letter.is_ascii_alphabetic())?);
    let end = rest.find(|letter: char| !letter.is_ascii_alphabetic());
    let (unit, rest) = rest.split_at(end.unwrap_or(rest.len()));
    let is_digit = |letter: char| letter.is_ascii_digit();
    let is_number = number.starts_with(is_digit) && number.ends_with(is_digit);
    Some((number.parse().ok().filter(|_| is_number)?, unit, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_that_a_cell_accepts() {
        for text in ["90s", "5m", "5min", "1h30m", "1.5h", "500ms", "8760h"] {
            assert_eq!(time(text).as_deref(), Ok(text));
        }
        for text in [
            "", "0s", "5", "soon", "-1h", "1.h", ".5h", "1h 30m", "1h30", "1d", "8761h",
        ] {
            assert!(time(text).is_err(), "{text:?}");
        }
        for text in ["8G", "8g", "500MB", "1.5GiB", "1k"] {
            assert_eq!(memory(text).as_deref(), Ok(text));
        }
        for text in [
            "",
            "0G",
            "8",
            "banana",
            "-1G",
            "8 G",
            "8GG",
            "8G8G",
            "9999999999T",
            "8B",
        ] {
            assert!(memory(text).is_err(), "{text:?}");
        }
    }
}
